"""`rankwise export`: each target's own reader finds the points and findings of the summary; nothing is written over."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import struct
import sys
import tomllib
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from parse.export.__main__ import main as export
from parse.export.content import TARGETS, PointContent
from parse.summarize import main as summarize
from parse.text import gauge_text
from tests.unit.commands import command, when_imported
from tests.unit.page_folders import MARKUP, put_sweep
from tests.unit.traces import make_run, make_trace, put


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "traces"
    put_sweep(folder, nodes=(1, 2), count=3)
    return folder


@pytest.fixture
def page(sweep: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON summary of the sweep, with ledgers."""
    assert summarize([str(sweep), "--ledger", "--format", "json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def put_there(sweep: Path, to: str, out: Path, *more: str) -> None:
    assert export([str(sweep), "--to", to, "--out", str(out), *more]) == 0


def speeds(page: dict[str, Any]) -> list[float]:
    return [result["median_speed"] for result in page["results"]]


def waits(page: dict[str, Any]) -> float:
    """The mean wait of the larger point, ms."""
    (value,) = (term["mean"]["value"] for term in page["ledgers"][1]["terms"] if term["name"] == "wait")
    return float(value)


def straggler(page: dict[str, Any]) -> tuple[float, str]:
    """What the finding of the larger point costs, and its first sentence."""
    finding = page["ledgers"][1]["findings"][0]
    return finding["costs"], finding["sentences"][0]


def test_csv_is_read_by_pythons_own_reader(sweep: Path, page: dict[str, Any], tmp_path: Path) -> None:
    put_there(sweep, "csv", tmp_path / "a")
    tables = {path.stem: [*csv.DictReader(io.StringIO(path.read_text()))] for path in (tmp_path / "a").iterdir()}
    assert {name: len(rows) for name, rows in tables.items()} == {"points": 2, "runs": 6, "terms": 12, "findings": 1}
    assert [float(row["median_speed"]) for row in tables["points"]] == speeds(page)
    assert float(tables["findings"][0]["costs"]) == straggler(page)[0]
    assert tables["findings"][0]["sentences"].startswith(straggler(page)[1])
    assert [row["outcome"] for row in tables["runs"]][-1] == "oom" and tables["runs"][-1]["throughput"] == ""


def test_parquet_has_types_and_absent_values(sweep: Path, page: dict[str, Any], tmp_path: Path) -> None:
    import pandas

    put_there(sweep, "parquet", tmp_path / "a")
    runs, terms = (pandas.read_parquet(tmp_path / "a" / f"{name}.parquet") for name in ("runs", "terms"))
    assert runs["throughput"].isna().tolist() == [False] * 5 + [True] and runs["repeat"].dtype == "int64"
    assert terms.query("term == 'wait'")["mean"].tolist()[1] == waits(page)


def test_openmetrics_is_read_by_a_real_parser(sweep: Path, page: dict[str, Any], tmp_path: Path) -> None:
    put_there(sweep, "openmetrics", tmp_path / "a.prom")
    gauges = {family.name: family for family in text_string_to_metric_families((tmp_path / "a.prom").read_text())}
    read = gauges["rankwise_median_speed"].samples
    assert [sample.value for sample in read] == speeds(page)
    assert [sample.labels["case"] for sample in read] == ["1n1g", "2n2g"] and read[0].labels["unit"] == "samples/s"
    ledger = {sample.labels["term"]: sample.value for sample in gauges["rankwise_ledger_ms"].samples[6:]}
    assert ledger["wait"] == waits(page) and ledger["step"] == page["ledgers"][1]["step"]["value"]
    assert [(each.labels["finding"], each.value) for each in gauges["rankwise_finding_ms"].samples] == [
        ("straggler", straggler(page)[0])
    ]


def test_openmetrics_escapes_what_was_measured() -> None:
    text = f'a "b"\\ {MARKUP}\n\\n'
    (family,) = text_string_to_metric_families(gauge_text("a", "b", [({"name": text}, 0.5)]) + "# EOF\n")
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"name": text}, 0.5)]


