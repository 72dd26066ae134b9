"""Tells measurements apart: folders of traces that measured the same runs."""

from __future__ import annotations

import filecmp
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hpc.model.outcome import BeginRecord, ExitRecord, RankNote
from parse.runs.attempt import Attempt

AttemptKey = tuple[str, int]
"""Run id and the attempt's number."""
FileContent = Attempt | ExitRecord | BeginRecord | RankNote


@dataclass(frozen=True, kw_only=True, eq=False)
class AttemptFile:
    """A file of an attempt: a trace reduced to its numbers, or a record. `content` is None where a begin record has
    none that can be read."""

    path: Path
    key: AttemptKey
    content: FileContent | None

    def equals(self, other: AttemptFile) -> bool:
        """Whether it holds the same: traces byte for byte, records value for value, as far as they can be read."""
        if isinstance(self.content, Attempt) and isinstance(other.content, Attempt):
            return filecmp.cmp(self.path, other.path, shallow=False)
        return None in (self.content, other.content) or self.content == other.content


class Measurements:
    """The measurements that files belong to.

    A file belongs to the nearest folder with a plan, from its own up to the outermost folder named that holds it; where
    none has one, to the latter, and a file that is named itself to its own folder. All folders together are one
    measurement unless an attempt has different records in two of them, or a run has traces in two: then each is a
    measurement of its own. Copies belong to the measurement of the first.
    """

    def __init__(self, named: Iterable[Path], plans: Iterable[Path], run_of: Callable[[str], str]) -> None:
        """`named` are the folders of the command line, `plans` the plan files; `run_of` returns a text that is equal
        for two run ids of the same run."""
        self._named = {_absolute(path) for path in named}
        self._planned = {_absolute(path.parent) for path in plans}
        self._run_of = run_of
        self._copies: dict[Path, Path] = {}
        self._folder_of: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._originals: dict[str, set[str]] = defaultdict(set)
        self._copied: dict[str, set[str]] = defaultdict(set)
        self.apart = False

    def distinguish(self, files: Sequence[AttemptFile]) -> None:
        """Finds the copies among the files, and whether there are several measurements."""
        first: dict[tuple[AttemptKey, object], list[AttemptFile]] = defaultdict(list)
        traced: dict[str, set[str]] = defaultdict(set)
        for file in files:
            folder, kind = self._folder(file.path), _kind(file)
            alike = first[file.key, kind]
            original = next((each for each in alike if self._folder(each.path) != folder and each.equals(file)), None)
            if original is not None:
                self._copies[file.path] = original.path
                self._copied[folder].add(file.key[0])
                continue
            alike.append(file)
            self._originals[folder].add(file.key[0])
            if isinstance(file.content, Attempt):
                traced[self._run_of(file.key[0])].add(folder)
            self.apart = self.apart or (len(alike) > 1 and len({self._folder(each.path) for each in alike}) > 1)
        self.apart = self.apart or any(len(folders) > 1 for folders in traced.values())
        above = (
            os.path.commonpath(folders) if (folders := {*self._originals, *(self._planned - {*self._copied})}) else ""
        )
        self._names = {each: os.path.relpath(each, above) for each in {*folders, *self._planned, *self._copied}}

    def name(self, path: Path) -> str:
        """The measurement of the file: the part of its folder that differs from others; empty if there is only one."""
        if not self.apart:
            return ""
        return self._names[self._folder(self._copies.get(path, path))]

    def lacks(self, plan: Path, run_id: str) -> bool:
        """Whether the run of the plan is none of its measurement, because only copies of another's files are here."""
        folder = self._folder(plan)
        originals, copied = self._originals[folder], self._copied[folder]
        return self.apart and bool(copied) and (not originals or run_id in copied - originals)

    def _folder(self, path: Path) -> str:
        """The folder whose measurement the file belongs to."""
        parent = str(path.parent)
        if parent not in self._folder_of:
            nearest = _absolute(path.parent)
            above = [nearest, *map(str, Path(nearest).parents)]
            roots = [at for at, folder in enumerate(above) if folder in self._named]
            within = above[: max(roots, default=0) + 1]
            self._folder_of[parent] = next((each for each in within if each in self._planned), within[-1])
        return self._folder_of[parent]


def days(times_unix_s: Iterable[int | None]) -> str:
    """The days (UTC) of the first and the last time: `2026-05-14`, `2026-05-14 to 2026-05-16`; empty where none is
    known."""
    dates = sorted({date for time in times_unix_s if time is not None and (date := _day(time))})
    return " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""


def _day(unix_s: int) -> str:
    """The day; empty for a number that is no time."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def _kind(file: AttemptFile) -> object:
    """Equal for files of an attempt that hold the same thing; a begin record that cannot be read is still one."""
    if isinstance(file.content, RankNote):
        return "note", file.content.rank
    return BeginRecord if file.content is None else type(file.content)


def _absolute(path: Path) -> str:
    """Absolute and without `..`; links are not followed."""
    return os.path.abspath(path)  # noqa: PTH100  # Path.absolute keeps `..`, Path.resolve follows links
