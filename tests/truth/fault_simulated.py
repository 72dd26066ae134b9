"""The same questions to simulated runs, up to 512 ranks: faults of random sizes on random ranks, and none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpc.model.timestamps import GRADS_READY
from parse.ledger.types import PERSISTENT, ROTATING, TRANSIENT, ShapeKind
from tests.truth.fault_schedule import NOTHING, WARMUP, WINDOW, position_of
from tests.truth.fault_verdicts import Judged, judge
from tests.truth.faults import Answer, FaultCase
from tests.truth.windows import ledger_of
from tests.unit.simulated import JITTERS, MS, Simulated, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run

SIZES = ((2, 2), (2, 8), (4, 1), (8, 8), (64, 8))
"""Nodes and ranks per node."""
RUNS = 2
PHASES = {"data": "data", "compute": "backward", "update": "optimizer", "transfer": "leave"}
CAUSES = {"data": "data", "compute": "compute", "update": "optimizer", "transfer": "release"}


def runs_of(case: FaultCase, nodes: int, ranks_per_node: int, seed: list[int], runs: int = RUNS) -> list[Simulated]:
    """Runs of equal ranks with that fault."""
    generator = np.random.default_rng(seed)
    how = {
        "jitter": str(generator.choice(JITTERS)), "spread": float(generator.choice([0.02, 0.05, 0.1])),
        "common": float(generator.choice([0.0, 0.05])), "memory": float(generator.choice([0.0, 0.3])),
    }  # fmt: skip
    made = []
    for repeat in range(1, runs + 1):
        run = make_run(
            nodes=nodes, ranks_per_node=ranks_per_node, warmup_steps=WARMUP, measured_steps=WINDOW, repeat=repeat
        )
        durations = equal_ranks(generator, run.ranks, run.steps, **how)  # type: ignore[arg-type]  # of mixed types
        for fault in case.faults:
            weights = np.zeros((run.ranks, run.steps))
            for rank in fault.ranks:
                weights[rank] = [fault.weight(rank, position_of(step), repeat) for step in range(run.steps)]
            name = PHASES[fault.phase]
            longer = getattr(durations, name) + np.rint(fault.amount * MS * weights).astype(np.int64)
            durations = replace(durations, **{name: longer})
        made.append(simulate(run, durations, draw_clocks(generator, nodes), generator, bound_ns=1e4))
    return made


def draw(kind: str, nodes: int, ranks_per_node: int, generator: np.random.Generator) -> FaultCase:
    """A case of this kind, its size and ranks by chance."""
    ranks = nodes * ranks_per_node
    rank = int(generator.integers(ranks))
    return MAKERS[kind](rank, nodes, ranks_per_node, generator)


def _amount(generator: np.random.Generator, low: float, high: float) -> float:
    return round(float(np.exp(generator.uniform(np.log(low), np.log(high)))), 2)


def _phase(generator: np.random.Generator) -> str:
    return str(generator.choice([*PHASES]))


def _answer(rank: int, phase: str, **more: object) -> Answer:
    return Answer(**({"kinds": (PERSISTENT,), "ranks": (rank,), "phase": CAUSES[phase]} | more))  # type: ignore[arg-type]  # of mixed types


def _constant(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    phase = _phase(generator)
    return FaultCase(
        name="one rank, always", fault=f"sleep:{phase}:{_amount(generator, 0.3, 6)}@{rank}",
        answers=(_answer(rank, phase),),
    )  # fmt: skip


def _node(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    phase, node = _phase(generator), rank // per_node
    ranks = tuple(range(node * per_node, (node + 1) * per_node))
    return FaultCase(
        name="one node, always",
        fault=f"sleep:{phase}:{_amount(generator, 0.6, 6)}@{'.'.join(map(str, ranks))}",
        answers=(_answer(rank, phase, ranks=ranks, node=f"n{node}" if per_node > 1 else ""),),
    )  # fmt: skip


def _periodic(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    phase, period = _phase(generator), int(generator.integers(4, 26))
    shape = {"kinds": (TRANSIENT,), "shape": ShapeKind.PERIODIC, "period": period}
    return FaultCase(
        name="one rank, every so many steps",
        fault=f"sleep:{phase}:{_amount(generator, 1.5, 20)}@{rank}/every{period}",
        answers=(_answer(rank, phase, **shape),),
    )  # fmt: skip


def _changing(kind: str) -> Callable[..., FaultCase]:
    def made(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
        phase, amount = _phase(generator), _amount(generator, 1.5, 10)
        slope = amount * WINDOW / (WINDOW - 1) * (1 if kind == "grow" else -1)
        shape = ShapeKind.GROWING if kind == "grow" else ShapeKind.FALLING
        return FaultCase(
            name=f"one rank, {kind}ing", fault=f"sleep:{phase}:{amount}@{rank}/{kind}",
            answers=(_answer(rank, phase, shape=shape, per_100_steps=slope),),
        )  # fmt: skip

    return made


def _from_on(kind: str) -> Callable[..., FaultCase]:
    def made(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
        phase, at = _phase(generator), int(generator.integers(25, 76))
        shape = ShapeKind.BEGINS if kind == "from" else ShapeKind.ENDS
        return FaultCase(
            name=f"one rank, {kind} a step", fault=f"sleep:{phase}:{_amount(generator, 1, 10)}@{rank}/{kind}{at}",
            answers=(_answer(rank, phase, kinds=(PERSISTENT, TRANSIENT), shape=shape, step=WARMUP + at),),
        )  # fmt: skip

    return made


def _turns(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    ranks = nodes * per_node
    phase, other = _phase(generator), (rank + int(generator.integers(1, ranks))) % ranks
    pair = tuple(sorted((rank, other)))
    return FaultCase(
        name="two ranks by turns",
        fault=f"sleep:{phase}:{_amount(generator, 1, 10)}@{pair[0]}.{pair[1]}/turns",
        answers=(_answer(rank, phase, kinds=(ROTATING,), ranks=pair, shape=None),),
    )  # fmt: skip


def _two(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    ranks = nodes * per_node
    other = (rank + int(generator.integers(1, ranks))) % ranks
    first, second = generator.choice(["data", "compute", "update"], 2, replace=False)
    amount = _amount(generator, 1.5, 8)
    more = amount * float(generator.uniform(1.3, 3))
    return FaultCase(
        name="two ranks at once", fault=f"sleep:{first}:{amount}@{rank}+sleep:{second}:{more:.2f}@{other}",
        answers=(_answer(rank, str(first)), _answer(other, str(second))),
    )  # fmt: skip


def _once(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    phase, at = _phase(generator), int(generator.integers(3, 97))
    later = phase in ("update", "transfer")  # it shows one step later
    return FaultCase(
        name="one rank, once in one run", fault=f"sleep:{phase}:{_amount(generator, 500, 5000)}@{rank}/first{at}",
        answers=(_answer(rank, phase, kinds=(TRANSIENT,), shape=None, run_positions=((at + later,), ())),),
    )  # fmt: skip


def _nothing(rank: int, nodes: int, per_node: int, generator: np.random.Generator) -> FaultCase:
    return FaultCase(name="nothing", fault=NOTHING)


MAKERS: dict[str, Callable[..., FaultCase]] = {
    "constant": _constant, "node": _node, "periodic": _periodic, "grow": _changing("grow"), "fall": _changing("fall"),
    "from": _from_on("from"), "until": _from_on("until"), "turns": _turns, "two": _two, "once": _once,
    "nothing": _nothing,
}  # fmt: skip


def judged(kind: str, size: int, number: int) -> Judged:
    """The ledger of one drawn point held against its answer; below the limit where the same ranks without a fault have
    a limit that is larger than its effect."""
    nodes, ranks_per_node = SIZES[size]
    seed = [[*MAKERS].index(kind), size, number]
    case = draw(kind, nodes, ranks_per_node, np.random.default_rng(seed))
    runs = runs_of(case, nodes, ranks_per_node, seed)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        entries = [made.global_ns[:, WARMUP:, GRADS_READY] / 1e6 for made in runs]
        ledger = ledger_of([made.trace for made in runs], Path(folder) / "late")
        result = judge(case, ledger, [entry - entry.min(axis=0) for entry in entries])
        if not case.answers or not result.wrong:
            return result
        quiet = runs_of(FaultCase(name="", fault=NOTHING), nodes, ranks_per_node, seed)
        limit = ledger_of([made.trace for made in quiet], Path(folder) / "quiet").verdict.limit
    return replace(result, limit=limit)
