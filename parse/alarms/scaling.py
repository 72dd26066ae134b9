"""Alarms about how the points of one setting scale: the rules that compare cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpc.model.findings import Figures
from parse.result import Result
from parse.stats import Interval

SINGLE_FIGURE = 0.01
"""A published speed without its runs has no scatter: it is taken to this share either way, so two of them to 2 %."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The results that a result is compared with. `setting`: those that differ in size only, itself among them;
    `same_speeds`: the first result of each other setting that has the same speeds in all cases."""

    setting: tuple[Result, ...]
    same_speeds: tuple[Result, ...] = ()


def speed_interval(result: Result) -> Interval | None:
    """Returns the interval of the median of its runs; of a single published figure its margin, else None."""
    if result.interval or result.published is None or result.median_speed is None:
        return result.interval
    return Interval(result.median_speed * (1 - SINGLE_FIGURE), result.median_speed * (1 + SINGLE_FIGURE), 0.0)


def base_of(result: Result, neighbours: Neighbours) -> Result | None:
    """Returns the point that its speedup is measured against."""
    point = result.base.point if result.base else None
    return next((other for other in neighbours.setting if other.requested.point == point), None)


def superlinear(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
    """The least speedup over one device that the intervals allow is above the number of devices."""
    of_base = base_of(result, neighbours)
    if of_base is None or result is of_base or result.speedup is None or of_base.run.devices > 1:
        return
    interval, base = speed_interval(result), speed_interval(of_base)
    if interval and base and (speedup_low := interval.low / base.high) > result.run.devices:
        yield {
            "speedup": result.speedup,
            "speedup_low": speedup_low,
            "devices": result.run.devices,
            "single_figures": not (result.interval and of_base.interval),
        }


def rising(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
    """Speed per device is higher than in a smaller case, beyond both intervals; `superlinear` compares with a base of
    one device."""
    if (interval := speed_interval(result)) is None or result.median_speed is None:
        return
    devices, base = result.run.devices, result.base
    smaller = [
        (its.high / other.run.devices, other)
        for other in neighbours.setting
        if other.run.devices < devices
        and (other.run.devices > 1 or not base or base.devices > 1)
        and (its := speed_interval(other))
        and its.high / other.run.devices < interval.low / devices
    ]
    high, other = min(smaller, key=lambda pair: pair[0], default=(0.0, result))
    if smaller and other.median_speed:
        yield {
            "per_device_low": interval.low / devices,
            "smaller_case": other.requested.case,
            "smaller_per_device_high": high,
            "speed_ratio": result.median_speed / other.median_speed,
            "device_ratio": devices / other.run.devices,
            "single_figures": not (result.interval and other.interval),
        }


def falling(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
    """Fewer devices are faster together, beyond both intervals."""
    if (interval := speed_interval(result)) is None:
        return
    faster = [
        (its.low, other)
        for other in neighbours.setting
        if other.run.devices < result.run.devices and (its := speed_interval(other)) and interval.high < its.low
    ]
    if faster:
        low, other = max(faster, key=lambda pair: pair[0])
        yield {
            "speed_high": interval.high,
            "devices": result.run.devices,
            "smaller_case": other.requested.case,
            "smaller_devices": other.run.devices,
            "smaller_speed_low": low,
            "single_figures": not (result.interval and other.interval),
        }


def baseline_elsewhere(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
    """The base met another device, driver or version, so the speedup compares more than the scale."""
    of_base = base_of(result, neighbours)
    if of_base is None or of_base is result:
        return
    facts, base_facts = result.facts, of_base.facts
    for name in sorted(facts.keys() & base_facts.keys()):
        if name != "transport" and not facts[name] & base_facts[name]:
            yield {"fact": name, "values": sorted(facts[name]), "baseline": sorted(base_facts[name]),
                   "base": of_base.requested.case}  # fmt: skip
