"""Causes of delay that are built into a training script and the `delay` workload, and what must be said of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAUSES = ("evaluation", "checkpoint")
CORE = "something else runs on its core"
"""What is said in error of causes that no other process makes."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """Who is held up. `always`: all the time, which shows in its phases against the others', else in the stretches that
    it notes. `phases`: each would be right, the first is that of its stretches. `says`: a pattern that the sentence
    must have. `behind_pauses`: in the first steps behind pauses alone."""

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    always: bool = False
    kinds: tuple[str, ...] = ()
    period: int | None = None
    says: str = ""
    behind_pauses: bool = False


@dataclass(frozen=True, kw_only=True)
class CauseCase:
    """What is run: the script with `arguments`, or the `delay` workload with a `compute_ms`. `says_not` and `says` are
    of the whole sentence, `nodes` those of the sweep."""

    name: str
    arguments: str = ""
    answers: tuple[Late, ...] = ()
    compute_ms: str = ""
    nodes: str = "2"
    says: str = ""
    says_not: str = ""
    quota: bool = False

    @property
    def scales(self) -> bool:
        """Whether it is measured on several numbers of ranks."""
        return "," in self.nodes


def _case(name: str, arguments: str, *answers: Late, **more: object) -> CauseCase:
    return CauseCase(name=name, arguments=arguments, answers=answers, **more)  # type: ignore[arg-type]  # of mixed types


def _slept(name: str, when: str, rank: int, ms: float, phase: str = "compute", **more: object) -> CauseCase:
    """A sleep in a phase of one rank, in steps that `when` names."""
    late = Late(ranks=(rank,), phases=(phase,), **more)  # type: ignore[arg-type]  # of mixed types
    return _case(name, f"--faults sleep:{phase}:{ms}@{rank}/{when}", late, says_not=CORE)


def _evaluated(way: str) -> CauseCase:
    late = Late(ranks=(0,), phases=("evaluation",))
    arguments = f"--faults evaluate:evaluation:60@0 --evaluate {way}"
    return _case(f"evaluation on rank 0 by the {way}", arguments, late)


IN_LOADER = r"between update and next forward.*(None of that is|(0\.\d+ ms|[\d.]+ µs) of that are) in its loader"
THREADS = r"threads? of its own|own threads?|Python thread|other (compute )?threads?|GIL"
WORK = r"more samples|samples a step|larger batch|longer batch|more work|batch\w* [^.]*larger"

CAUSES: Sequence[CauseCase] = (
    _case(
        "CPU quota of 20 %", "--faults quota:run:20@2 --work burn --fixed 20",
        Late(ranks=(2,), phases=("compute", "release"), always=True, says="quota|throttl"), quota=True, says_not=CORE,
    ),
    _case(
        "thread that holds the GIL", "--faults gil:run:1@1",
        Late(ranks=(1,), phases=("compute", "release"), always=True, says=THREADS), says_not=CORE,
    ),
    _case(
        "two threads on one core", "--faults threads:run:2@2 --work matmul",
        Late(ranks=(2,), phases=("compute",), always=True, says=THREADS), says_not=CORE,
    ),
    _case(
        "fsync in each step", "--faults fsync:compute:4@3",
        Late(ranks=(3,), phases=("compute",), says="disk|storage|I/O|blocked|fsync"), says_not=CORE,
    ),
    _case(
        "stopped for 5 ms time and again", "--faults stop:run:5@1",
        Late(ranks=(1,), phases=("compute", "release"), always=True, says="stopped|SIGSTOP|blocked"), says_not=CORE,
    ),
    _case(
        "one slow worker of two", "--faults worker:data:70@2 --workers 2",
        Late(ranks=(2,), phases=("data",), always=True, says="data|worker"), says_not=CORE,
    ),
    _case(
        "one slow worker of four", "--faults worker:data:150@1 --workers 4",
        Late(ranks=(1,), phases=("data",), always=True, says="data|worker"), says_not=CORE,
    ),
    _case(
        "two ranks, every 7 and every 10 steps",
        "--faults sleep:compute:20@1/every7+sleep:compute:20@2/every10",
        Late(ranks=(1,), phases=("compute",), period=7), Late(ranks=(2,), phases=("compute",), period=10),
        says_not=CORE,
    ),
    _slept("every second step", "every2", 2, 20, period=2),
    _slept("every third step", "every3", 1, 20, period=3),
    _slept("half of the steps by chance", "share50", 3, 20),
    _slept("a fifth of the steps by chance", "share20", 0, 20),
    _slept("late data in every second step", "every2", 1, 20, "data", period=2),
    *[_evaluated(way) for way in ("inner", "wrapper", "function")],
    _case(
        "checkpoint on rank 0", "--faults save:checkpoint:40@0",
        Late(ranks=(0,), phases=("checkpoint",)), says_not=CORE,
    ),
    _case(
        "late in the first step after each evaluation",
        "--steps 280 --faults evaluate:evaluation:20@-1+sleep:compute:40@1/after25",
        Late(ranks=(1,), phases=("compute",), behind_pauses=True), says="in the first step behind each of 10 pauses",
        says_not=CORE,
    ),
    _case(
        "its own code before the forward", "--faults sleep:before:12@1",
        Late(ranks=(1,), phases=("before", "data"), says=IN_LOADER),
        says_not=CORE,
    ),
    _case(
        "late at a metric's all-reduce every 5 steps", "--faults sleep:metric:20@3/every5 --metric-every 5",
        Late(ranks=(3,), phases=("metric", "optimizer", "release")), says_not=CORE,
    ),
    _case(
        "uneven lengths on all ranks", "--lengths uneven --fixed 18", says=r"same ranks are late in the same steps",
        says_not=CORE,
    ),
    _case(
        "longer last batch of an epoch", "--faults batch:data:2@3/every20",
        Late(ranks=(3,), phases=("compute",), always=True, period=20, says=WORK), says_not=CORE,
    ),
    _case(
        "more samples on one rank", "--faults batch:data:0.5@1",
        Late(ranks=(1,), phases=("compute",), always=True, says=WORK), says_not=CORE,
    ),
    _case(
        "garbage collection every 10 steps", "--faults collect:compute:100000@1/every10",
        Late(ranks=(1,), phases=("compute",), period=10, says="Python collects its garbage"), says_not=CORE,
    ),
    _slept("slow optimizer", "", 1, 6, "optimizer"),
    _case(
        "memory hog", "--faults hog:compute:40@1",
        Late(ranks=(1,), phases=("compute",), says="page faults|memory"), says_not=CORE,
    ),
    _case(
        "takes turns every 30 steps", "--faults sleep:compute:15@0/blocks30",
        Late(ranks=(0, 1, 2, 3), phases=("compute",), kinds=("rotating",), period=30), says_not=CORE,
    ),
    _case(
        "two at once in every step", "--faults sleep:data:8@0+sleep:compute:14@3",
        Late(ranks=(3,), phases=("compute",)), Late(ranks=(0,), phases=("data",)), says_not=CORE,
    ),
    _case(
        "every second step, and every third of another",
        "--faults sleep:compute:20@0/every2+sleep:compute:12@3/every3",
        Late(ranks=(0,), phases=("compute",), period=2), Late(ranks=(3,), phases=("compute",), period=3), says_not=CORE,
    ),
    _slept("from step 75 on", "from75", 2, 12),
    _slept("growing to 16 ms", "grow", 1, 16),
    _case("strong scaling with a fixed part", "--fixed 13 --shrinks 47", nodes="1,2,4", says="shrink"),
    CauseCase(
        name="delay, every second step", compute_ms="20+20@rank=2;every=2",
        answers=(Late(ranks=(2,), phases=("compute",), period=2),), says_not=CORE,
    ),
    CauseCase(
        name="delay, every 7 and every 10 steps", compute_ms="20+20@rank=1;every=7+20@rank=2;every=10",
        answers=(
            Late(ranks=(1,), phases=("compute",), period=7), Late(ranks=(2,), phases=("compute",), period=10),
        ), says_not=CORE,
    ),
    _case("nothing", ""),
    _case("nothing, with workers", "--workers 2"),
    _case("nothing, a metric every 5 steps", "--metric-every 5"),
    _case("uneven lengths, equal on all", "--lengths common --fixed 18"),
    _case("evaluation on all ranks", "--faults evaluate:evaluation:60@-1"),
)  # fmt: skip
