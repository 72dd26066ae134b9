"""Decides when a run hangs, from its progress over time and its limits. Uses no clock, no files, no processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hpc.recovery.progress import name_ranks, planned_steps
from hpc.system.groups import grouped
from launch.jobs.options import RunLimits

STOPPED_S = 10.0
"""If a look comes this much later than planned, this process was stopped in between."""
NODE_PATIENCE_S = 600.0
"""A silent node may be lost: the scheduler notices that later and ends the job with the right reason."""


class Phase(StrEnum):
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
    def phase(self) -> Phase:
        counts = self.completed.values()
        if self.trace or (counts and min(counts) >= self.steps):
            return Phase.END
        return Phase.STEPS if any(counts) else Phase.START


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A run that hangs. `limit_s` is exceeded by `waited_s`; `median_step_s` is None before a step was timed."""

    phase: Phase
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
            self._say(f"was stopped for {elapsed_s - planned_s:.0f} s: the wait starts anew")
            self.start_anew(now_s)
        elif not self._is_blind(now_s, seen):
            self._waited_s += elapsed_s
        if seen.unreadable:
            return None
        if self._seen.awaited and not seen.awaited:
            self.start_anew(now_s)  # the run begins now
        if seen.phase is not self._seen.phase or _further(seen.completed, self._seen.completed):
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
            return f"Slurm has not created the step of this run yet ({seen.awaited})"
        if seen.local or seen.trace:
            return ""
        if not self._limits.copy_s:
            return "copies are off and no rank is on this node, so that nothing can be seen of the run"
        newest_s = max((at for _, at in self._last_beats.values()), default=-math.inf)
        if seen.phase is not Phase.START and self._is_late(now_s, newest_s):
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
        if seen.phase is Phase.STEPS and step_s is not None:
            allowed_s = limits.hang_steps * step_s + limits.hang_extra_s
        limit_s = allowed_s + limits.copy_s + (NODE_PATIENCE_S if silent else 0.0)
        if self._waited_s <= limit_s:
            return None
        return Hang(
            phase=seen.phase, waited_s=self._waited_s, limit_s=limit_s, median_step_s=step_s, completed=seen.completed,
            steps=seen.steps, silent_nodes=silent,
        )  # fmt: skip


_PHASE_TEXTS = {
    Phase.START: "the run hangs: since its start no rank has completed a step",
    Phase.STEPS: "the run hangs: no rank has completed a step",
    Phase.END: "the run hangs at its end: all steps are completed, and the ranks have not ended",
}


def describe_hang(hang: Hang, limits: RunLimits) -> str:
    """The hang as one sentence: how long it lasts, the limit and what that is made of, the ranks, the silent nodes."""
    limit = f"{limits.start_limit_s:g} s"
    if hang.phase is Phase.STEPS and hang.median_step_s is not None:
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
