"""What a look at facts comes to, and how ranks, nodes and many of them are told in few words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpc.model.findings import State
from hpc.preflight.types import RankFacts, Seen
from hpc.system.text import ranges

SHOWN = 8


@dataclass(frozen=True)
class CheckResult:
    """The result of a check before its level is known; `cure`, where given, replaces the declared one."""

    state: State
    text: str
    cure: str = ""


Look = Callable[[Seen], CheckResult | None]


def ok(text: str) -> CheckResult:
    """It is as it should be."""
    return CheckResult(State.OK, text)


def failed(text: str, cure: str = "") -> CheckResult:
    """It is not."""
    return CheckResult(State.FAILED, text, cure)


def unknown(text: str) -> CheckResult:
    """Nobody could look; the text says why."""
    return CheckResult(State.UNKNOWN, text)


def numbers(values: Iterable[int]) -> str:
    """Whole numbers as `0-3, 8`, of many the first."""
    return ranges(values, SHOWN)


def some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def alike(ranks: Sequence[RankFacts], values: Mapping[int, str], what: str) -> CheckResult:
    """Compares one value across all ranks; `values` is by rank, `what` names the value in the text."""
    by_value: dict[str, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    if len(by_value) > 1:
        listing = "; ".join(f"{value} on rank {numbers(whose)}" for value, whose in by_value.items())
        return failed(f"ranks differ in {what}: {listing}")
    if len(values) < len(ranks):
        absent = next(rank for rank in ranks if rank.rank not in values)
        return unknown(f"rank {absent.rank} does not say its {what}{_because(absent.devices_unread)}")
    return ok(f"{what} {next(iter(by_value), '')} on all ranks")


def unread_gpus(ranks: Sequence[RankFacts]) -> str:
    """Why a rank knows nothing of its GPUs; empty where all do."""
    unread = [f"rank {rank.rank} on {rank.hostname}: {rank.devices_unread}" for rank in ranks if rank.devices_unread]
    return some(unread)


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
