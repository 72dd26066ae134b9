"""Trainings of benchmarks/straggler on real ranks: what they record, and what an adapter makes of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema

from benchmarks.straggler.cases import Case, Delay
from benchmarks.straggler.run import HERE, Server, Tool, needs_launcher, run

SCHEMA = json.loads((HERE / "answer.schema.json").read_text())
CASE = Case(name="short", steps=16, delays=(Delay(ranks=(1,), phase="data", ms=40),))


def test_a_training_under_hpc_observe_records_its_delay_and_the_ledger_answers(tmp_path: Path) -> None:
    tool = Tool(name="observe", python=sys.executable)
    assert needs_launcher(tool)
    result = run(CASE, tool, tmp_path / "work")
    assert result.failure == "" and result.truth is not None
    (cause,) = result.truth.causes
    assert (cause.rank, cause.phase) == (1, "data") and cause.ms >= 40
    jsonschema.validate(result.answer, SCHEMA)
    assert result.answer["version"].startswith("Rankwise") and "1n2g" in result.answer["text"]


def test_a_loader_whose_pace_is_not_kept_is_no_training_in_which_nobody_is_delayed(tmp_path: Path) -> None:
    late = replace(CASE, delays=(), pace=20.0, more=(Delay(ranks=(1,), phase="forward", ms=40),))
    result = run(late, Tool(name="baseline", python=sys.executable), tmp_path / "work")
    assert result.truth is None and "did not keep the pace of 20" in result.failure


def test_forked_ranks_are_timed_and_a_tool_that_is_not_there_fails_the_training_alone(tmp_path: Path) -> None:
    tool, absent = Tool(name="baseline", python=sys.executable), Tool(name="nvrx", python=sys.executable)
    assert not needs_launcher(tool)
    server = Server(tool)
    results = [run(CASE, tool, tmp_path / "work", server) for _ in range(2)]
    server.close()
    for result in results:
        assert result.failure == "" and result.truth is not None and result.truth.ranks == {1}
        jsonschema.validate(result.answer, SCHEMA)
        assert result.answer["text"].startswith("mean step by rank")
    server = Server(absent)
    failed = run(CASE, absent, tmp_path / "absent", server)
    server.close()
    assert failed.truth is None and "No module named 'nvidia_resiliency_ext'" in failed.failure
    assert failed.answer["verdict"] == "cannot tell"
    jsonschema.validate(failed.answer, SCHEMA)
