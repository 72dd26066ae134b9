"""How a run used its machine: the energy of its steps, its MFU, and what ranks share that each should have alone."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Float64, Int64, RankReport, Telemetry, Trace
from hpc.system.text import grouped, plural, ranges

MIN_WINDOW_S = 5.0
"""Energy of a shorter time is refused: counters are brought up to date up to ten times a second, sensors lag behind."""
COUNTER_PERIOD_S = {"gpu": 0.1, "cpu": 0.001}
"""How old a reading of the counter may be: NVML's is renewed up to ten times a second (Yang et al., SC 2024, over 70
GPUs), RAPL's about every ms (Intel SDM, volume 3, 16.10)."""
NVML_SENSOR = 0.05
"""What NVML's manual states of its power sensor, ± 5 %, for the GPUs that it states anything of. amdsmi's and RAPL's
documents state nothing."""
_COUNTERS = {"gpu": r"gpu\d+\.energy_j", "cpu": r"power\.(package-[-a-z0-9]+|dram)_[0-9_]+_j"}
"""By kind, the series of counters that overlap no other one: a package has its cores in it."""
_SOURCES = {"gpu": "GPU", "cpu": "CPU power"}
"""By kind, the name of all that is read of it."""
_DRAM = r"power\.dram_[0-9_]+_j"
NEVER = ("network cards and switches", "fans", "power supplies", "storage")


class _Unknown(Exception):
    """The energy is not known; the text has the reason."""


@dataclass(frozen=True, kw_only=True)
class Energy:
    """What a run took in its measured steps, all nodes together, in J; None where it is not metered.

    `bound_j` is how far the sum may be off for the counters' periods and the moments of readings, `sensor` what the
    GPUs' maker states of their sensor, as a share. `whole_j` is from the
    first reading to the last, with all that was between. `unmetered` names what no counter is of, `reason` why there is
    no energy.
    """

    gpus_j: float | None = None
    cpus_j: float | None = None
    bound_j: float = 0.0
    sensor: float | None = None
    whole_j: float = 0.0
    unmetered: tuple[str, ...] = ()
    reason: str = ""

    @property
    def joules(self) -> float | None:
        """All that is metered."""
        metered = [value for value in (self.gpus_j, self.cpus_j) if value is not None]
        return sum(metered) if metered else None


@dataclass(frozen=True)
class _Counter:
    """One counter of a node: its readings, and when."""

    kind: str
    ns: Float64
    joules: Float64

    def __post_init__(self) -> None:
        if (np.diff(self.joules) < 0).any():
            raise _Unknown("a counter went back, as where a driver is loaded anew")
        if len(self.joules) > 1 and self.joules[0] == self.joules[-1]:
            raise _Unknown("a counter stands still, as in a virtual machine")

    @property
    def _watts(self) -> float:
        """The highest power between two readings."""
        span_s = np.diff(self.ns) / 1e9
        known = span_s >= COUNTER_PERIOD_S[self.kind]
        return float((np.diff(self.joules)[known] / span_s[known]).max(initial=0.0))

    def at(self, moment_ns: float) -> tuple[float, float]:
        """The counter at a moment between two readings, and how far that may be off."""
        after = int(np.searchsorted(self.ns, moment_ns))
        if not 0 < after < len(self.ns):
            raise _Unknown("telemetry does not cover the measured steps")
        (begin, end), (low, high) = self.ns[after - 1 : after + 1], self.joules[after - 1 : after + 1]
        value, watts = float(np.interp(moment_ns, (begin, end), (low, high))), self._watts
        lowest = max(low, high - watts * (end - moment_ns) / 1e9)
        highest = min(high, low + watts * (moment_ns - begin) / 1e9)
        return value, max(value - lowest, highest - value, 0.0) + watts * COUNTER_PERIOD_S[self.kind]

    def between(self, begin_ns: float, end_ns: float) -> tuple[float, float]:
        (begin, begin_off), (end, end_off) = self.at(begin_ns), self.at(end_ns)
        return end - begin, begin_off + end_off


