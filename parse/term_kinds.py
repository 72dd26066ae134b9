"""The terms of a step: one row each, in their order. What a term is called, where it ends, how it looks and how a rank
that is longer in it is described stands here alone.

A term whose end is not known is one with the next, and their names are joined by `+`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hpc.model.timestamps import STAMPS

GRADIENTS_OF_ALL = "last_grads_ready"
"""The border that no rank stamps: when the last of them has its gradients ready."""


@dataclass(frozen=True)
class Phrase:
    """What one rank does, and what several do; `{}` is the time."""

    singular: str
    several: str


@dataclass(frozen=True, kw_only=True)
class TermKind:
    """A term. It ends at the border `ends_at`, of STAMPS or GRADIENTS_OF_ALL, and has two `colours`, on a light and a
    dark ground. Of a rank's own work it `is_work`; on a device it is in `device_phase` (of DEVICE_PHASES).

    `cause` is what makes a rank late at the next reduction where this term is longer, empty where it does not; `longer`
    says so, `joined` where no stamp separates it from the next cause; `within` is where in a step it is. `free` is the
    what-if without it, where a replay has one.
    """

    name: str
    ends_at: str
    colours: tuple[str, str]
    device_phase: str
    is_work: bool = False
    cause: str = ""
    longer: Phrase | None = None
    within: str = ""
    joined: Phrase | None = None
    free: str = ""

    @property
    def stamp(self) -> int:
        """The number of the stamp at which it ends. Raises ValueError where it ends at none."""
        return STAMPS.index(self.ends_at)


DATA = TermKind(
    name="data", ends_at="batch_ready", colours=("#2f93d8", "#9ad6f9"), device_phase="data", is_work=True, cause="data",
    longer=Phrase("waits {} longer for its data", "wait {} longer for their data"), within="before the forward",
    joined=Phrase("takes {} longer for data and compute", "take {} longer for data and compute"),
    free="input always ready",
)  # fmt: skip
COMPUTE = TermKind(
    name="compute", ends_at="grads_ready", colours=("#003f73", "#3d84e0"), device_phase="compute", is_work=True,
    cause="compute", longer=Phrase("computes {} longer", "compute {} longer"), within="in forward and backward",
)  # fmt: skip
WAIT = TermKind(name="wait", ends_at=GRADIENTS_OF_ALL, colours=("#b84400", "#e0662a"), device_phase="reduction")
COMMUNICATION = TermKind(
    name="communication", ends_at="reduced", colours=("#c48a00", "#f0c23a"), device_phase="reduction", cause="release",
    longer=Phrase("leaves the previous reduction {} later", "leave the previous reduction {} later"),
    joined=Phrase("begins the step {} later", "begin the step {} later"), free="communication for free",
)  # fmt: skip
OPTIMIZER = TermKind(
    name="optimizer", ends_at="end", colours=("#a3528f", "#c878a6"), device_phase="optimizer", is_work=True,
    cause="optimizer",
    longer=Phrase(
        "takes {} longer for its previous optimizer step", "take {} longer for their previous optimizer step"
    ),
    within="after the reduction",
)  # fmt: skip

TERM_KINDS = (DATA, COMPUTE, WAIT, COMMUNICATION, OPTIMIZER)
TERMS = tuple(kind.name for kind in TERM_KINDS)
"""Their names; `communication` is its exposed part."""
BORDERS = tuple(kind.ends_at for kind in TERM_KINDS[:-1])
"""The borders between two terms: t1, t3, M (the last rank's t3), t4."""
WORK = tuple(kind for kind in TERM_KINDS if kind.is_work)
_REDUCTION = TERM_KINDS.index(COMMUNICATION)
CAUSE_KINDS = tuple(kind for kind in (*TERM_KINDS[_REDUCTION:], *TERM_KINDS[:_REDUCTION]) if kind.cause)
"""What makes a rank late at a reduction, from the one before on."""
CAUSES = tuple(kind.cause for kind in CAUSE_KINDS)
"""Why it does: late release from the one before, its optimizer step, data, compute."""
_BY_CAUSE = {kind.cause: kind for kind in CAUSE_KINDS}
ARRIVES = Phrase("comes to the reduction {} later", "come to the reduction {} later")
"""Where the cause is not known."""


def joined(names: Iterable[str]) -> str:
    """The name of several terms, or causes, in one."""
    return "+".join(names)


def parts_of(name: str) -> list[str]:
    """The names of the terms, or causes, in this one."""
    return name.split("+")


def is_known(kind: TermKind, names: Collection[str]) -> bool:
    """Whether this term's end is known where the terms have these names."""
    return any(parts_of(name)[-1] == kind.name for name in names)


def causes_between(borders: Collection[str]) -> tuple[str, ...]:
    """CAUSES; one whose end is not among the borders is empty, and the next has both names."""
    names, before = list[str](), list[str]()
    for kind in CAUSE_KINDS:
        known = kind.ends_at in borders or kind in (COMPUTE, TERM_KINDS[-1])
        before = [*before, kind.cause]
        names.append(joined(before) if known else "")
        before = [] if known else before
    return tuple(names)


def device_phases(cause: str) -> tuple[str, ...]:
    """The phases of a device in which this cause is, or these in one; none where one of them is unknown."""
    kinds = [_BY_CAUSE.get(part) for part in parts_of(cause)]
    known = [kind.device_phase for kind in kinds if kind is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(kinds) else ()


def phrase(cause: str) -> Phrase:
    """What a rank does longer that is late by this cause, or by several in one."""
    parts: Sequence[str] = parts_of(cause)
    kind = _BY_CAUSE.get(parts[0])
    return (kind and (kind.longer if len(parts) == 1 else kind.joined)) or ARRIVES


def within(cause: str) -> str:
    """Where in a step this cause is: `before the forward`. Raises KeyError where it is none."""
    return _BY_CAUSE[cause].within
