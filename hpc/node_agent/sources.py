"""Readings of the kernel's files about a node and the ranks on it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path

from hpc.system.text import read_ranges

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


def _not_looked_at() -> None:
    """Of most figures a sample is enough."""


@dataclass(frozen=True)
class SeriesReader:
    """Some series that are read together: `read` gives one number for each, or raises one of UNREADABLE. `look` is
    called several times between two samples, raises nothing and costs microseconds."""

    series: Sequence[str]
    read: _Read
    look: Callable[[], None] = _not_looked_at


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


def processors(ranks: Sequence[RankProcess], now: Mapping[int, Sequence[int]], proc: Path) -> Iterator[SeriesReader]:
    """Processor time, of all cores, of the ranks', and of those that each rank may use.

    `now` has the cores that a rank may use by its place, where they have become others than at its start.
    """
    stat = KernelFile(proc / "stat")
    ranks_cores = {core for rank in ranks for core in rank.cores}
    last: dict[int, float] = {}
    busy = [0.0] * len(ranks)

    def read() -> list[float]:
        rows = {name: rest for name, *rest in map(str.split, stat.text().splitlines())}
        spent = {core: _spent(rows[f"cpu{core}"]) for core in ranks_cores if f"cpu{core}" in rows}
        on_ranks = [sum(column) for column in zip(*spent.values(), strict=True)] or [nan] * len(_SPENT)
        for place, rank in enumerate(ranks):
            busy[place] += sum(
                spent[core][0] - last.get(core, 0.0) for core in now.get(place, rank.cores) if core in spent
            )
        last.update((core, its[0]) for core, its in spent.items())
        return [*_spent(rows["cpu"]), *on_ranks, *busy]

    series = [f"{whose}.{name}" for whose in ("cpu", "ranks_cpu") for name in _SPENT]
    of_ranks = [f"local_rank{place}.cores_busy_s" for place in range(len(ranks))]
    yield SeriesReader([*series, *of_ranks], read)


_SPENT = ("busy_s", "idle_s", "stolen_s")


def _spent(fields: Sequence[str]) -> list[float]:
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
    spent = (user + nice + system + irq + softirq, idle + iowait, steal)
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
    """Count of thermal throttling of these cores and their packages."""
    folders = [cpus / f"cpu{core}/thermal_throttle" for core in cores]
    if not folders or not all(folder.is_dir() for folder in folders):
        raise Unread("this kernel does not count it")
    # Every core of a package shows the same.
    for name, file, combine in (
        ("throttles", "core_throttle_count", sum), ("package_throttles", "package_throttle_count", max),
    ):  # fmt: skip
        if all((folder / file).exists() for folder in folders):
            counters = [number_in(folder / file) for folder in folders]
            yield SeriesReader((f"ranks_cpu.{name}",), partial(_combined, counters, combine))


def _combined(counters: Sequence[_Read], combine: Callable[[list[float]], float]) -> Sequence[float]:
    return (combine([counter()[0] for counter in counters]),)


def packages(powercap: Path) -> Iterator[SeriesReader]:
    """Energy that processor packages and their memory took (RAPL)."""
    for zone in _some(powercap, "intel-rapl:*", "this kernel does not count it"):
        name = f"{(zone / 'name').read_text().strip()}_{zone.name.partition(':')[2].replace(':', '_')}"
        yield SeriesReader((f"power.{name}_j",), Unwrapped(zone).read)


def _some(folder: Path, pattern: str, reason: str) -> list[Path]:
    if not (paths := sorted(folder.glob(pattern))):
        raise Unread(reason)
    return paths


class Unwrapped:
    """An energy counter that wraps at its range; reads the joules since the first reading.

    Half of the range is minutes at full power: where it seems to be more, the counter went back, and is read no more.
    """

    def __init__(self, zone: Path) -> None:
        self._file = KernelFile(zone / "energy_uj")
        self._range_uj = int((zone / "max_energy_range_uj").read_text())
        self._last_uj = int(self._file.text())
        self._sum_uj = 0
        self._went_back = False

    def read(self) -> Sequence[float]:
        now_uj = int(self._file.text())
        since_uj = (now_uj - self._last_uj) % (self._range_uj + 1)
        self._went_back |= since_uj > self._range_uj / 2
        if self._went_back:
            raise Unread("the counter went back")
        self._sum_uj += since_uj
        self._last_uj = now_uj
        return (self._sum_uj / 1e6,)


def memory(proc: Path) -> Iterator[SeriesReader]:
    """The bytes swapped out."""
    vmstat = KernelFile(proc / "vmstat")

    def swapped() -> Sequence[float]:
        rows = dict(line.split() for line in vmstat.text().splitlines())
        return (float(rows["pswpout"]) * _PAGE_BYTES,)

    yield SeriesReader(("memory.swapped_out_bytes",), swapped)


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
    for name, file, heading, column in _TCP_COUNTERS:
        yield SeriesReader((f"net.tcp_{name}_segments",), partial(_counter, KernelFile(proc / file), heading, column))


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
    ("symbol_errors", "counters/symbol_error", 1.0),
    ("receive_errors", "counters/port_rcv_errors", 1.0),
    ("discarded_packets", "counters/port_xmit_discards", 1.0),
    ("links_downed", "counters/link_downed", 1.0),
    ("timeouts", "hw_counters/local_ack_timeout_err", 1.0),
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


def processes(ranks: Sequence[RankProcess], now: dict[int, Sequence[int]], proc: Path) -> Iterator[SeriesReader]:
    """Page faults, time, memory and context switches of the ranks, in the order of their MPI rank.

    Keeps the cores that they may use in `now`, by place.
    """
    this_namespace = pid_namespace(proc)
    for place, rank in enumerate(ranks):
        if not this_namespace or rank.pid_namespace != this_namespace:
            raise Unread(f"process {rank.pid} is in another PID namespace")
        yield from _process(place, proc / str(rank.pid), now)


def _process(place: int, folder: Path, cores: dict[int, Sequence[int]]) -> Iterator[SeriesReader]:
    name = f"local_rank{place}"
    stat, status, schedstat = (KernelFile(folder / name) for name in ("stat", "status", "schedstat"))
    main_thread = KernelFile(folder / "task" / folder.name / "stat")

    def of_process() -> Sequence[float]:
        fields = _fields(stat)
        return float(fields[7]), float(fields[9]), cpu_seconds(fields), float(fields[21]) * _PAGE_BYTES

    def switches() -> Sequence[float]:
        rows = dict(line.split(":", 1) for line in status.text().splitlines())
        cores[place] = tuple(read_ranges(rows["Cpus_allowed_list"].strip()))
        return float(rows["voluntary_ctxt_switches"]), float(rows["nonvoluntary_ctxt_switches"])

    def scheduled() -> Sequence[float]:
        ran_ns, queued_ns, _ = schedstat.text().split()
        return int(ran_ns) / 1e9, int(queued_ns) / 1e9

    of_all_threads = ("minor_faults", "major_faults", "cpu_s", "memory_bytes")
    yield SeriesReader([f"{name}.{kind}" for kind in of_all_threads], of_process)
    kinds = ("voluntary_switches", "involuntary_switches")
    yield SeriesReader([f"{name}.main_thread_{kind}" for kind in kinds], switches)
    yield SeriesReader((f"{name}.main_thread_kernel_s",), lambda: (int(_fields(main_thread)[12]) / _TICKS_PER_S,))
    # `queued`: could have run and had no core, or a quota of its control group held it back.
    yield SeriesReader([f"{name}.main_thread_{kind}" for kind in ("cpu_s", "queued_s")], scheduled)
    states = _States(main_thread)
    yield SeriesReader([f"{name}.main_thread_{kind}_looks" for kind in _STATES], states.read, states.look)
    yield _optional((f"{name}.main_thread_storage_s",), lambda: _storage_wait(main_thread, folder.parent))
    yield _optional((f"{name}.children_cpu_s",), lambda: _Children(folder).read)
    yield _optional((f"{name}.throttled_s",), lambda: _Quota(folder).read)


def _optional(series: Sequence[str], open_it: Callable[[], _Read]) -> SeriesReader:
    """Series that this kernel may not give: absent by themselves then, with the reason."""
    try:
        return SeriesReader(series, open_it())
    except UNREADABLE as error:
        reason = error

        def unread() -> Sequence[float]:
            raise reason

        return SeriesReader(series, unread)


def _fields(stat: KernelFile) -> list[str]:
    """The fields of proc_pid_stat(5) from the third on: the name before may hold anything, spaces and parentheses."""
    return stat.text().rpartition(")")[2].split()


def cpu_seconds(fields: Sequence[str]) -> float:
    """Processor time by these fields of a process, or of a thread."""
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


_STATES = {"running": "R", "sleeping": "SI", "uninterruptible": "D", "stopped": "Tt"}
"""The states of a thread, by the letters of proc_pid_stat(5); `uninterruptible` mostly waits for storage."""


class _States:
    """Counts in which state a thread is, look by look: no kernel keeps the time in which it is stopped."""

    def __init__(self, stat: KernelFile) -> None:
        self._stat = stat
        self._counts = dict.fromkeys(_STATES, 0)

    def look(self) -> None:
        with suppress(OSError, LookupError):  # it has ended
            letter = _fields(self._stat)[0]
            for state, letters in _STATES.items():
                self._counts[state] += letter in letters

    def read(self) -> Sequence[float]:
        self.look()
        return [float(count) for count in self._counts.values()]


def _storage_wait(stat: KernelFile, proc: Path) -> _Read:
    """The seconds in which a thread waited for block devices. Raises Unread where the kernel does not account delays
    (`kernel.task_delayacct`; kernels without that switch mostly do)."""

    def read() -> Sequence[float]:
        return (int(_fields(stat)[39]) / _TICKS_PER_S,)

    switch = proc / "sys/kernel/task_delayacct"
    accounted = switch.read_text().strip() != "0" if switch.exists() else read()[0] > 0
    if not accounted:
        raise Unread("the kernel does not account delays (sysctl kernel.task_delayacct)")
    return read


class _Children:
    """Processor time of the processes that a rank's main thread has started, such as workers of a loader."""

    def __init__(self, folder: Path) -> None:
        self._proc = folder.parent
        self._children = KernelFile(folder / "task" / folder.name / "children")
        self._files: dict[str, KernelFile] = {}
        self._last: dict[str, float] = {}
        self._ended = 0.0

    def read(self) -> Sequence[float]:
        live = self._children.text().split()
        for child in [child for child in self._files if child not in live]:
            self._ended += self._last.pop(child, 0.0)
            self._files.pop(child)
        for child in live:
            with suppress(OSError, LookupError):  # it ended between the two
                if child not in self._files:
                    self._files[child] = KernelFile(self._proc / child / "stat")
                self._last[child] = cpu_seconds(_fields(self._files[child]))
        return (self._ended + sum(self._last.values()),)


