"""Judges logs and documents by AI-Rank's rules: a document's rows compared, the report as text and JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from rich.cells import cell_len

from hpc.system.regular_file import existing
from hpc.system.sanitize import plain
from hpc.system.text import grouped, inflect
from parse.faults import fault, unread
from parse.logs.engine.log_format import LogError
from parse.logs.formats.mllog import IMAGENET
from parse.logs.mlperf import Evaluation, QualityTarget
from parse.logs.mlperf_training import TrainedWork
from parse.logs.nearest import with_nearest
from parse.published.airank_rules import Breach, Violation, breach, judge, judge_folder, violations
from parse.published.columns import TrainingClaim, claims, wall_clocks
from parse.published.files import DocumentError, files_of, read_lines
from parse.published.tables import tables
from parse.published.training import Training, read_training
from parse.published.training_result import REQUESTED, RESNET50, RuleSettings, TrainingResult, training_results
from parse.published.vocabulary import stated_times
from parse.text import GAP, Page, TableData, number, unitless, wrapped

# A document's rows with times to train, compared with what its logs come to.

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


ENDINGS = (".log", ".txt", ".log.gz", ".txt.gz")
MIN_NAME = 20
"""Names of logs are not cut to fewer characters, however narrow the page."""
HEADS = (
    ("log", ""), ("devices", ""), ("time to train", "(s)"), ("epochs", ""), ("throughput", "(samples/s)"),
    ("accuracy", "(%)"), ("speedup", ""), ("efficiency", ""),
)  # fmt: skip
INDENT = 2
STATED_LOWER, STATED_HIGHER, STATED_OVER_PAUSES = -0.1, 0.1, 0.5
"""A rate that the log states is not remarkable within these shares of the own figure; it leaves out evaluations."""
CLAIM_HEADS = ("published figure", "line", "devices", "published", "recomputed", "difference")


@dataclass(frozen=True, kw_only=True)
class AirankReport:
    """All that the command prints; `documents` were read, `refusals` are the unread files with reasons."""

    settings: RuleSettings
    results: Sequence[TrainingResult]
    violations: Sequence[Violation]
    comparisons: Sequence[ClaimComparison]
    documents: Sequence[Path]
    refusals: Sequence[str]


T = TypeVar("T")


def read(paths: Sequence[Path], documents: Sequence[Path], settings: RuleSettings) -> AirankReport:
    """Reads and judges logs, folders of logs, and documents."""
    paths, refusals = existing(paths)
    trainings = _read_all(read_training, files_of(paths, _is_log), refusals)
    read_documents = _read_all(read_document, documents, refusals)
    results = training_results(trainings, settings)
    violations = [item for result in results for item in judge(result)]
    for _, in_folder in groupby(results, key=_folder):
        violations += judge_folder(list(in_folder))
    violations += [item for document in read_documents for item in check(document, settings)]
    return AirankReport(
        settings=settings,
        results=results,
        violations=violations,
        comparisons=[item for document in read_documents for item in compare(document, results)],
        documents=tuple(document.path for document in read_documents),
        refusals=refusals,
    )


def _common_target(results: Sequence[TrainingResult]) -> str:
    """Returns the target of all logs that have one; each log's own is among its remarks."""
    texts = {result.numbers.target.text() for result in results if result.numbers.target}
    if len(texts) != 1:
        return "each log's target is reached"
    (text,) = texts
    return f"{text} {'are' if text[0].isdigit() else 'is'} reached"


def _read_all(reader: Callable[[Path], T], paths: Iterable[Path], refusals: list[str]) -> list[T]:
    items = []
    for path in paths:
        try:
            items.append(reader(path))
        except LogError as error:
            refusals.append(with_nearest(path, error))
        except DocumentError as error:
            refusals.append(str(error))
        except Exception as error:  # noqa: BLE001 - the line says which
            refusals.append(fault(error, path))
    return items


