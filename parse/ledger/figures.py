"""Figures as text: times, intervals, ranks, shares."""

from __future__ import annotations

from collections.abc import Sequence

from parse.ledger.types import Ledger, Mean, Term

SMALL = 0.05
"""Losses below this share of the whole, and a median closer to the mean than this, are left out."""
NAMED = 5
"""As many steps of a transient straggler, or ranks that do not follow on one another, are named."""
SHORT_MS = 10
"""Steps below this are written to the microsecond, others to the hundredth of a millisecond."""
MICROSECONDS_BELOW_MS = 0.1
"""Bounds below this are written in microseconds."""


def numbers(ranks: Sequence[int]) -> str:
    """`0 to 7`, `2, 5`, `1, 4, 6, 7, 9, … (12)`."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f", … ({len(ranks)})" if len(ranks) > NAMED else ""
    return f"{', '.join(map(str, ranks[:NAMED]))}{more}"


def small_time(ms: float) -> str:
    """A small time: in microseconds below MICROSECONDS_BELOW_MS."""
    return f"{ms * 1e3:.1f} µs" if ms < MICROSECONDS_BELOW_MS else f"{ms:.2f} ms"


def share(term: Term) -> str:
    """` (62 %)` of the whole loss, where both are larger than their intervals; else empty."""
    return "" if term.share is None or term.loss is None or not term.loss.resolved else f" ({term.share * 100:.0f} %)"


class Figures:
    """Writes milliseconds, all figures of these ledgers with as many decimals."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.decimals = 3 if min((ledger.step.value for ledger in ledgers), default=SHORT_MS) < SHORT_MS else 2

    def bare(self, value: float, sign: str = "") -> str:
        """Without a unit; `sign` `+` shows it. Never a minus before a zero."""
        return f"{round(value, self.decimals) + 0.0:{sign}.{self.decimals}f}"

    def ms(self, value: float, sign: str = "") -> str:
        return f"{self.bare(value, sign)} ms"

    def interval(self, mean: Mean, factor: float = 1) -> str:
        """`[11.80, 12.40]`; empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        low, high = sorted((mean.low * factor, mean.high * factor))
        return f"[{self.bare(low)}, {self.bare(high)}]"

    def margin(self, mean: Mean) -> str:
        """`±0.30`; an interval whose middle is another value in full, and empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        below, above = self.bare(mean.value - mean.low), self.bare(mean.high - mean.value)
        return f"±{above}" if below == above else self.interval(mean)

    def change(self, mean: Mean) -> str:
        """With its sign and unit; with its interval where 0 is in it."""
        interval = "" if mean.resolved else f" {self.interval(mean)}".rstrip()
        return f"{self.ms(mean.value, '+')}{interval}"


def round_number(value: float) -> str:
    """Three significant digits and no less than the whole number."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speed_text(speed: float) -> str:
    """`4,210`, `162.1`: four significant digits and no less than the whole number."""
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"
