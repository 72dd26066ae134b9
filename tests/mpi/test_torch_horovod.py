"""The particulars of torch-horovod, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.timestamps import BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, INNER, REDUCED
from hpc.model.verdict import cause
from hpc.recovery.collect import collect
from tests.mpi.attempts import HERE, Attempt, Ranks, spec
from tests.mpi.facts import SCRIPT, facts, reason, refused

BACKEND = "torch-horovod"
RUNS = json.dumps([{"backend": BACKEND}])
TORCH = HERE / "user_torch.py"
CONVOLUTIONS = "examples/my_training.py:MyTraining"
ALIKE: tuple[dict[str, Any], ...] = (
    {},
    {"options": {"compression": "fp16"}},
    {"timing": "step"},
    {"workload": CONVOLUTIONS, "options": {"channels_last": "off"}},
    {"workload": CONVOLUTIONS, "options": {}},
    {"workload": CONVOLUTIONS, "options": {"compression": "fp16"}},
)
TOGETHER = [{"backend": BACKEND, **fields} for fields in ALIKE]
"""Of one group: their fusion threshold and cycle time are equal."""


@pytest.fixture(autouse=True)
def horovod() -> None:
    if missing := missing_modules(BACKEND):
        pytest.skip("; ".join(missing))


def horovod_facts(ranks: Ranks, *switches: str, **fields: Any) -> dict[str, Any]:
    return facts(ranks, *switches, together=() if switches else TOGETHER, backend=BACKEND, **fields)


def test_the_facts_of_a_default_run(ranks: Ranks) -> None:
    result = horovod_facts(ranks)
    assert result["options"] == {
        "fusion_threshold_mb": 128.0,
        "cycle_time_ms": 1.0,
        "compression": "none",
        "channels_last": True,
        "sgd": "fused",
        "compile": False,
        "loss_scale": "dynamic",
    }
    assert result["variables"] == {"HOROVOD_FUSION_THRESHOLD": 128 * 2**20, "HOROVOD_CYCLE_TIME": 1}
    assert (result["transport"], result["threads"], result["tf32"]) == ("mpi", 2, False)
    assert (result["absent_stamps"], result["fused"], result["synchronises_every_step"]) == ([], True, False)
    assert (result["taken"], result["ordered"]) == ([0, 1, 2, 3, 4, 5], True)
    assert result["versions"]["horovod"] == "0.28.1"
    assert result["horovod_built_against"]["torch"] == result["versions"]["torch"]
    assert len(result["horovod_mpi_libraries"]) == 1
    # Horovod's optimizer is another one, and still steps by torch's fused kernel: it takes the parameter groups over.
    assert result["implementations"] == ["True"]


def test_requested_settings_reach_horovod(ranks: Ranks) -> None:
    result = horovod_facts(ranks, options={"fusion_threshold_mb": "20000.5", "cycle_time_ms": "0.25"})
    assert (result["options"]["fusion_threshold_mb"], result["options"]["cycle_time_ms"]) == (20000.5, 0.25)
    assert result["variables"] == {"HOROVOD_FUSION_THRESHOLD": 20000.5 * 2**20, "HOROVOD_CYCLE_TIME": 0.25}


@pytest.mark.all
def test_the_environment_of_a_run_overrides_its_options(ranks: Ranks) -> None:
    result = horovod_facts(ranks, env={"HOROVOD_FUSION_THRESHOLD": "1048576"}, options={"fusion_threshold_mb": "64"})
    assert result["options"]["fusion_threshold_mb"] == 1.0
    assert result["variables"]["HOROVOD_FUSION_THRESHOLD"] == 2**20


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env": {"HOROVOD_CYCLE_TIME": "1e6"}}, "HOROVOD_CYCLE_TIME is 1e6; it must be a number, 0 or more"),
        ({"env": {"HOROVOD_CONTROLLER": "gloo"}}, "HOROVOD_CONTROLLER=gloo was requested; ranks come from MPI"),
        (
            {"env": {"MPI4PY_RC_THREAD_LEVEL": "serialized"}},
            "Horovod calls MPI from a thread of its own, and this MPI was not started",
        ),
    ],
)
def test_an_environment_with_which_nothing_can_run_is_refused(
    ranks: Ranks, fields: dict[str, Any], message: str
) -> None:
    assert f"InvalidRun: {message}" in refused(ranks, backend=BACKEND, **fields)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"options": {"fusion_threshold_mb": "-1"}},
        "OptionError: option fusion_threshold_mb: '-1' is out of range: it must be from 0",
    ),
    ({"precision": "amp-fp16"}, "InvalidRun: precision amp-fp16 was requested; a CPU has no fp16 training path"),
    (
        {"gpus_per_node": 2},
        "InvalidRun: 2 GPUs and 1 ranks per node were requested; torch-horovod drives one GPU per rank",
    ),
)


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_an_impossible_run_is_refused_with_the_reason(ranks: Ranks, fields: dict[str, Any], message: str) -> None:
    together = [{"backend": BACKEND, **impossible} for impossible, _ in REFUSED]
    assert reason(ranks, together=together, backend=BACKEND, **fields).startswith(message)


SILENT: tuple[tuple[str, str], ...] = (
    ("without_mpi", "InvalidRun: this horovod.torch was built without MPI: rebuild it by make horovod"),
    ("without_nccl", "InvalidRun: this Horovod was built without NCCL and would reduce on the host"),
    ("unseen", "InvalidRun: Horovod says rank 0 of 1 where MPI says 0 of 2"),
    ("twice", "InvalidRun: Horovod and mpi4py do not share their MPI (/opt/a/libmpi.so.12 and "),
    ("hooked", "WorkloadError: the SGD of the workload has step hooks or state; Horovod makes a new optimizer"),
)
"""By switches of ranks/torch_facts.py. The last one joins a group, from which a later one would take a copy."""


@pytest.mark.parametrize(("switch", "message"), SILENT)
def test_a_silent_failure_is_refused(ranks: Ranks, switch: str, message: str) -> None:
    together = {
        each: {"backend": BACKEND, "pretend": [each], "gpus_per_node": 2 if each == "without_nccl" else 0}
        for each, _ in SILENT
    }
    refusal = facts(ranks, "refusals", together=[*together.values()], **together[switch])["refused"]
    assert refusal.startswith(message)


def test_a_horovod_built_for_another_torch_is_reported_in_one_line(ranks: Ranks) -> None:
    lines = [line for line in ranks(1, SCRIPT, RUNS, "another").stderr.splitlines() if line.startswith("rankwise: ")]
    assert len(lines) == 1
    assert lines[0].startswith("rankwise: Horovod was built against torch 1.13.1, installed is torch ")
    assert lines[0].endswith("rebuild it by make horovod")


def test_a_horovod_that_does_not_load_names_the_fix(ranks: Ranks) -> None:
    done = ranks(1, SCRIPT, RUNS, "another", "unloadable", check=False)
    assert done.returncode != 0
    assert "ImportError: horovod.torch does not load: Horovod was built against torch 1.13.1" in done.stderr


@pytest.mark.all
def test_compression_changes_the_last_digits_and_learns(ranks: Ranks) -> None:
    plain, compressed = horovod_facts(ranks), horovod_facts(ranks, options={"compression": "fp16"})
    assert compressed["options"]["compression"] == "fp16"
    assert compressed["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert compressed["losses"] != plain["losses"]
    assert compressed["losses"][-1] < compressed["losses"][0]


def test_convolutions_in_channels_last_are_reduced_like_contiguous_ones(ranks: Ranks) -> None:
    def trained(**options: str) -> dict[str, Any]:
        return horovod_facts(ranks, workload=CONVOLUTIONS, options=options)

    nchw, nhwc = trained(channels_last="off"), trained()
    compressed = trained(compression="fp16")
    assert (nchw["layouts"], nhwc["layouts"]) == (["contiguous"], ["channels_last", "contiguous"])
    assert nhwc["losses"] == pytest.approx(nchw["losses"], rel=1e-5)
    assert compressed["losses"] == pytest.approx(nchw["losses"], rel=1e-3)


@pytest.mark.all
def test_timing_of_steps_does_not_change_the_steps(ranks: Ranks) -> None:
    phases, step = horovod_facts(ranks), horovod_facts(ranks, timing="step")
    assert (step["taken"], step["absent_stamps"], step["ordered"]) == ([0, 1, 5], list(INNER), True)
    assert step["losses"] == phases["losses"]


def test_ranks_with_different_weights_start_from_rank_0(ranks: Ranks) -> None:
    # Weights and buffers of rank 0 are everybody's: else two ranks with other weights would learn something else.
    assert horovod_facts(ranks, "apart_at_first")["losses"] == horovod_facts(ranks)["losses"]


@pytest.mark.all
def test_the_stamps_hold_the_sleeps_that_were_injected(ranks: Ranks, tmp_path: Path) -> None:
    options = {"data_ms": "4@rank=1", "compute_ms": "2", "transfer_ms": "5@every=2", "update_ms": "1"}
    trace = Attempt(ranks, tmp_path, spec(backend=BACKEND, options=options)).trace()
    assert trace.injected_ns is not None
    assert (trace.injected_ns[:, ::2, 2] >= 5e6).all()
    assert np.median(trace.injected_ns[:, 1::2, 2]) < 5e6  # on a busy machine one that sleeps for 0 s may take longer
    assert (trace.injected_ns[:, :, 3] >= 1e6).all()
    spans = {0: (BEGIN, BATCH_READY), 1: (BATCH_READY, GRADS_READY), 2: (GRADS_READY, REDUCED), 3: (REDUCED, END)}
    for phase, (begin, end) in spans.items():
        lasted = trace.stamps[:, :, end] - trace.stamps[:, :, begin]
        assert (lasted >= trace.injected_ns[:, :, phase]).all()
    assert (trace.stamps[:, :, GRADS_READY] - trace.stamps[:, :, FORWARD_END] >= 1e6).all()


@pytest.mark.all
@pytest.mark.parametrize("size", [1, 4])
def test_a_run_leaves_a_trace_and_nothing_else(ranks: Ranks, tmp_path: Path, size: int) -> None:
    attempt = Attempt(ranks, tmp_path, spec(backend=BACKEND, workload="mlp", ranks_per_node=size))
    assert attempt.trace().outcome is Outcome.OK
    assert attempt.left_nothing_but_its_trace()


@pytest.mark.all
def test_a_rank_that_raises_ends_all(ranks: Ranks, tmp_path: Path) -> None:
    attempt = Attempt(ranks, tmp_path, spec(backend=BACKEND, workload=f"{TORCH}:RaisesAtStep7"), check=False)
    note = cause(attempt.notes())  # the rank that lost this one may leave a note, too, before it is ended
    assert note is not None and (note.outcome, note.rank, note.step) == (Outcome.RANK_FAIL, 1, 6)
    assert "my loss exploded" in note.message
    assert attempt.done.returncode == 1
    assert collect(attempt.traces, attempt.stem) == 2
