"""The conclusion of a summary in a few sentences: scaling of each setting, number of runs, number of warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpc.system.text import inflect
from parse.report.notices import Notice, merged
from parse.report.summary import Summary, named, naming, no_speedup_text, requested_values
from parse.result import Result, by_setting, scaling_text
from parse.text import shortened

MAX_SETTINGS = 4
"""With more settings only the best and the worst scaling one are named."""
NAME_SHARE = 0.5
"""Share of a line that a setting's name takes, at most."""


def conclusion(summary: Summary, notices: Sequence[Notice], width: int) -> list[str]:
    """Sentences on how each setting scales, and one that counts runs and warnings; empty where there is no result."""
    if not summary.results:
        return []
    warning_count = sum(notice.is_warning for notice in merged(notices))
    counts = f"{warning_count or 'no'} {inflect(warning_count, 'warning')}"
    return [*scaling_lines(summary.results, width), "; ".join([*run_counts(summary.results), counts])]


def scaling_lines(results: Sequence[Result], width: int, beside: Result | None = None) -> Iterator[str]:
    """How each setting scales; nothing about that of `beside`, which somebody else describes."""
    settings = by_setting(results)
    full_names = setting_names([setting[0] for setting in settings.values()])
    short = shortened(full_names, int(width * NAME_SHARE))
    names = [short[name] for name in full_names]
    if len(settings) <= MAX_SETTINGS:
        yield from (
            f"{name}: {_of_setting(setting)}"
            for name, setting in zip(names, settings.values(), strict=True)
            if all(result is not beside for result in setting)
        )
        return
    pairs = [(name, _largest(setting)) for name, setting in zip(names, settings.values(), strict=True)]
    scaled = [(name, largest) for name, largest in pairs if largest is not None]
    scaled.sort(key=lambda pair: -(pair[1].scaling_efficiency or 0.0))
    leads, without = [""] * len(scaled), len(settings) - len(scaled)
    if len(scaled) > MAX_SETTINGS:
        leads, scaled = [f"best of {len(scaled)} settings, ", "worst, "], [scaled[0], scaled[-1]]
    yield from (
        f"{lead}{name}: {_speedup(largest)}"
        for lead, (name, largest) in zip(leads, scaled, strict=True)
        if largest is not beside
    )
    if without:
        yield f"{without} of {len(settings)} settings: no speedup over a smaller case"


def setting_names(firsts: Sequence[Result]) -> list[str]:
    """The names of settings, of each of which this is the first point."""
    names = [name for name in naming(firsts) if name not in ("backend", "workload")] if len(firsts) > 1 else []
    return [named(requested_values(first), ("backend", "workload"), names) for first in firsts]


def _largest(setting: Sequence[Result]) -> Result | None:
    """The largest case that has a speedup over a smaller one."""
    scaled = [result for result in setting if result.speedup is not None and (result.ideal or 0.0) > 1]
    return max(scaled, key=lambda result: (result.run.devices, result.run.nodes), default=None)


def _of_setting(setting: Sequence[Result]) -> str:
    largest = _largest(setting)
    if largest is not None:
        return "; ".join([_speedup(largest), *without_speed(setting, largest)])
    measured = [result for result in setting if result.median_speed is not None]
    if not measured:
        return f"no speed of {', '.join(result.requested.case for result in setting)}"
    largest_measured = max(measured, key=lambda result: result.run.devices)
    speed = f"{largest_measured.median_speed:.2f} {largest_measured.unit}"
    return f"{speed} on {largest_measured.requested.case}; {unscaled_text(largest_measured)}"


def unscaled_text(result: Result) -> str:
    """Why a measured point, the largest of its setting, does not show how that scales."""
    return f"no speedup: {no_speedup_text(result) or 'no larger case has a speed'}"


def without_speed(setting: Sequence[Result], result: Result) -> list[str]:
    """The larger cases that have no speed, and the smaller ones that it is not measured against for want of one."""
    larger = [each for each in setting if each.median_speed is None and each.run.devices > result.run.devices]
    smaller = result.base.smaller if result.base else ()
    texts = [f"no speed of {', '.join(each.requested.case for each in larger)}"] if larger else []
    return texts + [f"not against {case}: {outcome}" for case, outcome in smaller]


def no_scaling_result(result: Result) -> list[str]:
    """`not a scaling result (oversubscribed)`; nothing where it is one."""
    flags = {"oversubscribed": result.oversubscribed, "nodes simulated": result.nodes_simulated}
    reasons = [name for name, reason in flags.items() if reason]
    return [f"not a scaling result ({', '.join(reasons)})"] if reasons else []


def _speedup(result: Result) -> str:
    """`4n8g runs 3.14 × as fast as 1n8g on 4 times the devices (79 % of ideal)`."""
    speedup, efficiency = scaling_text(result)
    return ", ".join([f"{result.requested.case} runs {speedup} ({efficiency} of ideal)", *no_scaling_result(result)])


def run_counts(results: Sequence[Result]) -> list[str]:
    """`8 of 9 runs ok, 1 oom`; nothing where there is no run."""
    runs = [run for result in results if not (result.published and not result.ok) for run in result.runs]
    missing = Counter(run.outcome_text for run in runs if not run.measured)
    parts = [f"{sum(run.measured is not None for run in runs)} of {len(runs)} runs ok"] if runs else []
    parts += [f"{count} {outcome}" for outcome, count in missing.most_common()]
    return [", ".join(parts)] if parts else []
