"""The sleeps requested by the options of workload `delay`, as text and as numbers; needs only the standard library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpc.model.options import OptionError

_LONGEST_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Delay:
    """One sleep: on one rank (None: on all; "rotate": on rank step % ranks), every so many steps, from a step on."""

    duration_ms: float
    rank: int | str | None = None
    every: int = 1
    first_step: int = 0

    def at(self, rank: int, step: int, ranks: int) -> float:
        """Milliseconds that this rank sleeps in this step."""
        if step < self.first_step or (step - self.first_step) % self.every:
            return 0.0
        chosen = step % ranks if self.rank == "rotate" else self.rank
        return self.duration_ms if chosen in (None, rank) else 0.0


def parse_delays(text: str) -> list[Delay]:
    """`MS` or `MS@rank=R;every=N;from=S`, several joined by `+`. Raises OptionError where the text is neither."""
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
        if unknown := sorted(set(fields) - {"rank", "every", "from"}):
            raise ValueError(f"{', '.join(unknown)} is none of rank, every, from")
        rank = fields.get("rank")
        delay = Delay(
            duration_ms=float(duration),
            rank=rank if rank in (None, "rotate") else int(str(rank)),
            every=int(fields.get("every", "1")),
            first_step=int(fields.get("from", "0")),
        )
        if not 0 <= delay.duration_ms <= _LONGEST_MS or delay.every < 1:
            raise ValueError(f"milliseconds must be from 0 to {_LONGEST_MS} (a day), every at least 1")
    except ValueError as error:
        raise OptionError(
            f"delay {text!r} is not MS or MS@rank=R;every=N;from=S, more with + between ({error})"
        ) from None
    return delay
