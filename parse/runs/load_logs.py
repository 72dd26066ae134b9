"""Reads logs of other systems, assigns them to runs, and recognises copies of one run."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpc.system.regular_file import open_regular
from hpc.system.sanitize import plain
from hpc.system.text import grouped, natural, plural
from parse.faults import fault
from parse.logs.engine.log_format import LogError, LogFormat, UnknownFormatError, UnrecognisedError
from parse.logs.engine.reader import opened_once, pieces, sample
from parse.logs.formats import format_named, recognise, require_text, with_marks
from parse.logs.line_pattern import LinePattern, pattern_format, why_unmatched
from parse.logs.nearest import crashes, first_lines, second_systems, tables, with_nearest
from parse.logs.path_facts import NOWHERE, PathFacts, name_of_setting, place_of, run_of_output
from parse.logs.window import Protocol, Reading, ends_early, read_log
from parse.runs.attempt import Attempt, RequestedRun
from parse.runs.log_attempt import NOT_THE_PROTOCOLS, SPEEDS, attempt_of, named_apart, numbered_as

if TYPE_CHECKING:
    from parse.logs.benchmarks import Benchmarks
    from parse.logs.infer.inferred import FieldPattern

T = TypeVar("T")
Progress = Callable[[Sequence[T]], Iterable[T]]
"""Gives the items in their order and shows how far they are."""
INFERRED = "inferred"
"""The name of the format of a log that no declared format reads."""
OF_NAMES = ("precision", "batch_size", "devices")
"""What names say of a log that it may contradict: two that differ in it are no repeats."""
FORMAT_DEFAULT = Protocol()
SNIFFED_BYTES = 1 << 18
"""The output of a benchmark shows what it is within as many."""
OF_BENCHMARKS = (b" nGpus ", b"# OSU ", b'"coll_perf"')
"""Texts of nccl-tests, of the OSU Micro-Benchmarks, and of NCCL Inspector."""
SAME_RUN = 1e-6
"""Two runs whose speeds by time stamps of a microsecond agree within this share are one."""


@dataclass(frozen=True, kw_only=True)
class HowToRead:
    """Options for reading logs. `log_format` forces one format, `patterns` that of a person's own lines; `formats` are
    those of a person's files; `otherwise` fills in what logs do not state."""

    protocol: Protocol = FORMAT_DEFAULT
    log_format: str = ""
    patterns: tuple[LinePattern, ...] = ()
    formats: tuple[LogFormat, ...] = ()
    speed: str = SPEEDS[0]
    otherwise: PathFacts = NOWHERE


@dataclass(frozen=True, kw_only=True)
class LoadedLogs:
    """Attempts, files not read, remarks. `no_logs` are files of folders that are no logs, each with the reason; `logs`
    counts the logs that were read."""

    attempts: tuple[Attempt, ...]
    refusals: tuple[str, ...]
    remarks: tuple[str, ...]
    logs: int
    no_logs: tuple[str, ...] = ()
    benchmarks: Benchmarks | None = None


@dataclass(frozen=True, kw_only=True)
class _Log:
    """A log that was read: its attempt, still without folder and number, and the facts in its path.

    `unfinished` is its attempt as one of the protocol's window, without a number, where it ends before that does.
    """

    path: Path
    attempt: Attempt
    place: PathFacts
    unfinished: Attempt | None = None


def load_logs(paths: Sequence[Path], how: HowToRead, progress: Progress[Path], silently: frozenset[Path]) -> LoadedLogs:
    """Reads the files; those in `silently` that are no logs are in `no_logs`, and not refused."""
    read: list[_Log] = []
    refusals: list[str] = []
    remarks: list[str] = []
    no_logs: list[str] = []
    all_benchmarks: list[Benchmarks] = []
    for path in progress(paths):
        place = place_of(path)
        benchmarks = None
        try:
            with opened_once(path):
                if path in silently:
                    require_text(path)
                if benchmarks := _benchmarks_in(path, place):
                    all_benchmarks.append(benchmarks)
                if place.packed and not benchmarks:
                    if path in silently:
                        recognise(path, how.formats)
                    remarks.append(_packed(path, place))
                    continue
                reading, attempt = _read(path, place, how, may_infer=not benchmarks)
            if benchmarks and not reading.step_lines and attempt.measured is None:
                continue
            if path in silently and how.log_format and reading.log_format.steps and not reading.step_lines:
                raise UnknownFormatError(f"{path}: no step line of {how.log_format} is in it")
            unfinished = _unfinished(path, reading, attempt, place, how)
        except LogError as error:
            if benchmarks:
                continue
            text = str(error)
            if path in silently and isinstance(error, UnknownFormatError):
                no_logs.append(text)
            else:
                text = with_nearest(path, error)
                refusals.append(text if text.startswith(f"{path}:") else f"{path}: {text}")
            continue
        except Exception as error:  # noqa: BLE001 - the line says which
            refusals.append(fault(error, path))
            continue
        read.append(_Log(path=path, attempt=attempt, place=place, unfinished=unfinished))
    read = [*_short_beside_whole([*_one_output_of_each_run(read, remarks)])]
    remarks += _not_taken(read, how.otherwise)
    return LoadedLogs(
        attempts=tuple(_with_scaling([*_in_one_setting(_numbered(read, remarks))])),
        refusals=tuple(refusals),
        remarks=tuple(remarks),
        logs=len(read),
        no_logs=tuple(no_logs),
        benchmarks=_joined(all_benchmarks),
    )


