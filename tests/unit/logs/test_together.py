"""Logs and traces in one summary: what is known of which, side by side, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parse.alarms.table import judge
from parse.report.summary import Summary, labels, requested_values, shared, varying
from parse.report.table import FORMATS, text
from parse.runs.load import load
from parse.runs.result import results
from parse.summarize import main
from tests.unit.logs import made
from tests.unit.traces import make_run, make_trace, put, repeats

CASES = {"1n1g": 1, "1n8g": 8}


def summary(*paths: Path) -> Summary:
    loaded = load(paths)
    return Summary(results=judge(results(loaded)), remarks=loaded.remarks, refusals=loaded.refusals)


def ngc(root, speed=350.0, precision="fp32"):
    """NVIDIA's logs, two runs of each case; data and world size are in their headers."""
    for case, count in CASES.items():
        for run in (1, 2):
            made.put(
                root, f"{case}/r50_b128_{precision}_{run}.log",
                made.ngc_pytorch(made.steps(speed * count + run, 128 * count), batch=128, devices=count,
                                 amp=precision == "amp"),
            )  # fmt: skip
    return root


def paddle(root, speed=340.0, name="{case}/r50_b128_fp32_{run}.log"):
    """Paddle's, of which only names tell anything."""
    for case, count in CASES.items():
        for run in (1, 2):
            text_of = made.paddle(made.steps(speed * count + run, 128 * count), batch=128 * count)
            made.put(root, name.format(case=case, run=run, count=count), text_of)
    return root


def plsc(root):
    for case, count in CASES.items():
        text_of = made.plsc(made.steps(300 * count, 128 * count, 161), batch=128 * count, trainers=count)
        made.put(root, f"{case}/r50_b128_fp32_1.log", text_of)
    return root


def traces(root, **changes):
    """Ours: resnet50, batch size 128, fp32, on GPUs."""
    root.mkdir(parents=True, exist_ok=True)
    for count in CASES.values():
        fields = {
            "backend": "torch-ddp", "workload": "resnet50", "batch_size": 128, "ranks_per_node": count,
            "gpus_per_node": count, "warmup_steps": 20, "measured_steps": 100,
        }  # fmt: skip
        for run in repeats(make_run(**(fields | changes)), 2):
            put(root, make_trace(run, speed=360.0 * count))
    return root


# One table


def test_unknown_fields_are_not_shown(tmp_path):
    logs = summary(paddle(tmp_path, name="GPUx{count}_{run}.log"))
    eight = next(result for result in logs.results if result.run.devices == 8)
    requested = requested_values(eight)
    assert (requested["case"], requested["devices"]) == ("8g", "8")
    assert not {"nodes", "batch_size", "precision", "scaling", "seed", "site", "data", "timing"} & set(requested)
    assert eight.speedup is None or eight.speedup > 0
    written = text(logs)
    row = next(line for line in written.splitlines() if line.startswith("8g")).split()
    assert row[:3] == ["8g", "-", "8"]


def test_fields_known_of_some_points_do_not_vary(tmp_path):
    logs = summary(ngc(tmp_path / "ngc"), traces(tmp_path / "traces"))
    assert not {"seed", "site", "scaling"} & set(varying(logs.results))
    assert shared(logs.results)["seed"] == "0"
    assert "\nknown of torch-ddp only: scaling weak, cpus_per_rank 1, seed 0, site here\n" in text(logs)


def test_both_speeds_of_logs_stand_beside_the_median(tmp_path):
    made.put(tmp_path, "1n1g/r50_b128_fp32_1.log", made.paddle(made.steps(340, 128), batch=128))
    lines = text(summary(tmp_path)).splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("case"))
    assert "  median  wall clock    printed    average" in lines[head]
    assert lines[head + 2].count("340.00") == 4
    assert "wall clock" not in text(summary(traces(tmp_path / "traces")))


def test_labels_leave_out_what_the_system_implies(tmp_path):
    logs = summary(ngc(tmp_path / "ngc"), plsc(tmp_path / "plsc"))
    assert {"workload", "warmup_steps"} <= set(varying(logs.results))
    assert "1n8g backend=plsc" in labels(logs.results)
    assert len(set(labels(logs.results))) == len(logs.results)


# Formats


def test_json_has_of_each_run_where_its_numbers_come_from(tmp_path):
    page = json.loads(FORMATS["json"](summary(ngc(tmp_path))))
    single, eight = page["results"]
    run = eight["runs"][0]
    assert run["log"] == str(tmp_path / "1n8g" / "r50_b128_fp32_1.log")
    assert (run["family"], run["window"]) == ("ngc-pytorch", "steps 20 to 120 of epoch 0")
    assert run["wall_clock"] == run["throughput"] == pytest.approx(2801, abs=0.01)
    assert run["printed"] == pytest.approx(2801, abs=0.01)
    assert (run["problem"], run["remarks"], run["trace"]) == ("", [], None)
    assert (eight["scaling"], eight["ranks_per_node"], eight["nodes"]) == (None, None, 1)
    assert eight["wall_clock"] == eight["median_speed"] and single["speedup"] == 1


# Command line


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_window_options(tmp_path, capsys):
    ngc(tmp_path)
    _, out, _ = run(capsys, tmp_path, "--format", "json", "--warmup", 10, "--steps", 60)
    assert json.loads(out)["results"][0]["runs"][0]["window"] == "steps 10 to 60 of epoch 0"
    _, out, _ = run(capsys, tmp_path, "--format", "json", "--window", "all")
    assert json.loads(out)["results"][0]["runs"][0]["window"] == "steps 1 to 130 of epoch 0"
    assert json.loads(out)["results"][0]["requested"]["window"] == "all"


def test_case_and_batch_size_options(tmp_path, capsys):
    path = made.put(tmp_path, "a.log", made.paddle(made.steps(5600, 16 * 128), batch=16 * 128))
    status, out, _ = run(capsys, path, "--verbose")
    assert status == 0 and "--case 2n8g" in out
    _, out, _ = run(capsys, path, "--case", "2n8g", "--batch-size", "128", "--format", "json")
    (point,) = json.loads(out)["results"]
    assert (point["case"], point["batch_size_per_device"]) == ("2n8g", 128)
    assert point["median_speed"] == pytest.approx(5600, rel=1e-3)


def test_explain_needs_no_path_and_fails_for_other_files(tmp_path, capsys):
    path = next(ngc(tmp_path).rglob("*.log"))
    status, out, _ = run(capsys, "--explain", path)
    assert status == 0 and out.startswith(str(path))
    status, out, err = run(capsys, "--explain", tmp_path / "no.log")
    assert (status, out) == (1, "") and err.startswith(f"{tmp_path / 'no.log'}: ") and err.count("\n") == 1
