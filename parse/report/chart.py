"""The speedup of each point as a bar beside its ideal, for a terminal: returns lines, prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

from parse.report.conclusion import setting_names
from parse.result import Result, by_setting
from parse.text import Page, number, wrapped

PARTS = " ▏▎▍▌▋▊▉█"
"""A cell that is 0 to 8 eighths full."""
IDEAL = "┊"
MIN_CELLS = 16
"""Bars with less room say nothing."""


def speedup_chart(results: Sequence[Result], page: Page) -> list[str]:
    """A bar for each point with a speedup, from 0 to the largest speedup or ideal one; a chart for each base.

    Points with the same settings stand together. Empty where no two of these have one: a base alone is no scaling.
    """
    settings = list(by_setting(result for result in results if result.speedup is not None).values())
    names = setting_names([setting[0] for setting in settings])
    curves = [(name, points) for name, points in zip(names, settings, strict=True) if len(points) > 1]
    shown = [result for _, points in curves for result in points]
    case_width = max((len(result.requested.case) for result in shown), default=0)
    speedup_width = max((len(number(result.speedup)) for result in shown), default=0)
    cells = page.width - case_width - speedup_width - 4
    if not shown or cells < MIN_CELLS:
        return []
    lines: list[str] = []
    for base in sorted({_base(result) for result in shown}, key=lambda base: base[1]):
        of_base = [(name, points) for name, points in curves if _base(points[0]) == base]
        lines += wrapped([_title(*base)], page.width)
        largest = max(max(result.speedup or 0.0, result.ideal or 0.0) for _, points in of_base for result in points)
        for name, points in of_base:
            lines += wrapped([name] if len(curves) > 1 else [], page.width)
            lines += [
                f"{result.requested.case:<{case_width}}  {number(result.speedup):>{speedup_width}}  "
                + _bar(result.speedup or 0.0, result.ideal or 0.0, largest, cells)
                for result in points
            ]
    return lines


def _base(result: Result) -> tuple[str, int]:
    """Case and devices of its base."""
    assert result.base is not None
    return result.base.case, result.base.devices


def _title(case: str, devices: int) -> str:
    ideal = "as many times as there are devices" if devices == 1 else f"as many times as there are devices of {case}"
    return f"speedup against {case}; {IDEAL} {ideal}"


def _bar(value: float, ideal: float, largest: float, cells: int) -> str:
    """`cells` wide for `largest`; the ideal is marked where the bar does not reach it."""
    eighths = round(value / largest * cells * 8)
    full, rest = divmod(eighths, 8)
    bar = PARTS[8] * full + (PARTS[rest] if rest else "")
    mark = min(cells, round(ideal / largest * cells)) - 1
    return bar if len(bar) > mark else bar.ljust(mark) + IDEAL