def _benchmarks_in(path: Path, place: PathFacts) -> Benchmarks | None:
    """What a file has of benchmarks; None of most, whose reader is not imported then. Raises LogError where it cannot
    be read, or has records of a profiler."""
    begin = next((bytes(memoryview(buffer)[:size]) for buffer, size, _ in pieces(path, SNIFFED_BYTES)), b"")
    if not any(sign in begin for sign in OF_BENCHMARKS):
        return None
    from parse.logs.benchmarks import benchmarks_in

    return benchmarks_in(path, begin, place)


def _joined(parts: Sequence[Benchmarks]) -> Benchmarks | None:
    """Those of several files."""
    if not parts:
        return None
    return dataclasses.replace(
        parts[0],
        nccl_tests=tuple(test for part in parts for test in part.nccl_tests),
        osu_tests=tuple(test for part in parts for test in part.osu_tests),
    )


def _one_output_of_each_run(read: Sequence[_Log], remarks: list[str]) -> Iterator[_Log]:
    """The logs without further outputs of the same run: those of other ranks, or standard error beside the output.

    The one that counts has a speed, and comes first by its name.
    """
    outputs = grouped((run_of_output(log.path) or log.path, log) for log in read)
    for same_run in outputs.values():
        first, *others = sorted(same_run, key=_without_number)
        yield first
        remarks += (f"{log.path}: another output of the run that {first.path} is of; counted once" for log in others)


def _without_number(log: _Log) -> tuple[bool, bool, list[tuple[int, str]]]:
    return log.attempt.measured is None, log.unfinished is not None, natural(str(log.path))


def _short_beside_whole(read: Sequence[_Log]) -> Iterator[_Log]:
    """The logs; one that ends before the protocol's window is a run without a number of a point that has others with
    one, as its number is not theirs."""
    whole = {_point(log, log.attempt) for log in read if log.unfinished is None and log.attempt.measured}
    for log in read:
        beside = log.unfinished if log.unfinished and _point(log, log.unfinished) in whole else None
        yield dataclasses.replace(log, attempt=beside) if beside else log


def _point(log: _Log, attempt: Attempt) -> tuple[tuple[str, ...], str]:
    return log.place.folder, attempt.requested.point if attempt.requested else ""


def _not_taken(read: Sequence[_Log], otherwise: PathFacts) -> Iterator[str]:
    """Remarks on options for unknown sizes that logs contradict."""
    runs = [log.attempt.requested.run for log in read if log.attempt.requested]
    differing_runs = {
        f"--batch-size {otherwise.batch_size}": [
            run for run in runs if otherwise.batch_size not in (None, run.local_batch_size)
        ],
        f"--case {otherwise.nodes}n{otherwise.gpus_per_node}g": [
            run for run in runs if otherwise.devices not in (None, run.devices)
        ],
    }
    for option, differing in differing_runs.items():
        if differing:
            logs = plural(len(differing), "log")
            yield f"{option} is not taken for {logs} that say otherwise, by header or names: it is for all others"


def explained(path: Path, how: HowToRead) -> str:
    """Explains the numbers of one log. Raises LogError for other files."""
    from parse.runs.explain import explain

    place = place_of(path)
    try:
        reading, attempt = _read(path, place, how)
    except LogError as error:
        if _benchmarks_in(path, place):
            raise LogError(f"{path}: output of a benchmark, no log of steps: it is shown without --explain") from None
        raise LogError(with_nearest(path, error)) from None
    aside = f"\n{plain(_packed(path, place))}\n" if place.packed else ""
    return explain(path, reading, attempt, how.formats) + aside


