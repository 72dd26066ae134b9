"""Preflight on real GPUs: what driver, framework and NCCL say. Where there is none this says so and is skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc.model.checks import CHECKS
from hpc.model.trace import Trace
from hpc.preflight.gpus import NoDriver, _nvidia_smi, bare, by_nvidia_smi, by_nvml
from tests.gpu.test_gpu import ASK_TORCH, asked, launched, spec, traced


@pytest.fixture(scope="module", autouse=True)
def driver() -> None:
    """Skips where no driver shows a GPU."""
    try:
        found = by_nvidia_smi(_nvidia_smi)
    except NoDriver as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip("the driver shows no GPU here")


@pytest.fixture
def torch_sees() -> int:
    """How many GPUs torch sees; skips where it sees none."""
    said = (asked(ASK_TORCH) or "False 0").split()
    if said[1] == "0":
        pytest.skip("torch sees no GPU here")
    return int(said[1])


def findings(trace: Trace) -> dict[str, Any]:
    found: dict[str, Any] = trace.environment["preflight"]
    return found


def test_the_driver_tells_the_same_by_both_ways() -> None:
    nvml = pytest.importorskip("pynvml", reason="no nvidia-ml-py here: pip install nvidia-ml-py")
    by_library, by_program = by_nvml(nvml), by_nvidia_smi(_nvidia_smi)
    for one, other in zip(by_library, by_program, strict=True):
        assert (one.uuid, one.name, one.driver, one.near_cores) == (
            other.uuid, other.name, other.driver, other.near_cores,
        )  # fmt: skip
        assert one.pci.lower()[-10:] == other.pci.lower()[-10:]
        assert abs(one.memory_bytes - other.memory_bytes) < 1 << 21


def test_a_run_on_a_gpu_says_what_it_met(tmp_path: Path, torch_sees: int) -> None:
    trace = traced(tmp_path)
    found = findings(trace)
    checks_of_many = {"fabric", "transport", "transport_in_node"}  # one rank goes nowhere
    assert set(found) == set(CHECKS) - checks_of_many
    assert {
        name: one["text"] for name, one in found.items() if one["severity"] == "fatal" and one["state"] != "ok"
    } == {}
    assert found["gpus_in_sight"]["state"] == found["same_driver"]["state"] == "ok"
    (rank,) = trace.ranks
    (gpu,) = rank["start"]["gpus"]
    assert gpu["uuid"] == bare(rank["device"]["uuid"])
    assert gpu["memory_bytes"] >= rank["device"]["memory_bytes"]
    assert trace.environment["variables"]["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG_FILE" not in trace.environment["variables"]
    assert rank["nccl"]["unread"] or rank["nccl"]["network"], "NCCL's log was read, or it is said why not"


def test_a_gpu_that_somebody_uses_rings(tmp_path: Path, torch_sees: int) -> None:
    """Ground truth: a process that holds a tenth of the first GPU's memory."""
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
        found = findings(traced(tmp_path))["gpu_idle"]
        holder.stdin.close()
    assert found["state"] == "failed"
    assert "in use before the start" in found["text"]


def test_more_gpus_than_there_are_name_the_check(tmp_path: Path, torch_sees: int) -> None:
    done = launched(tmp_path, spec(gpus_per_node=torch_sees + 1, ranks_per_node=1, backend="torch-dp"))
    assert done.returncode == 3
    (note,) = tmp_path.glob("*.rank0.json")
    said = json.loads(note.read_text())["message"]
    assert said.startswith(f"gpu_per_rank: {torch_sees + 1} GPUs per node were asked for; rank 0 on ")
    assert f"needs {torch_sees + 1} and finds {torch_sees}" in said
