"""What the collectives of all ranks show, as text and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator

from hpc.system.text import first_of, plural
from parse.arrivals.result import ArrivalEvidence, ArrivalsResult, GroupResult, Lost, RankResult
from parse.text import TableData, TextBlock, number, text_of

SCHEMA = "rankwise-collective-trace-1"
SHOWN_RANKS, SHOWN_LOST, MAX_NAME = 12, 8, 40
MIN_LAST, MIN_SIGMAS = 3, 3.3
"""A rank stands out that comes last as often at least, and by as many standard deviations more often than by chance."""
HEADS = (
    ("rank", ""), ("host", ""), ("last", ""), ("of", ""), ("others wait", "ms"), ("at most", "ms"), ("within", "ms"),
    ("for it alone", "ms in all"),
    ("waits itself", "ms in all"), ("mostly for", ""),
)  # fmt: skip
GROUP_HEADS = (
    ("group", ""), ("operation", ""), ("ranks", ""), ("collectives", ""), ("of all", ""), ("last known", ""),
    ("shortest", "ms"), ("longest", "ms"),
)  # fmt: skip


def text(result: ArrivalsResult, width: int) -> str:
    """The sentence, how it is known, what is missing, and the tables of ranks and groups."""
    known = [rank for rank in result.ranks if rank.last]
    blocks: list[TextBlock] = [[sentence(result), *how(result), *missing(result)]]
    if known:
        rows = [_rank_row(rank) for rank in known[:SHOWN_RANKS]]
        columns = len(HEADS) if any(row[-1] for row in rows) else len(HEADS) - 1
        rows = [row[:columns] for row in rows]
        blocks += ["", TableData(heads=HEADS[:columns], rows=rows, label_columns=2, keys=1)]
    if len(known) > SHOWN_RANKS:
        blocks.append(f"and {plural(len(known) - SHOWN_RANKS, 'further rank')}: --format json has them all")
    if result.groups:
        rows = [_group_row(group) for group in result.groups]
        blocks += ["", TableData(heads=GROUP_HEADS, rows=rows, label_columns=2, keys=2)]
    return text_of(blocks, width)


def as_json(result: ArrivalsResult) -> str:
    """The figures and the sentences; docs/collectives.md has the members."""
    members = dataclasses.asdict(result)
    words = {"sentence": sentence(result), "how": list(how(result)), "missing": list(missing(result))}
    return json.dumps({"schema": SCHEMA, **words, **members}, indent=2, allow_nan=False) + "\n"


def sentence(result: ArrivalsResult) -> str:
    """Who comes last, what that costs the others; or that it cannot be told, and why."""
    complete, known = _complete(result), sum(rank.last for rank in result.ranks)
    if not result.groups:
        return "cannot tell who comes last: no collective that waits for all of its ranks is recorded"
    if not complete:
        return "cannot tell who comes last: of no collective the records of all ranks are there"
    first = result.ranks[0]
    if first.wait is not None and _stands_out(first, known, len(result.ranks)):
        return (
            f"{first.rank}{f' on {first.host}' if first.host else ''} comes last to {first.last} of "
            f"{plural(first.complete, 'collective')}: the others wait {_ms(first.wait)} for it in the median "
            f"(known within {_ms(first.bound or 0.0)}), {_ms(first.longest_wait or 0.0)} at most; for it alone "
            f"{_ms(first.sole)} in all{_itself(first)}"
        )
    if known:
        return (
            f"no rank stands out: the last one is known in {known} of {plural(complete, 'collective')}; "
            f"{first.rank} costs most, and is it {first.last} times"
        )
    unknown = f"cannot tell who comes last to any of {plural(complete, 'collective')}"
    longest = max((group.longest for group in result.groups if group.longest is not None), default=None)
    if longest is None:
        return f"{unknown}: no times of all ranks are recorded"
    return (
        f"{unknown}: ranks come closer together than the collectives take; their longest kernels run {_ms(longest)} in "
        "the median, so no rank is later than that"
    )


def how(result: ArrivalsResult) -> Iterator[str]:
    """By what the last ranks are known, and what is not compared."""
    counts = {evidence: sum(group.decided[evidence] for group in result.groups) for evidence in ArrivalEvidence}
    if by_kernels := counts[ArrivalEvidence.KERNELS]:
        yield (
            f"{plural(by_kernels, 'time')} by kernel times, which need no clock: who comes last runs the shortest "
            "kernel, the others' run as long as they wait"
        )
    if counts[ArrivalEvidence.CLOCK]:
        whose = (
            "their host's clock"
            if result.clock_bound is None
            else f"clocks, as --clock-bound {result.clock_bound:g} says"
        )
        yield f"{plural(counts[ArrivalEvidence.CLOCK], 'time')} by when kernels began, by {whose}"
    if undecided := _complete(result) - sum(counts.values()):
        yield f"in {plural(undecided, 'collective')} of all ranks cannot tell who is last"
    if contradicted := sum(group.contradicted for group in result.groups):
        yield f"of these in {contradicted} kernel times and the clock of a host contradict each other"
    if result.hosts > 1 and result.clock_bound is None:
        yield f"clocks of {result.hosts} hosts are not compared: how far they differ is not known (--clock-bound MS)"


def missing(result: ArrivalsResult) -> Iterator[str]:
    """Records that are not there, and what was left out of those that are."""
    for lost in result.lost[:SHOWN_LOST]:
        yield f"lost: {_lost_text(lost)}"
    if len(result.lost) > SHOWN_LOST:
        yield f"lost: {plural(len(result.lost) - SHOWN_LOST, 'further rank')} of groups; --format json names them all"
    yield from result.remarks


def _lost_text(lost: Lost) -> str:
    if lost.all:
        return (
            f"{lost.rank} has no record of {lost.operation} of {lost.group}, of which others have {lost.count}: its "
            "file is not here, or it never came"
        )
    numbers = first_of([str(each) for each in lost.numbers], len(lost.numbers))
    further = f" and {lost.count - len(lost.numbers)} more" if lost.count > len(lost.numbers) else ""
    what = f"{lost.count} × {lost.operation} of {lost.group} that others have"
    return f"{lost.rank} has no record of {what}: {numbers}{further}"


def _itself(rank: RankResult) -> str:
    """How long the rank waits for others, which may be why it comes late to further collectives."""
    whom = f", mostly for {rank.waits_for}" if rank.waits_for else ""
    return f"; it waits itself {_ms(rank.waits_itself)} in all{whom}"


def _stands_out(rank: RankResult, known: int, ranks: int) -> bool:
    """Whether a rank comes last more often than where each of them were as likely to."""
    share = 1 / max(ranks, 2)
    deviation = math.sqrt(known * share * (1 - share))
    return rank.last >= MIN_LAST and rank.last - known * share > MIN_SIGMAS * deviation


def _complete(result: ArrivalsResult) -> int:
    return sum(group.complete for group in result.groups)


def _rank_row(rank: RankResult) -> list[str]:
    times = (rank.wait, rank.longest_wait, rank.bound, rank.sole, rank.waits_itself)
    cells = ["" if ms is None else number(ms) for ms in times]
    return [rank.rank, rank.host, str(rank.last), str(rank.complete), *cells, rank.waits_for]


def _group_row(group: GroupResult) -> list[str]:
    name = group.group if len(group.group) <= MAX_NAME else f"{group.group[: MAX_NAME - 1]}…"
    times = ["" if ms is None else f"{ms:.3f}" for ms in (group.shortest, group.longest)]
    known = sum(group.decided.values())
    return [name, group.operation, str(group.ranks), str(group.collectives), str(group.complete), str(known), *times]


def _ms(ms: float) -> str:
    return f"{ms:.2f} ms" if ms >= 0.1 else f"{ms * 1000:.0f} us"