def _packed(path: Path, place: PathFacts) -> str:
    runs = ", ".join(map(str, place.packed))
    return f"{path}: runs {runs} of a packed job, at once on the same GPUs: set aside, not counted"


def _read(path: Path, place: PathFacts, how: HowToRead, *, may_infer: bool = True) -> tuple[Reading, Attempt]:
    """A log as its format, or inference, reads it; never by inference where its lines are those of a benchmark."""
    if how.patterns:
        log_format = with_marks(pattern_format(how.patterns))
    elif how.log_format:
        log_format = format_named(how.log_format, how.formats)
    else:
        try:
            log_format = recognise(path, how.formats)
        except UnrecognisedError as error:
            if not may_infer:
                raise
            return _inferred(path, place, how, error)
    reading = read_log(path, log_format, how.protocol)
    if how.patterns and not reading.step_lines:
        raise UnknownFormatError(f"{path}: {why_unmatched(how.patterns, first_lines(path))}")
    attempt = attempt_of(path, reading, place, how.protocol, speed=how.speed, otherwise=how.otherwise)
    if not attempt.log or how.patterns or how.log_format:
        return reading, attempt
    parts = [*sample(path)]
    crashed = () if attempt.measured else crashes(parts)
    remarks = (*attempt.log.remarks, *second_systems(path, parts, log_format), *tables(parts), *crashed)
    return reading, dataclasses.replace(attempt, log=dataclasses.replace(attempt.log, remarks=remarks))


def _inferred(path: Path, place: PathFacts, how: HowToRead, refusal: UnrecognisedError) -> tuple[Reading, Attempt]:
    """A log that no declared format reads, where two of its fields say the same. Raises UnknownFormatError where none
    does, with the patterns that it may be read by and what each of them makes."""
    from parse.logs.infer.inferred import TOLERANCE, infer, why_doubtful  # slow, and needed for few logs

    inference = infer(path)
    if isinstance(inference, str):
        raise UnknownFormatError(f"{refusal}; {inference}") if inference else refusal
    if inference.pattern is None:
        support = f", though {inference.checks}" if inference.checks else ""
        raise UnknownFormatError(f"{refusal}; {_suggested(path, place, how, inference.suggestions)}{support}")
    if doubt := why_doubtful(path, inference, how.protocol):
        raise UnknownFormatError(f"{refusal}; {inference.checks}, but {doubt}")
    log_format = dataclasses.replace(pattern_format((inference.pattern,)), name=INFERRED, title=inference.checks)
    reading = read_log(path, with_marks(log_format), how.protocol)
    attempt = attempt_of(path, reading, place, how.protocol, speed=how.speed, otherwise=how.otherwise)
    log, devices = attempt.log, attempt.machine.ranks if attempt.machine else 1
    if inference.suggestions and devices > 1 and log and log.printed:
        suggested = _suggested(path, place, how, inference.suggestions)
        raise UnknownFormatError(f"{refusal}; {inference.checks}, of one of {devices} devices or of all: {suggested}")
    window, by_work = reading.window or reading.short_window, log.wall_clock if log else None
    if window and window.lines_per_step > 1 and not window.ranks and not window.seconds:
        raise UnknownFormatError(
            f"{refusal}; {inference.checks}, but each step is printed {window.lines_per_step} times, and nothing says "
            "by whom, or for what part of it"
        )
    if window and window.taken_in and window.duration_s:
        by_work = by_work or window.taken_in / window.steps / window.duration_s
    if log and by_work and log.printed and abs(log.printed / by_work - 1) > 2 * TOLERANCE:
        raise UnknownFormatError(
            f"{refusal}; {inference.checks}, but it prints {log.printed:.6g} {reading.log_format.unit}/s, and its time "
            f"and what a step takes in make {by_work:.6g}"
        )
    unknown = "; not known: whether its rate is of one device or of all" if inference.suggestions else ""
    pattern = shlex.quote(inference.pattern.text)
    remark = f"inferred, not declared: {inference.checks}{unknown}; to confirm or correct: --pattern {pattern}"
    remarks = (remark, *(log.remarks if log else ()))
    return reading, dataclasses.replace(attempt, log=log and dataclasses.replace(log, remarks=remarks))