def energy_of(trace: Trace, ends_ns: Int64) -> Energy:
    """The energy of the trace's measured blocks, or why it has none; `ends_ns` [rank, step] by the ranks' clocks."""
    telemetry = trace.telemetry
    if telemetry is None:
        return Energy(reason="telemetry was off" if trace.run.telemetry == "off" else "the trace has no telemetry")
    windows = [_windows_ns(ends_ns[rank], trace.blocks.tolist()) for rank in telemetry.ranks]
    seconds = max(sum(end - begin for begin, end in blocks) / 1e9 for blocks in windows)
    if seconds < MIN_WINDOW_S:
        return Energy(reason=f"the measured steps take {seconds:.1f} s; energy is told from {MIN_WINDOW_S:g} s on")
    facts = [trace.reports[int(rank)].telemetry or {} for rank in telemetry.ranks]
    by_kind: dict[str, tuple[float, float]] = {}
    unmetered = list[str]()
    whole_j = 0.0
    for kind in _COUNTERS:
        if kind == "gpu" and not trace.run.gpus_per_node:
            continue
        try:
            of_nodes = [_counters(telemetry, node, kind) for node in range(len(windows))]
            for counters, its in zip(of_nodes, facts, strict=True):
                if (reason := _absent(its, kind)) or not counters:  # a part of them is not the whole
                    raise _Unknown(reason or str(its.get("problem") or "no counter was read"))
            read, used = sum(map(len, of_nodes)), trace.run.nodes * (trace.run.gpus_per_node or 0)
            if kind == "gpu" and read > used:
                raise _Unknown(f"{read} were read and {used} are used; which of them is not known")
            taken = [
                counter.between(*block)
                for counters, blocks in zip(of_nodes, windows, strict=True)
                for counter in counters
                for block in blocks
            ]
            by_kind[kind] = sum(joules for joules, _ in taken), sum(off for _, off in taken)
            whole_j += sum(float(each.joules[-1] - each.joules[0]) for counters in of_nodes for each in counters)
        except _Unknown as error:
            unmetered.append(f"{'GPUs' if kind == 'gpu' else 'CPUs'} ({error})")
    if not by_kind:
        return Energy(reason="; ".join(unmetered) or "nothing here has a counter of energy")
    if "cpu" in by_kind and not any(re.fullmatch(_DRAM, name) for name in telemetry.series):
        unmetered.append("memory (no counter of it)")
    return Energy(
        gpus_j=by_kind["gpu"][0] if "gpu" in by_kind else None,
        cpus_j=by_kind["cpu"][0] if "cpu" in by_kind else None,
        bound_j=sum(off for _, off in by_kind.values()),
        sensor=NVML_SENSOR if "gpu" in by_kind and all(report.nvidia_driver for report in trace.reports) else None,
        whole_j=whole_j,
        unmetered=(*unmetered, *NEVER),
    )


