"""Whose delay it was in the first place, held against simulated steps of known graphs: `python -m tests.truth.graphs`.

Meshes of 8 to 4,096 ranks with one delay each, or none, are judged by the ledger. Beside that stands the naive answer,
the rank for which others wait the longest at collectives and messages, and how often it is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parse.graph.chain import last_of_needs
from parse.graph.peers import Peers
from parse.graph.reading import GraphReader
from parse.graph.roots import compared
from parse.ledger.breakdown import step_breakdown
from parse.ledger.straggler import verdict
from tests.unit.simulated import MS, draw_clocks
from tests.unit.simulated_graph import Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.traces import make_run

MESHES = (
    Mesh(dp=8), Mesh(dp=4, tp=2), Mesh(pp=2, dp=2, tp=2), Mesh(pp=4, dp=2), Mesh(dp=8, ep=2), Mesh(pp=2, dp=4, tp=4),
    Mesh(pp=4, dp=4, tp=2), Mesh(pp=8, dp=4, tp=2), Mesh(pp=4, dp=8, tp=4), Mesh(dp=16, tp=8), Mesh(pp=16, dp=2, tp=4),
)  # fmt: skip
LARGE = (Mesh(pp=4, dp=32, tp=8), Mesh(pp=16, dp=32, tp=8))
"""1,024 and 4,096 ranks, once each."""
STEPS, LARGE_STEPS = 60, 20
WORTH = 0.02
"""Delays that cost a smaller share of a step are not counted: they may be below the limit."""
ALLOWED = 0.03
"""This share of answers may be wrong."""
NEAR_MS, NEAR = 1.0, 0.05
"""A cost is right within this."""


@dataclass(frozen=True)
class Answer:
    """One case: the rank that is late, None where none is, the ledger's ranks, cost in ms and the naive answer."""

    mesh: Mesh
    rank: int | None
    share: float
    cost: float
    named: tuple[int, ...]
    named_cost: float
    naive: int
    adds_up: bool

    @property
    def is_right(self) -> bool:
        return self.named == (() if self.rank is None else (self.rank,))

    @property
    def is_near(self) -> bool:
        return abs(self.named_cost - self.cost) <= max(NEAR_MS, NEAR * self.cost)


def answer(mesh: Mesh, generator: np.random.Generator, delayed: bool, steps: int) -> Answer:
    """A training on that mesh, with a delay drawn by chance, or without one."""
    model = Model(
        micro_batches=2 * mesh.pp if mesh.pp > 1 else 4, layers=1 if mesh.ranks > 64 else 2,
        eager=bool(generator.integers(2)), clips=bool(generator.integers(2)),
    )  # fmt: skip
    rank = int(generator.integers(mesh.ranks))
    phase = str(generator.choice(["data", "forward", "backward", "optimizer"]))
    delay = Delay(ranks=(rank,), phase=phase, ns=int(generator.integers(5, 26)) * MS)
    nodes = max(1, mesh.ranks // 8)
    run = make_run(ranks_per_node=mesh.ranks // nodes, nodes=nodes, measured_steps=steps)
    delays = [delay] if delayed else []
    truth = simulate_graph(mesh, model, generator, run=run, delays=delays, clocks=draw_clocks(generator, nodes))
    breakdown = step_breakdown(truth.trace)
    judged = verdict(breakdown)
    cost = truth.costs_ms()[0] if delayed else 0.0
    terms_ns, steps_ns = breakdown.rank_ns.sum(axis=1), np.diff(_ends(truth)).mean(axis=1)
    return Answer(
        mesh=mesh, rank=rank if delayed else None, share=cost * 1e6 / breakdown.step_ns, cost=cost,
        named=judged.ranks, named_cost=judged.costs, naive=naive(truth),
        adds_up=bool(abs(terms_ns - steps_ns).max() < 1),
    )  # fmt: skip


def _ends(truth: SimulatedGraph) -> np.ndarray:
    first, stop = truth.trace.blocks[0].tolist()
    ends: np.ndarray = truth.trace.global_stamps(first - 1, stop)[:, :, 5]
    return ends


def naive(truth: SimulatedGraph) -> int:
    """The rank that comes last where others wait, by how long they do, of the first steps."""
    first, stop = truth.trace.blocks[0].tolist()
    stop = min(stop, first + 10)
    steps = next(iter(GraphReader(truth.trace).read(first, truth.trace.global_stamps(first - 1, stop))))
    its = compared(Peers(steps), steps)
    last = last_of_needs(its, np.ones(its.work.steps, np.bool_))
    needs = its.peers.graph.wait_need
    waits = its.recorded.waited.sum(axis=1)[needs >= 0]
    return int(np.bincount(last[needs[needs >= 0]], weights=waits, minlength=its.peers.ranks).argmax())


def report(answers: Sequence[Answer]) -> bool:
    """Prints what was right; whether that is enough."""
    late = [each for each in answers if each.rank is not None and each.share >= WORTH]
    equal = [each for each in answers if each.rank is None]
    slack = [each for each in answers if each.rank is not None and each.share < 0.001]
    print(f"{'mesh':42} cases  root right  naive right  cost right")
    for mesh in dict.fromkeys(each.mesh for each in late):
        its = [each for each in late if each.mesh == mesh]
        counts = [sum(each.is_right for each in its), sum(each.naive == each.rank for each in its)]
        counts.append(sum(each.is_near for each in its if each.is_right))
        print(f"{mesh!s:42} {len(its):5} {counts[0]:11} {counts[1]:12} {counts[2]:11}")
    right, near = (np.mean([getattr(each, name) for each in late]) for name in ("is_right", "is_near"))
    wrong_naive = np.mean([each.naive != each.rank for each in late])
    quiet = np.mean([each.is_right for each in equal])
    print(f"root named: {right:.1%} of {len(late)}; its cost within {NEAR_MS} ms or {NEAR:.0%}: {near:.1%}")
    print(f"who comes last is wrong in {wrong_naive:.1%}")
    print(f"of equal ranks nobody is named: {quiet:.1%} of {len(equal)}")
    named = sum(bool(each.named) for each in slack)
    print(f"delays that cost nothing, since what they hold has slack: {len(slack)}, of which {named} are named")
    print(f"terms add up: {sum(each.adds_up for each in answers)} of {len(answers)}")
    enough = 1 - ALLOWED
    return bool(right >= enough and quiet >= enough and near >= enough and all(each.adds_up for each in answers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10, help="cases with a delay of each mesh, and as many without")
    parser.add_argument("--no-large", action="store_true", help="leave out 1,024 and 4,096 ranks")
    arguments = parser.parse_args()
    generator, begun = np.random.default_rng(2016), time.perf_counter()
    answers = [
        answer(mesh, generator, delayed, STEPS)
        for mesh in MESHES
        for delayed in (True, False)
        for _ in range(arguments.cases)
    ]
    if not arguments.no_large:
        answers += [answer(mesh, generator, True, LARGE_STEPS) for mesh in LARGE]
    enough = report(answers)
    print(f"{time.perf_counter() - begun:.0f} s")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
