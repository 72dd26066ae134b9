"""Finds a run that makes no step, has its ranks write their stacks, and ends it.

launch.step uses it while the launcher runs. The ranks' progress is read from the journals of this node and from the
copies in the traces, which come from all nodes. Time in which progress could not be read does not count against a run:
this process was stopped itself, the traces cannot be read, or no copies come.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpc.model.files import AttemptFiles, TracesFolder
from hpc.recovery.folders import BEAT, attempt_folders
from hpc.recovery.journal import RankProgress, median_step_s, name_ranks, planned_steps, read_progress
from hpc.recovery.stacks import STACK_SIGNAL, STACKS, handles
from hpc.system.atomic import write_durable
from hpc.system.text import grouped
from launch.jobs.options import RunLimits

# Decides when a run hangs, from its progress over time and its limits. Uses no clock, no files, no processes.

STOPPED_S = 10.0
"""If a look comes this much later than planned, this process was stopped in between."""
NODE_PATIENCE_S = 600.0
"""A silent node may be lost: the scheduler notices that later and ends the job with the right reason."""

TRACE_PATIENCE_S = 180.0
"""Once the trace is written every rank ends by itself within 140 s (hpc.run.rank_state): a launcher that has not ended
by then waits for a process that is gone, as srun does whose slurmstepd was killed."""


class RunPhase(StrEnum):
    """The phase of a run: before its first step, between steps, after its last."""

    START = "start"
    STEPS = "steps"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """One look at a run. `completed` is steps by rank, `steps` the planned number (0 before that is known).

    `beats` is by node a number that changes whenever its copies are written. `local`: ranks of this node are read
    directly. `trace`: the trace is written. `unreadable` is the error if nothing could be read. `awaited` is the
    launcher's message if the scheduler has not created its step yet.
    """

    completed: Mapping[int, int] = field(default_factory=dict)
    steps: int = 0
    median_step_s: float | None = None
    beats: Mapping[str, int] = field(default_factory=dict)
    local: bool = False
    trace: bool = False
    unreadable: str = ""
    awaited: str = ""

    @property
    def phase(self) -> RunPhase:
        counts = self.completed.values()
        if self.trace or (counts and min(counts) >= self.steps):
            return RunPhase.END
        return RunPhase.STEPS if any(counts) else RunPhase.START


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A run that hangs. `limit_s` is exceeded by `waited_s`; `median_step_s` is None before a step was timed."""

    phase: RunPhase
    waited_s: float
    limit_s: float
    median_step_s: float | None
    completed: Mapping[int, int]
    steps: int
    silent_nodes: tuple[str, ...]


