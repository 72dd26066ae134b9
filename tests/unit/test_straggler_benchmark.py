"""benchmarks/straggler: its trainings, the form of answers, scores, and that it needs nothing of this project."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from benchmarks.straggler.__main__ import tool_of
from benchmarks.straggler.adapters.common import cannot_tell, finding, named
from benchmarks.straggler.adapters.observe import straggler
from benchmarks.straggler.cases import CASES, PATTERNS, PHASES, TRAININGS, Delay, case_of
from benchmarks.straggler.page import page
from benchmarks.straggler.run import HERE, TOOLS, Result, Tool, beside, read_result
from benchmarks.straggler.score import Cause, Truth, score, truth_of
from tests.waiting import until

SCHEMA = json.loads((HERE / "answer.schema.json").read_text())
BY = {"tool": "a tool", "version": "1"}
LATE = Truth(causes=(Cause(rank=1, phase="forward", ms=40.0),), step_ms=80.0, cpu_ms=3.0)
EQUAL = Truth(causes=(), step_ms=40.0, cpu_ms=3.0)


def says(*findings: dict[str, Any]) -> dict[str, Any]:
    answer = {**BY, **named([*findings])}
    jsonschema.validate(answer, SCHEMA)
    return answer


def rank(*who: int, phase: str | None = "forward", ms: float | None = 40.0) -> dict[str, Any]:
    return finding([*who], phase, ms)


def test_forty_trainings_of_all_kinds_of_which_eleven_delay_nobody() -> None:
    assert len(CASES) == 40 == len({case.name for case in CASES})
    assert sum(case.control for case in CASES) == 11
    delays = [delay for case in CASES for delay in case.delays]
    assert {case.training for case in CASES} == {*TRAININGS}
    assert {delay.phase for delay in delays} == {*PHASES} and {delay.pattern for delay in delays} == {*PATTERNS}
    assert {case.ranks for case in CASES} == {2, 3, 4}
    assert all(max(delay.ranks) < case.ranks for case in CASES for delay in case.delays + case.more)
    assert any(len({delay.ranks for delay in case.delays}) == 2 for case in CASES)


def test_a_plan_is_read_as_it_was_written() -> None:
    for case in CASES:
        assert case_of(json.loads(json.dumps(case.plan()))) == case


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("persistent", [8.0] * 8), ("transient", [0, 0, 0, 8, 0, 0, 0, 8]), ("moving", [0, 8, 0, 8, 0, 8, 0, 8]),
        ("late", [0, 0, 0, 0, 8, 8, 8, 8]), ("growing", [pytest.approx(16 * step / 7) for step in range(8)]),
    ],
)  # fmt: skip
def test_when_a_rank_is_delayed(pattern: str, steps: list[float]) -> None:
    delay = Delay(ranks=(0, 1), phase="data", ms=8.0, pattern=pattern)
    assert [delay.ms_in(1, step, 8) for step in range(8)] == steps
    assert not any(delay.ms_in(2, step, 8) for step in range(8))


def test_the_delayed_rank_with_phase_and_length_is_right() -> None:
    its = score(LATE, says(rank(1)))
    assert (its.right, its.missed, its.denied, its.accused, its.cannot_tell) == (True, False, False, False, False)
    assert its.phases == its.ms == (1, 1)


def test_none_where_a_rank_is_delayed_denies_and_misses_it() -> None:
    its = score(LATE, says())
    assert its.denied and its.missed and not its.right and not its.accused
    assert its.phases == its.ms == (0, 0)


def test_cannot_tell_misses_and_denies_nothing() -> None:
    its = score(LATE, {**BY, **cannot_tell("too few steps")})
    assert its.cannot_tell and its.missed and not its.denied and not its.right and not its.accused


def test_another_rank_is_accused_and_the_delayed_missed() -> None:
    its = score(LATE, says(rank(0)))
    assert its.accused and its.missed and not its.denied and not its.right


def test_one_rank_too_many_is_accused_and_none_is_missed() -> None:
    its = score(LATE, says(rank(0, 1)))
    assert its.accused and not its.missed and not its.right and its.phases == (1, 1)


def test_one_of_two_delayed_ranks_is_missed() -> None:
    two = Truth(causes=(*LATE.causes, Cause(rank=2, phase="data", ms=30.0)), step_ms=80.0, cpu_ms=3.0)
    its = score(two, says(rank(1)))
    assert its.missed and not its.accused and not its.right and its.phases == (1, 1)
    assert score(two, says(rank(1), rank(2, phase="data", ms=30.5))).ms == (2, 2)


def test_a_control_is_right_by_none_alone() -> None:
    assert score(EQUAL, says()).right and score(EQUAL, says()).control
    accused = score(EQUAL, says(rank(0)))
    assert accused.accused and not accused.right and not accused.missed and not accused.denied
    assert not score(EQUAL, {**BY, **cannot_tell("")}).right


@pytest.mark.parametrize(
    ("phase", "right"), [("forward", 1), ("compute", 1), ("backward", 0), ("data", 0), (None, 0)]
)  # fmt: skip
def test_the_phase_is_the_cause_s_or_both_passes(phase: str | None, right: int) -> None:
    assert score(LATE, says(rank(1, phase=phase))).phases == (right, 1)


def test_compute_is_no_phase_of_the_data() -> None:
    data = Truth(causes=(Cause(rank=1, phase="data", ms=40.0),), step_ms=80.0, cpu_ms=3.0)
    assert score(data, says(rank(1, phase="compute"))).phases == (0, 1)


@pytest.mark.parametrize(
    ("true", "ms", "right"), [(40.0, 43.9, 1), (40.0, 44.1, 0), (40.0, None, 0), (5.0, 5.9, 1), (5.0, 6.1, 0)]
)
def test_the_length_is_within_a_tenth_or_one_ms(true: float, ms: float | None, right: int) -> None:
    truth = Truth(causes=(Cause(rank=1, phase="forward", ms=true),), step_ms=80.0, cpu_ms=3.0)
    assert score(truth, says(rank(1, ms=ms))).ms == (right, 1)
    unscored = Truth(causes=truth.causes, step_ms=80.0, cpu_ms=3.0, scored_ms=False)
    assert score(unscored, says(rank(1, ms=ms))).ms == (0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        {**BY, "verdict": "named", "findings": []},
        {**BY, "verdict": "none", "findings": [rank(0)]},
        {**BY, "verdict": "cannot tell", "findings": [rank(0)]},
        {**BY, "verdict": "maybe", "findings": []},
        {**BY, "verdict": "named", "findings": [{"who": []}]},
        {**BY, "verdict": "named", "findings": [{"who": [1, 1]}]},
        {**BY, "verdict": "named", "findings": [rank(1, phase="network")]},
        {**BY, "verdict": "named", "findings": [rank(1) | {"ms_per_step": "40"}]},
        {"verdict": "none", "findings": []},
    ],
)
def test_what_is_no_answer(answer: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(answer, SCHEMA)


def test_the_schema_has_the_phases_of_the_trainings() -> None:
    phases = SCHEMA["properties"]["findings"]["items"]["properties"]["phase"]["enum"]
    assert {*phases} == {*PHASES, "compute", None}


def put_truth(folder: Path, rank: int, sleeps: list[list[object]], steps: int = 4) -> None:
    record = {"rank": rank, "sleeps": sleeps, "steps": [[50.0, 2.0]] * steps}
    (folder / f"truth-{rank}.json").write_text(json.dumps(record))


def test_the_truth_is_what_was_slept_behind_the_warm_up_not_what_was_planned(tmp_path: Path) -> None:
    put_truth(tmp_path, 0, [[2, "forward", "work", 12.0, 12.5]])
    delays: list[list[object]] = [[step, "data", "delay", 40.0, 46.0] for step in range(4)]
    put_truth(tmp_path, 1, [*delays, [3, "data", "work", 4.0, 4.5], [3, "between", "delay", 8.0, 9.0]])
    truth = truth_of(tmp_path, 2)
    assert truth.causes == (Cause(rank=1, phase="between", ms=4.5), Cause(rank=1, phase="data", ms=46.0))
    assert truth.ranks == {1} and truth.step_ms == 50.0 and truth.cpu_ms == 2.0
    with pytest.raises(FileNotFoundError):
        truth_of(tmp_path / "nothing", 2)


def put_result(out: Path, case: str, tool: str, truth: Truth | None, answer: dict[str, Any]) -> None:
    Result(case=case, tool=tool, truth=truth, answer=answer, failure="" if truth else "it died").write(
        out / tool / f"{case}.json"
    )


def test_the_page_counts_and_shows_each_answer(tmp_path: Path) -> None:
    put_result(tmp_path, "ddp-forward", "baseline", LATE, says())
    put_result(tmp_path, "equal-ddp-2", "baseline", EQUAL, says(rank(0, phase=None, ms=None)))
    put_result(tmp_path, "ddp-forward", "observe", LATE, says(rank(1, phase="compute", ms=41.0)))
    put_result(tmp_path, "ddp-data", "observe", None, {**BY, **cannot_tell("")})
    put_result(tmp_path, "equal-ddp-2", "observe", EQUAL, says())
    (tmp_path / "observe" / "price.jsonl").write_text("[[1.0, 40.0, 3.0], [2.5, 40.5, 3.25]]\n")
    text = page(tmp_path)
    assert "| baseline | 0 of 1 | 1 of 1 | 1 of 1 | - | 0 of 0 | 0 of 1 | 1 of 2 | 0 of 2 | 0 |" in text
    assert "| observe | 1 of 1 | 0 of 1 | 0 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 0 of 2 | 0 of 2 | 1 |" in text
    assert "| observe | 1 | 1.25 [1.25, 1.25] | 0.25 [0.25, 0.25] | 1.50 [1.50, 1.50] |" in text
    assert "| baseline | 0 | - | - | - |" in text
    assert "| ddp-forward | 1 forward 40.0 | ✗ none | ✓ 1 compute 41.0 |" in text
    assert "| equal-ddp-2 | none | ✗ 0 ? ? | ✓ none |" in text and "| ddp-data | none | - | failed |" in text
    assert "a tool 1" in text
    with pytest.raises(SystemExit):
        page(tmp_path / "empty")


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    put_result(tmp_path, "ddp-forward", "observe", LATE, says(rank(1)))
    its = read_result(tmp_path / "observe" / "ddp-forward.json")
    assert its.truth == LATE and its.answer["findings"] == [rank(1)]


def what(**changes: Any) -> dict[str, Any]:
    usual = {
        "ranks": [1], "kind": "persistent", "arrival_skew": 40.0, "share": 1.0, "loader": None, "after_update": None,
        "cause": {"release": 0.0, "optimizer": 0.5, "data": 0.5, "compute": 39.0}, "shape": None,
        "paced": "no",
    }  # fmt: skip
    return usual | changes


@pytest.mark.parametrize(
    ("changes", "phase", "ms", "kind"),
    [
        ({}, "compute", 40.0, "persistent"),
        ({"cause": {"compute": 1.0, "data": 39.0}, "loader": 39.0}, "data", 40.0, "persistent"),
        ({"cause": {"compute": 1.0, "data": 39.0}, "loader": 0.1}, "between", 40.0, "persistent"),
        ({"cause": {"optimizer": 64, "data": 16}, "after_update": 64, "loader": 0}, "between", 40.0, "persistent"),
        ({"cause": {"optimizer": 39.0, "compute": 1.0}, "after_update": 0.2}, "optimizer", 40.0, "persistent"),
        ({"cause": {"release": 39.0, "compute": 1.0}}, "collective", 40.0, "persistent"),
        ({"kind": "transient", "share": 0.25}, "compute", 10.0, "transient"),
        ({"kind": "rotating", "ranks": [0, 1]}, "compute", 20.0, "moving"),
        ({"shape": {"kind": "growing"}}, "compute", 40.0, "growing"),
        ({"shape": {"kind": "begins"}}, "compute", 40.0, "late"),
    ],
)  # fmt: skip
def test_a_finding_of_our_ledger_as_an_answer(changes: dict[str, Any], phase: str, ms: float, kind: str) -> None:
    its = what(**changes)
    assert straggler(its) == [{"who": its["ranks"], "phase": phase, "ms_per_step": ms, "kind": kind}]


def test_a_shared_delay_and_a_rank_that_delays_nobody_name_no_rank() -> None:
    assert straggler(what(ranks=[])) == straggler(what(paced="yes")) == []


def test_the_benchmark_is_usable_without_this_project() -> None:
    ours = Counter[str]()
    for path in HERE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                package = name.split(".")[0]
                foreign = package == "benchmarks" and not name.startswith("benchmarks.straggler")
                if package in ("hpc", "parse", "launch", "rankwise", "tests", "tools") or foreign:
                    ours[str(path.relative_to(HERE))] += 1
    assert {*ours} == {"adapters/observe.py"}


BESIDE = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path("summary").write_text("written") and 0))
pathlib.Path("ready").touch()
time.sleep(600)
"""


