"""Readings of the GPUs of a node: of NVIDIA's driver by nvidia-ml-py, of AMD's by amdsmi."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isnan, nan
from types import ModuleType
from typing import Any, Protocol

from hpc.node_agent.sources import SeriesReader, Unread
from hpc.system.gpus import NoDriver, amd_gpus, bare_uuid, has_amd_gpus, load_amdsmi, load_nvml

DriverCall = tuple[Sequence[str], Callable[[], Sequence[float]]]
"""The names of figures that one call of the driver gives, each ending with its unit, and that call."""


class GpuDriver(Protocol):
    """What is read of a maker's GPUs; `errors` are those of its module, with what an old module lacks."""

    errors: tuple[type[Exception], ...]

    def by_uuid(self) -> Mapping[str, Any]:
        """The GPUs by `bare_uuid`, in the driver's order."""

    def figures(self, gpu: Any) -> Iterator[DriverCall]:
        """What is read of a GPU, a call of the driver each."""


def driver_here() -> GpuDriver:
    """That of this machine's GPUs. Raises Unread where its module is not installed."""
    try:
        return AmdSmi(load_amdsmi()) if has_amd_gpus() else Nvml(load_nvml())
    except NoDriver as error:
        raise Unread(str(error)) from None


def gpus(wanted: Sequence[str], driver: GpuDriver) -> Iterator[SeriesReader]:
    """Readings of the GPUs with these UUIDs, named `gpu0`, `gpu1` … in their order; of all GPUs if none is given. One
    for each call of the driver: what a GPU does not support is left out by itself.

    Raises Unread where there is no driver, or no such GPU.
    """
    try:
        by_uuid = driver.by_uuid()
    except driver.errors as error:
        raise Unread(_words(error)) from None
    if missing := [uuid for uuid in wanted if bare_uuid(uuid) not in by_uuid]:
        raise Unread(f"the driver shows no GPU {', '.join(missing)}, but {', '.join(by_uuid) or 'none'}")
    for place, uuid in enumerate(map(bare_uuid, wanted) if wanted else by_uuid):
        for kinds, ask in driver.figures(by_uuid[uuid]):
            yield SeriesReader([f"gpu{place}.{kind}" for kind in kinds], _reading(ask, driver.errors))


def _reading(ask: Callable[[], Sequence[float]], errors: tuple[type[Exception], ...]) -> Callable[[], Sequence[float]]:
    def read() -> Sequence[float]:
        try:
            return ask()
        except errors as error:
            raise Unread(_words(error)) from None

    return read


def _words(error: Exception) -> str:
    """The text of the error on one line: amdsmi's have several."""
    return " ".join(str(error).split())


# NVIDIA's GPUs.

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
# Counters that the driver gives by number.
_COUNTERS = (
    ("nvlink_crc_errors", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
    ("nvlink_replays", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    ("nvlink_recoveries", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
)


class Nvml:
    """NVIDIA's GPUs by the module pynvml."""

    def __init__(self, nvml: ModuleType | Any) -> None:
        self._nvml = nvml
        self.errors: tuple[type[Exception], ...] = (nvml.NVMLError, AttributeError)

    def by_uuid(self) -> Mapping[str, Any]:
        nvml = self._nvml
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {bare_uuid(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}

    def figures(self, gpu: Any) -> Iterator[DriverCall]:
        nvml = self._nvml

        def utilisation() -> Sequence[float]:
            rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
            return rates.gpu, rates.memory

        def throttled() -> Sequence[float]:
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            return [float(bool(bits & bit)) for bit in THROTTLE_REASONS.values()]

        def ecc_errors() -> Sequence[float]:
            kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
            return [nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]

        yield ("utilisation_percent", "memory_utilisation_percent"), utilisation
        yield ("sm_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)
        yield ("memory_clock_mhz",), lambda: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)
        yield [f"throttle_{reason}_flag" for reason in THROTTLE_REASONS], throttled
        yield ("power_w",), lambda: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,)
        yield ("power_limit_w",), lambda: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,)
        yield ("energy_j",), lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,)
        yield ("temperature_c",), lambda: (nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),)
        yield ("memory_used_bytes",), lambda: (nvml.nvmlDeviceGetMemoryInfo(gpu).used,)
        yield ("ecc_corrected_errors", "ecc_uncorrected_errors"), ecc_errors
        yield ("pcie_generation",), lambda: (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),)
        yield ("pcie_width_lanes",), lambda: (nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),)
        yield ("pcie_replays",), lambda: (nvml.nvmlDeviceGetPcieReplayCounter(gpu),)
        yield self._counters(gpu)

    def _counters(self, gpu: Any) -> DriverCall:
        """Those of _COUNTERS that this GPU has, read by one call."""
        nvml = self._nvml

        def ask(counters: Sequence[tuple[str, str]]) -> list[float]:
            answers = nvml.nvmlDeviceGetFieldValues(gpu, [getattr(nvml, field) for _, field in counters])
            return [_value(answer, nvml) for answer in answers]

        had = known = [each for each in _COUNTERS if hasattr(nvml, each[1])]
        with suppress(*self.errors):  # then they are absent by their names
            had = [each for each, value in zip(known, ask(known), strict=True) if not isnan(value)]
        return [kind for kind, _ in had], lambda: ask(had)


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