class HangWatch:
    """Judges successive looks. Time counts against a run only while its progress could be read.

    `say` shows the reason why time does not count, once each time.
    """

    def __init__(self, limits: RunLimits, now_s: float, say: Callable[[str], None]) -> None:
        self._limits, self._say = limits, say
        self._last_s = now_s
        self._waited_s = 0.0
        self._seen = RunProgress()
        self._last_beats: dict[str, tuple[int, float]] = {}  # by node: its last beat, and when that was first seen
        # Where the pace counts from: when, of which rank, from how many steps on.
        self._first: tuple[float, int, int] | None = None
        self._pace_s: float | None = None
        self._blind = ""

    def look(self, now_s: float, planned_s: float, seen: RunProgress) -> Hang | None:
        """The hang of the run by this look, None while it may go on; `planned_s` is the planned time since the last
        look."""
        elapsed_s = now_s - self._last_s
        self._last_s = now_s
        if elapsed_s > planned_s + STOPPED_S:
            self._say(f"was stopped for {elapsed_s - planned_s:.0f} s: the wait restarts")
            self.start_anew(now_s)
        elif not self._is_blind(now_s, seen):
            self._waited_s += elapsed_s
        if seen.unreadable:
            return None
        if self._seen.awaited and not seen.awaited:
            self.start_anew(now_s)  # the run begins now
        if (seen.phase, seen.trace) != (self._seen.phase, self._seen.trace) or _further(
            seen.completed, self._seen.completed
        ):
            self._waited_s = 0.0
        self._keep_pace(now_s, seen)
        self._seen = seen
        return self._judge(now_s)

    def start_anew(self, now_s: float) -> None:
        self._waited_s = 0.0
        self._last_beats = {node: (beat, now_s) for node, (beat, _) in self._last_beats.items()}
        self._first = self._pace_s = None

    def _is_blind(self, now_s: float, seen: RunProgress) -> bool:
        """Whether progress since the last look could have gone unseen; shows the reason when that begins."""
        if not seen.unreadable:
            changed = {
                node: beat for node, beat in seen.beats.items() if self._last_beats.get(node, (None,))[0] != beat
            }
            self._last_beats |= {node: (beat, now_s) for node, beat in changed.items()}
        reason = self._blind_reason(now_s, seen)
        if reason and not self._blind:
            self._say(f"{reason}: until that changes, time does not count against the run")
        self._blind = reason
        return bool(reason)

    def _blind_reason(self, now_s: float, seen: RunProgress) -> str:
        if seen.unreadable:
            return seen.unreadable
        if seen.awaited:
            return f"the scheduler has not created the step of this run yet ({seen.awaited})"
        if seen.local or seen.trace:
            return ""
        if not self._limits.copy_s:
            return "copies are off and no rank is on this node, so that nothing can be seen of the run"
        newest_s = max((at for _, at in self._last_beats.values()), default=-math.inf)
        if seen.phase is not RunPhase.START and self._is_late(now_s, newest_s):
            return "no copies come from any node any more"
        return ""

    def _is_late(self, now_s: float, newest_s: float) -> bool:
        return now_s - newest_s > 3 * self._limits.copy_s + 5

    def _keep_pace(self, now_s: float, seen: RunProgress) -> None:
        """Updates the seconds per step of one rank since it was first seen, for while stamps are still on a device."""
        if not seen.completed:
            return
        rank = min(seen.completed)
        done = seen.completed[rank]
        if self._first is None or self._first[1] != rank or done < self._first[2]:
            self._first = (now_s, rank, done)
        elif done > self._first[2] and done > self._seen.completed.get(rank, 0):
            self._pace_s = (now_s - self._first[0]) / (done - self._first[2])

    def _judge(self, now_s: float) -> Hang | None:
        seen, limits = self._seen, self._limits
        late = tuple(sorted(node for node, (_, at) in self._last_beats.items() if self._is_late(now_s, at)))
        silent = () if len(late) == len(self._last_beats) else late
        step_s = seen.median_step_s if seen.median_step_s is not None else self._pace_s
        allowed_s = limits.start_limit_s
        if seen.phase is RunPhase.STEPS and step_s is not None:
            allowed_s = limits.hang_steps * step_s + limits.hang_extra_s
        elif seen.trace:
            allowed_s = min(allowed_s, TRACE_PATIENCE_S)
        limit_s = allowed_s + limits.copy_s + (NODE_PATIENCE_S if silent else 0.0)
        if self._waited_s <= limit_s:
            return None
        return Hang(
            phase=seen.phase, waited_s=self._waited_s, limit_s=limit_s, median_step_s=step_s, completed=seen.completed,
            steps=seen.steps, silent_nodes=silent,
        )  # fmt: skip


_PHASE_TEXTS = {
    RunPhase.START: "the run hangs: since its start no rank has completed a step",
    RunPhase.STEPS: "the run hangs: no rank has completed a step",
    RunPhase.END: "the run hangs at its end: all steps are completed, and the ranks have not ended",
}


def describe_hang(hang: Hang, limits: RunLimits) -> str:
    """The hang as one sentence: how long it lasts, the limit and what that is made of, the ranks, the silent nodes."""
    limit = f"{hang.limit_s - limits.copy_s - (NODE_PATIENCE_S if hang.silent_nodes else 0.0):g} s"
    if hang.phase is RunPhase.STEPS and hang.median_step_s is not None:
        limit = (
            f"{limits.hang_steps:g} times the median step of {hang.median_step_s:.3g} s and {limits.hang_extra_s:g} s"
        )
    limit += f", {limits.copy_s:g} s between copies" if limits.copy_s else ""
    limit += f", {NODE_PATIENCE_S:g} s for a node that may be lost" if hang.silent_nodes else ""
    text = f"{_PHASE_TEXTS[hang.phase]} for {hang.waited_s:.0f} s (limit {hang.limit_s:.0f} s: {limit})"
    of_planned = "" if planned_steps(hang.steps) is None else f" of {hang.steps}"
    if counts := [f"{ranks} completed {steps}{of_planned}" for steps, ranks in by_steps(hang.completed).items()]:
        text += f"; {', '.join(counts[:4])}{', …' if len(counts) > 4 else ''} steps"
    return f"{text}; no copies from {', '.join(hang.silent_nodes)} any more" if hang.silent_nodes else text