def _windows_ns(ends_ns: Int64, blocks: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """The measured blocks by the clock of a rank: from the end of the step before one to that of its last."""
    return [(float(ends_ns[first - 1]), float(ends_ns[stop - 1])) for first, stop in blocks]


def _counters(telemetry: Telemetry, node: int, kind: str) -> list[_Counter]:
    """The counters of a node, without moments that were not read."""
    taken, counters = telemetry.local_ns[node] != ABSENT, []
    for column, name in enumerate(telemetry.series):
        known = taken & np.isfinite(telemetry.values[node, :, column])
        if re.fullmatch(_COUNTERS[kind], name) and known.any():
            ns = telemetry.local_ns[node, known].astype(np.float64)
            counters.append(_Counter(kind, ns, telemetry.values[node, known, column]))
    return counters


def _absent(facts: Mapping[str, Any], kind: str) -> str:
    """Why counters of this kind, or some of them, could not be read on a node; empty: nobody says."""
    absent: Any = facts.get("absent")
    name = rf"{_COUNTERS[kind]}|{_SOURCES[kind]}"
    reasons = absent.items() if isinstance(absent, Mapping) else ()
    return next((str(reason) for series, reason in reasons if re.fullmatch(name, str(series))), "")


# Model FLOPs utilisation (MFU): the FLOPs of the model per second, as a share of what the devices could do.


TERA = 1e12


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The dense peaks of a device in TFLOPS, by precision, and the document that has them. `names` matches the whole
    name that its driver gives it. `units` are the compute units of a card that can be divided into several devices,
    which have the card's name; 0 of others."""

    names: str
    tflops: Mapping[str, float]
    source: str
    units: int = 0


@cache
def known_devices() -> tuple[Peaks, ...]:
    """What devices.toml, beside this file, has from makers' documents."""
    rows = tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))["device"]
    return tuple(Peaks(**row) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The MFU of a run as a share, or the reason why there is none; both empty where its FLOPs are not known.

    `peak_tflops` is that of one device in `precision`, `source` the document that has it. `flops` are the model's of a
    sample or token, had as `flops_by` says, where the trace says it.
    """

    share: float | None = None
    reason: str = ""
    peak_tflops: float | None = None
    precision: str = ""
    source: str = ""
    flops: int | None = None
    flops_by: str = ""


def utilisation(trace: Trace, throughput: float) -> Utilisation:
    """The MFU at a throughput in samples/s or tokens/s: throughput · FLOPs of each / (devices · peak).

    Chowdhery et al. 2022 (PaLM), appendix B; the FLOPs of a sample or token are recorded in the trace.
    """
    name = f"flops_per_{trace.run.unit.removesuffix('s')}"
    flops = {report.backend_fact(name) for report in trace.reports} - {None}  # one rank may have counted for all
    flops_by = next((str(by) for report in trace.reports if (by := report.backend_fact("flops_by"))), "")
    if not flops:
        return Utilisation(reason=flops_by)
    each = flops.pop() if len(flops) == 1 else None
    if not isinstance(each, int) or isinstance(each, bool) or each <= 0:
        return Utilisation()
    devices = [report.device or {} for report in trace.reports]
    names = {str(device.get("name") or device.get("kind")) for device in devices}
    peaks, reason = _peaks(sorted(names), trace.run.precision)
    if peaks is not None:
        peaks, reason = _of_partitions(peaks, [device.get("compute_units") for device in devices])
    if peaks is None:
        return Utilisation(reason=reason)
    tflops = peaks.tflops[trace.run.precision]
    return Utilisation(
        share=throughput * each / (trace.run.devices * tflops * TERA),
        peak_tflops=tflops,
        precision=trace.run.precision,
        source=peaks.source,
        flops=each,
        flops_by=flops_by,
    )


def _peaks(names: Sequence[str], precision: str) -> tuple[Peaks | None, str]:
    """The peaks that devices of these names have in common, or the reason why they are not known."""
    if names == ["cpu"]:
        return None, "no peak is known for CPUs"
    if len(names) != 1:
        return None, f"ranks had different devices: {', '.join(names)}"
    peaks = next((device for device in known_devices() if re.fullmatch(device.names, names[0])), None)
    if peaks is None:
        return None, f"no datasheet's peak is known here for {names[0]}"
    if precision not in peaks.tflops:
        return None, f"no peak in {precision} is known here for {names[0]}"
    return peaks, ""


def _of_partitions(whole: Peaks, units: Sequence[Any]) -> tuple[Peaks | None, str]:
    """The peaks of devices with so many compute units, or the reason why they are not known."""
    if not whole.units or {*units} == {whole.units}:
        return whole, ""
    if len({*units}) != 1:
        return None, "ranks had devices of different parts of a card"
    if units[0] is None:
        source = f"{whole.source}; taken for whole cards, as nothing recorded their {whole.units} compute units"
        return replace(whole, source=source), ""
    if not isinstance(units[0], int) or not 0 < units[0] < whole.units:
        return None, f"its devices have {units[0]} compute units, and a whole card has {whole.units}"
    share = units[0] / whole.units
    source = f"{whole.source}; of {units[0]} of a card's {whole.units} compute units, as its partitions have"
    return replace(whole, tflops={name: peak * share for name, peak in whole.tflops.items()}, source=source), ""


# Why the speed of a run is no scaling result; each returns the reason, empty where it does not apply.


def oversubscribed(run: RunSpec, reports: Sequence[RankReport]) -> str:
    """What ranks share of which each is to have its own: in short, a colon, the figures."""
    uuids = [str((report.device or {}).get("uuid") or "") for report in reports]
    if run.gpus_per_node and all(uuids) and len(set(uuids)) < len(reports):
        return f"more ranks than GPUs: {len(reports)} ranks share {plural(len(set(uuids)), 'GPU')}"
    for on_host in _by_host(reports).values():
        cores = _cores(on_host)
        if cores and len(on_host) * run.cpus_per_rank > cores:
            each = plural(run.cpus_per_rank, "core")
            lacking = "more ranks than cores" if len(on_host) > cores else "too few cores"
            return f"{lacking}: {plural(len(on_host), 'rank')} of {each} on {plural(cores, 'core')}"
    return ""


def nodes_simulated(run: RunSpec, reports: Sequence[RankReport]) -> str:
    """Nodes that are only groups of ranks."""
    machines = len(_by_host(reports))
    if run.nodes > 1 and (machines < run.nodes or any(report.nodes_simulated for report in reports)):
        return f"{plural(run.nodes, 'node')} on {plural(machines, 'machine')}"
    return ""


def apart(reports: Sequence[RankReport]) -> str:
    """Ranks of a script that train each a copy, and meet nobody."""
    outside = [rank for rank, report in enumerate(reports) if _joined(report) is False]
    if len(reports) == 1 or not outside:
        return ""
    if len(outside) == len(reports):
        return f"none of the {len(reports)} ranks joins a process group: each trains a copy by itself"
    who = f"rank{'s' if len(outside) > 1 else ''} {ranges(outside)} of {len(reports)}"
    return f"{who} in no process group: what trains there is a copy by itself"


def _joined(report: RankReport) -> object:
    """Whether its script is in a process group, as hooks saw it; None where they did not."""
    facts: object = report.extra.get("script")
    for name in ("facts", "joined"):
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts


def _by_host(reports: Sequence[RankReport]) -> dict[str | None, list[RankReport]]:
    """The ranks of each machine; a boot id is one machine's, a host name may be a container's."""
    return grouped((report.boot_id or report.hostname, report) for report in reports)


def _cores(reports: Sequence[RankReport]) -> int | None:
    """The number of cores that the ranks of one machine may use together; None if not reported."""
    affinities = [report.affinity or () for report in reports]
    return len({str(core) for affinity in affinities for core in affinity}) if all(affinities) else reports[0].cpus
