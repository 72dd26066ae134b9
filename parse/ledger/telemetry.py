"""Differences of clocks, power, load and counters beside a point's ranks from the base's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Literal

import numpy as np

from hpc.model.timestamps import ABSENT, END, GRADS_READY
from hpc.model.trace import Bools, Floats, Ints, Telemetry, Trace
from hpc.system.text import natural
from parse import stats
from parse.rules import FEW

DIFFERS = 0.02
"""A difference up to this share of the base's is not worth a line."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A figure of a node, made of the series whose whole names match `series`: their mean, or their sum.

    `kind` is `level` (as read), `rate` (a counter's growth per second) or `count` (a counter's growth in the window).
    It is compared with the base's, a rate by what it comes to in a step; a `fault` should be 0 and is reported without
    a base, too. Differences up to `floor` are never reported. `scale` converts to the unit.
    """

    name: str
    series: str
    unit: str = ""
    kind: Literal["level", "rate", "count"] = "level"
    summed: bool = False
    scale: float = 1.0
    floor: float = 0.0
    fault: bool = False

    def in_step(self, step_ms: float) -> float:
        """What turns a figure of it into that of a step: of a rate alone other than 1."""
        return PER_STEP[self.unit][0] * step_ms if self.kind == "rate" else 1.0

    @property
    def unit_in_step(self) -> str:
        """The unit of a figure in a step."""
        return PER_STEP[self.unit][1] if self.kind == "rate" else self.unit


MS_A_STEP = "ms a step"
PER_STEP = {
    "% of the time": (0.01, MS_A_STEP),
    "cores": (1.0, MS_A_STEP),
    "times a second": (1e-3, "times a step"),
    "a second": (1e-3, "a step"),
    "MB a second": (1e-3, "MB a step"),
}
"""By the unit of a rate what 1 of it is in a step of 1 ms, and the unit of that."""


def _throttled(reason: str, flag: str) -> Quantity:
    return Quantity(
        name=f"GPUs throttled ({reason}) in",
        series=rf"gpu\d+\.throttle_{flag}_flag",
        unit="% of the samples",
        scale=100,
        floor=2,
        fault=True,
    )


def _throttled_time(reason: str, share: str) -> Quantity:
    """Of AMD's GPUs from MI300 on, whose driver counts how long."""
    series = rf"gpu\d+\.throttle_{share}_share"
    return Quantity(
        name=f"GPUs throttled ({reason}) for", series=series, unit="% of the time", scale=100, floor=2, fault=True
    )


def _gpu(name: str, series: str, unit: str = "", floor: float = 0.0) -> Quantity:
    return Quantity(name=name, series=rf"gpu\d+\.{series}", unit=unit, floor=floor)


def _rate(name: str, series: str, unit: str, floor: float, scale: float = 1.0, fault: bool = False) -> Quantity:
    return Quantity(name=name, series=series, unit=unit, kind="rate", floor=floor, scale=scale, fault=fault)


def _faults(name: str, series: str) -> Quantity:
    return Quantity(name=name, series=series, kind="count", summed=True, floor=0.5, fault=True)


