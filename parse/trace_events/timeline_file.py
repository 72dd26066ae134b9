"""Writes traces, and profiles of the same runs, into one file on one time axis per run."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import open_trace
from hpc.system.atomic import open_output
from parse.trace_events.event_file import EventFile
from parse.trace_events.kineto import NAMES, Drawn, KinetoError, Placed, Profile, ProfileTracks, placed, read_profile
from parse.trace_events.run_tracks import RunFigures, RunTracks
from parse.trace_events.step_pieces import window_of

LEVEL = 6
"""Of gzip: 9 takes three times as long for 2 % less."""


class TimelineError(ValueError):
    """There is nothing to draw."""


@dataclass(frozen=True, kw_only=True)
class DrawnRun:
    """A run in the file, and its profiles."""

    name: str
    nodes: int
    ranks: int
    figures: RunFigures
    profiles: tuple[Drawn, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What a file holds; `refusals` name the traces and profiles that are not in it, each with the reason."""

    runs: tuple[DrawnRun, ...]
    events: int
    bytes: int
    refusals: tuple[str, ...]


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """The named files, and all traces in the named folders. Raises TimelineError for a folder without one."""
    files: list[Path] = []
    for path in paths:
        in_folder = sorted(path.glob("*.h5")) if path.is_dir() else [path]
        if not in_folder:
            raise TimelineError(f"{path}: has no trace (*.h5); name the folder that a sweep calls traces/, or files")
        files += in_folder
    return list(dict.fromkeys(files))


def write_timeline(
    traces: Sequence[Path], out: Path, steps: tuple[int, int] | None = None, kineto: Path | None = None
) -> Timeline:
    """Writes the file; `steps` are the first and the last one drawn, None: all.

    Raises TimelineError, and leaves no file, where there is nothing to draw; OSError where it cannot be written.
    """
    profiles, refusals = ([], []) if kineto is None else _profiles(kineto)
    remaining = {profile.path: profile for profile in profiles}
    reasons: dict[Path, list[str]] = {profile.path: [] for profile in profiles}
    runs: list[DrawnRun] = []
    with open_output(out) as raw:
        with _packed(raw, out) as stream:
            file = EventFile(stream)
            for path in traces:
                before = file.events
                try:
                    with open_trace(path) as trace:
                        ours = _placed(remaining, trace, reasons)
                        prefix = "" if len(traces) == 1 else f"{len(runs) + 1}. "
                        runs.append(_draw(file, trace, prefix, steps, ours))
                except TraceError as error:
                    if file.events > before:  # half of a run would look like all of it
                        raise TimelineError(_named(path, str(error))) from None
                    refusals.append(_named(path, str(error)))
                else:
                    for each in ours:
                        del remaining[each.profile.path]
            refusals += [f"{path}: {'; '.join(dict.fromkeys(reasons[path]))}" for path in remaining]
            if not runs:
                raise TimelineError("\n".join(refusals))
            file.end()
        size = raw.tell() if raw.seekable() else 0
    return Timeline(runs=tuple(runs), events=file.events, bytes=size, refusals=tuple(refusals))


def _named(path: Path, reason: str) -> str:
    return reason if reason.startswith(f"{path}: ") else f"{path}: {reason}"


@contextmanager
def _packed(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """The file, packed if its name ends with .gz; the time is left out, so that equal runs give equal files."""
    if path.suffix != ".gz":
        yield raw
        return
    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=raw, mtime=0) as packed:
        yield packed  # type: ignore[misc]  # what is needed of a BinaryIO it has


def _profiles(folder: Path) -> tuple[list[Profile], list[str]]:
    """The profiles in a folder, and why other files there by such names are none."""
    if not folder.is_dir():
        raise TimelineError(
            f"{folder}: no folder; --kineto takes one with profiles of torch.profiler (*.json, .json.gz)"
        )
    files = [path for path in sorted(folder.rglob("*")) if NAMES.fullmatch(path.name)]
    if not files:
        raise TimelineError(f"{folder}: has no profile (*.json, *.json.gz); write it by export_chrome_trace()")
    profiles, refusals = [], []
    for path in files:
        try:
            profiles.append(read_profile(path))
        except KinetoError as error:
            refusals.append(f"{path}: {error}")
    return profiles, refusals


def _placed(profiles: dict[Path, Profile], trace: Trace, reasons: dict[Path, list[str]]) -> list[Placed]:
    """Those that are of this run; adds to the reasons of the others."""
    ours = []
    for path, profile in profiles.items():
        try:
            ours.append(placed(profile, trace))
        except KinetoError as error:
            reasons[path].append(str(error))
    return ours


def _draw(
    file: EventFile, trace: Trace, prefix: str, steps: tuple[int, int] | None, profiles: Sequence[Placed]
) -> DrawnRun:
    tracks = RunTracks(file, trace, window_of(trace, steps), prefix, _earliest_ns(trace, profiles))
    end_ns = tracks.write()
    limits = (None, None) if tracks.steps.whole else (0, end_ns)
    drawn = []
    for each in profiles:
        try:
            drawn.append(ProfileTracks(file, trace, each, prefix, tracks.steps.origin_ns).write(*limits))
        except KinetoError as error:  # it could be read before
            raise TimelineError(f"{each.profile.path}: {error}") from None
    return DrawnRun(
        name=f"{trace.run_id}.{trace.attempt}", nodes=len(tracks.node_processes), ranks=len(tracks.rank_tracks),
        figures=tracks.figures, profiles=tuple(drawn),
    )  # fmt: skip


def _earliest_ns(trace: Trace, profiles: Sequence[Placed]) -> int | None:
    """When the first of the profiles begins, on the global clock."""
    begins = [
        int(trace.rank_globally(each.rank, np.array([each.profile.begin_ns - each.unix_offset_ns]))[0][0])
        for each in profiles
    ]
    return min(begins, default=None)
