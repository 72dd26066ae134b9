"""What clocks, power, load and counters beside the ranks say of a point: where they differ from the baseline's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpc.stamps import END
from hpc.trace import Trace

Float64 = npt.NDArray[np.float64]
MIN_SAMPLES = 3
"""Fewer samples of a node in a run's window say nothing."""
NOTABLE = 0.02
"""A difference up to this share of the baseline's is not worth a line."""
_MAX_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A figure of a node, made of the series whose whole names match `series`: their mean, or their sum.

    `kind` is `level` (as read), `rate` (a counter's growth per second) or `count` (a counter's growth in the window).
    It is judged against the baseline's; a `fault` should be 0 and is told without a baseline, too. Differences up to
    `floor` are never told. `scale` makes it the unit.
    """

    name: str
    series: str
    unit: str = ""
    kind: str = "level"
    summed: bool = False
    scale: float = 1.0
    floor: float = 0.0
    fault: bool = False


def _throttled(reason: str, flag: str) -> Quantity:
    return Quantity(
        name=f"GPUs throttled ({reason}) in",
        series=rf"gpu\d+\.throttle_{flag}_flag",
        unit="% of the samples",
        scale=100,
        floor=2,
        fault=True,
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
    _gpu("SM clock", "sm_clock_mhz", "MHz"),
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
    _rate("a rank loses its core", r"local_rank\d+\.main_thread_involuntary_switches", "times a second", 10),
    _rate("major page faults of a rank", r"local_rank\d+\.major_faults", "a second", 1),
    _rate("minor page faults of a rank", r"local_rank\d+\.minor_faults", "a second", 1000),
    _rate("the hypervisor takes from the ranks", r"ranks_cpu\.stolen_s", "cores", 0.05, fault=True),
    _rate("swapped out", r"memory\.swapped_out_bytes", "MB a second", 1, 1e-6, fault=True),
    _rate("TCP segments sent again", r"net\.tcp_retransmitted_segments", "a second", 1, fault=True),
    _faults("dropped or faulty packets", r"net\..+\.(dropped_packets|discarded_packets|errors)"),
    _faults("errors of the fabric", r"net\..+\.(symbol_errors|receive_errors|links_downed|timeouts)"),
)
"""What is worth a word, the likeliest causes first. All else that was read stays in the trace."""


@dataclass(frozen=True)
class Figure:
    """Over the samples of a node in a window: the mean, and the standard deviation of one sample."""

    mean: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What telemetry says of one run's window: by a quantity's name, then by host. `samples` by host."""

    figures: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)


def reduce_telemetry(trace: Trace) -> Conditions | None:
    """A trace's telemetry within its measured blocks; None where it has none.

    A node's window lasts from the end of the step before a block to the end of its last step, as the rank saw it by
    whose clock the samples were taken: no other clock is needed.
    """
    told = trace.telemetry
    if told is None:
        return None
    borders = [(trace.stamps[:, first - 1 : first], trace.stamps[:, past - 1 : past]) for first, past in trace.blocks]
    figures: dict[str, dict[str, Figure]] = {}
    samples: dict[str, int] = {}
    for node, rank in enumerate(told.ranks):
        host = str(trace.ranks[rank].get("hostname") or f"rank {rank}")
        at_ns = told.local_ns[node]
        inside = [(at_ns >= before[rank, 0, END]) & (at_ns <= last[rank, 0, END]) for before, last in borders]
        pieces = [(at_ns[each], told.values[node, each]) for each in inside]
        samples[host] = sum(len(piece_ns) for piece_ns, _ in pieces)
        if samples[host] < MIN_SAMPLES:
            continue
        for quantity in QUANTITIES:
            found = _figure(quantity, told.series, pieces)
            if found is not None:
                figures.setdefault(quantity.name, {})[host] = found
    return Conditions(figures=figures, samples=samples)


