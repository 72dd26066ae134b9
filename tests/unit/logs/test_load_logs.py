"""parse.runs.load and parse.runs.load_logs: which files are logs, which run each is, which are one run twice."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from parse.logs.line_pattern import LinePattern
from parse.logs.path_facts import case_of
from parse.logs.window import Protocol
from parse.runs.load import load
from parse.runs.load_logs import HowToRead
from parse.runs.log_training import WHOLE_TRAINING
from parse.runs.result import NoSpeedup, results
from parse.summarize import main
from tests.unit.logs import made
from tests.unit.traces import make_trace, put, put_plan, repeats


def log(root: Path, name: str, speed: float = 350.0, devices: int = 1, count: int = 130) -> Path:
    """A log of NVIDIA's PyTorch ResNet-50, batch size 128, fp32."""
    text = made.ngc_pytorch(made.steps(speed, 128 * devices, count), batch=128, devices=devices)
    return made.put(root, name, text)


def outcomes(loaded) -> list[tuple[str, int, float | None]]:
    """Case, repeat and speed of every attempt."""
    return [
        (attempt.requested.case, attempt.requested.run.repeat, attempt.measured and round(attempt.measured.throughput))
        for attempt in loaded.attempts
    ]


def messages(loaded) -> str:
    return "\n".join([*loaded.remarks, *loaded.refusals])


# Which files


