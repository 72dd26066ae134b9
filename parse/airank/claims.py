"""What a document publishes of a training, beside what its logs give, and against its own other figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parse.airank.cases import RESNET50, Case, RuleSettings
from parse.airank.rules import Violation
from parse.logs.engine.log_format import LogError
from parse.published.tables import Claim, claims, tables
from parse.published.vocabulary import EPOCH_TIMES, IMAGENET

MAX_BYTES = 16 << 20
AGREES = 0.01
"""Figures as far apart as this share are the same training told otherwise; further apart, one of them is wrong."""
SAME_ACCURACY = 0.005
"""In percent; accuracies are published with two decimals."""
SAME_TIME = 0.005
"""A published time to train within this share of the whole training's is the whole training's."""
ROUNDED = 0.005
"""Half of the last digit of a speedup with two decimals."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """The rows of each table with times to train, and where the text says how long so many epochs took."""

    path: Path
    tables: tuple[tuple[Claim, ...], ...]
    stated_times: tuple[tuple[int, float], ...]
    resnet50: bool

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All rows."""
        return tuple(claim for table in self.tables for claim in table)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published figure beside the recomputed one; `note` says what the published one is instead."""

    document: Path
    claim: Claim
    what: str
    published: float
    recomputed: float | None
    note: str = ""

    @property
    def difference(self) -> float | None:
        """How much more is published than there is, as a share."""
        return self.published / self.recomputed - 1 if self.recomputed else None


def read_document(path: Path) -> Document:
    """Reads the tables with a time to train. Raises LogError where there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror or error})") from None
    with_times = tuple(
        rows for table in tables(text.splitlines()) if any(map(_has_figures, rows := tuple(claims(table))))
    )
    if not with_times:
        raise LogError(f"{path}: no table in it has times to train (a column Time2train) by numbers of devices")
    stated_times = tuple(
        (int(with_times["epochs"]), seconds)
        for form in EPOCH_TIMES
        for with_times in form.finditer(text)
        if (seconds := _number(with_times["seconds"])) and len(with_times["epochs"]) < 7 and int(with_times["epochs"])
    )
    return Document(path=path, tables=with_times, stated_times=stated_times, resnet50=RESNET50.search(text) is not None)


def _has_figures(claim: Claim) -> bool:
    return any(value is not None for value in (claim.time2train_s, claim.ips, claim.accuracy, claim.speedup))


def _number(text: str) -> float | None:
    return float(text.replace(",", "")) if len(text) < 20 else None


def compare(document: Document, cases: Sequence[Case]) -> list[Comparison]:
    """Each published figure beside that of the log of as many devices."""
    return [
        comparison
        for table in document.tables
        for series_cases in [_series(table, cases)]
        for claim in table
        if (
            case := next((candidate for candidate in series_cases if candidate.training.devices == claim.devices), None)
        )
        for comparison in _comparisons(document, claim, case, cases)
    ]


def _series(table: Sequence[Claim], cases: Sequence[Case]) -> list[Case]:
    """The series that a table is about: it has most of its rows and, of several, the nearest accuracies and times."""
    published = {claim.devices: claim for claim in table}
    by_series: dict[object, list[Case]] = {}
    for case in cases:
        if case.training.devices in published:
            by_series.setdefault(case.series, []).append(case)
    return max(
        by_series.values(), key=lambda series_cases: (len(series_cases), -_apart(published, series_cases)), default=[]
    )


def _apart(published: Mapping[int, Claim], series_cases: Sequence[Case]) -> float:
    """How far the published times are from those of the whole trainings, as shares."""
    apart = 0.0
    for case in series_cases:
        claimed, whole = published[case.training.devices or 0].time2train_s, case.numbers.whole_s
        apart += abs(claimed / whole - 1) if claimed and whole else 0.0
    return apart


