"""From the events of one process to its optimizer steps; states with a reason whatever the events do not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpc.observe.events import EventFile


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective that was called from Python: ns of its call, of the wait for its result (ABSENT: it was waited for
    at once), of its end (ABSENT: nobody waited for it)."""

    name: str
    root: int
    arrives_ns: int
    waits_ns: int
    ends_ns: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What else than training lies between two steps: from the end of one to the beginning of the next."""

    kind: str  # "evaluation", "checkpoint", "another loader", joined by " and "
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """One optimizer step, from where the script requests its batch to where it requests the next."""

    stamps: tuple[int, ...]
    """As hpc.model.timestamps.STAMPS, ns of CLOCK_MONOTONIC; ABSENT where it was not seen."""
    absent: Mapping[str, str]
    """For each stamp that is ABSENT, by its name: the reason."""
    samples: int | None
    """None where the script reads by no loader that hooks can see, or reads what has no length."""
    fetches: int
    fetch_ns: int
    """All of its fetches together; with accumulation only the first lies between `begin` and `batch_ready`."""
    backwards: int
    updates: tuple[int, ...]
    """The optimizers that were stepped, by number, in order."""
    skipped: bool
    """A gradient scaler skipped the update."""
    new_epoch: bool
    """The loader was exhausted, or begun anew, before it: its first fetch includes the start of an iterator."""
    collectives: tuple[Collective, ...] = ()
    pause: Pause | None = None
    """What lies before it: a step of the measurement must not span it."""


@dataclass(frozen=True, kw_only=True)
class ObservedSteps:
    """The steps of a process in order; sentences on what was seen and what was not; without steps, the reason."""

    steps: tuple[ObservedStep, ...]
    remarks: tuple[str, ...]
    reason: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Stamps that are absent in more than half of the steps of the second half, by name, with their most frequent reason."""


def steps_of(recorded: EventFile) -> ObservedSteps:
    """The steps of one process. Nothing is assumed where its events do not show it."""
    raise NotImplementedError


def common_count(ranks: Sequence[ObservedSteps]) -> tuple[int, str]:
    """How many steps all ranks have, and a sentence where they differ; else an empty text."""
    counts = [len(rank.steps) for rank in ranks]
    if not counts or min(counts) == max(counts):
        return min(counts, default=0), ""
    fewest, largest = counts.index(min(counts)), counts.index(max(counts))
    return min(counts), (
        f"rank {fewest} made {min(counts)} steps, rank {largest} made {max(counts)}: the first {min(counts)} are compared"
    )