QUANTITIES = (
    _throttled("power cap", "power_cap"),
    _throttled("hardware slowdown", "hardware_slowdown"),
    _throttled("heat", "software_thermal"),
    _throttled("heat, by hardware", "hardware_thermal"),
    _throttled("power brake", "power_brake"),
    _throttled("sync boost", "sync_boost"),
    _throttled_time("power cap", "power_cap"),
    _throttled_time("processor hot", "processor_hot"),
    _throttled_time("heat of the socket", "socket_heat"),
    _throttled_time("heat of the regulators", "regulator_heat"),
    _throttled_time("heat of the memory", "memory_heat"),
    _gpu("SM clock", "sm_clock_mhz", "MHz"),
    _gpu("GPU clock", "gfx_clock_mhz", "MHz"),
    _gpu("GPU memory clock", "memory_clock_mhz", "MHz"),
    _gpu("GPU power limit", "power_limit_w", "W"),
    _gpu("GPU power", "power_w", "W"),
    _gpu("GPU temperature", "temperature_c", "°C", floor=5),
    _gpu("GPU utilisation", "utilisation_percent", "%"),
    _gpu("PCIe generation", "pcie_generation"),
    _gpu("PCIe lanes", "pcie_width_lanes"),
    _faults("uncorrected ECC errors", r"gpu\d+\.ecc_uncorrected_errors"),
    _faults("corrected ECC errors", r"gpu\d+\.ecc_corrected_errors"),
    _faults("NVLink errors", r"gpu\d+\.nvlink_(crc_errors|replays|recoveries)"),
    _faults("PCIe replays", r"gpu\d+\.pcie_replays"),
    Quantity(name="CPU frequency", series=r"ranks_cpu\.frequency_mean_mhz", unit="MHz"),
    Quantity(name="lowest CPU frequency", series=r"ranks_cpu\.frequency_min_mhz", unit="MHz"),
    _faults("times that heat slowed cores down", r"ranks_cpu\.(package_)?throttles"),
    _rate("a rank ready to run waits for a core", r"local_rank\d+\.main_thread_queued_s", "% of the time", 1, 100),
    _rate("a quota holds a rank back", r"local_rank\d+\.throttled_s", "% of the time", 1, 100),
    _rate("a rank loses its core", r"local_rank\d+\.main_thread_involuntary_switches", "times a second", 10),
    _rate("major page faults of a rank", r"local_rank\d+\.major_faults", "a second", 1),
    _rate("minor page faults of a rank", r"local_rank\d+\.minor_faults", "a second", 1000),
    _rate("a rank is in the kernel", r"local_rank\d+\.main_thread_kernel_s", "% of the time", 5, 100),
    _rate("the hypervisor takes from the ranks", r"ranks_cpu\.stolen_s", "cores", 0.05, fault=True),
    _rate("swapped out", r"memory\.swapped_out_bytes", "MB a second", 1, 1e-6, fault=True),
    _faults("dropped or faulty packets", r"net\..+\.(dropped_packets|discarded_packets|errors)"),
    _faults("errors of the fabric", r"net\..+\.(symbol_errors|receive_errors|links_downed|timeouts)"),
)
"""The likeliest causes first. All else that was read stays in the trace."""


@dataclass(frozen=True)
class HostMean:
    """Over the samples of a node in a window: the mean, and the standard deviation of one sample."""

    mean: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Telemetry of one run's window, whose mean step takes `step_ms`: figures by a quantity's name, then by host;
    `samples` by host."""

    figures: Mapping[str, Mapping[str, HostMean]] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    step_ms: float

    def in_step(self, quantity: Quantity, scale: float = 1.0) -> dict[str, HostMean]:
        """The quantity's figures by host, of a rate those of a step, times `scale`."""
        factor = quantity.in_step(self.step_ms) * (scale if quantity.kind == "rate" else 1.0)
        return {
            host: HostMean(figure.mean * factor, figure.deviation * factor)
            for host, figure in self.figures.get(quantity.name, {}).items()
        }


def reduce_telemetry(trace: Trace) -> Conditions | None:
    """A trace's telemetry within its measured blocks; None where it has none.

    A node's window lasts from the end of the step before a block to the end of its last step, as the rank saw it by
    whose clock the samples were taken: no other clock is needed.
    """
    telemetry = trace.telemetry
    if telemetry is None:
        return None
    hosts = [trace.reports[rank].hostname or f"rank {rank}" for rank in telemetry.ranks]
    block = samples_in_window(trace, telemetry)
    samples = dict(zip(hosts, (block >= 0).sum(axis=1).tolist(), strict=True))
    figures: dict[str, dict[str, HostMean]] = {}
    for quantity in QUANTITIES:
        read = node_figures(quantity, quantity.series, telemetry, block)
        if read is None:
            continue
        means, deviations = read
        figure_by_host = {
            host: HostMean(mean, deviation)
            for host, mean, deviation in zip(hosts, means.tolist(), deviations.tolist(), strict=True)
            if samples[host] >= FEW and not isnan(mean)
        }
        if figure_by_host:
            figures[quantity.name] = figure_by_host
    return Conditions(figures=figures, samples=samples, step_ms=_step_ms(trace))


def _step_ms(trace: Trace) -> float:
    """The mean step of the measured blocks, by the clock of rank 0."""
    total_ns, steps = 0, 0
    for first, stop in trace.blocks.tolist():
        begin_ns, end_ns = (int(trace.stamps[:, at : at + 1][0, 0, END]) for at in (first - 1, stop - 1))
        total_ns, steps = total_ns + end_ns - begin_ns, steps + stop - first
    return total_ns / 1e6 / max(1, steps)


