"""A file whose content contradicts itself, and a fault of this program, lose one run or one file and say so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parse.ledger.point
import parse.ledger.what_if
import parse.page.points
import parse.runs.load
import parse.runs.load_logs
import parse.trace_events.timeline_file
from hpc.model.trace import Telemetry, Trace, TraceError
from hpc.model.training import TrainingError, TrainingHistory
from parse import compare, forecast, history, summarize, timeline
from parse.faults import TRACEBACK, fault, has_fault, unread
from parse.report import __main__ as report
from parse.runs.load import load
from tests.unit.every_command import make_workplace
from tests.unit.test_training import WHOLE
from tests.unit.traces import make_run, make_trace, put

FAULT = "not analysed: {}: ZeroDivisionError: of the test (a fault of this program; RANKWISE_TRACEBACK=1 shows where)"


def failing(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("of the test")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workplace(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def here(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workplace)
    return workplace


def failing_once(function: Callable[..., Any], named: str) -> Callable[..., Any]:
    """The function, with a fault of this program for what has such a name."""

    def call(first: Any, *arguments: Any, **named_arguments: Any) -> Any:
        return (failing if named in str(getattr(first, "run_id", first)) else function)(
            first, *arguments, **named_arguments
        )

    return call


@pytest.mark.parametrize(
    "blocks", [[[2, 6], [4, 8]], [[5, 8], [2, 4]], [[2, 5], [2, 5]]], ids=["overlap", "descend", "twice"]
)
def test_blocks_that_count_a_step_twice_are_refused_at_the_door(blocks: Sequence[Sequence[int]]) -> None:
    trace = make_trace(make_run())
    with pytest.raises(TraceError, match="overlap or are out of order: a step would count twice"):
        dataclasses.replace(trace, blocks=np.array(blocks))


def test_blocks_that_touch_count_each_step_once() -> None:
    assert len(dataclasses.replace(make_trace(make_run()), blocks=np.array([[2, 5], [5, 8]])).blocks) == 2


def test_a_contradictory_trace_is_refused_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    for repeat in (1, 2, 3):
        path = put(tmp_path, make_trace(make_run(repeat=repeat)))
    with h5py.File(path, "r+") as file:
        first, stop = file["blocks"][0]
        del file["blocks"]
        file["blocks"] = np.array([[first, stop], [first + 1, stop]])
    assert summarize.main([str(tmp_path), "--ledger"]) == 0
    printed = capsys.readouterr().out
    assert "2/" in printed and "overlap" in printed


def test_a_counter_beyond_what_steps_have_is_no_counter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"step {10**17 + 16 * at} loss 1 time 100 ms, 32 samples/s" for at in range(60)]
    (tmp_path / "big.log").write_text("\n".join(lines))
    put(tmp_path, make_trace(make_run()))
    assert summarize.main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "1n1g" in printed.out and "big.log: no step line" in printed.out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"eval_every": 0}, "eval_every is 0"),
        ({"begun": lambda begun: [*begun, begun[0]]}, "its attempts are"),
        ({"begun": lambda begun: [{**begun[0], "epochs": 99}]}, "began behind"),
        ({"epochs": lambda epochs: [{**epochs[0], "correct": epochs[0]["evaluated"] + 1}]}, "more images right"),
    ],
    ids=["eval_every", "attempts", "epochs", "correct"],
)
def test_a_history_that_contradicts_itself_is_refused(change: dict[str, Any], reason: str) -> None:
    values = json.loads(json.dumps(WHOLE.to_json()))
    TrainingHistory.from_json(values)
    for name, its in change.items():
        values[name] = its(values[name]) if callable(its) else its
    with pytest.raises(TrainingError, match=reason):
        TrainingHistory.from_json(values)


def test_a_fault_in_one_trace_loses_that_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = next(Path("traces").glob("1n1g*_r2.1.h5"))
    monkeypatch.setattr(
        parse.runs.load, "measure", failing_once(parse.runs.load.measure, run.name.removesuffix(".1.h5"))
    )
    line = FAULT.format(run)
    for command, status, arguments in (
        (summarize, 1, ["traces", "--verbose"]), (report, 1, ["traces", "--out", "r.html"]),
        (compare, 1, ["traces", "after"]), (compare, 2, ["traces", "after", "--threshold", "90%"]),
        (history, 2, ["traces", "after"]), (forecast, 1, ["traces", "--nodes", "2"]),
    ):  # fmt: skip
        assert command.main(arguments) == status, command
        printed = capsys.readouterr()
        assert " ".join(line.split()) in " ".join((printed.out + printed.err).split()), command
        assert "1n4g" in printed.out or command in (report, history)
    assert summarize.main(["traces", "--format", "json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["refusals"] == [line] and summary["results"][0]["runs_ok"] == 4


def test_the_traceback_of_a_fault_is_shown_where_it_is_wanted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse.runs.load, "measure", failing)
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(ZeroDivisionError, match="of the test"):
        load([here / "traces"])


def test_a_fault_in_one_log_or_record_loses_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / f"{name}.log").write_text("\n".join(f"step {at} time 10{name} ms" for at in range(9)))
    record = tmp_path / "x_r1.1.exit.json"
    record.write_text("{}")
    monkeypatch.setattr(
        parse.runs.load_logs, "_benchmarks_in", failing_once(parse.runs.load_logs._benchmarks_in, "b.log")
    )
    monkeypatch.setattr(parse.runs.load, "read_exit_record", failing)
    refusals = load([tmp_path]).refusals
    assert {FAULT.format(tmp_path / "b.log"), FAULT.format(record)} <= {*refusals}
    assert sum(map(has_fault, ([each] for each in refusals))) == 2


def test_a_fault_in_the_ledger_loses_one_run_or_one_point(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = parse.ledger.point
    run = next(Path("traces").glob("1n2g*_r2.1.h5"))
    with monkeypatch.context() as patch:
        patch.setattr(point, "step_breakdown", failing_once(point.step_breakdown, run.stem[:-2]))
        assert summarize.main(["traces", "--ledger", "--verbose"]) == 1
        printed = " ".join(capsys.readouterr().out.split())
        assert FAULT.format(run) in printed
    judged, calls = point.point_terms, []

    def once(*arguments: Any) -> Any:
        calls.append(arguments)
        return (failing if len(calls) == 2 else judged)(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(point, "point_terms", once)
        assert summarize.main(["traces", "--ledger", "--format", "json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["ledgers"]) == 2 and len(summary["results"]) == 3
    (line,) = summary["refusals"]
    assert line.startswith("not analysed: the ledger of traces/1n2g") and "ZeroDivisionError" in line


def test_a_fault_in_what_changes_would_be_worth_leaves_the_ledgers(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parse.ledger.what_if, "with_what_ifs", failing)
    assert summarize.main(["traces", "--what-if", "--format", "json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["ledgers"]) == 3 and len(summary["refusals"]) == 3
    assert report.main(["traces", "--out", "r.html"]) == 1
    assert "what changes would be worth" in capsys.readouterr().err
    assert "not analysed: what changes would be worth" in Path("r.html").read_text()


def test_a_fault_in_a_chart_is_on_the_page(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse.page.points, "read_run", failing)
    report.main(["traces", "--out", "r.html"])
    assert "ZeroDivisionError: of the test" in Path("r.html").read_text()


def test_a_fault_in_one_trace_leaves_the_others_in_the_timeline(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = parse.trace_events.timeline_file
    run = next(Path("traces").glob("1n1g*_r2.1.h5"))

    def placed(remaining: Any, trace: Trace, reasons: Any, real: Callable[..., Any] = drawn._placed) -> Any:
        return failing() if trace.run_id in run.name else real(remaining, trace, reasons)

    monkeypatch.setattr(drawn, "_placed", placed)
    assert timeline.main(["traces", "--out", "t.json"]) == 1
    printed = capsys.readouterr()
    assert FAULT.format(run) in printed.err and "1n4g" in printed.out


def test_what_is_not_read_and_what_is_not_analysed_are_told_apart() -> None:
    line = fault(KeyError("x\n" + "y" * 999), "a.log")
    assert line.startswith("not analysed: a.log: KeyError: ") and len(line) < 450 and "\n" not in line
    assert unread(line) == line and unread("a.log: is empty") == "not read: a.log: is empty"
    assert has_fault(["x", line]) and not has_fault(["a.log: is empty"])


def test_a_fault_in_the_speed_of_a_trace_does_not_end_the_sweep(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import parse.runs.attempt
    from launch.sweep.run_status import measured_in

    run = next(Path("traces").glob("1n1g*_r2.1.h5"))
    assert measured_in(run) is not None
    monkeypatch.setattr(parse.runs.attempt, "measure", failing)
    assert measured_in(run) is None
    assert capsys.readouterr().err == f"{FAULT.format(run)}\n"


def test_telemetry_of_another_form_is_refused() -> None:
    with pytest.raises(TraceError, match="telemetry of 1 nodes"):
        Telemetry(ranks=np.zeros(1, np.int64), local_ns=np.array(5), values=np.zeros((1, 1, 1)), series=["a"])
