"""What a look at facts comes to, and how ranks, nodes and many of them are told in few words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpc.model.checks import State
from hpc.preflight.types import RankFacts, Seen

SHOWN = 8


@dataclass(frozen=True)
class Found:
    """What a look came to, before its level is known; `cure` stands in for the declared one."""

    state: State
    text: str
    cure: str = ""


Look = Callable[[Seen], Found | None]


def ok(text: str) -> Found:
    """It is as it should be."""
    return Found(State.OK, text)


def failed(text: str, cure: str = "") -> Found:
    """It is not."""
    return Found(State.FAILED, text, cure)


def unknown(text: str) -> Found:
    """Nobody could look; the text says why."""
    return Found(State.UNKNOWN, text)


def numbers(found: Iterable[int]) -> str:
    """Whole numbers as `0-3, 8`, of many the first."""
    runs = []
    for _, group in groupby(enumerate(sorted(found)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(runs[:SHOWN]) + (", …" if len(runs) > SHOWN else "")


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def alike(ranks: Sequence[RankFacts], values: Mapping[int, str], what: str) -> Found:
    """Whether all ranks say the same of one thing; `values` is by rank."""
    found: dict[str, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    if len(found) > 1:
        said = "; ".join(f"{value} on rank {numbers(whose)}" for value, whose in found.items())
        return failed(f"ranks differ in {what}: {said}")
    if len(values) < len(ranks):
        absent = next(rank for rank in ranks if rank.rank not in values)
        return unknown(f"rank {absent.rank} does not say its {what}{_because(absent.devices_unread)}")
    return ok(f"{what} {next(iter(found), '')} on all ranks")


def unread_gpus(ranks: Sequence[RankFacts]) -> str:
    """Why a rank knows nothing of its GPUs; empty where all do."""
    unread = [f"rank {rank.rank} on {rank.hostname}: {rank.devices_unread}" for rank in ranks if rank.devices_unread]
    return some(unread)


def _because(why: str) -> str:
    return f" ({why})" if why else ""