def _is_log(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def _folder(result: TrainingResult) -> Path:
    return result.training.path.parent


def text(report: AirankReport, width: int) -> str:
    """Returns a table per folder, a table of published figures, and a line per broken rule, in `width` columns."""
    lines = []
    if report.results:
        warmup = report.settings.warmup_epochs or 0
        lines += wrapped(
            [
                f"time to train until {_common_target(report.results)}; throughput over all epochs but "
                f"{warmup or 'no'} warm-up {inflect(warmup, 'epoch')}, pauses included"
            ],
            width,
        )
    for folder, results_of_folder in groupby(report.results, key=_folder):
        results = list(results_of_folder)
        lines += ["", plain(f"{folder}:"), *_table(results, width)]
        remarks = [f"{result.training.path.name}: {remark}" for result in results for remark in _remarks(result)]
        lines += wrapped(remarks, width, "  ")
    if report.comparisons:
        lines += ["", "published beside recomputed:", *_claims(report.comparisons, width)]
    lines += ["", *_broken_rules(report.violations, width)]
    lines += wrapped(map(unread, report.refusals), width)
    return "\n".join(map(str.rstrip, lines)).strip("\n") + "\n"


def as_json(report: AirankReport) -> str:
    """Returns the report as JSON; a missing number is null, with its reason in `reasons`."""
    written: dict[str, Any] = {
        "target": report.settings.target,
        "warmup_epochs": report.settings.warmup_epochs or 0,
        "logs": [_training(result) for result in report.results],
        "published": [
            {
                "document": str(comparison.document),
                "line": comparison.claim.line,
                "devices": comparison.claim.devices,
                "what": comparison.what,
                "published": comparison.published,
                "recomputed": comparison.recomputed,
                "difference": comparison.difference,
                "note": comparison.note,
            }
            for comparison in report.comparisons
        ],
        "broken_rules": [
            {"path": str(item.path), "rule": item.name, "how": item.text, "figures": item.figures}
            for item in report.violations
        ],
        "not_read": list(report.refusals),
    }
    return json.dumps(written, indent=2) + "\n"


def _training(result: TrainingResult) -> dict[str, Any]:
    training, numbers = result.training, result.numbers
    return {
        "log": str(training.path),
        "family": training.log_format,
        "devices": training.devices,
        "clock": training.source,
        "begins_at": None if training.begin is None else training.begin.what,
        "benchmark": training.mllog.benchmark_name or None,
        "target": _target(numbers.target),
        "time_to_train_s": numbers.time_to_train_s,
        "reached": _evaluation(numbers.reached),
        "whole_s": numbers.whole_s,
        "whole_until": numbers.whole_until,
        "throughput": numbers.throughput,
        "epochs": numbers.epochs,
        "samples": numbers.samples,
        "stated_throughput": _stated(training),
        "samples_per_epoch": numbers.samples_per_epoch,
        "samples_per_epoch_from": numbers.samples_from if numbers.samples_per_epoch else "",
        "accuracy": numbers.accuracy,
        "best": _evaluation(numbers.best),
        "speedup": result.speedup,
        "evaluations": len(training.evaluations),
        "reasons": {**numbers.reasons, **({"speedup": result.reason} if result.speedup is None else {})},
        "remarks": list(training.remarks),
    }


def _evaluation(evaluation: Evaluation | None) -> dict[str, float | None] | None:
    return {"accuracy": evaluation.accuracy, "epochs": evaluation.epochs} if evaluation else None


def _target(target: QualityTarget | None) -> dict[str, Any] | None:
    return dataclasses.asdict(target) if target else None


def _stated(training: Training) -> float | None:
    """Returns the median of the rates in tracked_stats."""
    return statistics.median(training.claims) if training.claims else None


def _table(results: Sequence[TrainingResult], width: int) -> list[str]:
    """Returns the table of a folder; long names of logs are cut in the middle."""
    table = TableData(heads=HEADS, rows=[*map(_cells, results)], keys=1)
    room = width - INDENT - len(GAP) - table.width(range(1, len(HEADS)))
    return table.shortened(0, max(MIN_NAME, room)).lines(Page(width=width), INDENT)


def _cells(result: TrainingResult) -> tuple[str, ...]:
    numbers, devices = result.numbers, result.training.devices
    reached = numbers.reached.epochs if numbers.reached and numbers.time_to_train_s is not None else None
    return (
        result.training.path.name,
        "-" if devices is None else str(devices),
        number(numbers.time_to_train_s),
        "-" if reached is None else f"{reached:g}",
        number(numbers.throughput),
        number(numbers.accuracy),
        number(result.speedup),
        "-" if result.speedup is None or not devices else f"{result.speedup / devices:.1%}",
    )


def _remarks(result: TrainingResult) -> Iterator[str]:
    """Yields the start of the clock, the target, the reasons of missing numbers, and the rates that the log states."""
    training, numbers = result.training, result.numbers
    if numbers.whole_s is not None and training.begin is not None and training.begin.what != "test_begin":
        yield f"time is counted from {training.begin.what}: there is no test_begin"
    yield from _on_target(result)
    for reason in dict.fromkeys(numbers.reasons.values()):
        yield f"no {', no '.join(name for name, absence in numbers.reasons.items() if absence == reason)}: {reason}"
    if result.reason and numbers.time_to_train_s is not None:
        yield f"no speedup: {result.reason}"
    yield from _on_throughput(result)
    for name, rate in training.summaries:
        apart = f" ({rate / numbers.throughput - 1:+.1%})" if numbers.throughput else ""
        yield f"it sums up with {name} {rate:.2f}{apart}"
    yield from training.remarks


def _on_target(result: TrainingResult) -> Iterator[str]:
    training, numbers = result.training, result.numbers
    if numbers.target and (training.source == "mllog" or training.mllog.benchmark_name):
        yield f"the target is {numbers.target.limits()}, {numbers.target.source}"
    elif numbers.target and numbers.target.source != REQUESTED and not training.facts.get("model"):
        yield f"the target is {numbers.target.text()}, {numbers.target.source}: the log names no model"
    if numbers.until_finish:
        yield "the evaluation that reached the target is stamped after run_stop, so the time ends with run_stop"
    elif training.source == "mllog" and training.whole_s is not None and training.finish is not None:
        yield f"run_stop - run_start, MLPerf's own result, is {training.whole_s:.2f} s"


def _on_throughput(result: TrainingResult) -> Iterator[str]:
    training, numbers = result.training, result.numbers
    computed, scope, highest = numbers.throughput, "with evaluations", STATED_OVER_PAUSES
    if computed is not None and numbers.samples is not None:
        yield f"{numbers.samples:,.0f} samples are trained until the last evaluation, as the log counts them"
    elif computed is not None:
        yield f"an epoch has {numbers.samples_per_epoch:,} samples, {numbers.samples_from}"
    if isinstance(training.trained, TrainedWork) and result.settings.samples_per_epoch is None:
        done = training.trained
        computed, scope, highest = done.rate, "without evaluations", STATED_HIGHER
        yield f"without evaluations {done.rate:.2f} samples/s: {done.work} in {done.seconds:.2f} s"
        yield from [f"warning: {done.doubt}"] if done.doubt else []
    if (stated := _stated(training)) is None:
        return
    text = f"it states a throughput of {stated:.2f} (median of {len(training.claims)})"
    if computed is None:
        yield f"{text}: there is no own figure beside it"
        return
    apart = stated / computed - 1
    warning = "" if STATED_LOWER <= apart <= highest else "warning: "
    yield f"{warning}{text}, {apart:+.1%} from {computed:.2f} samples/s {scope}"


def _claims(comparisons: Sequence[ClaimComparison], width: int) -> list[str]:
    """Returns the table of published figures, each with its note beside or below it; the notes of a table in blocks are
    below all of it."""
    table = TableData(heads=unitless(CLAIM_HEADS), rows=[*map(_claim_row, comparisons)], keys=3)
    rows, notes = table.lines(Page(width=width), INDENT), ["", *(comparison.note for comparison in comparisons)]
    if len(rows) > len(notes):
        about = (f"{' '.join(row[:3])}: {note}" for row, note in zip(table.rows, notes[1:], strict=True) if note)
        return [*rows, *wrapped(about, width, "  ")]
    lines = []
    for row, note in zip(rows, notes, strict=True):
        whole = f"{row}  {plain(note)}".rstrip()
        lines += [whole] if cell_len(whole) <= width else [row, *wrapped([note], width, "    ")]
    return lines


def _claim_row(comparison: ClaimComparison) -> tuple[str, ...]:
    claim, difference = comparison.claim, comparison.difference
    return (
        comparison.what,
        str(claim.line),
        str(claim.devices),
        number(comparison.published),
        number(comparison.recomputed),
        "" if difference is None else f"{round(difference, 4) + 0.0:+.2%}",
    )


def _broken_rules(violations: Sequence[Violation], width: int) -> list[str]:
    if not violations:
        return ["no rule is broken"]
    root = os.path.commonpath([violation.path.absolute().parent for violation in violations])
    texts = (f"{item.path.absolute().relative_to(root)}: {item.name}: {item.text}" for item in violations)
    return ["broken rules:", *wrapped(texts, width, "  ")]