def test_mlflow_has_a_run_for_each_point_and_the_page(sweep: Path, page: dict[str, Any], tmp_path: Path) -> None:
    from mlflow import MlflowClient

    put_there(sweep, "mlflow", tmp_path / "store", "--name", "nightly")
    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("nightly")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    points = {run.info.run_name: run for run in runs if run is not parent}
    assert {*points} == {"1n1g", "2n2g"} and {run.info.status for run in runs} == {"FINISHED"}
    assert [points[name].data.metrics["median_speed"] for name in ("1n1g", "2n2g")] == speeds(page)
    large = points["2n2g"].data
    assert large.metrics["ledger/wait_ms"] == waits(page) and large.params["backend"] == "torch-ddp"
    assert large.metrics["finding/straggler_ms"] == straggler(page)[0]
    assert parent.data.tags["mlflow.note.content"].startswith("* torch-ddp resnet50: 2n2g runs ")
    files = Path(client.download_artifacts(parent.info.run_id, ""))
    assert json.loads((files / "summary.json").read_text())["results"] == page["results"]
    assert straggler(page)[1] in (files / "findings.txt").read_text()
    assert "<!DOCTYPE html>" in (files / "report.html").read_text() and "2n2g" in (files / "report.html").read_text()


@pytest.mark.slow
def test_tensorboard_reads_figures_over_devices(
    sweep: Path, page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))  # it would import TensorFlow
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    put_there(sweep, "tensorboard", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    read = EventAccumulator(str(folder)).Reload()
    assert [(each.step, each.value) for each in read.Scalars("median_speed")] == [
        (devices, pytest.approx(speed, rel=1e-6)) for devices, speed in zip((1, 4), speeds(page), strict=True)
    ]
    assert read.Scalars("ledger/wait_ms")[1].value == pytest.approx(waits(page), rel=1e-6)
    (_, event) = read.Tensors("findings/text_summary")
    assert straggler(page)[1].encode() in event.tensor_proto.string_val[0]


def wandb_records(path: Path) -> list[Any]:
    """The records of an offline run: LevelDB's log of blocks of 32 KiB, with protocol buffers of W&B in it."""
    from wandb.proto import wandb_internal_pb2

    content, at, part, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if (rest := -at % 32768) < 7:
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            records.append(record)
            part = b""
    return records


@pytest.mark.slow
def test_wandb_has_tables_figures_and_the_page_offline(sweep: Path, page: dict[str, Any], tmp_path: Path) -> None:
    done = command("parse.export", str(sweep), "--to", "wandb", "--out", str(tmp_path / "wandb"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert done.stdout == f"{run}: wandb sync {run} uploads it\n"
    records = wandb_records(next(run.glob("*.wandb")))
    summary = {
        "/".join(item.nested_key) or item.key: json.loads(item.value_json)
        for record in records for item in record.summary.update
    }  # fmt: skip
    assert [summary[f"{case}/median_speed"] for case in ("1n1g", "2n2g")] == speeds(page)
    assert summary["2n2g/finding/straggler_ms"] == straggler(page)[0]
    (table,) = run.glob("files/media/table/findings_*.json")
    assert straggler(page)[1] in str(json.loads(table.read_text())["data"])
    (report,) = (each.artifact for each in records if each.artifact.name == "report")
    files = {entry.path: Path(entry.local_path) for entry in report.manifest.contents}
    assert json.loads(files["summary.json"].read_text())["results"] == page["results"]
    assert "<!DOCTYPE html>" in files["report.html"].read_text()
    second = command("parse.export", str(sweep), "--to", "wandb", "--out", str(tmp_path / "wandb"), cwd=tmp_path)
    assert (second.returncode, second.stderr) == (1, f"{run} has it already: wandb sync {run}\n")


# --- what is there stays, and what lacks is said ---


@pytest.mark.parametrize("to", [to for to in TARGETS if to != "wandb"])
def test_nothing_is_written_over(to: str, sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_there(sweep, to, tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert export([str(sweep), "--to", to, "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "already" in shown.err and str(tmp_path / "out") in shown.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("to", "package"),
    [("parquet", "pyarrow"), ("mlflow", "mlflow"), ("tensorboard", "tensorboardX"), ("wandb", "wandb")],
)
def test_a_package_that_lacks_is_one_line_and_what_to_install(
    to: str, package: str, sweep: Path, tmp_path: Path
) -> None:
    env = when_imported(tmp_path / "site", package, f"raise ModuleNotFoundError('none', name={package!r})")
    done = command("parse.export", str(sweep), "--to", to, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"--to {to}: {package} is not installed: pip install -e '.[{to}]'\n"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"][to][0].lower().startswith(package.lower())
    assert {path.name for path in tmp_path.iterdir()} == {"site"}


def test_where_and_base_choose(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_there(sweep, "csv", tmp_path / "a", "--where", "case=2n2g", "--base", "2n2g")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "a" / "points.csv").read_text()))
    assert (row["case"], row["base"], float(row["speedup"])) == ("2n2g", "2n2g", 1.0)
    for wrong, text in ((("--where", "case=9n9g"), "no point has all settings"), (("--base", "9n9g"), "9n9g")):
        with pytest.raises(SystemExit) as ended:
            export([str(sweep), "--to", "csv", "--out", str(tmp_path / "b"), *wrong])
        assert ended.value.code == 2 and text in capsys.readouterr().err


def test_nothing_to_export_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert export([str(tmp_path / "empty"), "--to", "csv", "--out", str(tmp_path / "a")]) == 1
    assert "no point to export" in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_tokens_have_the_same_figures(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    put(tmp_path / "traces", make_trace(make_run(workload="gpt")))
    put_there(tmp_path / "traces", "openmetrics", tmp_path / "a.prom")
    (family,) = (
        each for each in text_string_to_metric_families((tmp_path / "a.prom").read_text())
        if each.name == "rankwise_median_speed"
    )  # fmt: skip
    (sample,) = family.samples
    assert sample.labels["unit"] == "tokens/s" and math.isfinite(sample.value)


def test_findings_for_others_name_no_path_of_the_machine_and_no_process() -> None:
    alarm = {"text": "load: other processes keep 1.06 cores busy (make (pid 19841) 0.94), /home/u/run.h5"}
    point = PointContent(name="1n1g", setting="", result={"alarms": [alarm]}, ledger=None)
    assert point.findings == ["load: other processes keep 1.06 cores busy, run.h5"]


@pytest.mark.parametrize(
    ("to", "writer"), [("csv", "parse.export.tables.write_output"), ("parquet", "pyarrow.parquet.write_table")]
)
def test_where_one_file_cannot_be_written_none_is_left(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, to: str,
    writer: str,
) -> None:  # fmt: skip
    """By a disk that is full at the third file, which the one that cannot be written has begun."""
    written: list[Path] = []

    def fill(*arguments: Any) -> None:
        (path,) = (each for each in arguments if isinstance(each, Path))
        path.write_text("")
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    import_module(writer.rpartition(".")[0])
    monkeypatch.setattr(writer, fill)
    assert export([str(sweep), "--to", to, "--out", str(tmp_path / "a")]) == 1
    assert capsys.readouterr() == ("", f"{written[2]}: {os.strerror(errno.ENOSPC)}\n")
    assert [*(tmp_path / "a").iterdir()] == []


def fail(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("to", "written"),
    [("tensorboard", "tensorboardX.record_writer.RecordWriter.write"), ("mlflow", "mlflow.MlflowClient.log_metric")],
)
def test_what_was_half_exported_is_exported_again(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, written: str
) -> None:
    """After a disk that was full: half of it is not taken for the whole."""
    out = tmp_path / "out"
    import_module(written.split(".", maxsplit=1)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, fail)
        assert export([str(sweep), "--to", to, "--out", str(out)]) == 1
    assert capsys.readouterr() == ("", f"{out}: {os.strerror(errno.ENOSPC)}\n")
    put_there(sweep, to, out)
    assert export([str(sweep), "--to", to, "--out", str(out)]) == 1
    assert "already" in capsys.readouterr().err


@pytest.mark.slow
def test_half_a_run_of_wandb_is_removed(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parse.export import wandb as target

    def half(_: Any, __: Any, run_id: str, folder: Path, ___: Any) -> None:
        (folder / f"offline-run-20261130_120000-{run_id}").mkdir()
        fail()

    monkeypatch.setattr(target, "_fill", half)
    assert export([str(sweep), "--to", "wandb", "--out", str(tmp_path / "wandb")]) == 1
    assert [*(tmp_path / "wandb").glob("offline-run-*")] == []
