"""hpc.node_agent.gpus on a real driver. Skipped without one."""

from __future__ import annotations

from typing import Any

import pytest

from hpc.node_agent.agent import NodeAgent, Recording, TelemetryRequest
from hpc.node_agent.sources import RankProcess
from hpc.system.gpus import has_amd_gpus


@pytest.fixture(scope="module")
def nvml() -> Any:
    """NVIDIA's own module with a driver behind it."""
    if has_amd_gpus():
        pytest.skip("these GPUs are AMD's: amdsmi reads them, of which tests/unit/test_amd.py has answers")
    module = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        pytest.skip(f"no NVIDIA driver here ({error})")
    return module


def recorded(*uuids: str) -> Recording:
    agent = NodeAgent([RankProcess.this_process()], telemetry=TelemetryRequest(gpus=uuids))
    agent.start()
    recording = agent.stop_telemetry()
    agent.end()
    assert recording is not None
    return recording


def test_clocks_power_and_memory_of_a_gpu_are_recorded(nvml: Any) -> None:
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    recording = recorded(nvml.nvmlDeviceGetUUID(gpu))
    last = dict(zip(recording.series, recording.values[-1], strict=True))
    assert "problem" not in recording.facts, recording.facts
    assert 0 < last["gpu0.sm_clock_mhz"] <= nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)
    assert 0 < last["gpu0.memory_used_bytes"] <= nvml.nvmlDeviceGetMemoryInfo(gpu).total
    assert 0 <= last["gpu0.utilisation_percent"] <= 100
    assert last["gpu0.throttle_power_cap_flag"] in (0.0, 1.0)
    for name in ("gpu0.power_w", "gpu0.temperature_c"):
        assert last.get(name, 0) > 0 or recording.facts["absent"][name]  # not in every virtual machine


def test_all_gpus_are_read_by_default(nvml: Any) -> None:
    read = {name.partition(".")[0] for name in recorded().series if name.startswith("gpu")}
    assert read == {f"gpu{place}" for place in range(nvml.nvmlDeviceGetCount())}
