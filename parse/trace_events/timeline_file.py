"""Writes traces, and profiles of the same runs, into one file on one time axis per run."""

from __future__ import annotations

import errno
import gzip
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hpc.model.spec import without_folder
from hpc.model.timestamps import ABSENT, BEGIN, END, GRADS_READY
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import open_trace
from hpc.system.atomic import open_output
from hpc.system.text import grouped
from parse.faults import fault
from parse.graph.step_graph import ENDS, WAITS
from parse.term_kinds import COMMUNICATION, COMPUTE, WAIT
from parse.trace_events.event_file import EventFile, Track, short
from parse.trace_events.kineto import NAMES, Drawn, KinetoError, Placed, Profile, ProfileTracks, placed, read_profile
from parse.trace_events.step_pieces import (
    GroupTracks,
    LastRanks,
    Piece,
    StepReader,
    StepSlice,
    phases_of_step,
    window_of,
)

# The tracks of one run: its ranks by node, what each does in a step, the clocks' bounds, the stragglers.

STRAGGLER, WAITS_FOR = "straggler", "waits for"
REDUCTION = "reduction of the gradients"
CLOCK_BOUND, CLOCK_UNIT = "clock bound", "us"


@dataclass(kw_only=True)
class RunFigures:
    """What was drawn of a run: `steps`; those in which ranks could be compared (`compared`), and in which one of them
    is provably the last (`provable`; of ranks `in_groups`: one provably waits for another); `disordered` steps of ranks
    whose stamps contradict, which have no phases; `meetings_left_out`, which cross the border of two phases;
    `waits_left_out`, of groups, within others of a rank."""

    steps: int = 0
    compared: int = 0
    provable: int = 0
    disordered: int = 0
    meetings_left_out: int = 0
    waits_left_out: int = 0
    in_groups: bool = False

    @property
    def without_order(self) -> int:
        """Steps of several ranks in which none is provably the last of all."""
        return self.steps - self.provable


