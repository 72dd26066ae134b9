"""The result of a check before its level is known, and helpers that name ranks and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpc.model.findings import State
from hpc.preflight.types import RankFacts, Seen
from hpc.system.groups import grouped
from hpc.system.text import ranges

SHOWN = 8


@dataclass(frozen=True)
class CheckResult:
    """The result of a check; `fix`, where given, replaces the declared one."""

    state: State
    text: str
    fix: str = ""


Look = Callable[[Seen], CheckResult | None]


def ok(text: str) -> CheckResult:
    return CheckResult(State.OK, text)


def failed(text: str, fix: str = "") -> CheckResult:
    return CheckResult(State.FAILED, text, fix)


def unknown(text: str) -> CheckResult:
    return CheckResult(State.UNKNOWN, text)


def result_of(failures: Sequence[str], unread: Sequence[str] | str, text: str) -> CheckResult:
    """Failed for any failure, else unknown for anything unread, else ok with the text."""
    if failures:
        return failed(some(failures))
    if unread:
        return unknown(unread if isinstance(unread, str) else some(unread))
    return ok(text)


def numbers(values: Iterable[int]) -> str:
    """Whole numbers as `0-3, 8`, of many the first."""
    return ranges(values, SHOWN)


def some(texts: Sequence[str]) -> str:
    """The first of them, and the number of the others."""
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def alike(ranks: Sequence[RankFacts], values: Mapping[int, str], name: str) -> CheckResult:
    """Compares one value, by rank, across all ranks; `name` names it in the text."""
    by_value = grouped((value, rank) for rank, value in values.items())
    if len(by_value) > 1:
        listing = "; ".join(f"{value} on rank {numbers(whose)}" for value, whose in by_value.items())
        return failed(f"ranks differ in {name}: {listing}")
    if len(values) < len(ranks):
        absent = next(rank for rank in ranks if rank.rank not in values)
        reason = f" ({absent.devices_unread})" if absent.devices_unread else ""
        return unknown(f"rank {absent.rank} does not say its {name}{reason}")
    return ok(f"{name} {next(iter(by_value), '')} on all ranks")


def unread_gpus(ranks: Sequence[RankFacts]) -> str:
    """The reason why a rank's GPUs could not be read; empty if all ranks could."""
    return some(
        [f"rank {rank.rank} on {rank.hostname}: {rank.devices_unread}" for rank in ranks if rank.devices_unread]
    )
