"""Preflight on real GPUs of either maker: facts from driver, framework and NCCL or RCCL. Skipped without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc.model.findings import CHECKS
from hpc.model.trace import Trace
from hpc.preflight.facts import NoDriver, devices_of_rank, gpus_in_sight
from hpc.system.gpus import bare_uuid, gpus_of_kernel, has_amd_gpus
from tests.gpu.test_gpu import ASK_TORCH, launched, output_of, spec, traced


@pytest.fixture(scope="module", autouse=True)
def driver() -> None:
    """Skips if no driver shows a GPU."""
    try:
        devices = gpus_in_sight()
    except NoDriver as error:
        pytest.skip(str(error))
    if not devices:
        pytest.skip("the driver shows no GPU here")


@pytest.fixture
def torch_sees() -> int:
    """Number of GPUs that torch sees; skips if there is none."""
    output = (output_of(ASK_TORCH) or "False 0").split()
    if output[1] == "0":
        pytest.skip("torch sees no GPU here")
    return int(output[1])


def findings(trace: Trace) -> dict[str, Any]:
    results: dict[str, Any] = trace.environment["preflight"]
    return results


def test_the_driver_names_the_gpus_that_torch_sees_in_its_order(torch_sees: int) -> None:
    """By their UUIDs, as the framework has them in this process' environment."""
    code = "import torch; from hpc.backends.torch_loop import describe_device\n"
    code += "print(*(describe_device(torch.device('cuda', at)).uuid for at in range(torch.cuda.device_count())))"
    uuids = (output_of(code) or "").split()
    if "None" in uuids:
        pytest.skip("a GPU of a virtual machine has no UUID in ROCm")
    in_sight = gpus_in_sight()
    its = devices_of_rank(in_sight, 0, max(2, torch_sees), is_amd=has_amd_gpus())
    assert [*its] == [bare_uuid(uuid) for uuid in uuids]
    assert len(in_sight) <= (gpus_of_kernel() or len(in_sight))


def test_what_the_driver_says_of_a_gpu_is_plausible() -> None:
    for gpu in gpus_in_sight():
        assert gpu.uuid and gpu.name and gpu.driver and gpu.pci
        assert 0 <= gpu.used_bytes <= gpu.memory_bytes > 1 << 30


def test_a_gpu_run_records_preflight_and_environment(tmp_path: Path, torch_sees: int) -> None:
    trace = traced(tmp_path)
    results = findings(trace)
    checks_of_many = {"transport", "transport_in_node"}  # need several ranks
    assert set(results) == set(CHECKS) - checks_of_many
    fatal = {name: result for name, result in results.items() if result["severity"] == "fatal"}
    assert {name: result["text"] for name, result in fatal.items() if result["state"] != "ok"} == {}
    assert results["gpus_in_sight"]["state"] == results["same_driver"]["state"] == "ok"
    (rank,) = trace.ranks
    (gpu,) = rank["start"]["gpus"]
    assert gpu["uuid"] == bare_uuid(rank["device"]["uuid"])
    assert gpu["memory_bytes"] >= rank["device"]["memory_bytes"]
    assert trace.environment["variables"]["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG_FILE" not in trace.environment["variables"]
    assert rank["nccl"]["unread"] or rank["nccl"]["network"], "NCCL's log was read, or the reason is recorded"


def test_a_gpu_in_use_fails_gpu_idle(tmp_path: Path, torch_sees: int) -> None:
    """Ground truth: another process holds a tenth of the first GPU's memory."""
    hold = (
        "import sys, torch\n"
        "x = torch.empty(torch.cuda.get_device_properties(0).total_memory // 10, dtype=torch.uint8, device='cuda')\n"
        "print('on', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "on\n"
        finding = findings(traced(tmp_path))["gpu_idle"]
        holder.stdin.close()
    assert finding["state"] == "failed"
    assert "in use before the start" in finding["text"]


def test_requesting_more_gpus_than_exist_fails_gpu_per_rank(tmp_path: Path, torch_sees: int) -> None:
    done = launched(tmp_path, spec(gpus_per_node=torch_sees + 1, ranks_per_node=1, backend="torch-dp"))
    assert done.returncode == 3
    (note,) = tmp_path.glob("*.rank0.json")
    message = json.loads(note.read_text())["message"]
    assert message.startswith(f"gpu_per_rank: {torch_sees + 1} GPUs per node were requested; rank 0 on ")
    assert f"needs {torch_sees + 1} and finds {torch_sees}" in message
