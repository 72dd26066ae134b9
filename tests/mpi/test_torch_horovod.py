"""The particulars of torch-horovod, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc.backends import missing_modules
from tests.mpi.attempts import Ranks
from tests.mpi.facts import SCRIPT, facts, refused

BACKEND = "torch-horovod"
RUNS = json.dumps([{"backend": BACKEND}])
CONVOLUTIONS = "examples/my_training.py:MyTraining"
ALIKE: tuple[dict[str, Any], ...] = (
    {},
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
    result = horovod_facts(ranks, size=1, options={"fusion_threshold_mb": "20000.5", "cycle_time_ms": "0.25"})
    assert (result["options"]["fusion_threshold_mb"], result["options"]["cycle_time_ms"]) == (20000.5, 0.25)
    assert result["variables"] == {"HOROVOD_FUSION_THRESHOLD": 20000.5 * 2**20, "HOROVOD_CYCLE_TIME": 0.25}


@pytest.mark.all
def test_the_environment_of_a_run_overrides_its_options(ranks: Ranks) -> None:
    requested = {"env": {"HOROVOD_FUSION_THRESHOLD": "1048576"}, "options": {"fusion_threshold_mb": "64"}}
    result = horovod_facts(ranks, size=1, **requested)
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


def test_convolutions_in_channels_last_are_reduced_like_contiguous_ones(ranks: Ranks) -> None:
    def trained(**options: str) -> dict[str, Any]:
        return horovod_facts(ranks, workload=CONVOLUTIONS, options=options)

    nchw, nhwc = trained(channels_last="off"), trained()
    compressed = trained(compression="fp16")
    assert (nchw["layouts"], nhwc["layouts"]) == (["contiguous"], ["channels_last", "contiguous"])
    assert nhwc["losses"] == pytest.approx(nchw["losses"], rel=1e-5)
    assert compressed["options"]["compression"] == "fp16"
    assert compressed["losses"] != nhwc["losses"] and compressed["losses"] == pytest.approx(nchw["losses"], rel=1e-3)


def test_ranks_with_different_weights_start_from_rank_0(ranks: Ranks) -> None:
    # Weights and buffers of rank 0 are everybody's: else two ranks with other weights would learn something else.
    assert horovod_facts(ranks, "apart_at_first")["losses"] == horovod_facts(ranks)["losses"]
