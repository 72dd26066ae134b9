"""What causes cost by what the ranks noted of themselves: their steps replayed without what held them up.

No figure here comes from hpc.measure, hpc.observe or parse.ledger.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpc.model.trace import Trace
from tests.truth.causes import Late
from tests.truth.exact import Ms

SLEEPS_APART_MS = 1.0
"""Equal sleeps take equally long to this."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Noted:
    """A run behind its warm-up, of so many `steps`. `work` [rank, sync]: what each rank did before each collective, ms;
    `latency` how much later than the last rank's call it had the result; `stretches` what it notes of delays in that
    time, by phase."""

    steps: int
    work: Ms
    latency: Ms
    stretches: Mapping[str, Ms]

    def delay(self, late: Late) -> Ms:
        """What holds its ranks up before each collective, ms; of one that is always there by how much longer they take
        than the median of the others, and how much later they had the result before."""
        zero = np.zeros_like(self.work)
        its = self.stretches.get(late.phases[0], zero)
        if late.always:
            its = self.work - _others(self.work)
            its[:, 1:] += (self.latency - _others(self.latency))[:, :-1]
        return np.where(np.isin(np.arange(len(its)), late.ranks)[:, None], its, zero)

    def step_ms(self, without: Ms | float = 0.0) -> float:
        """A step, replayed without so much of what each rank did before each collective."""
        at, work = np.zeros(len(self.work)), self.work - without
        for sync in range(work.shape[1]):
            at = (at + work[:, sync]).max() + self.latency[:, sync]
        return float(at.mean()) / self.steps

    def costs(self, late: Late, others: Sequence[Late]) -> tuple[float, float]:
        """What it adds to a step while the others are there, and when they are gone; ms."""
        gone = sum((self.delay(each) for each in others), np.zeros_like(self.work))
        its = self.delay(late)
        return self.step_ms() - self.step_ms(its), self.step_ms(gone) - self.step_ms(gone + its)


def noted_of(folder: Path, ranks: int, warmup: int) -> list[Noted]:
    """The runs of so many ranks that noted something there, in their order; ValueError where marks are missing."""
    by_rank = [
        sorted(folder.glob(f"*.rank{rank}of{ranks}.json"), key=lambda path: int(path.name.split(".")[0]))
        for rank in range(ranks)
    ]
    return [_noted([json.loads(path.read_text()) for path in of_run], warmup) for of_run in zip(*by_rank, strict=True)]


def noted_of_delays(trace: Trace) -> Noted:
    """A run of the `delay` workload: the sleeps that it recorded."""
    assert trace.injected_ns is not None
    ms = trace.injected_ns[:, trace.run.warmup_steps :] / 1e6
    work, compute = ms.sum(axis=2), ms[..., trace.injected_phases.index("compute")]
    longer = compute - _others(compute)
    return Noted(
        steps=work.shape[1], work=work, latency=np.zeros_like(work),
        stretches={"compute": np.where(longer > SLEEPS_APART_MS, longer, 0.0)},
    )  # fmt: skip


def fixed_part_ms(folder: Path, warmup: int, sizes: Sequence[int] = (1, 2, 4)) -> float:
    """What a rank does in a step however many there are: of its work what does not shrink with their number."""
    read = [noted_of(folder, ranks, warmup) for ranks in sizes]
    means = [np.mean([run.work.mean() for run in runs]) for runs in read]
    columns = np.array([[1.0, 1 / ranks] for ranks in sizes])
    return float(np.linalg.lstsq(columns, np.array(means), rcond=None)[0][0])


def _noted(ranks: Sequence[Mapping[str, list[tuple[int, str, int, int]]]], warmup: int) -> Noted:
    step_of = [step for step, *_ in ranks[0]["syncs"]]
    first = step_of.index(warmup) - 1
    times = np.array([[sync[2:] for sync in its["syncs"][first:]] for its in ranks], np.int64)
    begins, calls, ends = times[:, :-1, 1], times[:, 1:, 0], times[:, 1:, 1]
    stretches: dict[str, Ms] = defaultdict(lambda: np.zeros(calls.shape))
    for rank, its in enumerate(ranks):
        for _, name, begin, end in its["faults"]:
            at = int(np.searchsorted(begins[rank], begin)) - 1
            if at >= 0 and end <= calls[rank, at]:
                stretches[name][rank, at] += (end - begin) / 1e6
    return Noted(
        steps=step_of[-1] + 1 - warmup, work=(calls - begins) / 1e6, latency=(ends - calls.max(axis=0)) / 1e6,
        stretches=stretches,
    )  # fmt: skip


def _others(times: Ms) -> Ms:
    """Of each rank the median of the others [rank, step]."""
    return np.array([np.median(np.delete(times, rank, axis=0), axis=0) for rank in range(len(times))])