def _suggested(path: Path, place: PathFacts, how: HowToRead, suggestions: Sequence[FieldPattern]) -> str:
    """The patterns that a log may be read by, each with what it makes of it; of a field that has several readings all,
    and a pattern to complete; why there are none where the speeds of two of its fields contradict each other."""
    from parse.logs.infer.inferred import TOLERANCE

    speeds: dict[tuple[str, str], list[float]] = defaultdict(list)
    readings: dict[str, dict[str, FieldPattern]] = defaultdict(dict)
    for each in suggestions:
        reading, attempt = _read(path, place, dataclasses.replace(how, patterns=(each.pattern,)))
        makes = f"no speed: {attempt.problem}"
        if attempt.measured and attempt.log:
            speeds[each.field, reading.log_format.unit].append(attempt.measured.throughput)
            makes = f"{attempt.measured.throughput:.2f} {reading.log_format.unit}/s over {attempt.log.window}"
        readings[each.field].setdefault(makes, each)
    for ((first, unit), ours), ((other, its_unit), theirs) in combinations(speeds.items(), 2):
        if unit == its_unit and all(abs(speed / another - 1) > 2 * TOLERANCE for speed in ours for another in theirs):
            return (
                f"its fields contradict each other: {first} makes {ours[0]:.6g} {unit}/s, and {other} {theirs[0]:.6g}"
            )
    texts = []
    for field, of_field in readings.items():
        (makes, each), *others = of_field.items()
        text = each.pattern.text
        if not others:
            texts.append(f"--pattern {shlex.quote(text)} makes {makes}")
            continue
        may_be = " or ".join(f"{{{each.name}}} (makes {makes})" for makes, each in of_field.items())
        text = shlex.quote(text.replace(f"{{{each.name}:", "{FIELD:"))
        texts.append(f"{field} may be {may_be}: name one of these for FIELD in --pattern {text}")
    return f"nothing in it confirms what its lines may be: {'; '.join(texts)}"


def _unfinished(path: Path, reading: Reading, attempt: Attempt, place: PathFacts, how: HowToRead) -> Attempt | None:
    """The attempt of a log that ends before the window, without a number; None for others."""
    if attempt.log is None or attempt.measured is None or not ends_early(reading, attempt.log.window):
        return None
    short = dataclasses.replace(reading, short_window=None)
    unfinished = attempt_of(path, short, place, how.protocol, speed=how.speed, otherwise=how.otherwise)
    speed = f"{attempt.measured.throughput:.2f} {reading.log_format.unit}/s over {attempt.log.window}"
    return dataclasses.replace(unfinished, problem=f"{unfinished.problem}; {speed}")


def _numbered(read: Sequence[_Log], remarks: list[str]) -> tuple[Attempt, ...]:
    """The attempts, each with the folder that distinguishes its campaign and its number among the repeats."""
    shared = _shared([log.place.folder for log in read])
    points = grouped(
        (("/".join(log.place.folder[shared:]), log.attempt.requested.point), log)
        for log in _apart_by_names(read)
        if log.attempt.requested
    )
    return tuple(attempt for (folder, _), logs in points.items() for attempt in _repeats(logs, folder, remarks))


def _apart_by_names(read: Sequence[_Log]) -> Iterator[_Log]:
    """The logs; those of one point whose names contradict each other, with `fp16` and `amp`, or with batch sizes that
    are not the logs', are of several, whatever these mean there."""
    points = grouped((_point(log, log.attempt), log) for log in read)
    for logs in points.values():
        differing = [name for name in OF_NAMES if len({getattr(log.place, name) for log in logs} - {None, ""}) > 1]
        several = len({log.place.half for log in logs}) > 1
        for log in logs:
            extra = {f"named_{name}": str(getattr(log.place, name) or "-") for name in differing}
            extra |= {"precision": log.place.half or "-"} if several else {}
            yield dataclasses.replace(log, attempt=named_apart(log.attempt, **extra)) if extra else log


