"""Readings of the kernel's files about a node and the ranks on it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_CORES = 32
"""The maximum of cores whose frequency and throttling are read: on old kernels each costs milliseconds."""
MAX_INTERFACES = 16
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


_Read = Callable[[], Sequence[float]]


class Unread(Exception):
    """A figure could not be read; the text has the reason."""


UNREADABLE = (OSError, ValueError, LookupError, Unread)
"""The errors of a file that is absent, forbidden, removed meanwhile, or in an unknown form."""


@dataclass(frozen=True)
class SeriesReader:
    """Some series that are read together: `read` gives one number for each, or raises one of UNREADABLE."""

    series: Sequence[str]
    read: _Read


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """A rank of this node: its process, the cores that it may use, the namespace that its number belongs to."""

    pid: int
    cores: tuple[int, ...]
    pid_namespace: str

    @classmethod
    def this_process(cls) -> RankProcess:
        return cls(pid=os.getpid(), cores=tuple(sorted(os.sched_getaffinity(0))), pid_namespace=pid_namespace())


def pid_namespace(proc: Path = Path("/proc")) -> str:
    """The PID namespace of this process; empty if the kernel does not expose it."""
    try:
        return str((proc / "self/ns/pid").readlink())
    except OSError:
        return ""


class KernelFile:
    """A file of the kernel that stays open: no path is looked up again, so a reused process number cannot confuse it.

    Raises OSError where it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def text(self) -> str:
        """The content now; raises OSError where that is gone."""
        content = b""
        while chunk := os.pread(self._file, 1 << 20, len(content)):
            content += chunk
        return content.decode("ascii", "replace")


def number_in(path: Path, scale: float = 1.0) -> _Read:
    """Reads a file that holds one number. Raises OSError where it cannot be opened."""
    file = KernelFile(path)
    return lambda: (float(file.text()) * scale,)


def processors(ranks_cores: set[int], proc: Path) -> Iterator[SeriesReader]:
    """Processor time, of all cores and of the ranks' cores; context switches; load."""
    stat = KernelFile(proc / "stat")
    load = KernelFile(proc / "loadavg")

    def read() -> list[float]:
        rows = {name: rest for name, *rest in map(str.split, stat.text().splitlines())}
        cores = [_spent(rows[f"cpu{core}"]) for core in ranks_cores if f"cpu{core}" in rows]
        on_ranks = [sum(column) for column in zip(*cores, strict=True)] or [nan] * len(_SPENT)
        return [*_spent(rows["cpu"]), *on_ranks, float(rows["ctxt"][0]), float(rows["procs_running"][0])]

    series = [f"{whose}.{name}" for whose in ("cpu", "ranks_cpu") for name in _SPENT]
    yield SeriesReader([*series, "cpu.context_switches", "cpu.running_processes"], read)
    yield SeriesReader(("cpu.load_processes",), lambda: (float(load.text().split()[0]),))


_SPENT = ("busy_s", "idle_s", "interrupts_s", "stolen_s")


def _spent(fields: Sequence[str]) -> list[float]:
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
    spent = (user + nice + system + irq + softirq, idle + iowait, irq + softirq, steal)
    return [ticks / _TICKS_PER_S for ticks in spent]


def frequencies(cores: Sequence[int], cpus: Path) -> Iterator[SeriesReader]:
    """Mean and lowest frequency of these cores.

    /proc/cpuinfo is not used: without a measurement, as in most virtual machines, it shows the nominal frequency.
    """
    files = [cpus / f"cpu{core}/cpufreq/scaling_cur_freq" for core in cores]
    if not files or not all(file.exists() for file in files):
        raise Unread("not available on this machine (no cpufreq)")
    of_cores = [number_in(file, 1e-3) for file in files]

    def read() -> tuple[float, float]:
        mhz = [of_core()[0] for of_core in of_cores]
        return sum(mhz) / len(mhz), min(mhz)

    yield SeriesReader(("ranks_cpu.frequency_mean_mhz", "ranks_cpu.frequency_min_mhz"), read)


