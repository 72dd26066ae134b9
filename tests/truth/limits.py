"""Ranks that are as late as the detection limit that a ledger states, simulated: `python -m tests.truth.limits`.

For each point equal ranks are drawn, whose ledger has a limit; then other runs of the same law, in which one rank is as
late as that in every step. Nine of ten are to be named. Ends with 1 where fewer than 85 or more than 95 of 100 are, or
somebody is named in more than 3 of 100 points of equal ranks.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc.model.spec import RunSpec
from parse.ledger.breakdown import StepBreakdown, step_breakdown
from parse.ledger.verdict import PERSISTENT, Nobody
from tests.unit.ledger_traces import stragglers
from tests.unit.simulated import JITTERS, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run

NAMED_AT_LEAST, NAMED_AT_MOST, ACCUSED_AT_MOST = 0.85, 0.95, 0.03
SPREADS, MEMORIES = (0.02, 0.05, 0.1), (0.0, 0.3)
BOUND_NS = 1e3


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a point, and how many of them are drawn."""

    nodes: int
    ranks_per_node: int
    steps: int
    runs: int
    points: int = 100


SIZES = (
    Size(nodes=2, ranks_per_node=1, steps=100, runs=2), Size(nodes=2, ranks_per_node=2, steps=100, runs=2),
    Size(nodes=2, ranks_per_node=2, steps=100, runs=1), Size(nodes=2, ranks_per_node=2, steps=60, runs=5),
    Size(nodes=4, ranks_per_node=4, steps=60, runs=3), Size(nodes=8, ranks_per_node=8, steps=100, runs=2),
    Size(nodes=64, ranks_per_node=8, steps=100, runs=2, points=60),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Count:
    """Points drawn, those of equal ranks in which somebody is accused, those with a limit, the late ranks named."""

    drawn: int = 0
    accused: int = 0
    limited: int = 0
    named: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            drawn=self.drawn + other.drawn, accused=self.accused + other.accused,
            limited=self.limited + other.limited, named=self.named + other.named,
        )  # fmt: skip

    @property
    def holds(self) -> bool:
        """Whether as many are named as the limit says, and nobody else."""
        named = self.named / max(1, self.limited)
        return NAMED_AT_LEAST <= named <= NAMED_AT_MOST and self.accused <= ACCUSED_AT_MOST * self.drawn


def count(size: Size, points: int) -> Count:
    """What becomes of so many points of that size; the same every time."""
    total = Count()
    generator = np.random.default_rng([size.nodes, size.ranks_per_node, size.steps, size.runs])
    run = make_run(nodes=size.nodes, ranks_per_node=size.ranks_per_node, warmup_steps=10, measured_steps=size.steps)
    for point in range(points):
        law: dict[str, Any] = {
            "jitter": JITTERS[point % len(JITTERS)], "spread": float(generator.choice(SPREADS)),
            "memory": float(generator.choice(MEMORIES)),
        }  # fmt: skip
        alike, *_ = stragglers(drawn(generator, run, size.runs, **law))
        limit = alike.limit if isinstance(alike, Nobody) else None
        total += Count(drawn=1, accused=bool(alike.ranks), limited=limit is not None)
        if limit is not None:
            late = int(generator.integers(run.ranks))
            first, *_ = stragglers(drawn(generator, run, size.runs, late, limit, **law))
            total += Count(named=(first.kind, first.ranks) == (PERSISTENT, (late,)))
    return total


def drawn(
    generator: np.random.Generator, run: RunSpec, runs: int, late: int | None = None, by_ms: float = 0.0, **law: Any
) -> list[StepBreakdown]:
    """Runs of equal ranks, but for one that is late in every step."""
    where = np.broadcast_to(np.arange(run.ranks)[:, None] == (-1 if late is None else late), (run.ranks, run.steps))
    return [
        step_breakdown(
            simulate(
                run,
                equal_ranks(generator, run.ranks, run.steps, **law).longer("backward", where, round(by_ms * 1e6)),
                draw_clocks(generator, run.nodes), generator, bound_ns=BOUND_NS,
            ).trace
        )
        for _ in range(runs)
    ]  # fmt: skip


def main() -> int:
    """Prints a line for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=float, default=1.0, metavar="N", help="so many times as many points")
    times = parser.parse_args().times
    total = Count()
    print("nodes × ranks  steps  runs  points  accused   named of those with a limit")
    for size in SIZES:
        of_size = count(size, round(size.points * times))
        total += of_size
        print(
            f"{size.nodes:5} × {size.ranks_per_node:<5}  {size.steps:5}  {size.runs:4}  {of_size.drawn:6}  "
            f"{of_size.accused:7}   {of_size.named} of {of_size.limited}, {_percent(of_size)}",
            flush=True,
        )
    print(f"all: {total.named} of {total.limited}, {_percent(total)}; accused {total.accused} of {total.drawn}")
    return 0 if total.holds else 1


def _percent(counted: Count) -> str:
    return f"{100 * counted.named / counted.limited:.1f} %" if counted.limited else "no limit"


if __name__ == "__main__":
    sys.exit(main())
