"""What scripts whose ranks meet in groups noted of themselves, and what that makes true of a window.

By the clock that all ranks of a machine share. No figure here comes from hpc.measure, hpc.observe or parse: the noted
calls are replayed without the noted sleeps, one after another, rank by rank.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

MESSAGE, EXCHANGE = "message", "all-to-all"

Span = tuple[int, int]
Identity = tuple[str, tuple[int, ...], int]


@dataclass(kw_only=True)
class NotedCall:
    """A call of a rank: its name, the ranks of its group (of a message sender, receiver and tag), the how many-th such,
    and when it was called, waited for and done, ns."""

    name: str
    ranks: tuple[int, ...]
    number: int
    called: int
    waits: int
    ends: int

    @property
    def identity(self) -> Identity:
        return self.name, self.ranks, self.number


@dataclass(frozen=True, kw_only=True)
class NotedRank:
    """Of consecutive steps of a rank its calls, its sleeps as (begin, end), and the end of each step, ns. `begin` is
    when the first of these steps began."""

    calls: list[NotedCall]
    slept: list[Span]
    ends: list[int]
    begin: int

    @property
    def slept_ms(self) -> float:
        """A step."""
        return sum(end - begin for begin, end in self.slept) / len(self.ends) / 1e6

    def own_ms(self) -> float:
        """What it does itself, neither waiting nor communicating, a step."""
        return sum(work_ns for work_ns, _, _ in _actions(self, [])) / len(self.ends) / 1e6


@dataclass(frozen=True, kw_only=True)
class NotedRun:
    """All steps of all ranks."""

    ranks: list[NotedRank]

    @classmethod
    def of(cls, folder: Path, ranks: int) -> NotedRun:
        """What the ranks of a run wrote to a folder."""
        return cls(ranks=[_read(folder / f"rank{rank}.json") for rank in range(ranks)])

    def window(self, first: int, steps: int) -> NotedRun:
        """So many steps from `first` on, with the calls that were made and ended in them on all ranks."""
        cut = []
        for its in self.ranks:
            begin, end = its.ends[first - 1], its.ends[first + steps - 1]
            calls = [call for call in its.calls if begin <= call.called < end]
            slept = [each for each in its.slept if begin <= each[0] < end]
            ends = its.ends[first : first + steps]
            cut.append(NotedRank(calls=calls, slept=slept, ends=ends, begin=begin))
        return NotedRun(ranks=cut)

    def costs(self, rank: int) -> float:
        """By how many ms a step is shorter without a rank's sleeps: the last end of the window, replayed."""
        return self._saved({rank: [(begin, end, 1.0) for begin, end in self.ranks[rank].slept]})

    def costs_of_imbalance(self) -> float:
        """By how many ms the median step is shorter where all ranks work as long as their mean, each with its pieces
        in proportion."""
        steps = range(1, len(self.ranks[0].ends))
        return float(np.median([self.window(step, 1)._saved_by_balance() for step in steps]))

    def _saved_by_balance(self) -> float:
        working = [its.own_ms() for its in self.ranks]
        mean = sum(working) / len(working)
        return self._saved({
            rank: [(its.begin, its.ends[-1], 1 - mean / own_ms)]
            for rank, (its, own_ms) in enumerate(zip(self.ranks, working, strict=True))
        })  # fmt: skip

    def costs_of_experts(self) -> float:
        """By how many ms a step is shorter where what each rank does from one all-to-all of a group to the next takes
        the mean of all ranks, in the mean of the steps. All steps and ranks have as many."""
        steps = len(self.ranks[0].ends)
        spans = np.array([_between_exchanges(its) for its in self.ranks])
        spans = spans.reshape(len(self.ranks), steps, -1, 2)
        takes = spans[..., 1] - spans[..., 0]
        longer = takes.mean(axis=1, keepdims=True) - takes.mean(axis=(0, 1))
        cuts = [
            zip(*its.reshape(-1, 2).T.tolist(), share.ravel().tolist(), strict=True)
            for its, share in zip(spans, longer / takes, strict=True)
        ]
        return self._saved({rank: [*its] for rank, its in enumerate(cuts)})

    def replays_exactly(self) -> bool:
        """Whether the calls, replayed with all sleeps, end when they ended."""
        return self._saved({}) == 0

    def meets_next(self, rank: int) -> Counter[tuple[int, ...]]:
        """Of a rank's sleeps, which group it met next, how often."""
        calls = sorted((call.called, call.ranks) for call in self.ranks[rank].calls)
        groups: Counter[tuple[int, ...]] = Counter()
        for _, end in self.ranks[rank].slept:
            groups.update([ranks for called, ranks in calls if called >= end][:1])
        return groups

    def _saved(self, cuts: Mapping[int, list[Cut]]) -> float:
        last = max(its.ends[-1] for its in self.ranks)
        return (last - self._replayed(cuts)) / len(self.ranks[0].ends) / 1e6

    def _replayed(self, cuts: Mapping[int, list[Cut]]) -> int:
        """When the last rank ends with these spans of ranks cut by their share."""
        present: dict[Identity, dict[int, NotedCall]] = defaultdict(dict)
        for rank, its in enumerate(self.ranks):
            for noted in its.calls:
                present[noted.identity][rank] = noted
        queues = [_actions(its, cuts.get(rank, [])) for rank, its in enumerate(self.ranks)]
        arrived: dict[tuple[Identity, int], int] = {}
        now = [its.begin for its in self.ranks]
        at = [0] * len(queues)
        moved = True
        while moved:
            moved = False
            for rank, queue in enumerate(queues):
                while at[rank] < len(queue):
                    work_ns, call, waits = queue[at[rank]]
                    if call is None:
                        now[rank] += work_ns
                    elif not waits:
                        now[rank] += work_ns
                        arrived[call.identity, rank] = now[rank]
                    else:
                        needed = _needed(call, rank, present[call.identity])
                        if not all((call.identity, other) in arrived for other in needed):
                            break
                        recorded = max((present[call.identity][other].called for other in needed), default=call.waits)
                        latest = max((arrived[call.identity, other] for other in needed), default=0)
                        begin = now[rank] + work_ns
                        now[rank] = max(begin, latest) + call.ends - max(call.waits, recorded)
                    at[rank] += 1
                    moved = True
        stuck = [rank for rank, queue in enumerate(queues) if at[rank] < len(queue)]
        if stuck:
            raise ValueError(f"ranks {stuck} wait for calls that nobody makes")
        return max(now)


