"""What can be wrong with how points of one setting scale: the rules that look at more than one case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parse.result import Result
from parse.stats import Interval

SINGLE_FIGURE = 0.01
"""A published speed without its runs has no scatter: it is taken to this share either way, so two of them to 2 %."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a result is judged beside: those of its setting, itself among them, that differ from it in their size; and
    of every other setting that has the same speeds in all cases, its first result."""

    setting: tuple[Result, ...]
    twins: tuple[Result, ...] = ()


def known(result: Result) -> Interval | None:
    """Within what its median is known: its runs' interval; of a single published figure its margin, else None."""
    if result.interval or result.published is None or result.median_speed is None:
        return result.interval
    return Interval(result.median_speed * (1 - SINGLE_FIGURE), result.median_speed * (1 + SINGLE_FIGURE), 0.0)


def baseline_of(result: Result, beside: Beside) -> Result | None:
    """The point at 1n1g with all else equal."""
    wanted = result.requested.baseline_point
    return next((other for other in beside.setting if other.requested.point == wanted), None)


def superlinear(result: Result, beside: Beside) -> Iterator[str]:
    """The least speedup that the intervals allow is above the number of devices."""
    baseline = baseline_of(result, beside)
    if baseline is None or result is baseline or result.speedup is None:
        return
    mine, its = known(result), known(baseline)
    if mine and its and mine.low / its.high > result.run.devices:
        yield (
            f"speedup {result.speedup:.2f} on {result.run.devices} devices, "
            f"at least {mine.low / its.high:.2f} {_how(result, baseline)}: more than linear"
        )


def rising(result: Result, beside: Beside) -> Iterator[str]:
    """A device does more here than in a smaller case of the same point, beyond both intervals.

    The 1n1g baseline is left to the rule above, which says the same of it.
    """
    mine = known(result)
    if mine is None or result.median_speed is None:
        return
    devices = result.run.devices
    smaller = [
        (its.high / other.run.devices, other)
        for other in beside.setting
        if 1 < other.run.devices < devices
        and (its := known(other))
        and its.high / other.run.devices < mine.low / devices
    ]
    if smaller:
        highest, other = min(smaller, key=lambda pair: pair[0])
        if other.median_speed:
            yield (
                f"{mine.low / devices:.4g} samples/s per device or more, on {other.requested.case} at most "
                f"{highest:.4g}{_margin(result, other)}: speed per device rises with the number of devices; "
                f"{result.median_speed / other.median_speed:.2f} times the speed "
                f"on {devices / other.run.devices:.4g} times the devices"
            )


def falling(result: Result, beside: Beside) -> Iterator[str]:
    """Fewer devices are faster together, beyond both intervals."""
    mine = known(result)
    if mine is None:
        return
    faster = [
        (its.low, other)
        for other in beside.setting
        if other.run.devices < result.run.devices and (its := known(other)) and mine.high < its.low
    ]
    if faster:
        least, other = max(faster, key=lambda pair: pair[0])
        yield (
            f"{mine.high:.2f} samples/s at most on {result.run.devices} devices, on {other.run.devices} "
            f"({other.requested.case}) {least:.2f} or more{_margin(result, other)}: more devices, less throughput"
        )


def baseline_elsewhere(result: Result, beside: Beside) -> Iterator[str]:
    """The baseline met another device, driver or version, so the speedup compares more than the scale."""
    baseline = baseline_of(result, beside)
    if baseline is None or baseline is result:
        return
    facts, baseline_facts = result.facts, baseline.facts
    for name in sorted(facts.keys() & baseline_facts.keys()):
        if name != "transport" and not facts[name] & baseline_facts[name]:
            yield f"its baseline ran with another {name}: {_joined(baseline_facts[name])}, not {_joined(facts[name])}"


def _how(*compared: Result) -> str:
    return "by the intervals" if all(result.interval for result in compared) else _ALLOWED


def _margin(*compared: Result) -> str:
    return "" if all(result.interval for result in compared) else f" {_ALLOWED}"


_ALLOWED = f"with {2 * SINGLE_FIGURE:.0%} allowed between single published figures"


def _joined(values: set[str]) -> str:
    return " and ".join(sorted(values))
