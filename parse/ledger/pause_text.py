"""A script's pauses between its steps as sentences: who makes them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import capitalized, inflect
from parse.ledger.figures import SMALL, Figures, host_of, numbers, round_number, speed_text
from parse.ledger.types import Ledger, RankPauses

WORTH_NAMING = 0.01
"""Pauses of some ranks that take a smaller share of the training are no sentence; of all ranks, a share below SMALL."""


def pauses_named(ledger: Ledger) -> list[RankPauses]:
    """The pauses of a script that are worth a sentence, what costs most first."""
    return [each for each in ledger.rank_pauses if each.share >= (WORTH_NAMING if each.ranks else SMALL)]


def pause_sentences(ledger: Ledger, write: Figures) -> Iterator[str]:
    """`Rank 0 (n0) alone pauses 5 times, 62.00 ms each (evaluation), and the others wait: 2.38 ms a step, 11 % of the
    training`; behind the last of them the speed with all pauses."""
    named = pauses_named(ledger)
    for each in named:
        costs = f"{write.ms(each.costs)} a step, {round_number(each.share * 100)} % of the training"
        speeds = ""
        if each is named[-1] and ledger.speed_with_pauses is not None and ledger.result.median_speed is not None:
            with_them = f"{speed_text(ledger.speed_with_pauses)} instead of {speed_text(ledger.result.median_speed)}"
            speeds = f"; with its pauses {with_them} {ledger.result.unit}"
        yield capitalized(f"{_who_pauses(each, ledger, write)}: {costs}{speeds}")


def _who_pauses(pauses: RankPauses, ledger: Ledger, write: Figures) -> str:
    """`rank 0 (n0) alone pauses 5 times, 62.00 ms each (evaluation), and the others wait`."""
    often = "once" if pauses.times == 1 else f"{round_number(pauses.times)} times"
    length = f"{write.ms(pauses.length)}{' each' if pauses.times > 1 else ''}"
    kinds = f" ({', '.join(pauses.kinds)})" if pauses.kinds else ""
    if not pauses.ranks:
        return f"{'all ranks pause' if len(ledger.ranks) > 1 else 'the script pauses'} {often}, {length}{kinds}"
    host = host_of(ledger, pauses.ranks[0]) if len(pauses.ranks) == 1 else ""
    who = f"{inflect(len(pauses.ranks), 'rank')} {numbers(pauses.ranks)}{f' ({host})' if host else ''}"
    verb = "pauses" if len(pauses.ranks) == 1 else "pause"
    if any(not each.ranks for each in ledger.rank_pauses):
        return f"{who} {verb} longer than the others {often}, by {length}{kinds}, and they wait"
    return f"{who} alone {verb} {often}, {length}{kinds}, and the others wait"
