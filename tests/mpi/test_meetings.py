"""The collectives that a training calls, recorded on real ranks, and what the ledger reads from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.timestamps import ABSENT
from parse.ledger.breakdown import names, step_breakdown
from parse.term_kinds import TERMS
from tests.mpi.attempts import HERE, Attempt, Ranks, spec

MODELS = "tests/truth/ddp_models.py"
OF_THREE_LAYERS = [*["all-gather"] * 5, "reduce-scatter", "all-gather", "reduce-scatter", "reduce-scatter"]
"""FSDP2's of a step: it gathers each layer in forward and, one layer ahead, in backward."""


def test_every_collective_that_is_called_from_python_is_recorded(ranks: Ranks) -> None:
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))
    seen = json.loads(ranks(2, HERE / "meetings.py").stdout.splitlines()[-1])
    assert seen["names"] == [
        "all-reduce", "all-gather", "broadcast", "reduce", "broadcast of buffers", "barrier",
    ]  # fmt: skip
    assert seen["roots"] == [-1, -1, 1, -2, 0, -1]
    assert seen["restored"] and not seen["irregular"]
    stamps = np.array(seen["stamps"]).reshape(4, 6, 3)
    assert (stamps[0] == ABSENT).all()
    measured = stamps[2:]
    assert (measured[:, :, 0] != ABSENT).all()
    assert (measured[:, :5, 2] != ABSENT).all()
    assert (measured[:, 5, 1:] == ABSENT).all()  # nobody waited for the barrier
    assert (np.diff(measured[:, :, 0], axis=1) > 0).all()
    gather, broadcast = measured[:, 1], measured[:, 2]
    assert (gather[:, 0] < broadcast[:, 0]).all()
    assert (broadcast[:, 2] <= gather[:, 1]).all()
    assert (measured[:, [0, 2, 3, 4], 1] == ABSENT).all()  # waited for from the call on, though within it


@pytest.mark.parametrize("phase", ["data", pytest.param("compute", marks=pytest.mark.all)])
def test_terms_stand_apart_where_buffers_are_broadcast(ranks: Ranks, tmp_path: Path, phase: str) -> None:
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))
    env = {"SLEEP": f"{phase}:60@rank=1"}
    run = spec(
        backend="torch-ddp", workload=f"{MODELS}:WithBatchNorm", options={"broadcast_buffers": "on"}, env=env,
        measured_steps=12,
    )  # fmt: skip
    trace = Attempt(ranks, tmp_path, run, env=env).trace()
    assert list(trace.meeting_names) == ["broadcast of buffers"]
    breakdown = step_breakdown(trace)
    assert names(breakdown.borders) == TERMS
    assert breakdown.arrivals is not None and not breakdown.problems
    assert breakdown.arrivals.meetings == ("broadcast of buffers", "reduction of the gradients")
    assert breakdown.rank_ns[1, TERMS.index(phase)] >= 60e6  # what it slept is its own time, and no waiting


@pytest.mark.all
@pytest.mark.parametrize("phase", ["data", "compute"])
def test_terms_stand_apart_where_parameters_are_gathered(ranks: Ranks, tmp_path: Path, phase: str) -> None:
    if missing := missing_modules("torch-fsdp"):
        pytest.skip("; ".join(missing))
    env = {"SLEEP": f"{phase}:60@rank=1"}
    run = spec(backend="torch-fsdp", workload=f"{MODELS}:WithoutBatchNorm", env=env, measured_steps=12)
    trace = Attempt(ranks, tmp_path, run, env=env).trace()
    assert list(trace.meeting_names) == OF_THREE_LAYERS
    breakdown = step_breakdown(trace)
    assert names(breakdown.borders) == TERMS
    assert breakdown.arrivals is not None and not breakdown.problems
    assert breakdown.arrivals.meetings[-1] == "reduction of the gradients"
    assert breakdown.rank_ns[1, TERMS.index(phase)] >= 60e6  # what it slept is its own time, and no waiting


@pytest.mark.all
def test_parameters_that_stay_gathered_are_not_gathered_again(ranks: Ranks, tmp_path: Path) -> None:
    if missing := missing_modules("torch-fsdp"):
        pytest.skip("; ".join(missing))
    env, options = {"SLEEP": "data:0@rank=1"}, {"reshard_after_forward": "off"}
    run = spec(backend="torch-fsdp", workload=f"{MODELS}:WithoutBatchNorm", options=options, env=env)
    trace = Attempt(ranks, tmp_path, run, env=env).trace()
    assert list(trace.meeting_names) == ["all-gather"] * 3 + ["reduce-scatter"] * 3