def by_steps(completed: Mapping[int, int]) -> dict[int, str]:
    """The ranks by their number of completed steps, the fewest first: `{12: "rank 3", 13: "ranks 0-2"}`."""
    groups = grouped((completed[rank], rank) for rank in sorted(completed))
    return {steps: name_ranks(ranks) for steps, ranks in sorted(groups.items())}


def _further(now: Mapping[int, int], before: Mapping[int, int]) -> bool:
    return any(steps > before.get(rank, 0) for rank, steps in now.items())


_STACKS_S = 3.0
_END_S = 30.0
_SLICE_S = 1.0


class Launcher:
    """The process that started the ranks, a child of this one. `pause` sleeps, and returns early if the child ends."""

    def __init__(self, process: subprocess.Popen[Any], pause: Callable[[float], None] = time.sleep) -> None:
        self.pid = process.pid
        self._process, self._pause = process, pause

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int:
        """The exit status as in a shell: 128 + N if signal N ended it. Waits for the process."""
        status = self._process.wait()
        return 128 - status if status < 0 else status

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def forward(self, number: signal.Signals, *, to_ranks: bool = False) -> bool:
        """Has all ranks receive the signal; False if no process on this node handles it.

        srun and Open MPI's mpirun forward USR1 and USR2. If the launcher does not handle the signal (it would end
        MPICH's), or with `to_ranks` (it would end the launcher), it goes to its descendants on this node that do:
        ranks, or the launcher inside a wrapper.
        """
        signalled = False
        waiting = [self.pid] if self.is_alive else []
        children = _children()
        while waiting:
            pid = waiting.pop()
            if handles(pid, number) and (not to_ranks or _is_rank(pid)):
                with suppress(ProcessLookupError):  # it ended just now
                    os.kill(pid, number)
                signalled = True
            else:
                waiting += children.get(pid, [])
        return signalled

    def wait(self, seconds: float) -> bool:
        """Waits until the process has ended, `seconds` at most; whether it has."""
        limit = time.monotonic() + seconds
        while self.is_alive and (remaining_s := limit - time.monotonic()) > 0:
            self._pause(min(_SLICE_S, remaining_s))
        return not self.is_alive

    def end(self, patience_s: float) -> bool:
        """Sends SIGTERM, and SIGKILL after `patience_s`; whether SIGKILL was needed."""
        self.send(signal.SIGTERM)
        if self.wait(patience_s):
            return False
        self.send(signal.SIGKILL)
        return True


