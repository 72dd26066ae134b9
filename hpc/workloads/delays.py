"""The sleeps requested by the options of workload `delay`, as text and as numbers; needs only the standard library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from random import Random

from hpc.model.options import OptionError

_LONGEST_MS = 86_400_000
_WIDEST = 2


@dataclass(frozen=True, kw_only=True)
class Delay:
    """One sleep: on one rank (None: on all; "rotate": on rank step % ranks), every so many steps, from a step on.

    With a `scatter` its length is lognormal: the mean is `duration_ms`, `scatter` the deviation of its logarithm.
    """

    duration_ms: float
    rank: int | str | None = None
    every: int = 1
    first_step: int = 0
    scatter: float = 0.0

    def at(self, rank: int, step: int, ranks: int, seed: str = "") -> float:
        """Milliseconds that this rank sleeps in this step; with a scatter, drawn by seed, ranks, rank and step."""
        if step < self.first_step or (step - self.first_step) % self.every:
            return 0.0
        chosen = step % ranks if self.rank == "rotate" else self.rank
        if chosen not in (None, rank):
            return 0.0
        if not self.scatter:
            return self.duration_ms
        normal = Random(f"{seed} {ranks} {rank} {step}").gauss(0, 1)
        return self.duration_ms * exp(self.scatter * normal - self.scatter**2 / 2)


def parse_delays(text: str) -> list[Delay]:
    """`MS` or `MS@rank=R;every=N;from=S;scatter=D`, several joined by `+`. Raises OptionError where it is neither."""
    return [_parse_delay(part, text) for part in text.split("+")]


def check_ranks(name: str, delays: Iterable[Delay], ranks: int) -> None:
    """Raises OptionError where a sleep is for a rank that is not there; one rank alone leaves out others' sleeps."""
    wrong = [d.rank for d in delays if isinstance(d.rank, int) and not 0 <= d.rank < ranks]
    if wrong and ranks > 1:
        raise OptionError(f"{name}: rank {wrong[0]} is none of the {ranks} ranks")


def _parse_delay(part: str, text: str) -> Delay:
    duration, _, conditions = part.strip().partition("@")
    try:
        fields = dict(condition.split("=", 1) for condition in conditions.split(";")) if conditions else {}
        if unknown := sorted(set(fields) - {"rank", "every", "from", "scatter"}):
            raise ValueError(f"{', '.join(unknown)} is none of rank, every, from, scatter")
        rank = fields.get("rank")
        delay = Delay(
            duration_ms=float(duration),
            rank=rank if rank in (None, "rotate") else int(str(rank)),
            every=int(fields.get("every", "1")),
            first_step=int(fields.get("from", "0")),
            scatter=float(fields.get("scatter", "0")),
        )
        if not 0 <= delay.duration_ms <= _LONGEST_MS or delay.every < 1:
            raise ValueError(f"milliseconds must be from 0 to {_LONGEST_MS} (a day), every at least 1")
        if not 0 <= delay.scatter <= _WIDEST:
            raise ValueError(f"scatter must be from 0 to {_WIDEST}")
    except ValueError as error:
        raise OptionError(
            f"delay {text!r} is not MS or MS@rank=R;every=N;from=S;scatter=D, more with + between ({error})"
        ) from None
    return delay
