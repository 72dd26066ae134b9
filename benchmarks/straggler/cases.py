"""The trainings of the benchmark: which are made, and who is delayed in them. A case without delays is a control."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

PHASES = ("data", "forward", "backward", "optimizer", "between", "collective")
PATTERNS = ("persistent", "transient", "moving", "growing", "late")
TRAININGS = ("ddp", "fsdp2", "tensor", "pipeline", "accumulation", "workers", "evaluation", "checkpoint", "ring")


@dataclass(frozen=True, kw_only=True)
class Delay:
    """A sleep of `ms` in a phase of `ranks`, in the steps of its pattern.

    `persistent`: in every step. `transient`: in every fourth. `moving`: each rank of `ranks` in its turn, a step each.
    `growing`: from nothing to `2 * ms` at the end. `late`: in every step of the second half.
    """

    ranks: tuple[int, ...]
    phase: str
    ms: float
    pattern: str = "persistent"

    def ms_in(self, rank: int, step: int, steps: int) -> float:
        """ms that the rank is to sleep in a step of a training of so many steps."""
        if rank not in self.ranks:
            return 0.0
        share = {
            "persistent": 1.0,
            "transient": float(step % 4 == 3),
            "moving": float(self.ranks[step % len(self.ranks)] == rank),
            "growing": 2.0 * step / (steps - 1),
            "late": float(2 * step >= steps),
        }
        return self.ms * share[self.pattern]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training. `more`: what a rank works longer without delaying anybody.

    `hidden`: ms that each batch of rank 0's worker takes longer, behind the step. `pace`: batches come on a clock that
    all ranks share, one in so many ms. `jitter`: ms up to which the work of all ranks is longer by chance. `aside`: ms
    that a thread of rank 0 takes beside each fifth step.
    """

    name: str
    training: str = "ddp"
    ranks: int = 2
    steps: int = 45
    warmup: int = 5
    delays: tuple[Delay, ...] = ()
    more: tuple[Delay, ...] = ()
    hidden: float = 0.0
    pace: float = 0.0
    jitter: float = 0.0
    aside: float = 0.0
    work: str = "sleep"
    """What work is: `sleep`, or `compute`, so much CPU time."""
    scored_ms: bool = True
    """Whether the recorded sleeps are what the steps take longer: not where a loader's worker reads ahead."""

    @property
    def control(self) -> bool:
        return not self.delays

    def plan(self) -> dict[str, Any]:
        """What the training reads."""
        return asdict(self)


def case_of(plan: dict[str, Any]) -> Case:
    """The case of a plan."""
    delays = {
        name: tuple(Delay(**{**each, "ranks": tuple(each["ranks"])}) for each in plan[name])
        for name in ("delays", "more")
    }
    return Case(**{**plan, **delays})


def computing(case: Case) -> Case:
    """The same with work that computes, which takes longer where cores are shared."""
    return replace(case, name=f"{case.name}-computing", work="compute", pace=2 * case.pace)


def _delay(rank: int, phase: str, ms: float, pattern: str = "persistent") -> tuple[Delay, ...]:
    return (Delay(ranks=(rank,), phase=phase, ms=ms, pattern=pattern),)


_DELAYED = (
    Case(name="ddp-data", delays=_delay(1, "data", 40)),
    Case(name="ddp-forward", ranks=4, delays=_delay(2, "forward", 40)),
    Case(name="ddp-backward", delays=_delay(1, "backward", 50)),
    Case(name="ddp-optimizer", delays=_delay(0, "optimizer", 40)),
    Case(name="ddp-between", ranks=3, delays=_delay(1, "between", 40)),
    Case(name="ddp-collective", delays=_delay(1, "collective", 40)),
    Case(name="ddp-data-transient", ranks=3, delays=_delay(2, "data", 80, "transient")),
    Case(name="ddp-forward-transient", delays=_delay(1, "forward", 80, "transient")),
    Case(
        name="ddp-forward-moving", ranks=3, delays=(Delay(ranks=(0, 1, 2), phase="forward", ms=60, pattern="moving"),)
    ),
    Case(name="ddp-data-growing", delays=_delay(1, "data", 40, "growing")),
    Case(name="ddp-backward-growing", ranks=3, delays=_delay(0, "backward", 40, "growing")),
    Case(name="ddp-forward-late", delays=_delay(0, "forward", 60, "late")),
    Case(name="ddp-pair", ranks=4, delays=(Delay(ranks=(2, 3), phase="forward", ms=40),)),
    Case(name="ddp-two-at-once", ranks=4, delays=(*_delay(0, "forward", 70), *_delay(2, "data", 35))),
    Case(name="ddp-two-by-turns", ranks=3, delays=(*_delay(1, "forward", 30), *_delay(0, "data", 80, "transient"))),
    Case(name="fsdp2-forward", training="fsdp2", delays=_delay(1, "forward", 40)),
    Case(name="fsdp2-backward", training="fsdp2", delays=_delay(0, "backward", 40)),
    Case(name="fsdp2-data", training="fsdp2", ranks=3, delays=_delay(2, "data", 40)),
    Case(name="tensor-forward", training="tensor", delays=_delay(1, "forward", 40)),
    Case(name="tensor-backward", training="tensor", delays=_delay(0, "backward", 40)),
    Case(name="pipeline-forward", training="pipeline", ranks=4, delays=_delay(1, "forward", 40)),
    Case(name="pipeline-backward", training="pipeline", ranks=4, delays=_delay(2, "backward", 40)),
    Case(name="accumulation-forward", training="accumulation", delays=_delay(1, "forward", 60)),
    Case(name="accumulation-data", training="accumulation", ranks=3, delays=_delay(0, "data", 40)),
    Case(name="workers-data", training="workers", delays=_delay(1, "data", 110), scored_ms=False),
    Case(
        name="workers-data-transient", training="workers", delays=_delay(0, "data", 400, "transient"), scored_ms=False
    ),
    Case(name="evaluation-forward", training="evaluation", delays=_delay(1, "forward", 40)),
    Case(name="checkpoint-between", training="checkpoint", delays=_delay(0, "between", 80, "transient")),
    Case(name="ring-collective", training="ring", ranks=3, delays=_delay(1, "collective", 40)),
)
_CONTROLS = (
    Case(name="equal-ddp-2"),
    Case(name="equal-ddp-4", ranks=4),
    Case(name="equal-fsdp2", training="fsdp2"),
    Case(name="equal-tensor", training="tensor"),
    Case(name="equal-pipeline", training="pipeline", ranks=4),
    Case(name="equal-evaluation", training="evaluation"),
    Case(name="jitter", ranks=3, jitter=15),
    Case(name="balanced", more=(*_delay(0, "forward", 30), *_delay(1, "backward", 30))),
    Case(name="more-and-waits-less", pace=120, more=_delay(1, "forward", 30)),
    Case(name="workers-hidden", training="workers", hidden=20),
    Case(name="checkpoint-aside", training="checkpoint", aside=80),
)
CASES = (*_DELAYED, *_CONTROLS)