def _figure(
    quantity: Quantity, series: Sequence[str], pieces: Sequence[tuple[npt.NDArray[np.int64], Float64]]
) -> Figure | None:
    """The quantity over a node's pieces of samples, each (times [sample], values [sample, series]); None if absent."""
    columns = [
        column
        for column, name in enumerate(series)
        if re.fullmatch(quantity.series, name)
        and any(not np.isnan(values[:, column]).all() for _, values in pieces)  # others' nodes may have more
    ]
    if not columns:
        return None
    combine = np.sum if quantity.summed else np.mean
    levels, growths, spans_s = [], [], []
    for at_ns, values in pieces:
        taken = values[:, columns]
        whole = ~np.isnan(taken).any(axis=1)
        combined = combine(taken[whole], axis=1) * quantity.scale
        levels.append(combined)
        growths.append(np.diff(combined))
        spans_s.append(np.diff(at_ns[whole]) / 1e9)
    level, growth, span_s = np.concatenate(levels), np.concatenate(growths), np.concatenate(spans_s)
    if quantity.kind == "level":
        return Figure(float(level.mean()), float(level.std())) if len(level) else None
    if not len(growth):
        return None
    if quantity.kind == "count":
        return Figure(float(growth.sum()), 0.0)
    return Figure(float(growth.sum() / span_s.sum()), float((growth / span_s).std()))


def compare_conditions(point: Sequence[Conditions], baseline: Sequence[Conditions]) -> tuple[str, ...]:
    """A line for each quantity that differs notably from the baseline's, on all nodes or on those that it names.

    Notable is what differs by more than NOTABLE, by more than one sample scatters on either side, and by more than the
    runs: none of the point's lies among the baseline's. Of what should be 0, whose mean is more than it ever was there.
    """
    lines = [line for quantity in QUANTITIES for line in _lines(quantity, point, baseline)]
    if point and baseline:
        lines += [_too_few("this point's", point), _too_few("the baseline's", baseline)]
    return tuple(filter(None, lines))


def _too_few(whose: str, conditions: Sequence[Conditions]) -> str:
    """Says that nothing can be compared, where no run has samples enough."""
    if any(one.figures for one in conditions):
        return ""
    most = max((count for one in conditions for count in one.samples.values()), default=0)
    return f"telemetry: {whose} runs have at most {most} of the {MIN_SAMPLES} samples that it takes in their windows"


def _lines(quantity: Quantity, point: Sequence[Conditions], baseline: Sequence[Conditions]) -> Iterator[str]:
    hosts = sorted({host for conditions in point for host in conditions.figures.get(quantity.name, ())})
    of_baseline = [figure for conditions in baseline for figure in conditions.figures.get(quantity.name, {}).values()]
    if not of_baseline and not quantity.fault:
        return
    usual = float(np.mean([figure.mean for figure in of_baseline])) if of_baseline else None
    moved: dict[bool, dict[str, float]] = {False: {}, True: {}}
    for host in hosts:
        figures = [found for conditions in point if (found := conditions.figures.get(quantity.name, {}).get(host))]
        value = float(np.mean([figure.mean for figure in figures]))
        if _notable(quantity, figures, of_baseline):
            moved[value > (usual or 0)][host] = value
    for values in moved.values():
        if values:
            where = _where(sorted(values), len(hosts))
            yield f"{_said(quantity, float(np.mean(list(values.values()))), usual)}{where}"


def _notable(quantity: Quantity, figures: Sequence[Figure], of_baseline: Sequence[Figure]) -> bool:
    values, usual = [figure.mean for figure in figures], [figure.mean for figure in of_baseline]
    if quantity.fault:
        return float(np.mean(values)) - max([*usual, 0]) > quantity.floor
    apart = min(values) > max(usual) or max(values) < min(usual)
    difference = abs(float(np.mean(values) - np.mean(usual)))
    scatter = max(float(np.mean([figure.deviation for figure in some])) for some in (figures, of_baseline))
    least = max(NOTABLE * abs(float(np.mean(usual))), quantity.floor, scatter)
    return apart and difference > least


def _said(quantity: Quantity, value: float, usual: float | None) -> str:
    unit = f" {quantity.unit}" if quantity.unit else ""
    said = f"{quantity.name} {_number(value)}{unit}"
    if usual is None:
        return said
    if quantity.fault or not usual:
        return f"{said} against {_number(usual)} alone"
    share = (value - usual) / abs(usual) * 100
    return f"{said} against {_number(usual)}{unit} alone ({'−' if share < 0 else '+'}{_number(abs(share))} %)"


def _where(hosts: Sequence[str], of: int) -> str:
    """The nodes meant, where not all are."""
    if len(hosts) == of:
        return ""
    more = f" and {len(hosts) - _MAX_NAMED} more" if len(hosts) > _MAX_NAMED else ""
    return f" on node{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:_MAX_NAMED])}{more}"


def _number(value: float) -> str:
    """Three significant digits and no less than the whole number."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
