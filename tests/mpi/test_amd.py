"""What torch backends make of AMD GPUs, on a torch that is made to answer as its ROCm build does.

The answers are MADE after the documentation of torch and ROCm and never came from such a machine, but for the UUID: of
one GPU by torch, rocm-smi and amdsmi, recorded in public code (`torch_uuid_to_unique_id` of Triton-distributed).
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from hpc.backends import InvalidRun
from hpc.backends.training import DeviceFacts
from hpc.measure.world import World
from hpc.model.spec import RunSpec

torch = pytest.importorskip("torch")

MI250X = SimpleNamespace(
    name="AMD Instinct MI250X", uuid="30333235-3434-3765-3339-313439656261", total_memory=64 << 30, major=9, minor=0,
    gcnArchName="gfx90a:sramecc+:xnack-", multi_processor_count=104,
)  # fmt: skip
RUN = RunSpec(
    nodes=1, ranks_per_node=2, gpus_per_node=2, cpus_per_rank=1, backend="torch-ddp", workload="resnet50", batch_size=4,
    precision="bf16", scaling="weak", warmup_steps=6, measured_steps=6, repeat=1, seed=0, site="here",
)  # fmt: skip


class OneRank:
    """A communicator of one rank."""

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def world(local_rank: int = 1) -> World:
    return World(
        rank=local_rank, size=2, node_rank=0, nodes=1, local_rank=local_rank, local_size=2, hostname="nid005001",
        nodes_simulated=False,
    )  # fmt: skip


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch for ROCm that sees two GPUs."""
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(torch.version, "hip", "6.2.41134")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: MI250X)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 20, 5))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 30200)


def test_a_rank_gets_its_amd_gpu(rocm: None) -> None:
    from hpc.backends import torch_loop

    assert torch_loop.device_of_rank(RUN, world(), OneRank()) == torch.device("cuda", 1)  # type: ignore[arg-type]


def test_the_facts_of_an_amd_gpu_have_its_architecture_and_its_uuid_as_rocm_writes_it(rocm: None) -> None:
    from hpc.backends import torch_loop

    assert torch_loop.describe_device(torch.device("cuda", 0)) == DeviceFacts(
        kind="gpu", name="AMD Instinct MI250X", uuid="GPU-0325447e39149eba", memory_bytes=64 << 30,
        capability="gfx90a:sramecc+:xnack-", compute_units=104,
    )  # fmt: skip
    assert torch_loop.versions() == {
        "torch": torch.__version__, "hip": "6.2.41134", "miopen": 30200, "rccl": "2.20.5",
    }  # fmt: skip


def test_a_gpu_without_an_identity_has_no_uuid_and_is_not_taken_for_shared(
    rocm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc.backends import torch_loop

    # ROCr calls such a GPU GPU-XX: one of a virtual machine.
    unnamed = SimpleNamespace(**{**vars(MI250X), "uuid": "58580000-0000-0000-0000-000000000000"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: unnamed)
    assert torch_loop.describe_device(torch.device("cuda", 0)).uuid is None
    everyone: list[Any] = []

    class TwoRanks:
        def allgather(self, value: Any) -> list[Any]:
            everyone.append(value)
            return everyone

    for place in range(2):
        torch_loop.device_of_rank(RUN, world(place), TwoRanks())  # type: ignore[arg-type]
    assert len(set(everyone)) == 2


def test_a_torch_of_neither_kind_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.backends import torch_loop

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRun, match="this torch was built without CUDA and ROCm"):
        torch_loop.visible_gpus(RUN, world())


REFUSED: tuple[tuple[dict[str, str], dict[str, Any], str], ...] = (
    ({}, {"precision": "tf32"}, r"tf32 was requested; .* AMD Instinct MI250X \(gfx90a\) is an AMD GPU"),
    ({}, {"data": "dali:/data/set"}, "not on AMD GPUs: take imagefolder:/data/set"),
    # As Slurm sets them without Flags=amd_gpu_env for the second half of a node whose devices are not confined.
    (
        {"ROCR_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1,2"},
        {},
        "leaves 2 GPUs, and HIP looks for CUDA_VISIBLE_DEVICES=1,2 among these, of wh",
    ),
    ({"NO_GPU": "1"}, {}, r"no driver or no visible GPU\)\. Install the ROCm build of torch"),
)


@pytest.mark.parametrize(("variables", "changes", "message"), REFUSED)
def test_what_an_amd_gpu_cannot_do_is_refused(
    rocm: None, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    from hpc.backends import torch_loop

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "NO_GPU" not in variables)
    run = dataclasses.replace(RUN, **changes)
    with pytest.raises(InvalidRun, match=message):
        torch_loop.check_precision(run.precision, torch_loop.device_of_rank(run, world(), OneRank()))  # type: ignore[arg-type]
