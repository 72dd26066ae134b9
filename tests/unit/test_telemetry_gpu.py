"""hpc.node_agent.gpus: against a FAKE driver where there is none; and nvidia-ml-py where it finds no driver."""

from __future__ import annotations

from math import isnan

import pytest

from hpc.node_agent.gpus import THROTTLE_REASONS, Nvml, gpus
from hpc.node_agent.telemetry import Readings
from tests.unit.telemetry_nodes import UUIDS, FakeNvml


def read(readings: Readings) -> dict[str, float]:
    return dict(zip(readings.series, readings.read(), strict=True))


def test_a_gpu_in_the_units_of_the_names():
    driver = FakeNvml()
    readings = Readings({"GPU": gpus([UUIDS[0]], Nvml(driver))})
    flags = {
        f"gpu0.throttle_{name}_flag": float(name in ("power_cap", "hardware_thermal")) for name in THROTTLE_REASONS
    }
    assert read(readings) == {
        **flags, "gpu0.utilisation_percent": 97, "gpu0.memory_utilisation_percent": 41, "gpu0.sm_clock_mhz": 1755,
        "gpu0.memory_clock_mhz": 2619, "gpu0.power_w": 690.5, "gpu0.power_limit_w": 700, "gpu0.energy_j": 1234.5,
        "gpu0.temperature_c": 61, "gpu0.memory_used_bytes": 70 << 30, "gpu0.ecc_corrected_errors": 3,
        "gpu0.ecc_uncorrected_errors": 4, "gpu0.pcie_generation": 5, "gpu0.pcie_width_lanes": 16,
        "gpu0.pcie_replays": 2, "gpu0.nvlink_replays": 1,
    }  # fmt: skip
    assert readings.absent == {}
    assert driver.requested == [52]  # what the GPU does not have is not requested again


def test_the_gpus_of_the_ranks_are_read_in_their_order_and_no_others():
    # A framework names them without the driver's prefix.
    named = [uuid.removeprefix("GPU-").upper() for uuid in reversed(UUIDS)]
    both = read(Readings({"GPU": gpus(named, Nvml(FakeNvml()))}))
    assert "gpu0.ecc_corrected_errors" not in both
    assert both["gpu1.ecc_corrected_errors"] == 3
    gpu = Readings({"GPU": gpus(named[:1], Nvml(FakeNvml()))})
    assert not [name for name in gpu.series if name.startswith("gpu1")]


def test_what_a_gpu_does_not_support_is_absent_with_the_drivers_words():
    readings = Readings({"GPU": gpus([], Nvml(FakeNvml()))})
    assert "gpu1.sm_clock_mhz" in readings.series
    assert readings.absent["gpu1.ecc_corrected_errors"] == "Not Supported"
    assert "gpu1.nvlink_replays" not in readings.series


def test_what_an_old_module_cannot_ask_is_absent_by_itself():
    class Older(FakeNvml):
        @property
        def nvmlDeviceGetTotalEnergyConsumption(self):
            raise AttributeError("module 'pynvml' has no attribute 'nvmlDeviceGetTotalEnergyConsumption'")

    readings = Readings({"GPU": gpus([UUIDS[0]], Nvml(Older()))})
    assert "has no attribute" in readings.absent["gpu0.energy_j"]
    assert "gpu0.pcie_replays" in readings.series


def test_a_gpu_that_is_lost_is_nan_from_then_on():
    driver = FakeNvml()
    readings = Readings({"GPU": gpus([UUIDS[0]], Nvml(driver))})
    driver.lost = True
    values = read(readings)
    assert isnan(values["gpu0.sm_clock_mhz"])
    assert values["gpu0.power_w"] == 690.5
    assert readings.failed["gpu0.sm_clock_mhz"] == "GPU is lost"


def test_a_gpu_that_the_driver_does_not_show_is_named():
    absent = Readings({"GPU": gpus(["GPU-cccc"], Nvml(FakeNvml()))}).absent
    assert "no GPU GPU-cccc" in absent["GPU"]
    assert "aaaaaaaa-0000" in absent["GPU"]


def test_the_reasons_the_fields_and_the_functions_are_those_of_nvidias_own_module():
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    by_name = {
        "gpu_idle": "GpuIdle", "application_clocks": "ApplicationsClocksSetting", "power_cap": "SwPowerCap",
        "hardware_slowdown": "HwSlowdown", "sync_boost": "SyncBoost", "software_thermal": "SwThermalSlowdown",
        "hardware_thermal": "HwThermalSlowdown", "power_brake": "HwPowerBrakeSlowdown",
        "display_clocks": "DisplayClockSetting",
    }  # fmt: skip
    assert {name: getattr(nvml, f"nvmlClocksEventReason{theirs}") for name, theirs in by_name.items()} == (
        THROTTLE_REASONS
    )
    for name in vars(FakeNvml):
        assert name.startswith("_") or hasattr(nvml, name), name
    for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG"):
        assert getattr(nvml, name) == getattr(FakeNvml, name)
    for name in ("dVal", "uiVal", "ulVal", "ullVal", "sllVal"):
        assert hasattr(nvml.c_nvmlValue_t, name)


def test_a_missing_driver_is_reported_in_its_own_words():
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        assert Readings({"GPU": gpus([], Nvml(nvml))}).absent == {"GPU": str(error)}
    else:
        pytest.skip("there is a driver here: tests/gpu reads it")