class RunTracks:
    """The tracks of a run in a file."""

    def __init__(
        self, file: EventFile, trace: Trace, window: range, prefix: str, earliest_ns: int | None = None
    ) -> None:
        """`prefix` begins the name of each process, so that runs differ. `earliest_ns` of the global clock is
        when something else begins that is drawn beside the run.

        Raises TraceError where the clocks cannot be compared, before anything is written.
        """
        self.file, self.trace, self.window = file, trace, window
        self.figures = RunFigures()
        self.prefix = prefix
        self.blocks: list[list[int]] = trace.blocks.tolist()
        self.steps = StepReader(trace, window, earliest_ns)
        self.kinds = self.steps.kinds
        self.drawn_until = [0] * len(trace.stamps)

    def write(self) -> int:
        """Writes all of it; returns when the last step ends, on the file's axis."""
        file = self.file
        self.process = file.process(f"{self.prefix}run {self.trace.run_id}.{self.trace.attempt}")
        self.run_track = file.track(self.process, "run")
        self.window_track = file.track(self.process, "measured steps and comparisons of the clocks")
        self.figures.in_groups = in_groups = self.steps.calls is not None
        if not in_groups:
            self.straggler_track = file.track(self.process, "straggler of each step")
        self.rank_tracks: list[Track] = []
        self.groups = GroupTracks(file, self.steps, self.rank_tracks) if in_groups else None
        self.rank_tracks += self._name_ranks()
        end_ns = 0
        for piece in self.steps.pieces():
            end_ns = max(end_ns, self._write_piece(piece))
        self._write_windows()
        file.slice(self.run_track, f"{self.trace.run_id}.{self.trace.attempt}", 0, end_ns, self._about())
        return end_ns

    def _name_ranks(self) -> list[Track]:
        reports = self.trace.reports
        nodes = grouped((report.node_rank or 0, rank) for rank, report in enumerate(reports))
        tracks: dict[int, Track] = {}
        self.node_processes: dict[int, int] = {}
        for node, ranks in sorted(nodes.items()):
            host = short(reports[ranks[0]].hostname or "host not recorded")
            process = self.node_processes[node] = self.file.process(f"{self.prefix}node {node}: {host}")
            for rank in ranks:
                tracks[rank] = self.file.track(process, f"rank {rank}")
                if self.groups is not None:
                    self.groups.add_tracks(process, rank)
        self.hosts = [short(report.hostname or "host not recorded") for report in reports]
        self.nodes = [report.node_rank or 0 for report in reports]
        return [tracks[rank] for rank in range(len(reports))]

    def _write_piece(self, piece: Piece) -> int:
        """Writes these steps and returns when the last of them ends, on the file's axis."""
        for step in range(piece.stamps.shape[1]):
            self._write_step(piece, step)
        self._write_bounds(piece)
        return int(piece.stamps.max(initial=0))

    def _write_step(self, piece: Piece, step: int) -> None:
        met = bool(piece.met[step])
        borders = self.steps.borders if met else self.steps.borders - {COMPUTE.ends_at, WAIT.ends_at}
        all_ready = WAIT.ends_at in borders and bool((piece.stamps[:, step, GRADS_READY] != ABSENT).all())
        reduction = piece.arrivals.get(len(self.kinds)) if all_ready else None
        drawn = False
        for rank, track in enumerate(self.rank_tracks):
            stamps = piece.stamps[rank, step].tolist()
            if ABSENT in (stamps[BEGIN], stamps[END]):
                continue
            if not self.drawn_until[rank] <= stamps[BEGIN] <= stamps[END]:
                self.figures.disordered += 1
                continue
            drawn, self.drawn_until[rank] = True, stamps[END]
            last_ns = self._provable_wait_ns(reduction, rank, step, stamps)
            phases = phases_of_step(stamps, borders, last_ns)
            if phases is None:
                self.figures.disordered += 1
            args = self._figures_of(piece, rank, step, phases, reduction)
            self.file.slice(track, f"step {piece.first + step}", stamps[BEGIN], stamps[END], args)
            inside = self._meetings_of(piece, rank, step) if met and phases else []
            for phase in phases or ():
                self._write_phase(track, phase, inside)
            self.figures.meetings_left_out += len(inside)
        self.figures.steps += drawn
        if reduction is not None:
            self.figures.compared += 1
            self._mark_straggler(piece, step, met)
        if self.groups is not None and drawn:
            self.figures.compared += 1
            self.figures.provable += self.groups.write_step(piece, step)
            self.figures.waits_left_out = self.groups.left_out

    def _provable_wait_ns(
        self, arrivals: LastRanks | None, rank: int, step: int, stamps: list[int]
    ) -> int | None:  # fmt: skip
        """When the last rank arrives, if it is proven that this rank waits for it or is that last rank itself."""
        if len(self.rank_tracks) == 1:
            return stamps[GRADS_READY] if stamps[GRADS_READY] != ABSENT else None
        if arrivals is None:
            return None
        is_last = int(arrivals.rank[step]) == rank and bool(arrivals.provable[step])
        return int(arrivals.moment_ns[step]) if is_last or arrivals.waits[rank, step] else None

    def _figures_of(
        self, piece: Piece, rank: int, step: int, phases: list[StepSlice] | None, reduction: LastRanks | None
    ) -> dict[str, Any]:
        number = piece.first + step
        of_block = any(first <= number < stop for first, stop in self.blocks)
        warm_up = number < self.trace.run.warmup_steps
        figures: dict[str, Any] = {
            "step": number, "rank": rank, "window": "measured" if of_block else "warm-up" if warm_up else "unmeasured",
        }  # fmt: skip
        if phases is None:
            figures["stamps"] = "contradict one another: one is before an earlier one"
        figures |= {f"{phase.name}_us": (phase.end_ns - phase.begin_ns) / 1000 for phase in phases or ()}
        if reduction is not None:
            before_ns = int(reduction.moment_ns[step]) - int(piece.stamps[rank, step, GRADS_READY])
            figures["before_last_us"] = before_ns / 1000
            figures["last_rank"] = int(reduction.rank[step])
            figures["uncertain_us"] = round(float(reduction.open_ns[rank, step]) / 1000, 3)
        return figures

    def _meetings_of(self, piece: Piece, rank: int, step: int) -> list[StepSlice]:
        """The meetings of a rank's step, with what it waits and communicates in each, where that is proven."""
        meetings = []
        for at, label in enumerate(self.kinds.labels):
            begin, end = (int(piece.meetings[rank, step, at, stamp]) for stamp in (WAITS, ENDS))
            if begin == ABSENT:
                continue  # this step does not have it
            arrivals, inside = piece.arrivals.get(at), []
            if arrivals is not None and arrivals.waits[rank, step]:
                last_ns = min(int(arrivals.moment_ns[step]), end)
                inside = [StepSlice(WAIT.name, begin, last_ns), StepSlice(COMMUNICATION.name, last_ns, end)]
            elif arrivals is not None and arrivals.provable[step] and int(arrivals.rank[step]) == rank:
                inside = [StepSlice(COMMUNICATION.name, begin, end)]
            meetings.append(StepSlice(label, begin, end, tuple(each for each in inside if each.end_ns > each.begin_ns)))
        return meetings

    def _write_phase(self, track: Track, phase: StepSlice, meetings: list[StepSlice]) -> None:
        """Writes a phase with what is inside it, and removes the meetings within it from the list.

        Those within the reduction of the gradients are a part of it.
        """
        self.file.slice(track, phase.name, phase.begin_ns, phase.end_ns)
        if phase.inside:
            for part in phase.inside:
                self._write_phase(track, part, meetings)
            return
        reduction, until = phase.name.startswith((WAIT.name, COMMUNICATION.name)), phase.begin_ns
        for meeting in sorted(meetings, key=lambda each: each.begin_ns):
            if until <= meeting.begin_ns <= meeting.end_ns <= phase.end_ns:
                meetings.remove(meeting)
                if not reduction:
                    self._write_phase(track, meeting, [])
                    until = meeting.end_ns

    def _mark_straggler(self, piece: Piece, step: int, met: bool) -> None:
        """Marks the rank that provably comes last where that makes the others wait longest, with arrows to them."""
        candidates = [
            (int(arrivals.gap_ns[step]), at)
            for at, arrivals in piece.arrivals.items()
            if arrivals.provable[step] and (met or at == len(self.kinds))
        ]
        if not candidates:
            return
        gap_ns, at = max(candidates)
        arrivals = piece.arrivals[at]
        self.figures.provable += 1
        last, moment_ns = int(arrivals.rank[step]), int(arrivals.moment_ns[step])
        waiting = np.flatnonzero(arrivals.waits[:, step]).tolist()
        where = (*self.kinds.labels, REDUCTION)[at]
        args = {
            "step": piece.first + step, "rank": last, "host": self.hosts[last], "at": where,
            "later_than_next_us": gap_ns / 1000, "ranks_waiting": len(waiting),
            "uncertain_us": round(float(arrivals.open_ns[waiting, step].max()) / 1000, 3),
        }  # fmt: skip
        self.file.arrows(WAITS_FOR, self.rank_tracks[last], [self.rank_tracks[rank] for rank in waiting], moment_ns)
        self.file.mark(self.rank_tracks[last], STRAGGLER, moment_ns, args)
        self.file.slice(self.straggler_track, f"rank {last}", moment_ns - gap_ns, moment_ns, args)

    def _write_bounds(self, piece: Piece) -> None:
        """The clocks' bounds as steps begin, a counter per node; per rank where a node has several clocks."""
        clocks = grouped(((self.nodes[rank], domain), rank) for rank, domain in enumerate(self.trace.clock_domains))
        clocks_of = Counter(node for node, _ in clocks)
        for (node, _), ranks in clocks.items():
            one_clock = clocks_of[node] == 1
            name = CLOCK_BOUND if one_clock else f"{CLOCK_BOUND} of rank {', '.join(map(str, ranks[:4]))}"
            for step in range(piece.stamps.shape[1]):
                begins, bounds_ns = piece.stamps[ranks, step, BEGIN], piece.bounds[ranks, step, BEGIN]
                if (compared := begins != ABSENT).any():
                    bound_us = float(bounds_ns[compared].max()) / 1000
                    begin_ns = int(begins[compared].min())
                    self.file.counter(self.node_processes[node], name, CLOCK_UNIT, begin_ns, bound_us)

    def _write_windows(self) -> None:
        """The measured blocks, and the times in which the clocks were compared, on a track of their own."""
        slices = [*self._blocks(), *(self._comparisons() if self.steps.whole else ())]
        end_ns = None
        for begin, end, name in sorted(slices):
            if end > begin and (end_ns is None or begin >= end_ns):
                self.file.slice(self.window_track, name, begin, end)
                end_ns = end

    def _blocks(self) -> Iterator[tuple[int, int, str]]:
        for first, stop in self.blocks:
            begin, last = max(first, self.window.start), min(stop, self.window.stop) - 1
            if begin > last:
                continue
            edges = [np.ascontiguousarray(self.trace.stamps[:, step : step + 1]) for step in (begin, last)]
            begins, ends = self.steps.on_axis(edges[0])[:, 0, BEGIN], self.steps.on_axis(edges[1])[:, 0, END]
            if (begins != ABSENT).all() and (ends != ABSENT).all():
                # As throughput counts it: from the latest end of the step before the block to the latest end in it.
                yield int(begins.max()), int(ends.max()), f"measured steps {begin} to {last}"

    def _comparisons(self) -> Iterator[tuple[int, int, str]]:
        exits = self.trace.barrier_exits_ns
        if exits.shape[1] == 2 * self.trace.clock_local_ns.shape[1]:
            on_axis = self.steps.on_axis(exits)
            for at in range(0, exits.shape[1], 2):
                begin, end = int(on_axis[:, at].min()), int(on_axis[:, at + 1].max())
                if begin != ABSENT:
                    yield begin, end, "clocks compared"

    def _about(self) -> Mapping[str, Any]:
        trace, figures = self.trace, self.figures
        bounds = [bound for bound in trace.clock_bound_ns.ravel().tolist() if math.isfinite(bound)]
        about = {
            "outcome": str(trace.outcome), "nodes": len(self.node_processes), "ranks": len(self.rank_tracks),
            "backend": trace.run.backend, "workload": without_folder(trace.run.workload), "timing": trace.run.timing,
            "first_step": self.window.start, "steps": figures.steps, "steps_compared": figures.compared,
            "steps_with_a_proven_last_rank": figures.provable,
            "steps_without_provable_order": figures.without_order if len(self.rank_tracks) > 1 else 0,
            "widest_clock_bound_at_a_synchronisation_us": max(bounds, default=0.0) / 1000,
            "steps_of_ranks_with_contradicting_stamps": figures.disordered,
            "meetings_across_phases_left_out": figures.meetings_left_out, "evidence": short(trace.evidence),
        }  # fmt: skip
        if self.steps.merged is not None and self.steps.merged.early_collectives:
            about["not_compared_because_of"] = short(", ".join(self.steps.merged.early_collectives))
        return about


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the output, which no trace that is read has."""
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
                except Exception as error:
                    if isinstance(error, OSError) and error.errno in NO_ROOM:
                        raise
                    if file.events > before:
                        raise TimelineError(fault(error, path)) from error
                    refusals.append(fault(error, path))
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
