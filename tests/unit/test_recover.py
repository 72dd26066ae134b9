"""Traces of what dead ranks left: missing ranks, missing clocks, what cannot be recovered."""

from __future__ import annotations

import dataclasses
import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from hpc.journal import SCHEMA, SCHEMA_VERSION, Journal, collect
from hpc.outcome import Outcome, RankNote
from hpc.spec import RunSpec
from hpc.stamps import ABSENT, STAMPS
from hpc.trace_file import read_trace
from parse.recover import main

RUN = RunSpec(
    nodes=1, ranks_per_node=3, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=4,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=2, repeat=1, seed=0, site="here",
)  # fmt: skip
STEM = f"{RUN.run_id}.1"


def leave(traces: Path, rank: int, completed: int, points: int, run: RunSpec = RUN, **facts: Any) -> None:
    """What a rank leaves that died after so many steps and synchronisations."""
    partial = traces / f"{run.run_id}.1.partial"
    partial.mkdir(exist_ok=True)
    begun = completed * len(STAMPS) + 2  # it died in its next step
    stamps = array("q", [*range(begun), *[ABSENT] * (run.steps * len(STAMPS) - begun)])
    samples = array("q", [4] * completed + [ABSENT] * (run.steps - completed))
    (partial / f"rank{rank}.stamps").write_bytes(stamps.tobytes() + samples.tobytes())
    clock = {
        "domain": "a clock",
        "points": [[10 * i, 0.5, 0.0] for i in range(points)],
        "barrier_exits_ns": list(range(2 * points)),
    }
    usual = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "steps": run.steps,
        "byteorder": "little",
    }
    header = {**usual, "run": run.to_json(), "attempt": 1, "facts": {"rank": rank, "hostname": "n1"}, "clock": clock}
    (partial / f"rank{rank}.json").write_text(json.dumps(header | facts))


def test_ranks_that_left_nothing_completed_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=3, points=2)
    leave(tmp_path, 2, completed=4, points=1)
    assert main([str(tmp_path)]) == 0
    assert "ranks completed 0 to 4 of 7 steps; 1 ranks left nothing" in capsys.readouterr().out
    trace = read_trace(tmp_path / f"{STEM}.h5")
    assert (trace.run, trace.attempt, trace.outcome, trace.recovered) == (RUN, 1, Outcome.RANK_FAIL, True)
    assert trace.steps_completed.tolist() == [3, 0, 4]
    assert (trace.stamps != ABSENT).all(axis=2).sum(axis=1).tolist() == [3, 0, 4]
    assert (trace.stamps != ABSENT).any(axis=2).sum(axis=1).tolist() == [3, 0, 4]  # no half step
    assert trace.samples.sum(axis=1).tolist() == [12, 0, 16]
    assert trace.clock_local_ns.tolist() == [[0]] * 3  # what all ranks have
    assert trace.barrier_exits_ns.tolist() == [[0, 1]] * 3
    assert trace.clock_domains == ["a clock", "unknown", "a clock"]
    assert trace.ranks[1] == {"rank": 1}
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_in_blocks_has_them_again(tmp_path: Path) -> None:
    run = dataclasses.replace(RUN, measured_steps=5, block_steps=2)
    leave(tmp_path, 0, completed=8, points=2, run=run)
    assert main([str(tmp_path)]) == 0
    trace = read_trace(tmp_path / f"{run.run_id}.1.h5")
    assert (trace.run, trace.blocks.tolist()) == (run, [[5, 7], [12, 14], [19, 20]])
    assert trace.steps_completed.tolist() == [8, 0, 0]


def test_a_rank_that_never_synchronised_leaves_no_clock(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=1, points=0)
    assert main([str(tmp_path)]) == 0
    assert read_trace(tmp_path / f"{STEM}.h5").clock_local_ns.shape == (3, 0)


def test_the_outcome_is_that_of_the_rank_that_noted_why(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=3, points=1)
    late = RankNote(rank=0, outcome=Outcome.RANK_FAIL, exception="E", message="peer gone", step=2, hostname="n1")
    cause = RankNote(rank=2, outcome=Outcome.OOM, exception="MemoryError", message="no room", step=1, hostname="n2")
    late.write(tmp_path, STEM)
    cause.write(tmp_path, STEM)
    RankNote(rank=1, outcome=Outcome.INVALID, exception="E", message="", step=-1, hostname="n").write(
        tmp_path, f"{RUN.run_id}.2"
    )
    assert main([str(tmp_path), "--stem", STEM]) == 0
    trace = read_trace(tmp_path / f"{STEM}.h5")
    assert trace.outcome is Outcome.OOM
    assert "rank 2 on n2 after step 1: MemoryError: no room" in trace.evidence


def test_a_rank_that_died_before_training_completed_nothing(tmp_path: Path) -> None:
    leave(tmp_path, 0, completed=2, points=1)
    Journal(tmp_path, STEM, 1, RUN.steps)
    assert collect(tmp_path, STEM) == 1
    assert main([str(tmp_path)]) == 0
    assert read_trace(tmp_path / f"{STEM}.h5").steps_completed.tolist() == [2, 0, 0]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "typo")]) == 1
    assert "typo: no such folder" in capsys.readouterr().err


def test_nothing_completed_nothing_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=0, points=1)
    assert main([str(tmp_path)]) == 0
    assert "no rank completed a step" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main([str(tmp_path)]) == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_what_cannot_be_recovered_is_named_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, 0, completed=2, points=1)
    leave(tmp_path, 1, completed=2, points=1, attempt=2)
    assert main([str(tmp_path)]) == 1
    assert "journals of different attempts" in capsys.readouterr().err
    leave(tmp_path, 1, completed=2, points=1)
    (tmp_path / f"{STEM}.h5").write_text("there already")
    assert main([str(tmp_path)]) == 1
    assert "never overwritten" in capsys.readouterr().err
    assert len(list((tmp_path / f"{STEM}.partial").iterdir())) == 4
