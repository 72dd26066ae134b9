"""The particulars of torch-horovod, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.timestamps import BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, INNER, REDUCED
from hpc.recovery.collect import collect
from tests.mpi.attempts import HERE, Attempt, Ranks, spec
from tests.mpi.facts import SCRIPT, facts, refused

BACKEND = "torch-horovod"
ASKED = json.dumps([{"backend": BACKEND}])
TORCH = HERE / "user_torch.py"


@pytest.fixture(autouse=True)
def horovod() -> None:
    if missing := missing_modules(BACKEND):
        pytest.skip("; ".join(missing))


def facts_of(ranks: Ranks, *words: str, **asked: Any) -> dict[str, Any]:
    return facts(ranks, *words, backend=BACKEND, **asked)


def test_by_default_what_is_said_holds(ranks: Ranks) -> None:
    found = facts_of(ranks)
    assert found["options"] == {
        "fusion_threshold_mb": 128.0,
        "cycle_time_ms": 1.0,
        "compression": "none",
        "channels_last": True,
        "sgd": "fused",
        "compile": False,
        "loss_scale": "dynamic",
    }
    assert found["told"] == {"HOROVOD_FUSION_THRESHOLD": 128 * 2**20, "HOROVOD_CYCLE_TIME": 1}
    assert (found["transport"], found["threads"], found["tf32"]) == ("mpi", 2, False)
    assert (found["absent_stamps"], found["fused"], found["synchronises_every_step"]) == ([], True, False)
    assert (found["taken"], found["ordered"]) == ([0, 1, 2, 3, 4, 5], True)
    assert found["versions"]["horovod"] == "0.28.1"
    assert found["horovod_built_against"]["torch"] == found["versions"]["torch"]
    assert len(found["horovod_mpi_libraries"]) == 1
    # Horovod's optimizer is another one, and still steps by torch's fused kernel: it takes the parameter groups over.
    assert found["implementations"] == ["True"]


def test_settings_asked_for_are_those_told(ranks: Ranks) -> None:
    found = facts_of(ranks, options={"fusion_threshold_mb": "20000.5", "cycle_time_ms": "0.25"})
    assert (found["options"]["fusion_threshold_mb"], found["options"]["cycle_time_ms"]) == (20000.5, 0.25)
    assert found["told"] == {"HOROVOD_FUSION_THRESHOLD": 20000.5 * 2**20, "HOROVOD_CYCLE_TIME": 0.25}


def test_the_runs_environment_goes_before_the_options(ranks: Ranks) -> None:
    found = facts_of(ranks, env={"HOROVOD_FUSION_THRESHOLD": "1048576"}, options={"fusion_threshold_mb": "64"})
    assert found["options"]["fusion_threshold_mb"] == 1.0
    assert found["told"]["HOROVOD_FUSION_THRESHOLD"] == 2**20


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"options": {"fusion_threshold_mb": "-1"}},
            "option fusion_threshold_mb: '-1' is out of range: it must be from 0",
        ),
        ({"env": {"HOROVOD_CYCLE_TIME": "1e6"}}, "HOROVOD_CYCLE_TIME is 1e6; it must be a number, 0 or more"),
        ({"env": {"HOROVOD_CONTROLLER": "gloo"}}, "HOROVOD_CONTROLLER=gloo was asked for; ranks come from MPI"),
        (
            {"env": {"MPI4PY_RC_THREAD_LEVEL": "serialized"}},
            "Horovod calls MPI from a thread of its own, and this MPI was not started",
        ),
        ({"precision": "amp-fp16"}, "precision amp-fp16 was asked for; a CPU has no fp16 training path"),
        ({"gpus_per_node": 2}, "2 GPUs and 1 ranks per node were asked for; torch-horovod drives one GPU per rank"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(ranks: Ranks, asked: dict[str, Any], says: str) -> None:
    kind = "OptionError" if says.startswith("option ") else "InvalidRun"
    assert f"{kind}: {says}" in refused(ranks, backend=BACKEND, **asked)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("without_mpi", "InvalidRun: this horovod.torch was built without MPI: make horovod"),
        ("without_nccl", "InvalidRun: this Horovod was built without NCCL and would reduce on the host"),
        ("unseen", "InvalidRun: Horovod says rank 0 of 1 where MPI says 0 of 2"),
        ("twice", "InvalidRun: Horovod and mpi4py do not share their MPI (/opt/a/libmpi.so.12 and "),
        ("hooked", "WorkloadError: the SGD of the workload has step hooks or state; Horovod makes a new optimizer"),
    ],
)
def test_what_would_go_wrong_unseen_is_refused(ranks: Ranks, word: str, says: str) -> None:
    gpus = 2 if word == "without_nccl" else 0
    assert says in refused(ranks, word, size=2, backend=BACKEND, gpus_per_node=gpus)


def test_a_horovod_built_for_another_torch_is_said_in_one_line(ranks: Ranks) -> None:
    said = [line for line in ranks(1, SCRIPT, ASKED, "another").stderr.splitlines() if line.startswith("rankwise: ")]
    assert len(said) == 1
    assert said[0].startswith("rankwise: Horovod was built against torch 1.13.1, installed is torch ")
    assert said[0].endswith("make horovod builds it anew")


def test_a_horovod_that_does_not_load_names_the_cure(ranks: Ranks) -> None:
    done = ranks(1, SCRIPT, ASKED, "another", "unloadable", check=False)
    assert done.returncode != 0
    assert "ImportError: horovod.torch does not load: Horovod was built against torch 1.13.1" in done.stderr


def test_compression_changes_the_last_digits_and_learns(ranks: Ranks) -> None:
    plain, compressed = facts_of(ranks), facts_of(ranks, options={"compression": "fp16"})
    assert compressed["options"]["compression"] == "fp16"
    assert compressed["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert compressed["losses"] != plain["losses"]
    assert compressed["losses"][-1] < compressed["losses"][0]


def test_convolutions_in_channels_last_are_reduced_as_those_that_are_not(ranks: Ranks) -> None:
    def trained(**options: str) -> dict[str, Any]:
        return facts_of(ranks, workload="examples/my_training.py:MyTraining", options=options)

    nchw, nhwc = trained(channels_last="off"), trained()
    compressed = trained(compression="fp16")
    assert (nchw["layouts"], nhwc["layouts"]) == (["contiguous"], ["channels_last", "contiguous"])
    assert nhwc["losses"] == pytest.approx(nchw["losses"], rel=1e-5)
    assert compressed["losses"] == pytest.approx(nchw["losses"], rel=1e-3)


def test_coarse_stamps_are_begin_batch_and_end_of_the_very_same_steps(ranks: Ranks) -> None:
    fine, coarse = facts_of(ranks), facts_of(ranks, timing="step")
    assert (coarse["taken"], coarse["absent_stamps"], coarse["ordered"]) == ([0, 1, 5], list(INNER), True)
    assert coarse["losses"] == fine["losses"]


def test_ranks_that_begin_apart_go_on_together(ranks: Ranks) -> None:
    # Weights and buffers of rank 0 are everybody's: else two ranks with other weights would learn something else.
    assert facts_of(ranks, "apart_at_first")["losses"] == facts_of(ranks)["losses"]


def test_bf16_trains_on_a_cpu_and_is_not_fp32(ranks: Ranks) -> None:
    fp32, bf16 = facts_of(ranks), facts_of(ranks, precision="bf16")
    assert bf16["losses"] == pytest.approx(fp32["losses"], rel=0.05)
    assert bf16["losses"] != fp32["losses"]


def test_the_optimizer_asked_for_is_the_one_used(ranks: Ranks) -> None:
    assert facts_of(ranks, size=1, options={"sgd": "foreach"})["options"]["sgd"] == "foreach"


def test_a_compiled_model_learns_the_same(ranks: Ranks) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU: apt-get install g++")
    plain, compiled = facts_of(ranks), facts_of(ranks, options={"compile": "on"})
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert compiled["ordered"]


def test_the_stamps_hold_the_sleeps_that_were_injected(ranks: Ranks, tmp_path: Path) -> None:
    options = {"data_ms": "4@rank=1", "compute_ms": "2", "transfer_ms": "5@every=2", "update_ms": "1"}
    trace = Attempt(ranks, tmp_path, spec(backend=BACKEND, options=options)).trace()
    assert trace.injected_ns is not None
    assert (trace.injected_ns[:, ::2, 2] >= 5e6).all()
    assert (trace.injected_ns[:, 1::2, 2] < 5e6).all()
    assert (trace.injected_ns[:, :, 3] >= 1e6).all()
    spans = {0: (BEGIN, BATCH_READY), 1: (BATCH_READY, GRADS_READY), 2: (GRADS_READY, REDUCED), 3: (REDUCED, END)}
    for phase, (begin, end) in spans.items():
        lasted = trace.stamps[:, :, end] - trace.stamps[:, :, begin]
        assert (lasted >= trace.injected_ns[:, :, phase]).all()
    assert (trace.stamps[:, :, GRADS_READY] - trace.stamps[:, :, FORWARD_END] >= 1e6).all()


@pytest.mark.parametrize("size", [1, 4])
def test_a_run_leaves_a_trace_and_ends_in_peace(ranks: Ranks, tmp_path: Path, size: int) -> None:
    made = Attempt(ranks, tmp_path, spec(backend=BACKEND, workload="mlp", ranks_per_node=size))
    assert made.trace().outcome is Outcome.OK
    assert made.left_nothing_but_its_trace()


def test_a_rank_that_raises_ends_all(ranks: Ranks, tmp_path: Path) -> None:
    made = Attempt(ranks, tmp_path, spec(backend=BACKEND, workload=f"{TORCH}:RaisesAtStep7"), check=False)
    (note,) = made.notes()
    assert (note.outcome, note.rank, note.step) == (Outcome.RANK_FAIL, 1, 6)
    assert "my loss exploded" in note.message
    assert made.done.returncode == 1
    assert collect(made.traces, made.stem) == 2
