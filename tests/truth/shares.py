"""Which delays are found, by the share of steps in which ranks are late, by how much, and how many ranks at once:
`python -m tests.truth.shares`.

Points are simulated; a delay is so much above the limit of every step that a ledger of the same size states. A row is a
share of steps, a column a delay: how many per cent of the ranks that are late are named. Ends with 1 where a rank is
denied: the ledger names nobody, doubts nothing, and states a limit that the delay is above, in every step or in one of
ten; or where somebody else is named in more than 3 of 100 points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpc.model.spec import RunSpec
from parse.ledger.breakdown import step_breakdown
from parse.ledger.straggler import stragglers
from parse.ledger.types import Verdict
from tests.truth.limits import BOUND_NS
from tests.unit.simulated import JITTERS, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run

SIZES = ((2, 2), (4, 4), (64, 8))
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 1.0)
ABOVE_MS = (0.5, 2.0, 10.0, 50.0)
AT_ONCE = (1, 2, 4)
STEPS, RUNS = 120, 2
ELSE_AT_MOST = 0.03
ONE_OF_TEN = (0.08, 0.12)
"""Shares to which the limit of one in ten steps applies."""


@dataclass(frozen=True, kw_only=True)
class Delay:
    """That of a rank, in this share of the steps, every so many of them or by chance."""

    rank: int
    share: float
    ms: float
    periodic: bool

    def steps(self, steps: int, random: np.random.Generator) -> np.ndarray:
        """Whether it is late [step]."""
        if not self.periodic:
            return random.random(steps) < self.share
        if self.share <= 0.5:
            return np.arange(steps) % round(1 / self.share) == 0
        return np.ones(steps, bool) if self.share == 1 else np.arange(steps) % round(1 / (1 - self.share)) > 0


def verdicts(
    run: RunSpec, delays: Sequence[Delay], random: np.random.Generator, law: int
) -> tuple[tuple[Verdict, ...], list[float]]:
    """Those on two runs of ranks that are equal but for these delays; the share of steps that each delay has drawn."""
    breakdowns, shares = [], np.zeros(len(delays))
    for _ in range(RUNS):
        jitter, memory = JITTERS[law % len(JITTERS)], 0.3 * (law // len(JITTERS) % 2)
        durations = equal_ranks(random, run.ranks, run.steps, jitter=jitter, spread=0.05, memory=memory)
        for place, delay in enumerate(delays):
            late = np.zeros((run.ranks, run.steps), bool)
            late[delay.rank] = delay.steps(run.steps, random)
            shares[place] += late[delay.rank].mean() / RUNS
            durations = durations.longer("backward", late, round(delay.ms * 1e6))
        simulated = simulate(run, durations, draw_clocks(random, run.nodes), random, bound_ns=BOUND_NS)
        breakdowns.append(step_breakdown(simulated.trace))
    return stragglers(breakdowns), shares.tolist()


def is_denied(delay: Delay, share: float, result: Sequence[Verdict]) -> bool:
    """Whether the ledger says that the delay, in this share of the steps, would have been detected, and names nobody
    nor doubts that."""
    first = result[0]
    if any(delay.rank in each.ranks for each in result) or first.limit is None or first.doubt is not None:
        return False
    in_one_of_ten = ONE_OF_TEN[0] <= share <= ONE_OF_TEN[1]
    seldom_ms = first.seldom_limit if first.seldom_limit is not None and in_one_of_ten else np.inf
    return share * delay.ms >= first.limit or delay.ms >= seldom_ms


@dataclass(kw_only=True)
class Counts:
    """Of all points: ranks that are denied, points in which somebody else is named."""

    points: int = 0
    denied: int = 0
    others: int = 0


def row(run: RunSpec, share: float, at_once: int, limit_ms: float, points: int, counts: Counts) -> list[int]:
    """Per delay above the limit: of all ranks that are late the per cent that are named."""
    named = []
    random = np.random.default_rng([run.ranks, round(1000 * share), at_once])
    for above in ABOVE_MS:
        late = hits = 0
        for point in range(points):
            ranks = random.choice(run.ranks, at_once, replace=False).tolist()
            delays = [
                Delay(rank=rank, share=share, ms=limit_ms + above * (1 + place / 2), periodic=point % 2 > 0)
                for place, rank in enumerate(ranks)
            ]
            result, shares = verdicts(run, delays, random, point)
            names = {rank for each in result for rank in each.ranks}
            late, hits = late + at_once, hits + len(names & {*ranks})
            counts.points += 1
            counts.others += bool(names - {*ranks})
            counts.denied += sum(is_denied(*each, result) for each in zip(delays, shares, strict=True))
        named.append(round(100 * hits / late))
    return named


def main() -> int:
    """Prints the map."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=6, metavar="N", help="points of each share and delay")
    parser.add_argument(
        "--ranks", type=int, choices=[nodes * ranks for nodes, ranks in SIZES], help="of that size alone"
    )
    arguments = parser.parse_args()
    counts = Counts()
    for nodes, ranks in SIZES:
        if arguments.ranks not in (None, nodes * ranks):
            continue
        run = make_run(nodes=nodes, ranks_per_node=ranks, warmup_steps=10, measured_steps=STEPS)
        limits = [verdicts(run, (), np.random.default_rng(seed), seed)[0][0] for seed in range(6)]
        limit_ms = float(np.median([each.limit for each in limits if each.limit is not None]))
        seldom = [each.seldom_limit for each in limits if each.seldom_limit is not None]
        print(f"{nodes} × {ranks} ranks, {RUNS} runs of {STEPS} steps: limit {limit_ms:.2f} ms in every step, ", end="")
        print(f"{np.median(seldom):.2f} ms in one of ten" if seldom else "none in one of ten")
        print(f"at once  share  named, %, of delays above the limit by {', '.join(f'{ms:g}' for ms in ABOVE_MS)} ms")
        for at_once in AT_ONCE:
            if at_once <= nodes * ranks // 4 + 1:
                for share in SHARES:
                    named = row(run, share, at_once, limit_ms, arguments.points, counts)
                    print(f"{at_once:7}  {100 * share:3.0f} %  {'  '.join(f'{each:3}' for each in named)}", flush=True)
    print(f"{counts.points} points: {counts.denied} delays denied, somebody else named in {counts.others}")
    return 1 if counts.denied or counts.others > ELSE_AT_MOST * counts.points else 0


if __name__ == "__main__":
    sys.exit(main())