def throttling(cores: Sequence[int], cpus: Path) -> Iterator[SeriesReader]:
    """Count and duration of thermal throttling of these cores and their packages."""
    folders = [cpus / f"cpu{core}/thermal_throttle" for core in cores]
    if not folders or not all(folder.is_dir() for folder in folders):
        raise Unread("this kernel does not count it")
    for name, file, scale, combine in (
        ("throttles", "core_throttle_count", 1.0, sum),
        ("throttled_s", "core_throttle_total_time_ms", 1e-3, sum),
        # Every core of a package shows the same.
        ("package_throttles", "package_throttle_count", 1.0, max),
        ("package_throttled_s", "package_throttle_total_time_ms", 1e-3, max),
    ):
        if all((folder / file).exists() for folder in folders):
            counters = [number_in(folder / file, scale) for folder in folders]
            yield SeriesReader((f"ranks_cpu.{name}",), partial(_combined, counters, combine))


def _combined(counters: Sequence[_Read], combine: Callable[[list[float]], float]) -> Sequence[float]:
    return (combine([counter()[0] for counter in counters]),)


def packages(powercap: Path) -> Iterator[SeriesReader]:
    """Energy that processor packages and their memory took (RAPL), and the power that they may take."""
    for zone in _some(powercap, "intel-rapl:*", "this kernel does not count it"):
        name = f"{(zone / 'name').read_text().strip()}_{zone.name.partition(':')[2].replace(':', '_')}"
        yield SeriesReader((f"power.{name}_j",), Unwrapped(zone).read)
        if (limit := zone / "constraint_0_power_limit_uw").exists():
            yield SeriesReader((f"power.{name}_limit_w",), number_in(limit, 1e-6))


def _some(folder: Path, pattern: str, reason: str) -> list[Path]:
    if not (paths := sorted(folder.glob(pattern))):
        raise Unread(reason)
    return paths


