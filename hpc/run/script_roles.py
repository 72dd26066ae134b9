"""Ranks that never update, as those that generate what others learn from: their steps are those of the others.

A step is the learners'. Such a rank is in the same step as a learner while the calls that both make are the same: its
step ends with the last call that they share in the learner's. All that it does of its own is compute.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc.model.groups import Call, calls_of_json
from hpc.observe.events import BACKWARD_IN, COLLECTIVE_IN, read_events
from hpc.observe.stamps import CollectiveCall, ObservedStep, ObservedSteps, placed_collectives
from hpc.run.script_steps import Patterns, RankSteps, call_of, patterns_of, trained_in
from hpc.system.regular_file import parse_json


def updates_nothing(folder: Path) -> bool:
    """Whether a rank's process has called collectives, and made no backward so far."""
    path = trained_in(folder)
    kinds = set() if path is None else {event.kind for event in read_events(path).events}
    return COLLECTIVE_IN in kinds and BACKWARD_IN not in kinds


def calls_by_step(folder: Path, steps: Sequence[ObservedStep]) -> str:
    """As a rank tells others what it calls until the end of each step since that of the step before; empty where it has
    no steps."""
    path = trained_in(folder)
    if path is None or not steps:
        return ""
    recorded = read_events(path)
    ends = [step.called_ns[1] for step in steps]
    called: list[list[Call]] = [[] for _ in steps]
    for place, call in placed_collectives(recorded):
        step = bisect_left(ends, recorded.events[place].ns)
        if step < len(steps):
            called[step].append(call_of(call))
    return json.dumps(patterns_of(called))


def in_steps_of_others(recorded: RankSteps, folder: Path, others: Sequence[str], rank: int) -> RankSteps:
    """A rank without steps in those of the first rank with which it shares calls, of `others` by `calls_by_step`. The
    same where there is none, or where their calls do not come in the same order."""
    path = trained_in(folder)
    if path is None:
        return recorded
    events = read_events(path)
    calls = [call for _, call in placed_collectives(events)]
    for learner, text in enumerate(others):
        steps = _steps(calls, _shared(parse_json(text), rank), learner) if text else []
        if any(step.collectives for step in steps):
            remark = f"it updates nothing: its steps end with the last call that it shares with rank {learner} in each"
            return replace(recorded, observed=ObservedSteps(steps=tuple(steps), remarks=(remark,)))
    return recorded


def _shared(patterns: Patterns, rank: int) -> list[list[Call]]:
    """The calls of each step of another rank that this rank has to make, too."""
    called = [[call for call in calls_of_json(text) or () if _takes_part(call, rank)] for text in patterns[0]]
    return [called[number] for number in patterns[1]]


def _takes_part(call: Call, rank: int) -> bool:
    return call.group is None or rank in call.group.ranks


def _steps(calls: Sequence[CollectiveCall], expected: Sequence[Sequence[Call]], learner: int) -> list[ObservedStep]:
    """Empty where the calls that are shared with the learner are others than in its steps, `expected`."""
    steps: list[ObservedStep] = []
    at, begin_ns = 0, calls[0].arrives_ns if calls else 0
    for shared in expected:
        first, end_ns = at, begin_ns
        for call in shared:
            while at < len(calls) and not _takes_part(call_of(calls[at]), learner):
                at += 1
            if at == len(calls):
                return steps
            if call_of(calls[at]) != call:
                return []
            end_ns, at = max(end_ns, calls[at].ends_ns, calls[at].arrives_ns), at + 1
        stamps = (begin_ns, begin_ns, end_ns, end_ns, end_ns, end_ns)
        steps.append(
            ObservedStep(
                stamps=stamps, absent={}, samples=0, fetches=0, fetch_ns=0, backwards=0, updates=(), skipped=False,
                new_epoch=False, collectives=tuple(calls[first:at]), called_ns=(begin_ns, end_ns),
            )
        )  # fmt: skip
        begin_ns = end_ns
    return steps
