"""Reads logs of other systems, assigns them to runs, and recognises copies of one run."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hpc.system.text import plural
from parse.attempt import Attempt
from parse.logs.engine.log_format import LogError
from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import Place, place_of
from parse.logs.run import NOWHERE, SPEEDS, attempt_of, numbered_as
from parse.logs.window import Protocol, Reading, read_log

Progress = Callable[[Sequence[Path]], Iterable[Path]]
FORMAT_DEFAULT = Protocol()
SAME_RUN = 1e-6
"""Two runs whose speeds by time stamps of a microsecond agree within this share are one."""


@dataclass(frozen=True, kw_only=True)
class HowToRead:
    """Options for reading logs. `log_format` forces one format; `otherwise` fills in what logs do not state."""

    protocol: Protocol = FORMAT_DEFAULT
    log_format: str = ""
    speed: str = SPEEDS[0]
    otherwise: Place = NOWHERE


@dataclass(frozen=True, kw_only=True)
class LoadedLogs:
    """Attempts, files not read, remarks. Files in folders that are no logs are only counted, but for *.log."""

    attempts: tuple[Attempt, ...]
    refusals: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Log:
    """A log that was read: its attempt, still without folder and number, and the facts in its path."""

    path: Path
    attempt: Attempt
    place: Place


def load_logs(paths: Sequence[Path], how: HowToRead, progress: Progress, silently: frozenset[Path]) -> LoadedLogs:
    """Reads the files; those in `silently` that are no logs are only counted."""
    read: list[_Log] = []
    refusals: list[str] = []
    remarks: list[str] = []
    foreign: Counter[str] = Counter()
    for path in progress(paths):
        place = place_of(path)
        if place.packed:
            remarks.append(_packed(path, place))
            continue
        try:
            _, attempt = _read(path, place, how)
        except LogError as error:
            if path in silently:
                foreign["".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix] += 1
            else:
                text = str(error)
                refusals.append(text if text.startswith(f"{path}:") else f"{path}: {text}")
            continue
        if attempt.requested is None and attempt.log is not None:
            remarks += [f"{path}: {text}" for text in attempt.log.remarks]
        else:
            read.append(_Log(path=path, attempt=attempt, place=place))
    if foreign:
        files = f"{plural(foreign.total(), 'file')} ({', '.join(sorted(foreign))})"
        remarks.append(f"{files} in folders, no logs of a known system: not read; name one to see why")
    remarks += _not_taken(read, how.otherwise)
    return LoadedLogs(attempts=_numbered(read, remarks), refusals=tuple(refusals), remarks=tuple(remarks))


def _not_taken(read: Sequence[_Log], otherwise: Place) -> Iterator[str]:
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
    from parse.logs.explain import explain

    place = place_of(path)
    reading, attempt = _read(path, place, how)
    aside = f"\n{_packed(path, place)}\n" if place.packed else ""
    return explain(path, reading, attempt) + aside


def _packed(path: Path, place: Place) -> str:
    runs = ", ".join(map(str, place.packed))
    return f"{path}: runs {runs} of a packed job, at once on the same GPUs: set aside, not counted"


def _read(path: Path, place: Place, how: HowToRead) -> tuple[Reading, Attempt]:
    log_format = format_named(how.log_format) if how.log_format else recognise(path)
    reading = read_log(path, log_format, how.protocol)
    return reading, attempt_of(path, reading, place, how.protocol, speed=how.speed, otherwise=how.otherwise)


def _numbered(read: Sequence[_Log], remarks: list[str]) -> tuple[Attempt, ...]:
    """The attempts, each with the folder that distinguishes its campaign and its number among the repeats."""
    shared = _shared([log.place.folder for log in read])
    points: dict[tuple[str, str], list[_Log]] = defaultdict(list)
    for log in read:
        if log.attempt.requested:
            points["/".join(log.place.folder[shared:]), log.attempt.requested.point].append(log)
    return tuple(attempt for (folder, _), logs in points.items() for attempt in _repeats(logs, folder, remarks))


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
    for log in sorted(logs, key=lambda log: (log.path.suffix == ".json", _natural(str(log.path)))):
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
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return str(path).encode(errors="surrogateescape")


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts `run2` before `run10`."""
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in re.split(r"([0-9]+)", name)]