Action = tuple[int, NotedCall | None, bool]
Cut = tuple[int, int, float]


def _actions(its: NotedRank, cuts: list[Cut]) -> list[Action]:
    """A rank's calls and waits in order, each with its own work before it, ns, less what is cut of it; the last is the
    window's end."""
    moments = sorted(
        [(call.called, 0, number) for number, call in enumerate(its.calls)]
        + [(call.waits, 1, number) for number, call in enumerate(its.calls)]
    )
    actions: list[Action] = []
    before = its.begin
    for moment, waits, number in [*moments, (its.ends[-1], 2, -1)]:
        less = sum(
            share * (min(end, moment) - max(begin, before))
            for begin, end, share in cuts
            if begin < moment and end > before
        )
        call = None if number < 0 else its.calls[number]
        actions.append((moment - before - round(less), call, waits == 1))
        before = call.ends if call is not None and waits else moment
    return actions


def _between_exchanges(its: NotedRank) -> list[Span]:
    """From the end of each all-to-all to the call of the next, where that is the rank's next call, too."""
    calls = sorted(its.calls, key=lambda call: call.called)
    return [
        (before.ends, after.called) for before, after in pairwise(calls)
        if before.name == after.name == EXCHANGE and before.ranks == after.ranks
    ]  # fmt: skip


def _needed(call: NotedCall, rank: int, present: dict[int, NotedCall]) -> list[int]:
    """For whom a rank waits there: for whoever had come when it ended. A sender may not wait for its receiver."""
    others = call.ranks[:2] if call.name == MESSAGE else call.ranks
    return [other for other in others if other != rank and other in present and present[other].called <= call.ends]


def _read(path: Path) -> NotedRank:
    calls, ends = [], []
    slept: list[Span] = []
    numbers: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for step in json.loads(path.read_text()):
        for name, ranks, called, waits, done in step["met"]:
            key = name, tuple(ranks)
            calls.append(NotedCall(name=name, ranks=key[1], number=numbers[key], called=called, waits=waits, ends=done))
            numbers[key] += 1
        slept += [(begin, end) for begin, end in step["slept"]]
        ends.append(step["end"])
    return NotedRank(calls=calls, slept=slept, ends=ends, begin=ends[0])
