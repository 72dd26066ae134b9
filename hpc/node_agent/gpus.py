"""Readings of the GPUs of a node from NVIDIA's driver, by nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import isnan, nan
from types import ModuleType
from typing import Any

from hpc.node_agent.sources import SeriesReader, Unread

THROTTLE_REASONS = {
    "gpu_idle": 0x1,
    "application_clocks": 0x2,
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Why a GPU runs slower than it could: the bits of nvmlDeviceGetCurrentClocksThrottleReasons (NVML's manual)."""
_ALL_LINKS = 0xFFFFFFFF
# Counters that the driver gives by number: the link that is meant, what turns a count into the unit of its name.
_COUNTERS = (
    ("nvlink_sent_bytes", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS, 1024.0),
    ("nvlink_received_bytes", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS, 1024.0),
    ("nvlink_crc_errors", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 0, 1.0),
    ("nvlink_replays", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 0, 1.0),
    ("nvlink_recoveries", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 0, 1.0),
    ("pcie_sent_bytes", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1.0),
    ("pcie_received_bytes", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1.0),
)


def gpus(wanted: Sequence[str], nvml: ModuleType | Any) -> Iterator[SeriesReader]:
    """Readings of the GPUs with these UUIDs, named `gpu0`, `gpu1` … in their order; of all GPUs if none is given.

    `nvml` is the module pynvml. Raises Unread where there is no driver, or no such GPU.
    """
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        by_uuid = {_bare(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
    except nvml.NVMLError as error:
        raise Unread(str(error)) from None
    if missing := [uuid for uuid in wanted if _bare(uuid) not in by_uuid]:
        raise Unread(f"the driver shows no GPU {', '.join(missing)}, but {', '.join(by_uuid) or 'none'}")
    for place, uuid in enumerate(map(_bare, wanted) if wanted else by_uuid):
        yield from _readings(f"gpu{place}", by_uuid[uuid], nvml)


def _bare(uuid: str | bytes) -> str:
    """The UUID alone: frameworks leave out the driver's prefix, old versions of its module give bytes."""
    return (uuid.decode() if isinstance(uuid, bytes) else uuid).removeprefix("GPU-").lower()


def _readings(name: str, gpu: Any, nvml: Any) -> Iterator[SeriesReader]:
    """One reading per call of the driver: what this GPU does not support is left out by itself."""

    def reading(kinds: Sequence[str], ask: Callable[[], Sequence[float]]) -> SeriesReader:
        def read() -> Sequence[float]:
            try:
                return ask()
            except (nvml.NVMLError, AttributeError) as error:  # an old module lacks functions
                raise Unread(str(error)) from None

        return SeriesReader([f"{name}.{kind}" for kind in kinds], read)

    def utilisation() -> Sequence[float]:
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        return rates.gpu, rates.memory

    def throttled() -> Sequence[float]:
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        return [float(bool(bits & bit)) for bit in THROTTLE_REASONS.values()]

    def ecc_errors() -> Sequence[float]:
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        return [nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]

    yield reading(("utilisation_percent", "memory_utilisation_percent"), utilisation)
    yield reading(("sm_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),))
    yield reading(("memory_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),))
    yield reading([f"throttle_{reason}_flag" for reason in THROTTLE_REASONS], throttled)
    yield reading(("power_w",), lambda: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,))
    yield reading(("power_limit_w",), lambda: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,))
    yield reading(("energy_j",), lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,))
    yield reading(("temperature_c",), lambda: (nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),))
    yield reading(("memory_used_bytes",), lambda: (nvml.nvmlDeviceGetMemoryInfo(gpu).used,))
    yield reading(("ecc_corrected_errors", "ecc_uncorrected_errors"), ecc_errors)
    yield reading(("pcie_generation",), lambda: (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),))
    yield reading(("pcie_width_lanes",), lambda: (nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),))
    yield reading(("pcie_replays",), lambda: (nvml.nvmlDeviceGetPcieReplayCounter(gpu),))
    yield _counters(name, gpu, nvml)


def _counters(name: str, gpu: Any, nvml: Any) -> SeriesReader:
    """Those of _COUNTERS that this GPU has, read by one call."""

    def ask(counters: Sequence[tuple[str, str, int, float]]) -> list[float]:
        numbers = [(getattr(nvml, field), scope) for _, field, scope, _ in counters]
        try:
            answers = nvml.nvmlDeviceGetFieldValues(gpu, numbers)
        except nvml.NVMLError as error:
            raise Unread(str(error)) from None
        return [_value(answer, nvml) * scale for answer, (*_, scale) in zip(answers, counters, strict=True)]

    had = known = [each for each in _COUNTERS if hasattr(nvml, each[1])]
    with suppress(Unread):  # then they are absent by their names
        had = [each for each, value in zip(known, ask(known), strict=True) if not isnan(value)]
    return SeriesReader([f"{name}.{kind}" for kind, *_ in had], lambda: ask(had))


def _value(answer: Any, nvml: Any) -> float:
    """The number in an answer, NaN where the driver has none."""
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        return nan
    kinds = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    kind = kinds.get(answer.valueType)
    return nan if kind is None else float(getattr(answer.value, kind))
