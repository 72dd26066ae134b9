"""Figures as text: times, speeds, shares, intervals; ranks, nodes and runs by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import TYPE_CHECKING

from hpc.system.text import inflect
from parse.stats import Interval, Mean

if TYPE_CHECKING:
    from parse.ledger.finding import Without
    from parse.ledger.types import Ledger, RunLedger, Term

RANGE = "range of runs"
"""What is shown of fewer than five runs, from the least to the most, in place of an interval of 95 %."""
NAMED = 5
"""As many steps, or ranks that do not follow on one another, are named."""
LITTLE = 1e-3
"""A smaller share of a delay is none."""
SHORT_MS = 10
"""In tables steps below this are written to the microsecond, others to the hundredth of a millisecond."""
MICROSECONDS_BELOW_MS = 0.1
"""Times below this are written in microseconds."""
DIGITS = 3
"""Digits of a figure in a sentence that mean something; no less than the whole number."""


def round_number(value: float) -> str:
    """`54`, `0.3`, `4617`: three significant digits and no less than the whole number."""
    return f"{value:.0f}" if abs(value) >= 10 ** (DIGITS - 1) else f"{value:.{DIGITS}g}"


def digits(value: float, sign: str = "") -> str:
    """`0.25`, `2.00`, `33.9`, `4617`: of a measured time; three significant digits, two below 1, and no less than the
    whole number; `sign` `+` shows it."""
    if abs(value) < 0.995:
        return f"{value + 0.0:{sign}.2g}"
    rounded = float(f"{value:.{DIGITS}g}") if abs(value) < 10**DIGITS else round(value)
    return f"{rounded + 0.0:{sign}.{max(0, DIGITS - 1 - floor(log10(abs(rounded))))}f}"


def ms(value: float, sign: str = "") -> str:
    """`33.9 ms`, `41.5 µs`, `0 ms`."""
    if 0 < abs(value) < MICROSECONDS_BELOW_MS:
        return f"{digits(value * 1e3, sign)} µs"
    return f"{digits(value, sign)} ms"


def interval_ms(mean: Mean, factor: float = 1) -> str:
    """`33.85 to 33.95`, to the digits that its width leaves; empty where there is none."""
    if mean.shown is None:
        return ""
    low, high = sorted(end * factor for end in mean.shown)
    of_width, of_value = (floor(log10(abs(each))) if each else 0 for each in ((high - low) / 2, mean.value))
    decimals = max(0, min(1 - of_width, max(-of_width, DIGITS - 1 - of_value)))  # two digits of the width at most
    return f"{low + 0.0:.{decimals}f} to {high + 0.0:.{decimals}f}"


def change_ms(mean: Mean) -> str:
    """`+22.5 ms`; `+3.1 ms (-1.2 to 7.4)` where 0 is in its interval."""
    interval = "" if mean.resolved else interval_ms(mean)
    return f"{ms(mean.value, '+')}{interval and f' ({interval})'}"


def percent(share: float) -> str:
    """`54 %`, of 1."""
    return f"{share * 100:.0f} %"


def share(term: Term) -> str:
    """` (62 %)` of the whole loss, where both are larger than their intervals and it is a part of it; else empty."""
    known = term.share is not None and term.loss is not None and term.loss.resolved and term.loss.value > 0
    return f" ({percent(term.share)})" if known and term.share is not None and 0 < term.share <= 1 else ""


def level(intervals: Iterable[Interval]) -> str:
    """`95 %`; `range of runs` where these are fewer than five; both where intervals differ in it."""
    return " or ".join(sorted({RANGE if interval.of_few_runs else "95 %" for interval in intervals}))


def level_of(mean: Mean) -> str:
    """What is shown with it: `95 %`, `range of runs`; empty where nothing is."""
    return RANGE if mean.runs else "95 %" if mean.shown else ""


def speed_text(speed: float) -> str:
    """`4,210`, `162.1`: four significant digits and no less than the whole number."""
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"


def without_text(without: Without, unit: str) -> str:
    """`256.7 instead of 177.7 samples/s`; where ranks share cores, what it may be, too."""
    text = f"{speed_text(without.speed)} instead of {speed_text(without.recorded)} {unit}"
    if (possible := without.possible) is None:
        return text
    return f"{text} ({speed_text(possible.low)} to {speed_text(possible.high)}, as ranks share cores)"


class Figures:
    """Writes the milliseconds of a table, all figures of these ledgers with as many decimals."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.decimals = 3 if min((ledger.step.value for ledger in ledgers), default=SHORT_MS) < SHORT_MS else 2

    def bare(self, value: float, sign: str = "") -> str:
        """Without a unit; `sign` `+` shows it. Never a minus before a zero."""
        return f"{round(value, self.decimals) + 0.0:{sign}.{self.decimals}f}"

    def interval(self, mean: Mean, factor: float = 1) -> str:
        """`[11.80, 12.40]`; empty where there is none."""
        if mean.shown is None:
            return ""
        low, high = sorted(end * factor for end in mean.shown)
        return f"[{self.bare(low)}, {self.bare(high)}]"

    def margin(self, mean: Mean) -> str:
        """`±0.30`; an interval whose middle is another value in full, and empty where there is none."""
        if mean.low is None or mean.high is None:
            return ""
        below, above = self.bare(mean.value - mean.low), self.bare(mean.high - mean.value)
        return f"±{above}" if below == above else self.interval(mean)


def numbers(ranks: Sequence[int]) -> str:
    """`0 to 7`, `2, 5`, `1, 4, 6, 7, 9, … (12)`."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f", … ({len(ranks)})" if len(ranks) > NAMED else ""
    return f"{', '.join(map(str, ranks[:NAMED]))}{more}"


def ranks_text(ledger: Ledger, ranks: Sequence[int]) -> str:
    """`rank 3 (n1)`, `ranks 2, 5`."""
    host = host_of(ledger, ranks[0]) if len(ranks) == 1 else ""
    return f"{inflect(len(ranks), 'rank')} {numbers(ranks)}{f' ({host})' if host else ''}"


def node_names(ledger: Ledger) -> list[str]:
    """The names of its nodes; those that are only groups of ranks on one machine with their number."""
    names = [node.name for node in ledger.nodes]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}:{place}" for place, name in enumerate(names)]


def host_of(ledger: Ledger, rank: int) -> str:
    """The name of the node that a rank is on; empty where it is not known."""
    named = zip(node_names(ledger), ledger.nodes, strict=True)
    return next((name for name, node in named if rank in node.ranks), "")


def repeat_of(run: RunLedger) -> str:
    """The number of the repeat, from the run's id."""
    return run.run_id.rpartition("_r")[2]