NAMES = [
    "a.log", "a.txt", "a.out", "A.LOG", "a.log.gz", "a.txt.gz", "a.out.gz", "oneflow", "workerlog.0", "a.log.1",
    "stdout", "train.err", "train.o123", "train_log", "slurm-123.out", "sizes_unknown.out", "x.json", "a\nb.log",
    "log.gz", "train.2021-03-04",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_log_in_a_folder_may_have_any_name_and_is_opened_once(tmp_path, monkeypatch, name):
    """Whether it is text, a test of nccl-tests, which format it has, its numbers: all in one open file."""
    path = log(tmp_path, f"1n1g/{name}", count=2000)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    opens: list[Path] = []
    really_open = os.open

    def counted(which, *args, **keywords):
        opens.append(Path(which))
        return really_open(which, *args, **keywords)

    monkeypatch.setattr(os, "open", counted)
    for paths, kind in (([tmp_path], "auto"), ([tmp_path], "logs"), ([path], "auto")):
        opens.clear()
        loaded = load(paths, kind=kind)
        assert outcomes(loaded) == [("1n1g", 1, 350)]
        assert (loaded.refusals, loaded.remarks) == ((), ())
        assert opens.count(path) == 1 or path in paths or name == "x.json"


@pytest.mark.parametrize("name", [".hidden.log", ".git/objects/stdout"])
def test_hidden_files_are_read_where_they_are_named(tmp_path, name):
    path = log(tmp_path, f"1n1g/{name}")
    assert load([tmp_path]) == load([])
    assert [round(attempt.measured.throughput) for attempt in load([path]).attempts] == [350]


def test_kinds(tmp_path):
    path, trace = log(tmp_path, "1n1g/r50_b128_fp32_1.log"), put(tmp_path, make_trace())
    assert len(load([tmp_path]).attempts) == 2
    assert [attempt.log is None for attempt in load([tmp_path], kind="traces").attempts] == [True]
    assert [attempt.log is None for attempt in load([tmp_path], kind="logs").attempts] == [False]
    (refusal,) = load([trace], kind="logs").refusals
    assert refusal.startswith(f"{trace}: ")
    (refusal,) = load([path], kind="traces").refusals
    assert "not an HDF5 file" in refusal


def test_a_trace_without_its_suffix_is_still_one(tmp_path):
    path = put(tmp_path, make_trace()).rename(tmp_path / "trace")
    assert load([path]).attempts[0].log is None


def test_unreadable_logs_are_listed_and_other_files_counted(tmp_path):
    for name in ("b.log", "a.log", "1.out", "2.out", "x.txt", "y.txt.gz"):
        (tmp_path / name).write_text("hello\n")
    loaded = load([tmp_path])
    assert [line.partition(":")[0] for line in loaded.refusals] == [str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    assert loaded.remarks == ("4 files are no logs of a known system: list them with --verbose",)
    (tmp_path / "no suffix").write_bytes(bytes(64))
    assert load([tmp_path]).remarks == ("5 files are no logs of a known system: list them with --verbose",)
    assert load([tmp_path], verbose=True).remarks == (
        f"{tmp_path / '1.out'}: no step line of a known system is in it",
        f"{tmp_path / '2.out'}: no step line of a known system is in it",
        f"{tmp_path / 'no suffix'}: not a log (it is binary)",
        f"{tmp_path / 'x.txt'}: no step line of a known system is in it",
        f"{tmp_path / 'y.txt.gz'}: no step line of a known system is in it",
    )
    assert len(load([tmp_path], kind="logs").refusals) == 6
    (refusal,) = load([tmp_path / "x.txt"]).refusals
    assert refusal.startswith(f"{tmp_path / 'x.txt'}: ")


def test_files_of_a_sweeps_own_jobs_are_not_counted(tmp_path):
    jobs = tmp_path / "jobs"
    for name in ("1n.sh", "plan.0123456789.json", "logs/1n.local.out", "logs/x_r1.1.err", "logs/x_r1.1.out",
                 "runs/x_r1.json"):  # fmt: skip
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).write_text("{}\n")
    text = f"{jobs}: jobs of a sweep, whose measurements are in {tmp_path / 'traces'}"
    assert text in load([jobs]).remarks and not any("no log" in line for line in load([jobs]).remarks)
    (tmp_path / "traces").mkdir()
    put(tmp_path / "traces", make_trace())
    for verbose in (False, True):
        assert not any(
            "no log" in line or "jobs of a sweep" in line for line in load([tmp_path], verbose=verbose).remarks
        )
    (tmp_path / "notes.txt").write_text("hello\n")
    assert "1 file is no log of a known system: list it with --verbose" in load([tmp_path]).remarks


def test_json_that_is_no_log_is_counted(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    loaded = load([tmp_path])
    assert loaded == dataclasses.replace(load([]), remarks=loaded.remarks)
    assert loaded.remarks == ("1 file is no log of a known system: list it with --verbose",)


def test_files_of_a_sweep_are_not_counted(tmp_path):
    names = """x.1.checkpoint x.1.signal x.1.kept x.1.rerun x.1.stacks.txt x.1.hang.json x.1.exit.json.damaged .lock
    x.1.h5.damaged.2 submitted.jsonl scripts/0123456789abcdef.sh x.1.partial/rank0.json x.1.partial/rank0.stamps"""
    for name in names.split():
        made.put(tmp_path, name, "x")
    assert [line for line in load([tmp_path]).remarks if ".partial: " not in line] == []
    assert load([tmp_path], kind="logs").remarks == ()


def test_a_forced_format_makes_no_log_of_another_file(tmp_path):
    log(tmp_path, "1n1g/a.log")
    (tmp_path / "README").write_text("hello\n")
    loaded = load([tmp_path], how=HowToRead(log_format="ngc-pytorch"))
    assert (len(loaded.attempts), len(loaded.remarks)) == (1, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1n1g/workerlog.0", "1n1g/workerlog.1"),
        ("1n1g/slurm-7.err", "1n1g/slurm-7.out"),
        ("1n1g/train.e7", "1n1g/train.o7"),
        ("1n1g/stderr", "1n1g/stdout"),
        ("1n1g/1/rank.0/stdout", "1n1g/1/rank.1/stdout"),
    ],
)
def test_outputs_of_one_run_count_once(tmp_path, first, second):
    paths = [log(tmp_path, name, speed) for name, speed in ((first, 350), (second, 351))]
    loaded = load([tmp_path])
    assert outcomes(loaded) == [("1n1g", 1, 350)]
    assert loaded.remarks == (f"{paths[1]}: another output of the run that {paths[0]} is of; counted once",)
    log(tmp_path, first, count=30)
    assert outcomes(load([tmp_path])) == [("1n1g", 1, 351)]


@pytest.mark.parametrize(
    ("first", "second"), [("a/workerlog.0", "b/workerlog.0"), ("slurm-7.out", "slurm-8.out"), ("a.o7", "a.o8")]
)
def test_outputs_of_two_runs_count_twice(tmp_path, first, second):
    for name, speed in ((first, 350), (second, 351)):
        log(tmp_path, f"1n1g/{name}", speed)
    assert len(load([tmp_path]).attempts) == 2


def test_plans_beside_logs_ask_for_traces_only(tmp_path):
    trace = make_trace()
    put_plan(tmp_path, repeats(trace.run, 1))
    put(tmp_path, trace)
    log(tmp_path, "1n1g/r50_b128_fp32_1.log")
    assert len(load([tmp_path]).requested) == 1
    single = load([tmp_path / "1n1g"])
    assert single.remarks == ()


def test_pipes_and_broken_links_are_refused(tmp_path):
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").symlink_to(tmp_path / "gone")
    (tmp_path / "c.log").symlink_to(tmp_path / "c.log")
    assert load([tmp_path]).refusals == tuple(
        f"{tmp_path / name}: cannot be read (no regular file)" for name in ("a.log", "b.log", "c.log")
    )
    assert load([tmp_path / "a.log"]).refusals == load([tmp_path]).refusals[:1]
    os.mkfifo(tmp_path / "pipe")
    assert load([tmp_path]).remarks == ("1 file is no log of a known system: list it with --verbose",)


def test_a_system_can_be_forced(tmp_path):
    path = log(tmp_path, "1n1g/a.log")
    loaded = load([path], how=HowToRead(log_format="oneflow"))
    assert [attempt.measured for attempt in loaded.attempts] == [None]
    assert loaded.attempts[0].log.log_format == "oneflow"


def test_an_impossible_window_is_refused_with_the_file(tmp_path):
    path = log(tmp_path, "1n1g/a.log")
    (refusal,) = load([path], how=HowToRead(protocol=Protocol(warmup=500))).refusals
    assert refusal.startswith(f"{path}: ") and "500" in refusal


# Which run


def test_packed_jobs_are_set_aside_and_named(tmp_path):
    log(tmp_path, "1n1g/r50_b128_fp32_4.log")
    packed = log(tmp_path, "1n1g/r50_b128_fp32_4_6.log", 90)
    loaded = load([tmp_path])
    assert outcomes(loaded) == [("1n1g", 4, 350)]
    assert [line for line in loaded.remarks if str(packed) in line and "runs 4, 6 of a packed job" in line]


def test_repeats_by_number_and_then_by_name(tmp_path):
    for name, speed in {"r50_b128_fp32_2": 302, "first": 301, "run10": 310, "run9": 309}.items():
        log(tmp_path, f"1n1g/{name}.log", speed)
    assert outcomes(load([tmp_path])) == [("1n1g", 2, 302), ("1n1g", 1, 301), ("1n1g", 3, 309), ("1n1g", 4, 310)]
    unnumbered = [
        attempt.requested.run.repeat for attempt in load([tmp_path]).attempts if not attempt.requested.run.is_numbered
    ]
    assert unnumbered == [1, 3, 4]


def test_names_that_were_understood_in_part_tell_points_apart(tmp_path):
    log(tmp_path, "1n1g/r50_b128_fp32_nfs_1.log")
    log(tmp_path, "1n1g/r50_b128_fp32_1.log", 360)
    points = {attempt.requested.extra.get("name"): attempt.requested.point for attempt in load([tmp_path]).attempts}
    assert set(points) == {None, "nfs"} and len(set(points.values())) == 2


@pytest.mark.parametrize("names", [("x_AMP", "x_FP16"), ("amp/x_1", "fp16/x_1"), ("x_amp", "x")])
def test_half_precision_of_two_names_is_two_points(tmp_path, names):
    for name in names:
        log(tmp_path, f"1n1g/{name}.log", 350 + len(name))
    points = [attempt.requested.point for attempt in load([tmp_path]).attempts]
    assert len(set(points)) == len(points) == 2


@pytest.mark.parametrize("names", [("fp32/x", "tf32/x"), ("bz128/x", "bz64/x"), ("1n1g/x", "1n2g/x")])
def test_logs_whose_names_contradict_each_other_are_no_repeats(tmp_path, names):
    """Whatever the logs themselves say, which is the same: fp32, a batch size of 128, one device."""
    for at, name in enumerate(names):
        log(tmp_path, f"{name}.log", 350 + 50 * at)
    points = [attempt.requested.point for attempt in load([tmp_path]).attempts]
    assert len(set(points)) == len(points) == 2


@pytest.mark.parametrize(
    ("times", "share"), [(["0.1"], 0.5), (["0.100"], 0.005), (["0.1", "0.2", "0.3"], 0), (["100"], 0.005)]
)
def test_times_of_few_digits_leave_the_speed_open(tmp_path, times, share):
    """By half of the last one, where they do not scatter over several."""
    (tmp_path / "x.log").write_text("".join(f"step {at} took {times[at % len(times)]} s\n" for at in range(200)))
    field = "ms" if times == ["100"] else "seconds"
    patterns = (LinePattern(f"step {{step}} took {{{field}:f}}"),)
    otherwise = dataclasses.replace(case_of("1n1g"), batch_size=64)
    (attempt,) = load([tmp_path], how=HowToRead(patterns=patterns, otherwise=otherwise)).attempts
    assert attempt.measured.clock_share == pytest.approx(share)


def test_campaigns_never_mix_and_keep_their_baseline(tmp_path):
    for campaign in ("a", "b"):
        log(tmp_path, f"{campaign}/bz128/1n1g/r50_b128_fp32_1.log", 350 if campaign == "a" else 340)
        log(tmp_path, f"{campaign}/bz128/1n8g/r50_b128_fp32_1.log", 2700, 8)
    requested = [run.requested for run in load([tmp_path]).attempts]
    assert sorted((run.extra["folder"], run.case) for run in requested) == [
        ("a", "1n1g"), ("a", "1n8g"), ("b", "1n1g"), ("b", "1n8g"),
    ]  # fmt: skip
    assert len({run.point for run in requested}) == 4 and len({run.setting for run in requested}) == 2
    single = [run.requested for run in load([tmp_path / "a"]).attempts]
    assert [run.extra for run in single] == [{}, {}] and single[1].setting == single[0].point


def test_one_run_twice_counts_once_where_it_is_the_same(tmp_path):
    first = log(tmp_path, "1n1g/r50_b128_fp32_1.log")
    shutil.copy(first, first.with_suffix(".txt"))
    loaded = load([tmp_path])
    assert outcomes(loaded) == [("1n1g", 1, 350)]
    assert f"{first.with_suffix('.txt')}: the same as {first}, byte for byte; counted once" in loaded.remarks


def test_one_run_twice_counts_not_at_all_where_it_differs(tmp_path):
    first = log(tmp_path, "1n1g/r50_b128_fp32_1.log", 350)
    other = log(tmp_path, "1n1g/r50_b128_fp32_1.txt", 351)
    log(tmp_path, "1n1g/r50_b128_fp32_2.log", 352)
    loaded = load([tmp_path])
    assert outcomes(loaded) == [("1n1g", 1, None), ("1n1g", 2, 352)]
    problem = loaded.attempts[0].problem
    assert str(first) in problem and str(other) in problem and "none of them is counted" in problem


def test_copies_count_once_unless_their_numbers_differ(tmp_path):
    first = log(tmp_path, "1n1g/a.log")
    shutil.copy(first, tmp_path / "1n1g" / "b.log")
    assert outcomes(load([tmp_path])) == [("1n1g", 1, 350)]
    shutil.copy(first, tmp_path / "1n1g" / "r50_b128_fp32_3.log")
    (tmp_path / "1n1g" / "b.log").unlink()
    loaded = load([tmp_path])
    assert sorted(outcomes(loaded)) == [("1n1g", 1, 350), ("1n1g", 3, 350)]
    assert "as another run; both are counted" in messages(loaded)


def test_a_log_that_ends_before_the_window_has_a_number_that_is_marked(tmp_path):
    log(tmp_path, "1n1g/r50_b128_fp32_1.log")
    log(tmp_path, "1n8g/r50_b128_fp32_1.log", 2000, devices=8, count=100)
    log(tmp_path, "2n8g/r50_b128_fp32_1.log", 3000, devices=16, count=60)
    loaded = load([tmp_path])
    whole, *short = loaded.attempts
    assert outcomes(loaded) == [("1n1g", 1, 350), ("1n8g", 1, 2000), ("2n8g", 1, 3000)]
    windows = [each.requested.extra["window"] for each in short]
    assert windows == ["20 → 100, not the protocol's", "20 → 60, not the protocol's"]
    assert short[0].requested.setting == short[1].requested.setting != whole.requested.setting
    assert short[1].log.remarks[0].startswith("its speed is that of steps 20 to 60 of epoch 0, not of the protocol's")


def test_a_log_that_ends_within_the_warm_up_has_no_number(tmp_path):
    log(tmp_path, "1n1g/r50_b128_fp32_1.log", count=20)
    (attempt,) = load([tmp_path]).attempts
    assert attempt.measured is None and "too short" in attempt.problem


def test_a_log_with_unknown_devices_is_a_point_of_its_own_file(tmp_path):
    for name, speed in (("a.log", 350), ("b.log", 2000)):
        made.put(tmp_path, name, made.ngc_pytorch(made.steps(speed, 128), batch=128).replace("world_size", "size"))
    log(tmp_path, "1n1g/r50_b128_fp32_1.log")
    points = results(load([tmp_path]))
    assert [(each.requested.case, round(each.median_speed)) for each in points] == [
        ("?", 350), ("?", 2000), ("1n1g", 350),
    ]  # fmt: skip
    assert [each.run.devices for each in points] == [None, None, 1]
    assert [each.speedup for each in points] == [None, None, 1]
    assert [each.no_speedup for each in points[:2]] == [NoSpeedup.UNKNOWN_DEVICES] * 2
    placed = load([tmp_path], how=HowToRead(otherwise=case_of("1n1g")))
    assert {attempt.requested.case for attempt in placed.attempts} == {"1n1g"}


@pytest.mark.parametrize("speed", [1.0, 1.001])
def test_a_program_s_report_is_not_a_second_run(tmp_path, speed):
    """NVIDIA's scripts write raport.json beside what they print: the same steps once more."""
    step_s = [0.35 + 0.001 * (number % 7) for number in range(130)]
    made.put(tmp_path, "pytorch/1n1g/r50_b128_fp32_1.log", made.ngc_pytorch(step_s, batch=128))
    lines = [
        f'DLLL {{"timestamp": "{1600180133.5 + end.timestamp():.6f}", "elapsedtime": "1", "datetime": "{end}", '
        f'"type": "LOG", "step": [0, {number}], "data": {{"train.loss": 7.1, "train.total_ips": {128 / length_s}}}}}'
        for number, end, length_s in made.ends([speed * length_s for length_s in step_s])
    ]
    header = (
        'DLLL {"timestamp": "1600180133.5", "type": "LOG", "step": "PARAMETER", "data": {"arch": "resnet50", '
        '"batch_size": 128, "world_size": 1, "amp": false, "fp16": false, "data_backend": "dali-cpu", "seed": null}}'
    )
    made.put(tmp_path, "pytorch/1n1g/raport.json", "\n".join([header, *lines]) + "\n")
    loaded = load([tmp_path])
    remarks = [line for line in loaded.remarks if "raport.json: the report of the run" in line]
    assert (len(loaded.attempts), len(remarks)) == ((1, 1) if speed == 1 else (2, 0))


def test_a_whole_training_is_no_repeat_of_a_window(tmp_path, capsys):
    folder = tmp_path / "1n8g"
    folder.mkdir()
    steps = "".join(f"Epoch[0] Batch [{step}]\tSpeed: 4000.0 samples/sec\n" for step in range(0, 160, 20))
    (folder / "steps.log").write_text(steps)
    (folder / "epochs.log").write_text("Epoch[0]\tSpeed: 3000.0 samples/sec\nEpoch[1]\tSpeed: 3000.0 samples/sec\n")
    assert main([str(tmp_path), "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    speeds = {run["window"]: result["median_speed"] for result in results for run in result["runs"]}
    assert len(results) == 2 and speeds == {"steps 20 to 120 of epoch 0": 4000.0, WHOLE_TRAINING: 3000.0}
    assert main(["--explain", str(folder / "epochs.log")]) == 0
    out = capsys.readouterr().out
    assert "no window: it has no line of a step" in out and "result: 3000.00 samples/s (whole training)" in out


def test_a_packed_job_is_one_by_its_content_too(tmp_path):
    (tmp_path / "weights_b128_fp32_7_9.npz").write_bytes(bytes(100))
    path = log(tmp_path, "r50_b128_fp32_7_9")
    packed, other = load([tmp_path]).remarks
    assert packed.startswith(f"{path}: runs 7, 9 of a packed job") and other.startswith("1 file is no log")