def node_figures(quantity: Quantity, series: str, telemetry: Telemetry, block: Ints) -> tuple[Floats, Floats] | None:
    """Mean and deviation [node] of the quantity from the series whose whole names match; None where there are none."""
    columns = [column for column, name in enumerate(telemetry.series) if re.fullmatch(series, name)]
    return _figures(quantity, telemetry.values[:, :, columns], telemetry.local_ns, block) if columns else None


def series_of(quantity: Quantity, telemetry: Telemetry) -> Floats | None:
    """The quantity sample by sample, [node, sample]: a level as read, of a counter the growth per second since the
    sample before, of a `count` the growth. NaN where a sample lacks it; None where there are no such series."""
    columns = [column for column, name in enumerate(telemetry.series) if re.fullmatch(quantity.series, name)]
    if not columns:
        return None
    taken = telemetry.values[:, :, columns]
    known = ~np.isnan(taken).all(axis=2)
    combined = np.where(known, np.nansum(taken, axis=2), np.nan) * quantity.scale
    if not quantity.summed:
        combined /= np.maximum(1, (~np.isnan(taken)).sum(axis=2))
    if quantity.kind == "level":
        return combined
    growth = np.diff(combined, axis=1, prepend=np.nan)
    if quantity.kind == "count":
        return growth
    span_s = np.diff(telemetry.local_ns, axis=1, prepend=0) / 1e9
    return np.divide(growth, span_s, out=np.full_like(growth, np.nan), where=span_s > 0)


def samples_in_window(trace: Trace, telemetry: Telemetry) -> Ints:
    """The measured block of each sample, [node, sample]; -1 for none."""
    block = np.full(telemetry.local_ns.shape, -1)
    for number, (first, stop) in enumerate(trace.blocks):
        begin_ns = trace.stamps[:, first - 1 : first][telemetry.ranks, :, END]
        end_ns = trace.stamps[:, stop - 1 : stop][telemetry.ranks, :, END]
        block[(telemetry.local_ns >= begin_ns) & (telemetry.local_ns <= end_ns)] = number
    return block


def _figures(quantity: Quantity, taken: Floats, local_ns: Ints, block: Ints) -> tuple[Floats, Floats]:
    """Mean and deviation of the quantity in the window, [node] each, from its series [node, sample, series].

    NaN where a node has none. A series that a node has not at all, others do; a sample that lacks one that it has is
    left out.
    """
    inside, known = block >= 0, ~np.isnan(taken)
    had: Bools = np.asarray((known & inside[:, :, None]).any(axis=1))
    whole: Bools = inside & np.asarray((known | ~had[:, None]).all(axis=2)) & np.asarray(had.any(axis=1))[:, None]
    combined = np.where(known, taken, 0).sum(axis=2) * quantity.scale
    if not quantity.summed:
        combined /= np.maximum(1, had.sum(axis=1))[:, None]
    if quantity.kind == "level":
        return _moments(combined, whole, whole.astype(np.float64))
    grown = whole[:, 1:] & whole[:, :-1] & (block[:, 1:] == block[:, :-1])
    growth, span_s = np.diff(combined, axis=1), np.diff(local_ns, axis=1) / 1e9
    if quantity.kind == "count":
        counted = np.where(grown.any(axis=1), np.where(grown, growth, 0).sum(axis=1), np.nan)
        return counted, np.zeros_like(counted)
    return _moments(np.divide(growth, span_s, out=np.zeros_like(growth), where=grown), grown, span_s)