_QUOTA_FIELDS = {"throttled_time": 1e-9, "throttled_usec": 1e-6}
"""How long the quota of a control group held it back, all cores added up: by version 1 and 2, and in seconds."""


class _Quota:
    """How long quotas held a process back: of its control group, also of one that it joins later, and of all above.

    Raises Unread where the kernel counts nothing of the kind.
    """

    def __init__(self, folder: Path) -> None:
        self._groups = KernelFile(folder / "cgroup")
        self._mounts = (folder.parent / "self/mountinfo").read_text()
        self._named: str | None = None
        self._stats: list[KernelFile] = []
        self._last: list[float] = []
        self._sum = 0.0

    def read(self) -> Sequence[float]:
        if (named := self._groups.text()) != self._named:
            self._named = named
            self._stats = [KernelFile(path) for path in _quota_files(named, self._mounts)]
            self._last = [_throttled_s(stat.text()) or 0.0 for stat in self._stats]
        if not self._stats:
            raise Unread("no control group of it counts what quotas hold back")
        now = [_throttled_s(stat.text()) or 0.0 for stat in self._stats]
        self._sum += sum(now) - sum(self._last)
        self._last = now
        return (self._sum,)


def _quota_files(groups: str, mounts: str) -> Iterator[Path]:
    """The `cpu.stat` of all control groups of a process that count what a quota holds back, by its `cgroup` file and
    the `mountinfo` of this process: its own, then those above."""
    of_v1, of_v2 = None, None
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            of_v1 = path
        elif number == "0" and not controllers:
            of_v2 = path
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, options = after.split()[:3]
        group = {"cgroup": of_v1 if "cpu" in options.split(",") else None, "cgroup2": of_v2}.get(kind)
        if group is None:
            continue
        inside = group[len(root) :] if root != "/" and group.startswith(root) else group
        top = Path(mounted)
        folder = top / inside.strip("/")
        for level in (folder, *folder.parents):
            if (stat := level / "cpu.stat").exists() and _throttled_s(stat.read_text()) is not None:
                yield stat
            if level == top:
                break


def _throttled_s(stat: str) -> float | None:
    rows = dict(line.split() for line in stat.splitlines())
    return next((float(rows[name]) * scale for name, scale in _QUOTA_FIELDS.items() if name in rows), None)


def sources_of_node(
    ranks: Sequence[RankProcess], proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> dict[str, Iterator[SeriesReader]]:
    """All sources of this node by name. Each opens its files when iterated, and raises UNREADABLE then."""
    cores = sorted({core for rank in ranks for core in rank.cores})
    now: dict[int, Sequence[int]] = {}
    some = cores[:: -(-len(cores) // MAX_CORES) or 1]
    cpus = sys / "devices/system/cpu"
    return {
        "processors": processors(ranks, now, proc),
        "CPU frequency": frequencies(some, cpus),
        "CPU throttling": throttling(some, cpus),
        "CPU power": packages(sys / "class/powercap"),
        "memory": memory(proc),
        "network": networks(proc),
        "link speed": link_speeds(proc),
        "fabric": fabrics(sys / "class/infiniband"),
        "processes of ranks": processes(ranks, now, proc),
        # The processor time of this thread: the helper copies journals in another.
        "telemetry": iter([SeriesReader(("telemetry.cpu_s",), lambda: (time.thread_time(),))]),
    }
