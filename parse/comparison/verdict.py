"""Verdicts on a ratio of speeds."""

from __future__ import annotations

from enum import StrEnum

from parse.comparison.ratio import RatioInterval


class ComparisonVerdict(StrEnum):
    """The result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


def of_pair(interval: RatioInterval | None, threshold: float) -> ComparisonVerdict:
    """The verdict on two measurements.

    `same`: the whole interval is within the threshold. Otherwise `slower` and `faster`: it excludes 1, so that the
    speeds differ, and the difference may reach the threshold. `cannot tell`: everything else.
    """
    if interval is None:
        return ComparisonVerdict.CANNOT_TELL
    if 1 - threshold <= interval.low and interval.high <= 1 + threshold:
        return ComparisonVerdict.SAME
    if interval.high < 1:
        return ComparisonVerdict.SLOWER
    return ComparisonVerdict.FASTER if interval.low > 1 else ComparisonVerdict.CANNOT_TELL


def of_reference(interval: RatioInterval | None, tolerance: float) -> ComparisonVerdict:
    """The verdict on a measurement and an expected speed, which has no scatter.

    `slower`: the whole interval is below 1 − tolerance; `faster`: above 1 + tolerance; `same`: none of it is below
    1 − tolerance. `cannot tell`: it contains 1 − tolerance.
    """
    if interval is None:
        return ComparisonVerdict.CANNOT_TELL
    if interval.high < 1 - tolerance:
        return ComparisonVerdict.SLOWER
    if interval.low > 1 + tolerance:
        return ComparisonVerdict.FASTER
    return ComparisonVerdict.SAME if interval.low >= 1 - tolerance else ComparisonVerdict.CANNOT_TELL