class Unwrapped:
    """An energy counter that wraps at its range; reads the joules since the first reading."""

    def __init__(self, zone: Path) -> None:
        self._file = KernelFile(zone / "energy_uj")
        self._range_uj = int((zone / "max_energy_range_uj").read_text())
        self._last_uj = int(self._file.text())
        self._sum_uj = 0

    def read(self) -> Sequence[float]:
        now_uj = int(self._file.text())
        self._sum_uj += (now_uj - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now_uj
        return (self._sum_uj / 1e6,)


def memory(proc: Path) -> Iterator[SeriesReader]:
    """Available memory, and the bytes swapped."""
    meminfo, vmstat = KernelFile(proc / "meminfo"), KernelFile(proc / "vmstat")

    def available() -> Sequence[float]:
        rows = dict(line.split(":") for line in meminfo.text().splitlines())
        return (float(rows["MemAvailable"].split()[0]) * 1024,)

    def swapped() -> Sequence[float]:
        rows = dict(line.split() for line in vmstat.text().splitlines())
        return float(rows["pswpin"]) * _PAGE_BYTES, float(rows["pswpout"]) * _PAGE_BYTES

    yield SeriesReader(("memory.available_bytes",), available)
    yield SeriesReader(("memory.swapped_in_bytes", "memory.swapped_out_bytes"), swapped)


def networks(proc: Path) -> Iterator[SeriesReader]:
    """Bytes, drops and errors of the interfaces of this process's own network namespace; TCP segments sent.

    /sys/class/net is not used: in a container it shows the network of the process that mounted it. The loopback is
    included: its bytes are those that ranks of one node send each other through sockets.
    """
    device_file = KernelFile(proc / "net/dev")
    names = _used_interfaces(device_file)

    def read() -> list[float]:
        interfaces = _interfaces(device_file)
        values: list[float] = []
        for name in names:
            counts = interfaces.get(name, [nan] * 16)
            values += [counts[0], counts[8], counts[3] + counts[11], counts[2] + counts[10]]
        return values

    kinds = ("received_bytes", "sent_bytes", "dropped_packets", "errors")
    yield SeriesReader([f"net.{name}.{kind}" for name in names for kind in kinds], read)
    yield from _tcp(proc)


def link_speeds(proc: Path) -> Iterator[SeriesReader]:
    """The speed of each interface's link, as its driver says it."""
    for name in _used_interfaces(KernelFile(proc / "net/dev")):
        if name != "lo":
            yield SeriesReader((f"net.{name}.link_bytes_per_s",), partial(link_speed, name))


_TCP_COUNTERS = (
    ("sent", "net/snmp", "Tcp:", "OutSegs"),  # without those that only repeat (RFC 1213)
    ("retransmitted", "net/snmp", "Tcp:", "RetransSegs"),
    # The receiver had these already (RFC 2883): sent again without a loss. Kernels before 5.10 do not count them.
    ("needlessly_retransmitted", "net/netstat", "TcpExt:", "TCPDSACKRecvSegs"),
)


def _tcp(proc: Path) -> Iterator[SeriesReader]:
    for name, file, heading, column in _TCP_COUNTERS:
        yield SeriesReader((f"net.tcp_{name}_segments",), partial(_counter, KernelFile(proc / file), heading, column))


def _counter(file: KernelFile, heading: str, column: str) -> Sequence[float]:
    """A counter of a table of two lines, names and values. Raises KeyError where the kernel lacks it."""
    names, values = [line.split() for line in file.text().splitlines() if line.startswith(heading)]
    return (float(dict(zip(names, values, strict=True))[column]),)


def _used_interfaces(device_file: KernelFile) -> list[str]:
    """The loopback, and the busiest of those that have carried anything."""
    used = sorted(_interfaces(device_file).items(), key=lambda item: -item[1][0] - item[1][8])
    return sorted(name for name, counts in used[:MAX_INTERFACES] if name == "lo" or counts[0] or counts[8])


def _interfaces(device_file: KernelFile) -> dict[str, list[float]]:
    rows = (line.rpartition(":") for line in device_file.text().splitlines() if ":" in line)
    return {name.strip(): [float(count) for count in counts.split()] for name, _, counts in rows}


_SIOCETHTOOL, _ETHTOOL_GSET, _IFREQ_BYTES = 0x8946, 1, 40
_ETHTOOL_CMD_BYTES, _SPEED_LOW, _SPEED_HIGH = 44, 12, 28
"""`struct ethtool_cmd` of linux/ethtool.h: its size, and where the two halves of the speed in Mbit/s are."""
_MIN_LINK_MBIT, _UNKNOWN_MBIT = 100, 0xFFFFFFFF
"""A slower link is none: the tun driver calls every device 10 Mbit/s. Faulty cables leave 100."""


def link_speed(interface: str) -> Sequence[float]:
    """Speed of an interface's link, bytes/s each way, in this process's network namespace (ethtool(8)).

    Raises OSError where its driver has none, Unread where there is no link or no real one.
    """
    answer = array("B", struct.pack("I", _ETHTOOL_GSET) + bytes(_ETHTOOL_CMD_BYTES - 4))
    request = struct.pack("16sP", interface.encode(), answer.buffer_info()[0]).ljust(_IFREQ_BYTES, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    low, high = (struct.unpack_from("H", answer, place)[0] for place in (_SPEED_LOW, _SPEED_HIGH))
    mbit = low | high << 16
    if not _MIN_LINK_MBIT <= mbit < _UNKNOWN_MBIT:
        raise Unread(f"its driver says {mbit} Mbit/s" if mbit < _MIN_LINK_MBIT else "its driver knows no speed")
    return (mbit * 1e6 / 8,)


_PORT_COUNTERS = (
    ("received_bytes", "counters/port_rcv_data", 4.0),  # counted in words of 4 bytes
    ("sent_bytes", "counters/port_xmit_data", 4.0),
    ("received_bytes", "hw_counters/rx_bytes", 1.0),
    ("sent_bytes", "hw_counters/tx_bytes", 1.0),
    ("send_wait_ticks", "counters/port_xmit_wait", 1.0),
    ("symbol_errors", "counters/symbol_error", 1.0),
    ("receive_errors", "counters/port_rcv_errors", 1.0),
    ("discarded_packets", "counters/port_xmit_discards", 1.0),
    ("links_downed", "counters/link_downed", 1.0),
    ("out_of_sequence_packets", "hw_counters/out_of_sequence", 1.0),
    ("timeouts", "hw_counters/local_ack_timeout_err", 1.0),
    ("congestion_packets", "hw_counters/np_cnp_sent", 1.0),
)


def fabrics(infiniband: Path) -> Iterator[SeriesReader]:
    """Bytes and errors of the ports of InfiniBand, RoCE and EFA adapters."""
    for port in _some(infiniband, "*/ports/*", "no adapter here"):
        prefix = f"net.{port.parent.parent.name}_port{port.name}"
        named = set()
        for name, file, scale in _PORT_COUNTERS:
            if name not in named and (port / file).exists():
                named.add(name)
                yield SeriesReader((f"{prefix}.{name}",), number_in(port / file, scale))
        if (port / "rate").exists():  # `100 Gb/sec (4X EDR)`
            yield SeriesReader((f"{prefix}.link_bytes_per_s",), partial(_port_speed, KernelFile(port / "rate")))


def _port_speed(rate: KernelFile) -> Sequence[float]:
    return (float(rate.text().split()[0]) * 1e9 / 8,)


def processes(ranks: Sequence[RankProcess], proc: Path) -> Iterator[SeriesReader]:
    """Page faults, time, memory and context switches of the ranks, in the order of their MPI rank."""
    this_namespace = pid_namespace(proc)
    for place, rank in enumerate(ranks):
        if not this_namespace or rank.pid_namespace != this_namespace:
            raise Unread(f"process {rank.pid} is in another network namespace")
        yield from _process(f"local_rank{place}", proc / str(rank.pid))


def _process(name: str, folder: Path) -> Iterator[SeriesReader]:
    stat, status, schedstat = (KernelFile(folder / name) for name in ("stat", "status", "schedstat"))

    def of_process() -> Sequence[float]:
        # The name in parentheses may hold anything, spaces and parentheses too.
        fields = stat.text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        return float(fields[7]), float(fields[9]), seconds, float(fields[21]) * _PAGE_BYTES

    def of_main_thread() -> Sequence[float]:
        rows = dict(line.split(":", 1) for line in status.text().splitlines())
        return float(rows["voluntary_ctxt_switches"]), float(rows["nonvoluntary_ctxt_switches"])

    of_all_threads = ("minor_faults", "major_faults", "cpu_s", "memory_bytes")
    yield SeriesReader([f"{name}.{kind}" for kind in of_all_threads], of_process)
    switches = ("voluntary_switches", "involuntary_switches")
    yield SeriesReader([f"{name}.main_thread_{kind}" for kind in switches], of_main_thread)
    main_thread = KernelFile(folder / "task" / folder.name / "stat")
    kernel_s = f"{name}.main_thread_kernel_s"
    yield SeriesReader((kernel_s,), lambda: (int(main_thread.text().rpartition(")")[2].split()[12]) / _TICKS_PER_S,))
    # Nanoseconds in which the thread could have run and had no core.
    yield SeriesReader((f"{name}.main_thread_queued_s",), lambda: (int(schedstat.text().split()[1]) / 1e9,))


def sources_of_node(
    ranks: Sequence[RankProcess], proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> dict[str, Iterator[SeriesReader]]:
    """All sources of this node by name. Each opens its files when iterated, and raises UNREADABLE then."""
    cores = sorted({core for rank in ranks for core in rank.cores})
    some = cores[:: -(-len(cores) // MAX_CORES) or 1]
    cpus = sys / "devices/system/cpu"
    return {
        "processors": processors(set(cores), proc),
        "CPU frequency": frequencies(some, cpus),
        "CPU throttling": throttling(some, cpus),
        "CPU power": packages(sys / "class/powercap"),
        "memory": memory(proc),
        "network": networks(proc),
        "link speed": link_speeds(proc),
        "fabric": fabrics(sys / "class/infiniband"),
        "processes of ranks": processes(ranks, proc),
        # The processor time of this thread: the helper copies journals in another.
        "telemetry": iter([SeriesReader(("telemetry.cpu_s",), lambda: (time.thread_time(),))]),
    }


# Readings of the GPUs of a node from NVIDIA's driver, by nvidia-ml-py.

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