def _moments(values: Floats, valid: Bools, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted mean and standard deviation of the valid values of each node; NaN where it has none."""
    weights = np.where(valid, weights, 0)
    total = weights.sum(axis=1)
    total[total == 0] = np.nan
    mean = (values * weights).sum(axis=1) / total
    return mean, np.sqrt(((values - mean[:, None]) ** 2 * weights).sum(axis=1) / total)


@dataclass(frozen=True, kw_only=True)
class ConditionChange:
    """A quantity that differs notably from `usual`, the base's mean, None where the base has none; rates are those of a
    step. `hosts` are the nodes where it differs; empty: all."""

    quantity: Quantity
    value: float
    usual: float | None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TooFewSamples:
    """No run of the point, or of its base, has more than `largest` samples of a node in its window."""

    of_base: bool
    largest: int


def compare_conditions(
    point: Sequence[Conditions], base: Sequence[Conditions], scale: float = 1.0
) -> tuple[ConditionChange | TooFewSamples, ...]:
    """Each quantity that differs notably from the base's, on all nodes or on those that it names; `scale` is what the
    base's step is multiplied by.

    A rank that waits for a core for 95 % of a step of 1.7 s, and of one of 7.4 s, waits 5.4 s longer: rates are
    compared by what they come to in a step. Notable is what differs by more than DIFFERS, by more than one sample
    scatters on either side, and by more than the runs: none of the point's is among the base's. Notable is a fault
    whose mean is more than it ever was there.
    """
    changes: list[ConditionChange | TooFewSamples] = []
    for quantity in QUANTITIES:
        changes += _changes(quantity, point, base, scale)
    if point and base:
        for of_base, conditions in ((False, point), (True, base)):
            if not any(run_conditions.figures for run_conditions in conditions):
                counts = [count for run_conditions in conditions for count in run_conditions.samples.values()]
                changes.append(TooFewSamples(of_base=of_base, largest=max(counts, default=0)))
    return tuple(changes)


def _changes(
    quantity: Quantity, point: Sequence[Conditions], base: Sequence[Conditions], scale: float
) -> Iterator[ConditionChange]:
    usual = [figure for run in base for figure in run.in_step(quantity, scale).values()]
    if not usual and not quantity.fault:
        return
    usual_mean = stats.mean([figure.mean for figure in usual]) if usual else None
    by_host: dict[str, list[HostMean]] = {}
    for run_conditions in point:
        for host, figure in run_conditions.in_step(quantity).items():
            by_host.setdefault(host, []).append(figure)
    floor = quantity.floor * stats.mean([quantity.in_step(run.step_ms) for run in point]) if point else quantity.floor
    moved: dict[bool, dict[str, float]] = {False: {}, True: {}}  # less and more than usual
    for host, figures in by_host.items():
        if _notable(quantity, figures, usual, floor):
            value = stats.mean([figure.mean for figure in figures])
            moved[value > (usual_mean or 0)][host] = value
    for values in filter(None, moved.values()):
        hosts = tuple(sorted(values, key=natural)) if len(values) < len(by_host) else ()
        yield ConditionChange(quantity=quantity, value=stats.mean([*values.values()]), usual=usual_mean, hosts=hosts)


def _notable(quantity: Quantity, figures: Sequence[HostMean], usual: Sequence[HostMean], floor: float) -> bool:
    values, usual_values = [figure.mean for figure in figures], [figure.mean for figure in usual]
    if quantity.fault or not usual:
        return stats.mean(values) - max(0, *usual_values, 0) > floor
    apart = min(values) > max(usual_values) or max(values) < min(usual_values)
    scatter = max(stats.mean([figure.deviation for figure in each]) for each in (figures, usual))
    usual_mean = stats.mean(usual_values)
    return apart and abs(stats.mean(values) - usual_mean) > max(DIFFERS * abs(usual_mean), floor, scatter)


# Whether a rank did nothing at all in a long step: it neither ran nor waited for a core.

STANDSTILL = "a rank does not run"
COUNTERS = ("cpu_s", "main_thread_voluntary_switches", "main_thread_involuntary_switches", "main_thread_queued_s")
STILL = (0.015, 1.0, 1.0, 0.001)
"""As much may each of these grow between two samples of a rank that does nothing: a tick of the clock, a switch."""


def standstill_s(trace: Trace, place: tuple[int, int], rank: int, steps: Sequence[int]) -> float | None:
    """The seconds in which the rank did not run, in its own work of these steps: from its last step's gradients to
    those of this one, as whole intervals between two samples show them. `place` is the row of its node in the
    telemetry and its number there.

    None without these counters, or where the samples were taken by another clock than the rank's.
    """
    row, number = place
    telemetry = trace.telemetry
    if telemetry is None or trace.clock_domains[telemetry.ranks[row]] != trace.clock_domains[rank]:
        return None
    names = [f"local_rank{number}.{counter}" for counter in COUNTERS]
    if not {*names} <= {*telemetry.series}:
        return None
    values = telemetry.values[row][:, [list(telemetry.series).index(name) for name in names]]
    at = telemetry.local_ns[row]
    still = (np.diff(values, axis=0) <= STILL).all(axis=1) & (at[1:] != ABSENT)
    total_ns = 0
    for step in steps:
        begin, end = trace.stamps[:, step - 1 : step + 1][rank, :, GRADS_READY]
        total_ns += int(np.diff(at)[still & (at[:-1] >= begin) & (at[1:] <= end)].sum())
    return total_ns / 1e9