def _in_one_setting(attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    """The attempts; those whose folders and names differ by a size, a date or a job's number alone, `run_2nodes` and
    `run_4nodes`, in one setting where no two of their points have one case."""
    alike = grouped((_but_for_launch(attempt), attempt) for attempt in attempts)
    for logs in alike.values():
        cases = grouped((each.requested.point, each.requested.case) for each in logs if each.requested)
        apart = len({case for (case, *_) in cases.values()}) == len(cases)
        for each in logs:
            if each.requested is None or not apart:
                yield each
            else:
                requested = dataclasses.replace(each.requested, setting_extra=_extra_of_setting(each.requested))
                yield dataclasses.replace(each, requested=requested)


def _but_for_launch(attempt: Attempt) -> str:
    if attempt.requested is None:
        return ""
    return dataclasses.replace(attempt.requested, setting_extra=_extra_of_setting(attempt.requested)).setting


def _extra_of_setting(requested: RequestedRun) -> dict[str, str]:
    """Folder and name without the size; windows that are not the protocol's, however far each log goes, are alike."""
    names = {name: str(requested.extra[name]) for name in ("folder", "name") if name in requested.extra}
    alike = {name: name_of_setting(text) for name, text in names.items()}
    short = str(requested.extra.get("window", "")).endswith(NOT_THE_PROTOCOLS)
    return {**alike, "window": NOT_THE_PROTOCOLS} if short else alike


def _with_scaling(attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    """The attempts, those of strong scaling marked: logs do not state it, but one global batch size on several sizes is
    that."""
    alike = grouped((_but_for_size(attempt), attempt) for attempt in attempts)
    for logs in alike.values():
        runs = [each.requested.run for each in logs if each.requested]
        batches = {run.global_batch_size for run in runs}
        strong = len(batches) == 1 and None not in batches and len({run.devices for run in runs}) > 1
        for each in logs:
            requested = each.requested and dataclasses.replace(each.requested, strong=strong)
            yield dataclasses.replace(each, requested=requested)


def _but_for_size(attempt: Attempt) -> str:
    """Equal for logs that differ in nothing but their devices and batch sizes."""
    if attempt.requested is None:
        return ""
    run = dataclasses.replace(attempt.requested.run, batch_size=None)
    return dataclasses.replace(attempt.requested, run=run).setting


def _shared(folders: Sequence[tuple[str, ...]]) -> int:
    """The number of leading folders that all have in common."""
    first, last = min(folders, default=()), max(folders, default=())
    return next((at for at, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first))


def _repeats(logs: Sequence[_Log], folder: str, remarks: list[str]) -> list[Attempt]:
    """The repeats of a point: numbered by their names; those whose names have no number, in their names' order."""
    claims: dict[int, list[_Log]] = defaultdict(list)
    unnumbered: list[_Log] = []
    for log in _once(logs, remarks):
        if log.place.repeat is None:
            unnumbered.append(log)
        else:
            claims[log.place.repeat].append(log)
    attempts = [_claimed(number, same_number, folder) for number, same_number in sorted(claims.items())]
    free = (number for number in count(1) if number not in claims)
    return attempts + [
        numbered_as(log.attempt, folder=folder, repeat=number, numbered=False)
        for log, number in zip(unnumbered, free, strict=False)
    ]


def _once(logs: Sequence[_Log], remarks: list[str]) -> Iterator[_Log]:
    """The logs in the order of their names, without copies that claim no number of their own."""
    contents = _contents(logs)
    first_of: dict[bytes, _Log] = {}
    for log in sorted(logs, key=lambda log: (log.path.suffix == ".json", natural(str(log.path)))):
        first = first_of.setdefault(contents[log.path], log)
        if first is log and (reported := _log_of_report(log, first_of.values())):
            remarks.append(f"{log.path}: the report of the run that {reported.path} is of; counted once")
        elif first is log:
            yield log
        elif log.place.repeat in (None, first.place.repeat):
            remarks.append(f"{log.path}: the same as {first.path}, byte for byte; counted once")
        else:
            remarks.append(f"{log.path}: the same as {first.path}, byte for byte, as another run; both are counted")
            yield log


def _log_of_report(report: _Log, others: Iterable[_Log]) -> _Log | None:
    """The log beside a program's own report (raport.json) of the same run: the speeds by time stamps agree."""
    speed = report.attempt.log.wall_clock if report.attempt.log else None
    if report.path.suffix != ".json" or not speed:
        return None
    for other in others:
        other_speed = other.attempt.log.wall_clock if other.attempt.log else None
        beside = other is not report and other.path.parent == report.path.parent
        if beside and other_speed and abs(other_speed / speed - 1) < SAME_RUN:
            return other
    return None


def _claimed(number: int, logs: Sequence[_Log], folder: str) -> Attempt:
    attempt = numbered_as(logs[0].attempt, folder=folder, repeat=number, numbered=True)
    if len(logs) == 1:
        return attempt
    named = " and ".join(str(log.path) for log in logs)
    problem = f"{len(logs)} logs claim to be this run and differ, {named}: none of them is counted"
    return dataclasses.replace(attempt, outcome=None, measured=None, problem=problem)


def _contents(logs: Sequence[_Log]) -> dict[Path, bytes]:
    """A text per file that is equal only for equal contents; files of unique length are not read."""
    sizes = {log.path: _size(log.path) for log in logs}
    lengths = Counter(sizes.values())
    return {
        path: str(path).encode(errors="surrogateescape") if lengths[size] == 1 else _digest(path)
        for path, size in sizes.items()
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _digest(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return str(path).encode(errors="surrogateescape")
