"""What is found where ranks meet in groups, as sentences: who waits for a straggler, stages, bubble, experts, links."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import inflect, plural
from parse.graph.findings import Bubble, ChainLink, SlowLink, StageImbalance, UnevenExperts
from parse.ledger.figures import Figures, host_of, numbers
from parse.ledger.types import Ledger, Verdict


def than_whom(ledger: Ledger, *, singular: bool = True) -> str:
    """With whom a straggler is compared: with the median rank, or where ranks have groups with those that do the same
    in other replicas."""
    if not ledger.dimensions:
        return "the median rank"
    return "its peers" if singular else "their peers"


def chain_text(verdict: Verdict, write: Figures) -> str:
    """`For it rank 7 waits 8.00 ms in tp, for that one ranks 2, 3 wait 7.50 ms in pp`; empty without a chain."""
    parts, whom = [], "it" if len(verdict.ranks) == 1 else "them"
    for link in verdict.chain:
        parts.append(_link_text(link, whom, write))
        whom = "that one" if len(link.ranks) == 1 else "these"
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def _link_text(link: ChainLink, whom: str, write: Figures) -> str:
    several = len(link.ranks) > 1
    where = f" in {link.dimension}" if link.dimension else ""
    each = " each" if several else ""
    waits = f"{'wait' if several else 'waits'} {write.ms(link.waits)}{each}{where}"
    return f"for {whom} {inflect(len(link.ranks), 'rank')} {numbers(link.ranks)} {waits}"


def graph_sentences(ledger: Ledger, write: Figures) -> Iterator[str]:
    """The findings of ranks in several groups, what costs most first and last the bubble, which any pipeline has;
    without their full stops."""
    finding = ledger.graph
    if finding is None:
        return
    texts: list[tuple[float, list[str]]] = []
    if finding.stages is not None:
        texts.append((finding.stages.costs, _stages(finding.stages, write)))
    if finding.experts is not None:
        texts.append((finding.experts.costs, [_experts(finding.experts, write)]))
    if finding.slow_link is not None:
        texts.append((finding.slow_link.costs, [_slow_link(finding.slow_link, ledger, write)]))
    for _, sentences in sorted(texts, key=lambda each: -each[0]):
        yield from sentences
    if finding.bubble is not None:
        yield from _bubble(finding.bubble, write)


def _stages(uneven: StageImbalance, write: Figures) -> list[str]:
    slowest = uneven.stages[uneven.slowest]
    per, share = ("micro-batch", uneven.microbatches) if uneven.microbatches else ("step", 1)
    ranks = f"{inflect(len(slowest.ranks), 'rank')} {numbers(slowest.ranks)}"
    return [
        f"Stage {slowest.stage} of the pipeline (from 0 to {len(uneven.stages) - 1}; {ranks}) takes "
        f"{write.ms(slowest.work / share)} a {per}, the others {write.ms(uneven.others / share)}: the pipeline runs at "
        f"{uneven.runs_at * 100:.0f} %, and a step takes {write.ms(uneven.costs)} longer than with even stages",
        "To do: move a layer to another stage",
    ]


def _bubble(finding: Bubble, write: Figures) -> list[str]:
    text = f"Ranks wait {write.ms(finding.waits)} a step for messages of the pipeline"
    if finding.of_schedule <= 0:
        return [text]
    return [
        f"{text}, {write.ms(finding.of_schedule)} of it by the order of the micro-batches, however even the stages are",
        "To do: more micro-batches, or a schedule that interleaves",
    ]


def _experts(finding: UnevenExperts, write: Figures) -> str:
    whose = f"{inflect(len(finding.ranks), 'rank')} {numbers(finding.ranks)}"
    what = "get {} times the mean tokens" if finding.by == "tokens" else "take {} times the mean time"
    return f"The experts of {whose} {what.format(f'{finding.times:.2f}')}, which costs {write.ms(finding.costs)} a step"


def _slow_link(finding: SlowLink, ledger: Ledger, write: Figures) -> str:
    ends = [
        f"rank {rank}{f' ({host})' if (host := host_of(ledger, rank)) else ''}"
        for rank in (finding.sender, finding.receiver)
    ]
    where = f" in {finding.dimension}" if finding.dimension else ""
    return (
        f"Messages from {ends[0]} to {ends[1]}{where} take {write.ms(finding.takes)} each, those of other pairs "
        f"{write.ms(finding.usual)}: {plural(round(finding.messages), 'message')} a step cost {write.ms(finding.costs)}"
    )
