"""Compares a document's times to train, throughputs, accuracies and speedups with its logs and with each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.system.text import grouped
from parse.published.airank_rules import Breach, Violation, breach, violations
from parse.published.files import DocumentError, read_lines
from parse.published.tables import IMAGENET, TrainingClaim, claims, stated_times, tables, wall_clocks
from parse.published.training_result import RESNET50, RuleSettings, TrainingResult

TIME, RATE, TOP_1 = "time to train (s)", "throughput (samples/s)", "accuracy (%)"
AGREES = 0.01
"""Figures within this share of each other agree; otherwise one of them is wrong."""
SAME_ACCURACY = 0.005
"""In percent; accuracies are published with two decimals."""
SAME_TIME = 0.005
"""A published time to train within this share of the whole training's time is that time."""
ROUNDED = 0.005
"""Half of the last digit of a speedup with two decimals."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """The rows of each table with times to train, and the (epochs, seconds) that the text states."""

    path: Path
    tables: tuple[tuple[TrainingClaim, ...], ...]
    stated_times: tuple[tuple[int, float], ...]
    resnet50: bool

    @property
    def claims(self) -> tuple[TrainingClaim, ...]:
        """All rows."""
        return tuple(claim for table in self.tables for claim in table)


@dataclass(frozen=True)
class ClaimComparison:
    """A published figure and the recomputed one; `note`: the origin of the published one, if known."""

    document: Path
    claim: TrainingClaim
    what: str
    published: float
    recomputed: float | None
    note: str = ""

    @property
    def difference(self) -> float | None:
        """The excess of the published figure, as a share of the recomputed one."""
        return self.published / self.recomputed - 1 if self.recomputed else None


def read_document(path: Path) -> Document:
    """Reads the tables with a time to train. Raises DocumentError if there is none or the file cannot be read."""
    lines = read_lines(path)
    all_rows = (tuple(claims(table)) for table in tables(lines))
    with_times = tuple(rows for rows in all_rows if not all(row.empty for row in rows))
    if not with_times:
        raise DocumentError(f"{path}: no table in it has times to train (a column Time2train) by numbers of devices")
    return Document(
        path=path,
        tables=with_times,
        stated_times=tuple(stated_times(lines)),
        resnet50=any(RESNET50.search(line) for line in lines),
    )


def compare(document: Document, results: Sequence[TrainingResult]) -> list[ClaimComparison]:
    """Returns each published figure with that of the log of as many devices."""
    comparisons: list[ClaimComparison] = []
    for table in document.tables:
        by_devices = {result.training.devices: result for result in reversed(_series(table, results))}
        for claim in table:
            if result := by_devices.get(claim.devices):
                comparisons += _comparisons(document.path, claim, result, results)
    return comparisons


def _series(table: Sequence[TrainingClaim], results: Sequence[TrainingResult]) -> list[TrainingResult]:
    """Returns the series with the most rows of a table; among several, the one with the nearest times."""
    published = {claim.devices: claim for claim in table}
    by_series = grouped((result.series, result) for result in results if result.training.devices in published)
    return max(by_series.values(), key=lambda series: (len(series), -_distance(published, series)), default=[])


def _distance(published: Mapping[int, TrainingClaim], series: Sequence[TrainingResult]) -> float:
    """Returns the sum of the distances of published times from those of whole trainings, as shares."""
    distance = 0.0
    for result in series:
        claimed, whole = published[result.training.devices or 0].time2train_s, result.numbers.whole_s
        distance += abs(claimed / whole - 1) if claimed and whole else 0.0
    return distance


def _comparisons(
    document: Path, claim: TrainingClaim, result: TrainingResult, results: Sequence[TrainingResult]
) -> Iterator[ClaimComparison]:
    numbers = result.numbers
    for what, published, recomputed in (
        (TIME, claim.time2train_s, numbers.time_to_train_s),
        (RATE, claim.speed, numbers.throughput),
        (TOP_1, claim.accuracy, numbers.accuracy),
        ("speedup", claim.speedup, result.speedup),
    ):
        if published is None:
            continue
        tolerance = SAME_ACCURACY if what == TOP_1 else AGREES * (recomputed or 0)
        apart = recomputed is None or abs(published - recomputed) > tolerance
        note = _note(what, published, result, results) if apart else ""
        yield ClaimComparison(document, claim, what, published, recomputed, note)


def _note(what: str, published: float, result: TrainingResult, results: Sequence[TrainingResult]) -> str:
    """Returns an explanation of a published figure that differs from the recomputed one; empty if unknown."""
    numbers = result.numbers
    if what == TIME and numbers.whole_s and abs(published / numbers.whole_s - 1) <= SAME_TIME:
        return f"it runs to {numbers.whole_until} ({numbers.whole_s:.2f} s)"
    if what == RATE:
        name = next((name for name, value in result.training.summaries if abs(value - published) < 0.01), "")
        return f"it is the {name} that the log sums up with" if name else _other_epochs(published, result)
    if what == TOP_1:
        for other in results:
            if other is not result and abs((other.numbers.accuracy or -1) - published) <= SAME_ACCURACY:
                return f"it is that of {other.training.path.name}"
    return ""


def _other_epochs(published: float, result: TrainingResult) -> str:
    """Returns the other number of epochs that gives the published throughput in the same time."""
    numbers = result.numbers
    if not numbers.whole_s or not numbers.samples_per_epoch or not numbers.epochs:
        return ""
    epochs = published * numbers.whole_s / numbers.samples_per_epoch
    if round(epochs) in (0, numbers.epochs) or abs(epochs / round(epochs) - 1) > 1e-3:
        return ""
    return f"it is that of {round(epochs)} epochs in the {numbers.whole_s:.2f} s of {numbers.epochs:g}"


def check(document: Document, settings: RuleSettings) -> list[Violation]:
    """Returns the contradictions between figures of a document."""
    rules = {"published throughput": _by_wall_clock, "published speedup": _speedups}
    return violations(document.path, rules, document, settings)


def _by_wall_clock(document: Document, settings: RuleSettings) -> Iterator[Breach]:
    """The published throughput is the stated epochs divided by the stated seconds."""
    samples = settings.samples_per_epoch or (IMAGENET if document.resnet50 else 0)
    for clock in wall_clocks(document.claims, document.stated_times, samples) if samples else ():
        excess = clock.claimed / clock.speed - 1
        if abs(excess) > AGREES:
            yield breach(
                "line {line}: {epochs} epochs of {samples:,} samples in {seconds:,.0f} s are {speed:.2f} samples/s by "
                "wall clock, {claimed:.9g} is printed ({difference:+.1%})",
                **dataclasses.asdict(clock), samples=samples, difference=excess,
            )  # fmt: skip


def _speedups(document: Document, settings: RuleSettings) -> Iterator[Breach]:
    """A speedup is the time to train on one device divided by that on several."""
    base = next((claim for claim in document.claims if claim.devices == 1), None)
    for claim in document.claims:
        if claim.speedup is None or claim is base:
            continue
        if base is None or not base.time2train_s or not claim.time2train_s:
            form = "line {line}: speedup {speedup:g} is printed, but not the times to train that it is of"
            yield breach(form, line=claim.line, speedup=claim.speedup)
            continue
        time_ratio = base.time2train_s / claim.time2train_s
        if abs(claim.speedup - time_ratio) <= ROUNDED + 1e-9:
            continue
        rates = claim.speed / base.speed if claim.speed and base.speed else None
        explanation = " (a ratio of throughputs)" if rates and abs(rates - claim.speedup) <= 2 * ROUNDED else ""
        form = f"line {{line}}: speedup {{speedup:g}} is printed{explanation}, the times to train give {{computed:.2f}}"
        yield breach(form, line=claim.line, speedup=claim.speedup, computed=time_ratio)
