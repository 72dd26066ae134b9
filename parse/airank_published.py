"""What a document publishes of a training, beside what its logs give, and against its own other figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parse.airank_numbers import IMAGENET, RESNET50, Case, Terms
from parse.airank_rules import Broken
from parse.logs.family import LogError

MAX_BYTES = 16 << 20
AGREES = 0.01
"""Figures as far apart as this share are the same training told otherwise; further apart, one of them is wrong."""
SAME_TIME = 0.005
"""A published time to train within this share of the whole training's is the whole training's."""
ROUNDED = 0.005
"""Half of the last digit of a speedup with two decimals."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
COLUMNS = {
    "time2train_s": re.compile(r"time\s*2\s*train|time to train", re.IGNORECASE),
    "ips": re.compile(r"吞吐|throughput|(?:images|samples|sequences|tokens|videos)/s|\bips\b", re.IGNORECASE),
    "accuracy": re.compile(r"准确率|精度|accuracy|top-?1", re.IGNORECASE),
    "speedup": re.compile(r"加速比|speed-?up", re.IGNORECASE),
}
TOLD = (
    re.compile(rf"(?P<seconds>{NUMBER.pattern})\s*秒[^。\n]*?(?P<epochs>\d+)\s*个\s*epoch", re.IGNORECASE),
    re.compile(rf"(?P<epochs>\d+) epochs? (?:in|took|take) (?P<seconds>{NUMBER.pattern}) ?s", re.IGNORECASE),
)
"""How texts say that so many epochs took so many seconds."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of a table with times to train; None where the document prints none.

    Lines count from 1; `table` is the line where the table begins.
    """

    document: Path
    table: int
    line: int
    devices: int
    time2train_s: float | None = None
    ips: float | None = None
    accuracy: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, kw_only=True)
class Document:
    """The rows of a document, and where its text says how long so many epochs took."""

    path: Path
    claims: tuple[Claim, ...]
    told: tuple[tuple[int, float], ...]
    resnet50: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published figure beside the recomputed one; `note` says what the published one is instead."""

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
    claims = tuple(_claims(path, text.splitlines()))
    if not claims:
        raise LogError(f"{path}: no table in it has a column of times to train (Time2train) with a number of devices")
    told = tuple(
        (int(found["epochs"]), seconds)
        for form in TOLD
        for found in form.finditer(text)
        if (seconds := _number(found["seconds"])) and len(found["epochs"]) < 7
    )
    return Document(path=path, claims=claims, told=told, resnet50=RESNET50.search(text) is not None)


def _claims(path: Path, lines: Sequence[str]) -> Iterator[Claim]:
    columns: dict[str, int] = {}
    table = 0
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("|"):
            columns = {}
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if any(COLUMNS["time2train_s"].search(cell) for cell in cells):
            table = number
            columns = {name: at for name, form in COLUMNS.items() for at, cell in enumerate(cells) if form.search(cell)}
        elif columns and (devices := NUMBER.search(cells[0])):
            told = {name: _number(cells[at]) for name, at in columns.items() if at < len(cells)}
            if any(told.values()) and len(devices[0]) < 7:
                on = int(devices[0].replace(",", "").split(".")[0])
                yield Claim(document=path, table=table, line=number, devices=on, **told)


def _number(cell: str) -> float | None:
    """The number of a cell; None where there is none, or more than one."""
    found = NUMBER.findall(cell)
    return float(found[0].replace(",", "")) if len(found) == 1 and len(found[0]) < 20 else None


def compare(document: Document, cases: Sequence[Case]) -> list[Comparison]:
    """Each published figure beside that of the log of as many devices."""
    return [
        comparison
        for claims in _tables(document)
        for own in [_series(claims, cases)]
        for claim in claims
        if (case := next((one for one in own if one.training.devices == claim.devices), None))
        for comparison in _comparisons(claim, case, cases)
    ]


def _tables(document: Document) -> Iterator[tuple[Claim, ...]]:
    for table in sorted({claim.table for claim in document.claims}):
        yield tuple(claim for claim in document.claims if claim.table == table)


def _series(claims: Sequence[Claim], cases: Sequence[Case]) -> list[Case]:
    """The series that a table is about: it has most of its rows and, of several, the nearest accuracies and times."""
    published = {claim.devices: claim for claim in claims}
    found: dict[object, list[Case]] = {}
    for case in cases:
        if case.training.devices in published:
            found.setdefault(case.series, []).append(case)
    return max(found.values(), key=lambda own: (len(own), -_apart(published, own)), default=[])


def _apart(published: Mapping[int, Claim], own: Sequence[Case]) -> float:
    """How far the published times are from those of the whole trainings, as shares."""
    apart = 0.0
    for case in own:
        claimed, whole = published[case.training.devices or 0].time2train_s, case.numbers.whole_s
        apart += abs(claimed / whole - 1) if claimed and whole else 0.0
    return apart


def _comparisons(claim: Claim, case: Case, cases: Sequence[Case]) -> Iterator[Comparison]:
    numbers = case.numbers
    for what, published, recomputed in (
        ("time to train (s)", claim.time2train_s, numbers.time_to_train_s),
        ("throughput (samples/s)", claim.ips, numbers.throughput),
        ("accuracy (%)", claim.accuracy, numbers.accuracy),
        ("speedup", claim.speedup, case.speedup),
    ):
        if published is None:
            continue
        apart = recomputed is None or abs(published / recomputed - 1) > AGREES
        note = _instead(what, published, case, cases) if apart else ""
        yield Comparison(claim=claim, what=what, published=published, recomputed=recomputed, note=note)


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
            (one for one in cases if one is not case and abs((one.numbers.accuracy or -1) - published) < 0.005), None
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


def check(document: Document, terms: Terms) -> list[Broken]:
    """What in the document contradicts itself."""
    rules = {"published throughput": _by_wall_clock, "published speedup": _speedups}
    return [
        Broken(path=document.path, rule=name, how=how) for name, rule in rules.items() for how in rule(document, terms)
    ]


def _by_wall_clock(document: Document, terms: Terms) -> Iterator[str]:
    """The epochs that the text tells of, by the seconds it tells, are the published throughput."""
    samples = terms.samples_per_epoch or (IMAGENET if document.resnet50 else None)
    if samples is None:
        return
    for epochs, seconds in document.told:
        own = epochs * samples / seconds
        for claim in document.claims:
            if claim.ips and claim.time2train_s == seconds and abs(claim.ips / own - 1) > AGREES:
                yield (
                    f"line {claim.line}: {epochs} epochs of {samples:,} samples in {seconds:,.0f} s are "
                    f"{own:.2f} samples/s by wall clock, {claim.ips:.9g} is printed ({claim.ips / own - 1:+.1%})"
                )


def _speedups(document: Document, terms: Terms) -> Iterator[str]:
    """A speedup is the time to train on one device by that on several."""
    base = next((claim for claim in document.claims if claim.devices == 1), None)
    for claim in document.claims:
        if claim.speedup is None or claim is base:
            continue
        if base is None or not base.time2train_s or not claim.time2train_s:
            yield f"line {claim.line}: speedup {claim.speedup:g} is printed, but not the times to train that it is of"
            continue
        own = base.time2train_s / claim.time2train_s
        if abs(claim.speedup - own) <= ROUNDED + 1e-9:
            continue
        rates = claim.ips / base.ips if claim.ips and base.ips else None
        why = " (a ratio of throughputs)" if rates and abs(rates - claim.speedup) <= 2 * ROUNDED else ""
        yield f"line {claim.line}: speedup {claim.speedup:g} is printed{why}, the times to train give {own:.2f}"
