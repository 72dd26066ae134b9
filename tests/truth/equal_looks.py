"""`rankwise watch` on equal ranks: 1,000 rank-hours of simulated steps, looked at as while they run, name nobody.

    python -m tests.truth.equal_looks [SHARE]

Every ten seconds a look at the last steps of a run of which no rank is slower than another: normal, exponential and
lognormal jitter of 1 to 30 %, with and without memory, on one node and on several whose clocks drift. SHARE is that of
the 1,000 hours (default 1). Exit status 1: somebody was named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np

from hpc.model.trace import Trace
from parse.live.recent import RecentWindows, last_steps
from tests.unit.simulated import JITTERS, Durations, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run

LOOK_S, HOUR_S = 10.0, 3600.0
SLOWER = 8
"""Steps of tests.unit.simulated take 14 ms: so many times as long, windows overlap."""
HOURS = {2: 10, 4: 15, 8: 20, 32: 24}
"""Hours of a run by its ranks: 1,008 rank-hours."""


@dataclass(frozen=True)
class Looked:
    """Looks at a run, those in which a straggler was named, and the steps of its window in the end."""

    ranks: int
    looks: int
    named: int
    size: int


def equal_run(seed: int, ranks: int, seconds: float) -> tuple[Trace, int]:
    """A run of equal ranks that takes so long, and how many steps it makes between two looks."""
    generator = np.random.default_rng([seed, ranks])
    steps = round(seconds / (0.0136 * SLOWER))
    nodes = int(generator.choice([1, 2]))
    run = make_run(nodes=nodes, ranks_per_node=ranks // nodes, measured_steps=steps)
    durations = equal_ranks(
        generator, ranks, run.steps, jitter=JITTERS[seed % len(JITTERS)],
        spread=float(generator.choice([0.01, 0.05, 0.1, 0.3])), common=float(generator.choice([0.0, 0.05, 0.3])),
        memory=float(generator.choice([0.0, 0.3])),
    )  # fmt: skip
    slower = Durations(**{each.name: SLOWER * getattr(durations, each.name) for each in fields(durations)})
    trace = simulate(run, slower, draw_clocks(generator, nodes), generator).trace
    return trace, round(steps * LOOK_S / seconds)


def looked_at(seed: int, ranks: int, seconds: float = HOUR_S) -> Looked:
    """A run of equal ranks, looked at as while it goes on."""
    trace, apart = equal_run(seed, ranks, seconds)
    windows, named, looks = RecentWindows(), 0, 0
    for stop in range(trace.run.warmup_steps + apart, trace.stamps.shape[1], apart):
        part = last_steps(so_far(trace, stop), windows.size)
        named, looks = named + (windows.judge(part) is not None), looks + 1
    return Looked(ranks, looks, named, windows.size)


def so_far(trace: Trace, stop: int) -> Trace:
    """The trace of its first steps, without warm-up: a window is copied from it, no more."""
    blocks = np.array([[trace.run.warmup_steps, stop]])
    its = {name: getattr(trace, name)[:, :stop] for name in ("stamps", "samples", "losses")}
    return replace(trace, **its, steps_completed=np.full(len(trace.stamps), stop), blocks=blocks)


def _looked_at(each: tuple[int, int]) -> Looked:
    return looked_at(*each)


def runs(share: float) -> Iterator[tuple[int, int]]:
    """The seed and the ranks of each run of an hour."""
    for ranks, hours in HOURS.items():
        yield from ((seed, ranks) for seed in range(round(share * hours)))


def main() -> int:
    """Prints the looks and who was named, by ranks."""
    every = [*runs(float(sys.argv[1]) if sys.argv[1:] else 1.0)]
    with ProcessPoolExecutor(2) as pool:
        made = []
        for each in pool.map(_looked_at, every):
            made.append(each)
            if each.named:
                print(f"named in {each.named} of {each.looks} looks: {each}", flush=True)
    for ranks in HOURS:
        its = [each for each in made if each.ranks == ranks]
        looks, named = sum(each.looks for each in its), sum(each.named for each in its)
        sizes = sorted({each.size for each in its})
        print(f"{ranks} ranks: {ranks * len(its)} rank-hours, {looks} looks, {named} named; windows of {sizes} steps")
    total = sum(each.named for each in made)
    print(f"{sum(each.ranks for each in made)} rank-hours: {total} named")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
