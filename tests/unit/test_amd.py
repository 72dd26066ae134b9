"""AMD GPUs where no framework is needed: rules of devices, visible devices, facts, telemetry, RCCL's log.

Answers of amdsmi are MADE after its Python module (7.0.2) and documentation; lines of RCCL are recorded from its public
issues. None of it has run on such a machine.
"""

from __future__ import annotations

import dataclasses

import pytest

from hpc.backends import InvalidRun
from hpc.backends import device as checks
from hpc.model.findings import State
from tests.unit.preflight_facts import RUN, findings, seen


@pytest.mark.parametrize(
    "architecture", ["gfx908:sramecc+:xnack-", "gfx90a:sramecc+:xnack-", "gfx942", "gfx950", "gfx1100"]
)
def test_architectures_with_bf16(architecture: str) -> None:
    for precision in ("fp32", "bf16", "amp-fp16"):
        checks.check_amd_precision(precision, "AMD GPU", architecture)
    with pytest.raises(InvalidRun, match="tf32 was requested; it is a mode of NVIDIA GPUs"):
        checks.check_amd_precision("tf32", "AMD GPU", architecture)


@pytest.mark.parametrize("architecture", ["gfx906:sramecc+:xnack-", "gfx1030", "gfx9"])
def test_an_architecture_that_is_not_known_to_have_bf16_is_refused(architecture: str) -> None:
    with pytest.raises(
        InvalidRun, match=f"bf16 was requested; AMD GPU \\({architecture.partition(':')[0]}\\) is none of"
    ):
        checks.check_amd_precision("bf16", "AMD GPU", architecture)
    checks.check_amd_precision("amp-fp16", "AMD GPU", architecture)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"ROCR_VISIBLE_DEVICES": "2,3"},
        {"CUDA_VISIBLE_DEVICES": "2,3"},
        {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"},
        {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"},
        {"ROCR_VISIBLE_DEVICES": "GPU-0325447e39149eba", "HIP_VISIBLE_DEVICES": "GPU-0325447e39149eba"},
    ],
)
def test_variables_that_agree_are_no_reason_to_refuse(environ: dict[str, str]) -> None:
    checks.check_visible_once(environ)


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_gpus_that_are_hidden_twice_are_refused_with_the_variable_to_set(variable: str) -> None:
    with pytest.raises(
        InvalidRun, match=f"{variable}=4,5 among these, of which there is no 4: set HIP_VISIBLE_DEVICES=0,1,"
    ):
        checks.check_visible_once({"ROCR_VISIBLE_DEVICES": "4,5", variable: "4,5"})


@pytest.mark.parametrize("backend", ["paddle-fleet", "tensorflow-horovod", "tensorflow-multiworker"])
def test_backends_that_drive_nvidia_gpus_only_say_so_by_name(backend: str) -> None:
    run = dataclasses.replace(RUN, backend=backend)
    with pytest.raises(InvalidRun, match=f"is built for ROCm, and {backend} drives NVIDIA GPUs only: take torch-ddp"):
        checks.check_nvidia_only(run, "Framework 1.0", is_rocm=True)
    checks.check_nvidia_only(run, "Framework 1.0", is_rocm=False)


def test_ranks_with_different_versions_of_rccl_are_found() -> None:
    software = {number: {"software": {"torch": "2.6", "hip": "6.2", "rccl": "2.20.5"}} for number in range(4)}
    assert findings(seen(software))["same_nccl"].text == "RCCL 2.20.5 on all ranks"
    software[2]["software"] |= {"rccl": "2.21.5"}
    by_name = findings(seen(software))
    assert by_name["same_nccl"].state is State.FAILED
    assert by_name["same_nccl"].text == "ranks differ in RCCL: 2.20.5 on rank 0-1, 3; 2.21.5 on rank 2"
    assert by_name["same_framework"].state is State.OK