def _comparisons(document: Document, claim: Claim, case: Case, cases: Sequence[Case]) -> Iterator[Comparison]:
    numbers = case.numbers
    for what, published, recomputed in (
        ("time to train (s)", claim.time2train_s, numbers.time_to_train_s),
        ("throughput (samples/s)", claim.ips, numbers.throughput),
        ("accuracy (%)", claim.accuracy, numbers.accuracy),
        ("speedup", claim.speedup, case.speedup),
    ):
        if published is None:
            continue
        apart = recomputed is None or abs(published - recomputed) > (
            SAME_ACCURACY if what == "accuracy (%)" else AGREES * recomputed
        )
        note = _instead(what, published, case, cases) if apart else ""
        yield Comparison(
            document=document.path, claim=claim, what=what, published=published, recomputed=recomputed, note=note
        )


def _instead(what: str, published: float, case: Case, cases: Sequence[Case]) -> str:
    """What a published figure is, where it is not the recomputed one."""
    numbers = case.numbers
    if what == "time to train (s)" and numbers.whole_s and abs(published / numbers.whole_s - 1) <= SAME_TIME:
        return f"it runs to {numbers.whole_until} ({numbers.whole_s:.2f} s)"
    if what == "throughput (samples/s)":
        name = next((name for name, value in case.training.summaries if abs(value - published) < 0.01), "")
        return f"it is the {name} that the log sums up with" if name else _other_epochs(published, case)
    if what == "accuracy (%)":
        other = next(
            (
                candidate
                for candidate in cases
                if candidate is not case and abs((candidate.numbers.accuracy or -1) - published) <= SAME_ACCURACY
            ),
            None,
        )
        return f"it is that of {other.training.path.name}" if other else ""
    return ""


def _other_epochs(published: float, case: Case) -> str:
    """Whether the published throughput is that of another number of epochs in the same time."""
    numbers = case.numbers
    if not numbers.whole_s or not numbers.samples_per_epoch or not numbers.epochs:
        return ""
    epochs = published * numbers.whole_s / numbers.samples_per_epoch
    if round(epochs) in (0, numbers.epochs) or abs(epochs / round(epochs) - 1) > 1e-3:
        return ""
    return f"it is that of {round(epochs)} epochs in the {numbers.whole_s:.2f} s of {numbers.epochs:g}"


def check(document: Document, settings: RuleSettings) -> list[Violation]:
    """What in the document contradicts itself."""
    rules = {"published throughput": _by_wall_clock, "published speedup": _speedups}
    return [
        Violation(path=document.path, rule=name, how=how)
        for name, rule in rules.items()
        for how in rule(document, settings)
    ]


def _by_wall_clock(document: Document, settings: RuleSettings) -> Iterator[str]:
    """The epochs that the text tells of, by the seconds it tells, are the published throughput."""
    samples = settings.samples_per_epoch or (IMAGENET if document.resnet50 else None)
    if samples is None:
        return
    for epochs, seconds in document.stated_times:
        samples_per_s = epochs * samples / seconds
        for claim in document.claims:
            if claim.ips and claim.time2train_s == seconds and abs(claim.ips / samples_per_s - 1) > AGREES:
                yield (
                    f"line {claim.line}: {epochs} epochs of {samples:,} samples in {seconds:,.0f} s are "
                    f"{samples_per_s:.2f} samples/s by wall clock, {claim.ips:.9g} is printed "
                    f"({claim.ips / samples_per_s - 1:+.1%})"
                )


def _speedups(document: Document, settings: RuleSettings) -> Iterator[str]:
    """A speedup is the time to train on one device by that on several."""
    base = next((claim for claim in document.claims if claim.devices == 1), None)
    for claim in document.claims:
        if claim.speedup is None or claim is base:
            continue
        if base is None or not base.time2train_s or not claim.time2train_s:
            yield f"line {claim.line}: speedup {claim.speedup:g} is printed, but not the times to train that it is of"
            continue
        time_ratio = base.time2train_s / claim.time2train_s
        if abs(claim.speedup - time_ratio) <= ROUNDED + 1e-9:
            continue
        rates = claim.ips / base.ips if claim.ips and base.ips else None
        explanation = " (a ratio of throughputs)" if rates and abs(rates - claim.speedup) <= 2 * ROUNDED else ""
        printed = f"speedup {claim.speedup:g} is printed{explanation}"
        yield f"line {claim.line}: {printed}, the times to train give {time_ratio:.2f}"
