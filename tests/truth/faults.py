"""The faults that are made, and what the ledger must say of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parse.ledger.causes import Cause
from parse.ledger.telemetry import STANDSTILL
from parse.ledger.verdict import PERSISTENT, ROTATING, TRANSIENT, ShapeKind
from tests.truth.cases import NOBODY, Sweep
from tests.truth.fault_schedule import NOTHING, WARMUP, WINDOW, Fault, parse_faults

WORKLOAD = f"{Path(__file__).with_name('fault_workload.py')}:FaultyWork"
CORE = (Cause.CHILDREN, Cause.QUEUED)
"""What a busy loop shows that the rank itself started."""
STANDS = (Cause.STOPPED, STANDSTILL)
PAGES = ("minor page faults of a rank",)
STEP_OPEN = 3
"""So many steps a beginning or an end may be off: load moves it."""
SLOPE_OPEN = 0.25
"""So far, as a part of it, a slope may be off."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One right finding. `shape` None: it makes no difference. `run_positions` are the places in a window, run by run,
    of the steps that must be named. `symptoms`: telemetry must show one of them."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    phase: str
    node: str = ""
    shape: ShapeKind | None = ShapeKind.CONSTANT
    period: int | None = None
    step: int | None = None
    per_100_steps: float | None = None
    run_positions: tuple[tuple[int, ...], ...] = ()
    symptoms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FaultCase:
    """A fault as `FAULT` has it, and its findings, in any order."""

    name: str
    fault: str
    answers: tuple[Answer, ...] = ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        return parse_faults(self.fault)

    @property
    def window(self) -> list[object] | None:
        """Its only fault as the scripts' plans have it; None where there is none."""
        its = self.faults
        return [its[0].phase, its[0].ranks[0], its[0].amount] if its else None


def _late(rank: int, phase: str, **more: object) -> Answer:
    return Answer(**({"kinds": (PERSISTENT,), "ranks": (rank,), "phase": phase} | more))  # type: ignore[arg-type]  # of mixed types


def _now_and_then(rank: int, phase: str, period: int) -> Answer:
    return _late(rank, phase, kinds=(TRANSIENT,), shape=ShapeKind.PERIODIC, period=period)


def _once(rank: int, phase: str, *run_positions: tuple[int, ...]) -> Answer:
    return _late(rank, phase, kinds=(TRANSIENT,), shape=None, run_positions=run_positions, symptoms=STANDS)


def _case(name: str, fault: str, *answers: Answer) -> FaultCase:
    return FaultCase(name=name, fault=fault, answers=answers)


def _busy(name: str, rank: int, *nice: int) -> FaultCase:
    """Busy loops on a rank's core."""
    loops = "+".join(f"busy:run:{each}@{rank}" for each in nice)
    return _case(name, loops, _late(rank, "compute", shape=None, symptoms=CORE))


BEGINS = WINDOW // 2
EITHER = (PERSISTENT, TRANSIENT)

REAL = (
    _busy("busy loop on a rank's core", 1, 0),
    _busy("two busy loops", 2, 0, 0),
    _busy("three busy loops", 1, 0, 0, 0),
    _case("stopped for 2 s in one of two runs", "stop:compute:2000@1/first40", _once(1, "compute", (40,), ())),
    _case(
        "stopped for 2 s once in each run", "stop:compute:2000@2/first40+stop:update:2000@2/second60",
        _once(2, "compute", (40,), ()), _once(2, "optimizer", (), (61,)),
    ),
    _case("storm of page faults", "faults:compute:2500@1", _late(1, "compute", symptoms=PAGES)),
    _case("slow reader", "sleep:data:9@1", _late(1, "data")),
    _case("file not in the cache", "read:data:4@3", _late(3, "data")),
    _case("garbage every 20 steps", "collect:compute:200000@0/every20", _now_and_then(0, "compute", 20)),
    _case("checkpoint every 20 steps", "save:update:4@0/every20", _now_and_then(0, "optimizer", 20)),
    _case("4 ms every 10 steps", "burn:compute:4@2/every10", _now_and_then(2, "compute", 10)),
    _case(
        "growing to 8 ms", "burn:compute:8@1/grow",
        _late(1, "compute", shape=ShapeKind.GROWING, per_100_steps=8.0 * WINDOW / (WINDOW - 1)),
    ),
    _case(
        "6 ms from a step on", f"burn:compute:6@3/from{BEGINS}",
        _late(3, "compute", kinds=EITHER, shape=ShapeKind.BEGINS, step=WARMUP + BEGINS),
    ),
    _case(
        "two ranks by turns", "sleep:compute:10.5@1.2/turns",
        Answer(kinds=(ROTATING,), ranks=(1, 2), phase="compute", shape=None),
    ),
    _case(
        "two at once", "sleep:data:10@0+sleep:compute:15@3", _late(0, "data"), _late(3, "compute"),
    ),
    _case(
        "a whole node", "sleep:compute:8@2.3",
        Answer(kinds=(PERSISTENT,), ranks=(2, 3), node="node2", phase="compute"),
    ),
    _case("compute 15 % longer", "burn:compute:3.6@1", _late(1, "compute")),
    *[_case("nothing, between faults", NOTHING)] * 3,
)  # fmt: skip
"""On two nodes of two ranks."""

EQUAL = (
    Sweep(backend="mpi", varied="compute_ms", cases={"10": NOBODY}, repeats=2),
    Sweep(backend="torch-ddp", workload=WORKLOAD, varied="FAULT", cases={NOTHING: NOBODY}, repeats=2),
    Sweep(backend="torch-ddp", workload="mlp", varied="width", cases={"256": NOBODY}, repeats=2),
)
"""Runs of equal ranks."""
