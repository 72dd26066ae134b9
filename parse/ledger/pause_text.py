"""A script's pauses between its steps as sentences: who makes them, who is late in the first steps behind them, and
what both cost; how many steps are left out."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import capitalized, inflect
from parse.ledger.figures import SMALL, Figures, host_of, numbers, round_number, speed_text
from parse.ledger.types import FirstSteps, Ledger, RankPauses
from parse.term_kinds import COMPUTE, phrase, within

WORTH_NAMING = 0.01
"""Pauses of some ranks that take a smaller share of the training are no sentence; of all ranks, a share below SMALL."""


def pauses_named(ledger: Ledger) -> list[RankPauses]:
    """The pauses of a script that are worth a sentence, what costs most first."""
    return [each for each in ledger.rank_pauses if each.share >= (WORTH_NAMING if each.ranks else SMALL)]


def first_steps_named(ledger: Ledger) -> list[FirstSteps]:
    """Who is late in the first steps behind pauses, what costs most first; what all take longer there only from
    WORTH_NAMING of a step on."""
    return [each for each in ledger.first_steps if each.ranks or each.costs >= WORTH_NAMING * ledger.step.value]


def pause_sentences(ledger: Ledger, write: Figures) -> Iterator[str]:
    """What pauses cost; who is late behind them; how many steps are in no other figure."""
    yield from _pauses(ledger, write)
    yield from (capitalized(_first_steps(each, ledger, write)) for each in first_steps_named(ledger))
    if (omitted := ledger.left_out) is not None:
        pauses = "the pause" if omitted.pauses == 1 else f"each of {round_number(omitted.pauses)} pauses"
        few = f"{round_number(omitted.steps)} of {round_number(omitted.of_steps)} steps"
        yield f"{few}, the first behind {pauses}, are left out of all other figures"


def _pauses(ledger: Ledger, write: Figures) -> Iterator[str]:
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


NEARLY_ALL = 0.9
"""A phase that has this share of what ranks take longer has all of it."""


def _first_steps(its: FirstSteps, ledger: Ledger, write: Figures) -> str:
    """`rank 1 (n0) computes 40.00 ms longer in the first step behind each of 10 pauses, which costs 1.67 ms a step`."""
    pauses = ledger.left_out.pauses if ledger.left_out else its.times
    behind = "the pause" if pauses == 1 else f"each of {round_number(pauses)} pauses"
    if its.times < pauses:
        behind = f"{round_number(its.times)} of {round_number(pauses)} pauses"
    steps = "step" if its.steps == 1 else f"{its.steps} steps"
    host = host_of(ledger, its.ranks[0]) if len(its.ranks) == 1 else ""
    who = f"{inflect(len(its.ranks), 'rank')} {numbers(its.ranks)}{f' ({host})' if host else ''}"
    if not its.ranks:
        who = "all ranks" if len(ledger.ranks) > 1 else "the script"
    s = "s" if len(its.ranks) == 1 or who == "the script" else ""
    name = max(its.cause, key=lambda each: its.cause[each])
    longer = f"take{s} {write.ms(its.length)} longer, {write.ms(its.cause[name])} of it {within(name)},"
    if its.cause[name] >= NEARLY_ALL * its.length:
        longer = f"take{s} {write.ms(its.length)} longer {within(name)}"
        if name == COMPUTE.cause:
            computes = phrase(name)
            longer = (computes.singular if s else computes.several).format(write.ms(its.length))
    return f"{who} {longer} in the first {steps} behind {behind}, which costs {write.ms(its.costs)} a step"