class Watchdog:
    """Watches one attempt, every `pause_s` seconds; `say` shows what it finds.

    `awaited` returns the launcher's message that it waits for its step to be created, as of now. `why_absent` queries
    the scheduler and returns the reason if there is no step; it is called only where a run without any rank would count
    as one that hangs. Without a scheduler both return nothing.
    """

    def __init__(
        self, traces: Path, stem: str, launcher: Launcher, limits: RunLimits, say: Callable[[str], None],
        awaited: Callable[[], str] = lambda: "", why_absent: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        self._awaited, self._why_absent = awaited, why_absent
        self._last_line = ""  # of those that would be said again at each look
        self._files, self._stem = AttemptFiles.of_stem(traces, stem), stem
        self._traces, self._launcher, self._limits, self._say = traces, launcher, limits, say
        self._folder = _folder_now(traces, stem)
        self.pause_s = max(_SLICE_S, min(limits.copy_s / 2, 5.0))
        self._local: dict[int, RankProgress] = {}
        self._copied: dict[int, RankProgress] = {}
        self._stacks_requested = False  # whether a process got the signal for stacks
        self._stuck: tuple[RunPhase, Mapping[int, int]] | None = None  # the hang that was shown
        self._watch = HangWatch(limits, _now_s(), say)

    def look(self) -> None:
        hang = self._watch.look(_now_s(), self.pause_s, self.see())
        if hang is None:
            self._stuck = None
        elif not hang.completed and (reason := self._why_absent()):
            self._watch.start_anew(_now_s())
            self._say_once(f"{reason}: no rank has begun, and time does not count against the run")
        elif self._is_stuck(hang) and self._write(hang) and self._launcher.end(_END_S):
            self._say(f"the launcher has not ended {_END_S:.0f} s after SIGTERM: SIGKILL")

    @property
    def has_ranks(self) -> bool:
        """Whether a rank of the attempt has been seen."""
        return bool(self._local or self._copied)

    def _say_once(self, text: str) -> None:
        """Says what would be the same at each look: once, until it changes."""
        if text != self._last_line:
            self._say(text)
        self._last_line = text

    def see(self) -> RunProgress:
        partial = self._files.partial
        try:
            self._folder.require()  # a folder that was unmounted must not look like one without copies
            local = attempt_folders(self._traces, self._stem)
            for folder in local:
                self._local = read_progress(folder, self._local)
            self._copied = read_progress(partial, self._copied)
            ranks = self._copied | self._local
            return RunProgress(
                completed={rank: progress.completed for rank, progress in ranks.items()},
                steps=max((progress.steps for progress in ranks.values()), default=0),
                median_step_s=_median_step_s(ranks),
                beats=_beats(partial),
                local=bool(local),
                awaited="" if ranks else self._awaited(),
                trace=self._files.trace.exists(),
            )
        except OSError as error:
            return RunProgress(unreadable=f"{self._traces} cannot be read ({error})")

    def _is_stuck(self, hang: Hang) -> bool:
        """Requests the stacks and looks once more; False if the run has made progress meanwhile.

        A hang that could not be written, so that its run was left alone, is not shown again.
        """
        if self._stuck == (hang.phase, hang.completed):
            return True
        self._say(describe_hang(hang, self._limits))
        self._stacks_requested = self._launcher.forward(STACK_SIGNAL)
        if not self._stacks_requested:
            self._say("no process on this node handles SIGUSR2: there will be no stacks")
        if self._launcher.wait(_STACKS_S):
            return False
        seen = self.see()
        if seen.unreadable or seen.phase is not hang.phase or seen.completed != hang.completed:
            self._say("the run has made progress meanwhile and is left alone")
            self._watch.start_anew(_now_s())
            return False
        self._stuck = hang.phase, hang.completed
        return True

    def _write(self, hang: Hang) -> bool:
        """Writes the reason before the run is ended; False if it cannot be written: the run is left alone then."""
        path = self._files.hang
        text = describe_hang(hang, self._limits)
        if self._stacks_requested:
            text += f"; the stacks of all ranks are in {self._stem}{STACKS}.txt"
        values = asdict(hang) | {"stem": self._stem, "completed": by_steps(hang.completed), "text": text}
        try:
            self._folder.require()
            write_durable(path, json.dumps(values, indent=1) + "\n")
        except OSError as error:
            self._say_once(f"{path} cannot be written ({error}), so the run is left alone")
            return False
        return True


def _folder_now(traces: Path, stem: str) -> TracesFolder:
    try:
        return TracesFolder.at_start(traces, stem)
    except OSError:
        return TracesFolder(traces, stem)


def _now_s() -> float:
    """Goes on while the machine sleeps, so that this is noticed."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _median_step_s(ranks: dict[int, RankProgress]) -> float | None:
    first = min(ranks, default=None)
    try:
        return None if first is None else median_step_s(ranks[first])
    except FileNotFoundError:  # the run ended just now, and took its journals along
        return None


def _beats(partial: Path) -> dict[str, int]:
    """By node, when its copies were last written."""
    beats = {}
    for path in partial.glob(f"*{BEAT}"):
        with suppress(FileNotFoundError):
            beats[path.name.removesuffix(BEAT)] = path.stat().st_mtime_ns
    return beats


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on, empty where there is no such process."""
    try:
        # The second field, the name in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _children() -> dict[int, list[int]]:
    pids = (path.name for path in Path("/proc").iterdir() if path.name.isdigit())
    return grouped((int(fields[1]), int(pid)) for pid in pids if (fields := _stat(pid)))


def _is_rank(pid: int) -> bool:
    """Whether the process is Python with `-m hpc.rank`."""
    try:
        return b"hpc.rank" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4]
    except OSError:
        return False
