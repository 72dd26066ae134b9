"""When a run hangs: what was seen of it over time against what it may take. No clock, no files, no processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hpc.recovery.progress import name_ranks

STOPPED_S = 10.0
"""A look that comes this much later than it should was not taken by a process that ran all the time."""
NODE_PATIENCE_S = 600.0
"""Where a node is silent it may be lost: the scheduler, which notices later, is the one to say so and end the job."""


class Phase(StrEnum):
    """What a run has to do next."""

    START = "start"
    STEPS = "steps"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a run may take to its first step, and from its last to its end; for a step (`steps` times the median and
    `extra_s`). Copies come every `copy_s`, 0: never; so late may be what is seen, and every limit is longer by that."""

    start_s: float = 600
    steps: float = 10
    extra_s: float = 60
    copy_s: float = 10


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One look at a run. `completed` is steps by rank, `steps` how many there are (0 before that is known).

    `beats` is by node a number that changes whenever its copies were written. `local` says that the ranks of this node
    are looked at directly, `trace` that the trace is written. `unreadable` says why nothing could be seen.
    """

    completed: Mapping[int, int] = field(default_factory=dict)
    steps: int = 0
    median_step_s: float | None = None
    beats: Mapping[str, int] = field(default_factory=dict)
    local: bool = False
    trace: bool = False
    unreadable: str = ""

    @property
    def phase(self) -> Phase:
        """What the run has to do next, so far as was seen."""
        counts = self.completed.values()
        if self.trace or (counts and min(counts) >= self.steps):
            return Phase.END
        return Phase.STEPS if any(counts) else Phase.START


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A run that hangs: in which phase, for how long, what it was allowed, and all of that as one sentence."""

    phase: Phase
    waited_s: float
    limit_s: float
    median_step_s: float | None
    completed: Mapping[int, int]
    steps: int
    silent_nodes: tuple[str, ...]
    text: str


class HangWatch:
    """Judges look after look. Time counts against a run only where its progress would have been seen.

    `say` is told, once each time, of what keeps it from counting.
    """

    def __init__(self, limits: Limits, now_s: float, say: Callable[[str], None]) -> None:
        self._limits, self._say = limits, say
        self._last_s = now_s
        self._waited_s = 0.0
        self._seen = Seen()
        self._heard: dict[str, tuple[int, float]] = {}  # node: its last beat, and when that was first seen
        # Where the pace counts from: when, of which rank, from how many steps on.
        self._first: tuple[float, int, int] | None = None
        self._pace_s: float | None = None
        self._blind = ""

    def look(self, now_s: float, asked_s: float, seen: Seen) -> Hang | None:
        """What this look makes of the run, None as long as it may go on; `asked_s` is how long after the last look
        this one was meant to be."""
        elapsed_s = now_s - self._last_s
        self._last_s = now_s
        if elapsed_s > asked_s + STOPPED_S:
            self._say(f"was stopped for {elapsed_s - asked_s:.0f} s: the wait starts anew")
            self.start_anew(now_s)
        elif not self._is_blind(now_s, seen):
            self._waited_s += elapsed_s
        if seen.unreadable:
            return None
        if seen.phase is not self._seen.phase or _further(seen.completed, self._seen.completed):
            self._waited_s = 0.0
        self._keep_pace(now_s, seen)
        self._seen = seen
        return self._judge(now_s)

    def start_anew(self, now_s: float) -> None:
        """Forgets how long has been waited."""
        self._waited_s = 0.0
        self._heard = {node: (beat, now_s) for node, (beat, _) in self._heard.items()}
        self._first = self._pace_s = None

    def _is_blind(self, now_s: float, seen: Seen) -> bool:
        """Whether progress could have been made since the last look without being seen; said when that begins."""
        if not seen.unreadable:
            changed = {node: beat for node, beat in seen.beats.items() if self._heard.get(node, (None,))[0] != beat}
            self._heard |= {node: (beat, now_s) for node, beat in changed.items()}
        why = self._why_blind(now_s, seen)
        if why and not self._blind:
            self._say(f"{why}: until that changes, time does not count against the run")
        self._blind = why
        return bool(why)

    def _why_blind(self, now_s: float, seen: Seen) -> str:
        if seen.unreadable:
            return seen.unreadable
        if seen.local or seen.trace:
            return ""
        if not self._limits.copy_s:
            return "copies are off and no rank is on this node, so that nothing can be seen of the run"
        heard_s = max((at for _, at in self._heard.values()), default=-math.inf)
        if seen.phase is not Phase.START and self._is_late(now_s, heard_s):
            return "no node's copies come any more"
        return ""

    def _is_late(self, now_s: float, heard_s: float) -> bool:
        return now_s - heard_s > 3 * self._limits.copy_s + 5

    def _keep_pace(self, now_s: float, seen: Seen) -> None:
        """Seconds per step of one rank since it was first seen: all there is while stamps are still on a device."""
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
        late = tuple(sorted(node for node, (_, at) in self._heard.items() if self._is_late(now_s, at)))
        silent = () if len(late) == len(self._heard) else late
        step_s = seen.median_step_s if seen.median_step_s is not None else self._pace_s
        allowed_s, why = limits.start_s, f"{limits.start_s:g} s"
        if seen.phase is Phase.STEPS and step_s is not None:
            allowed_s = limits.steps * step_s + limits.extra_s
            why = f"{limits.steps:g} times the median step of {step_s:.3g} s and {limits.extra_s:g} s"
        limit_s = allowed_s + limits.copy_s + (NODE_PATIENCE_S if silent else 0.0)
        if self._waited_s <= limit_s:
            return None
        why += f", {limits.copy_s:g} s between copies" if limits.copy_s else ""
        why += f", {NODE_PATIENCE_S:g} s for a node that may be lost" if silent else ""
        text = f"{_SAID[seen.phase]} for {self._waited_s:.0f} s (limit {limit_s:.0f} s: {why})"
        if seen.completed:
            text += f"; {_steps_of_ranks(seen)}"
        if silent:
            text += f"; nothing is heard of {', '.join(silent)} any more"
        return Hang(
            phase=seen.phase,
            waited_s=self._waited_s,
            limit_s=limit_s,
            median_step_s=step_s,
            completed=seen.completed,
            steps=seen.steps,
            silent_nodes=silent,
            text=text,
        )


_SAID = {
    Phase.START: "the run hangs: since its start no rank has completed a step",
    Phase.STEPS: "the run hangs: no rank has completed a step",
    Phase.END: "the run hangs at its end: all steps are completed, and the ranks have not ended",
}


def by_steps(completed: Mapping[int, int]) -> dict[int, str]:
    """Which ranks completed how many steps, the fewest first: `{12: "rank 3", 13: "ranks 0-2"}`."""
    groups: dict[int, list[int]] = {}
    for rank in sorted(completed):
        groups.setdefault(completed[rank], []).append(rank)
    return {steps: name_ranks(ranks) for steps, ranks in sorted(groups.items())}


def _steps_of_ranks(seen: Seen) -> str:
    said = [f"{ranks} completed {steps} of {seen.steps}" for steps, ranks in by_steps(seen.completed).items()]
    return f"{', '.join(said[:4])}{', …' if len(said) > 4 else ''} steps"


def _further(now: Mapping[int, int], before: Mapping[int, int]) -> bool:
    return any(steps > before.get(rank, 0) for rank, steps in now.items())