def test_an_interpreter_is_the_same_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert tool_of("nvrx=bin/python") == Tool(name="nvrx", python=str(tmp_path / "bin" / "python"))
    for text in ("nvrx=bin/none", "none"):
        with pytest.raises(argparse.ArgumentTypeError):
            tool_of(text)


def test_what_a_tool_runs_beside_the_ranks_ends_with_them_and_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = SimpleNamespace(beside=lambda python, ranks, folder, port: [python, "-c", BESIDE])
    monkeypatch.setattr(Tool, "adapter", adapter)
    with beside(Tool(name="any", python=sys.executable), CASES[0], tmp_path, "1"):
        until((tmp_path / "ready").exists, "the process is there")
        assert not (tmp_path / "summary").exists()
    assert (tmp_path / "summary").read_text() == "written"


def test_the_results_have_every_training_and_tools_that_are_there() -> None:
    lines = (HERE / "RESULTS.md").read_text().splitlines()
    head = next(line for line in lines if line.startswith("| training |"))
    assert {*head.strip("| ").split(" | ")} - {"training", "truth"} <= {*TOOLS}
    assert {case.name for case in CASES} <= {line.split(" | ")[0].strip("| ") for line in lines}


def test_every_tool_is_explained_and_its_adapter_short() -> None:
    readme = (HERE / "README.md").read_text()
    for tool in TOOLS:
        source = (HERE / "adapters" / f"{tool}.py").read_text()
        assert len(source.splitlines()) <= 150
        assert f"`{tool}`" in readme, tool
        assert "answer" in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
