"""The particulars of torch-fsdp, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hpc.model.timestamps import INNER
from tests.mpi import facts as of_runs
from tests.mpi.attempts import Ranks, spec
from tests.mpi.facts import reason

TOGETHER: tuple[dict[str, Any], ...] = tuple(
    {"backend": "torch-fsdp", **fields} for fields in ({}, {"precision": "bf16"}, {"timing": "step"})
)
ROOT = Path(__file__).resolve().parents[2]
GATHERS = ["FSDP gathers parameters before each module"]


def facts(ranks: Ranks, **fields: Any) -> dict[str, Any]:
    return of_runs.facts(ranks, together=TOGETHER, backend="torch-fsdp", **fields)


def test_the_facts_of_a_default_run(ranks: Ranks) -> None:
    result = facts(ranks)
    assert result["options"] == {
        "reshard_after_forward": "auto", "shard_group": "all", "channels_last": False, "sgd": "foreach",
        "compile": False,
    }  # fmt: skip
    assert (result["transport"], result["absent_stamps"]) == ("gloo", [])
    assert result["layouts"] == ["contiguous"]
    assert (result["meets_before_gradients"], result["unrecorded_collectives"]) == (GATHERS, [])
    assert (result["taken"], result["ordered"], result["hooks"]) == ([0, 1, 2, 3, 4, 5], True, [0, 0, 0])
    assert result["listening"] == ["0100007F"]


def test_a_torch_whose_fsdp2_fails_on_cpus_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from hpc.backends import InvalidRun, torch_fsdp
    from hpc.backends.torch_process_group import ProcessGroupLoop

    version = type(torch.__version__)
    backend, run = torch_fsdp.TorchFSDP(), spec(backend="torch-fsdp")
    backend._begin(run, 0)
    for refused_version in ("2.6.0+cu124", "2.7.1", "2.12.1+cpu"):
        monkeypatch.setattr(torch, "__version__", version(refused_version))
        with pytest.raises(
            InvalidRun, match=rf"^FSDP2 of torch {re.escape(refused_version)} is not known to learn right on CPUs"
        ):
            backend._find_device(run, Mock(), Mock())
    monkeypatch.setattr(torch, "__version__", version("2.13.0a0+nv"))
    monkeypatch.setattr(ProcessGroupLoop, "_find_device", lambda *_: "cpu")
    assert str(backend._find_device(run, Mock(), Mock())) == "cpu"


def test_where_only_steps_are_timed_its_collectives_are_not_recorded(ranks: Ranks) -> None:
    result = facts(ranks, timing="step")
    assert (result["taken"], result["absent_stamps"]) == ([0, 1, 5], list(INNER))
    assert (result["meets_before_gradients"], result["unrecorded_collectives"]) == (GATHERS, GATHERS)
    assert result["losses"] == facts(ranks)["losses"]


@pytest.mark.all
def test_faces_with_a_replicated_head_learn_as_under_ddp(ranks: Ranks) -> None:
    small = {"head": "replicated", "image_size": "32", "classes": "8", "channels_last": "off"}
    fields: dict[str, Any] = {"workload": "arcface", "batch_size": 2, "options": small}
    together = [{"backend": backend, **fields} for backend in ("torch-fsdp", "torch-ddp")]
    sharded, replicated = (of_runs.facts(ranks, together=together, **run) for run in together)
    assert sharded["losses"] == pytest.approx(replicated["losses"], rel=1e-5)
    assert sharded["gradient_bytes"] == replicated["gradient_bytes"]


def test_autocast_computes_in_bf16_and_reduces_in_fp32(ranks: Ranks) -> None:
    result, single = facts(ranks, precision="bf16"), facts(ranks)
    assert result["gradient_bytes"] == single["gradient_bytes"]
    assert result["losses"] != single["losses"]
    assert result["losses"] == pytest.approx(single["losses"], rel=0.05)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"workload": "arcface", "options": {"image_size": "32", "classes": "8"}},
        "the workload has local_parameters, .*take torch-ddp, or for arcface head=replicated",
    ),
    (
        {"pretend": ["tied"]},
        "children of the model share a parameter, which FSDP2 would shard once only: take torch-ddp",
    ),
)


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_an_impossible_run_is_refused_with_the_reason(ranks: Ranks, fields: dict[str, Any], message: str) -> None:
    together = [{"backend": "torch-fsdp", **impossible} for impossible, _ in REFUSED]
    assert re.match(f"InvalidRun: {message}", reason(ranks, together=together, backend="torch-fsdp", **fields))


OF_A_LIST = """
from torch import nn
from hpc.backends.torch_fsdp import _parts

frozen = nn.Linear(2, 2).requires_grad_(False)
layers = nn.ModuleList([nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4)), frozen])
print(*(type(part).__name__ for part in _parts(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), layers))))
"""


def test_of_a_list_of_modules_each_is_sharded_and_what_is_not_trained_by_none() -> None:
    done = subprocess.run([sys.executable, "-c", OF_A_LIST], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Conv2d", "Linear", "Sequential"]