# AMD's GPUs.

RESIDENCIES = {
    "power_cap": "ppt_residency_acc",
    "processor_hot": "prochot_residency_acc",
    "socket_heat": "socket_thm_residency_acc",
    "regulator_heat": "vr_thm_residency_acc",
    "memory_heat": "hbm_thm_residency_acc",
}
"""Why a GPU from MI300 on runs slower than it could: fields of amdsmi's gpu metrics that count while it does, in the
ticks of `accumulation_counter`. Not by amdsmi_get_violation_status, which divides the same, and waits 100 ms for it."""


class AmdSmi:
    """AMD's GPUs by the module amdsmi of ROCm 6.4 and later. Made after its Python source (7.0.2) and documentation,
    never run on such a machine."""

    def __init__(self, amdsmi: ModuleType | Any) -> None:
        self._amdsmi = amdsmi
        self.errors: tuple[type[Exception], ...] = (
            amdsmi.AmdSmiException, NoDriver, AttributeError, KeyError
        )  # fmt: skip

    def by_uuid(self) -> Mapping[str, Any]:
        return {gpu.uuid: gpu.handle for gpu in amd_gpus(self._amdsmi)}

    def figures(self, gpu: Any) -> Iterator[DriverCall]:
        amdsmi = self._amdsmi

        def utilisation() -> Sequence[float]:
            activity = amdsmi.amdsmi_get_gpu_activity(gpu)
            return _number(activity["gfx_activity"]), _number(activity["umc_activity"])

        def clock(kind: Any) -> Sequence[float]:
            return (_number(amdsmi.amdsmi_get_clock_info(gpu, kind)["clk"]),)

        def power() -> Sequence[float]:
            figures = amdsmi.amdsmi_get_power_info(gpu)
            current, average = figures.get("current_socket_power", "N/A"), figures["average_socket_power"]
            return (_number(average if current == "N/A" else current),)  # the one from MI300 on, the other before

        def energy() -> Sequence[float]:
            count = amdsmi.amdsmi_get_energy_count(gpu)
            return (_number(count["energy_accumulator"]) * count["counter_resolution"] / 1e6,)

        def temperature() -> Sequence[float]:
            sensor, metric = amdsmi.AmdSmiTemperatureType.JUNCTION, amdsmi.AmdSmiTemperatureMetric.CURRENT
            return (_number(amdsmi.amdsmi_get_temp_metric(gpu, sensor, metric)),)

        def ecc_errors() -> Sequence[float]:
            count = amdsmi.amdsmi_get_gpu_total_ecc_count(gpu)
            return _number(count["correctable_count"]), _number(count["uncorrectable_count"])

        yield ("utilisation_percent", "memory_utilisation_percent"), utilisation
        yield ("gfx_clock_mhz",), lambda: clock(amdsmi.AmdSmiClkType.GFX)
        yield ("memory_clock_mhz",), lambda: clock(amdsmi.AmdSmiClkType.MEM)
        yield self._throttled(gpu)
        yield ("power_w",), power
        yield ("power_limit_w",), lambda: (_number(amdsmi.amdsmi_get_power_cap_info(gpu)["power_cap"]) / 1e6,)
        yield ("energy_j",), energy
        yield ("temperature_c",), temperature
        yield ("memory_used_bytes",), lambda: (amdsmi.amdsmi_get_gpu_vram_usage(gpu)["vram_used"] * float(1 << 20),)
        yield ("ecc_corrected_errors", "ecc_uncorrected_errors"), ecc_errors

    def _throttled(self, gpu: Any) -> DriverCall:
        """By the counters of MI300 and later, the share of the time since the reading before."""
        before: list[float] = []

        def shares() -> Sequence[float]:
            metrics = self._amdsmi.amdsmi_get_gpu_metrics_info(gpu)
            now = [_number(metrics[name]) for name in ("accumulation_counter", *RESIDENCIES.values())]
            ticks, *slower = [new - old for new, old in zip(now, before or now, strict=True)]
            before[:] = now
            return [each / ticks if ticks > 0 else nan for each in slower]

        return [f"throttle_{reason}_share" for reason in RESIDENCIES], shares


def _number(value: Any) -> float:
    """The number in an answer of amdsmi. Raises Unread for the text that stands for none."""
    if not isinstance(value, int | float):
        raise Unread(f"amdsmi answers {value}")
    return float(value)
