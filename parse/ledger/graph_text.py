"""What is found where ranks meet in groups, as sentences: who waits for a straggler, stages, bubble, experts, links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        texts.append((finding.experts.costs, _experts(finding.experts, write)))
    if finding.slow_link is not None:
        texts.append((finding.slow_link.costs, [_slow_link(finding.slow_link, ledger, write)]))
    for _, sentences in sorted(texts, key=lambda each: -each[0]):
        yield from sentences
    if finding.bubble is not None:
        yield from _bubble(finding.bubble, write)


def _stages(uneven: StageImbalance, write: Figures) -> list[str]:
    slowest = uneven.stages[uneven.slowest]
    per, share = ("micro-batch", uneven.microbatches) if uneven.microbatches else ("step", 1)
    return [
        f"Stage {slowest.stage} of the pipeline (from 0 to {len(uneven.stages) - 1}; {_ranks(slowest.ranks)}) takes "
        f"{write.ms(slowest.work / share)} a {per}, the mean stage {write.ms(uneven.mean / share)}: the pipeline runs "
        f"at {uneven.runs_at * 100:.0f} %, and a step takes {write.ms(uneven.costs)} longer than with even stages",
        "To do: move a layer to another stage" if uneven.layer_moves else
        f"To do: cut the work of stage {slowest.stage} inside a layer: a stage that gets "
        f"{'its only one' if slowest.layers == 1 else f'one of its {slowest.layers} layers'} takes as long",
    ]  # fmt: skip


def _ranks(ranks: Sequence[int]) -> str:
    return f"{inflect(len(ranks), 'rank')} {numbers(ranks)}"


def _bubble(finding: Bubble, write: Figures) -> list[str]:
    text = f"Ranks wait {write.ms(finding.waits)} a step for messages of the pipeline"
    if finding.of_schedule <= 0:
        return [text]
    return [
        f"{text}, {write.ms(finding.of_schedule)} of it by the order of the micro-batches, however even the stages are",
        "To do: more micro-batches, or a schedule that interleaves",
    ]


def _experts(finding: UnevenExperts, write: Figures) -> list[str]:
    takes = f"{write.ms(finding.work)} a step behind all-to-alls, the mean {write.ms(finding.mean)}"
    costs = f"uneven experts cost {write.ms(finding.costs)} a step"
    whose = f"The experts of {_ranks(finding.ranks)}"
    if not finding.bytes:
        return [f"{whose} take {takes}: {costs}"]
    times = f"{finding.bytes / finding.mean_bytes:.2f} times the mean tokens ({_size(finding.bytes)} of an all-to-all"
    return [
        f"{whose} get {times}, the mean {_size(finding.mean_bytes)}) and take {takes}: {costs}",
        "To do: balance the tokens of experts, by an auxiliary loss or a capacity",
    ]


def _size(of: float) -> str:
    return f"{of / 1e6:.2f} MB" if of >= 1e6 else f"{of / 1e3:.1f} kB"


def _slow_link(finding: SlowLink, ledger: Ledger, write: Figures) -> str:
    ends = [
        f"rank {rank}{f' ({host})' if (host := host_of(ledger, rank)) else ''}"
        for rank in (finding.sender, finding.receiver)
    ]
    where = f" in {finding.dimension}" if finding.dimension else ""
    takes = (
        f"Messages from {ends[0]} to {ends[1]}{where} take {write.ms(finding.takes)} each, those of other pairs "
        f"{write.ms(finding.usual)}"
    )
    if finding.further:
        return (
            f"{takes}; with {plural(finding.further, 'further slow link')} they cost {write.ms(finding.costs)} a step"
        )
    return f"{takes}: {plural(round(finding.messages), 'message')} a step cost {write.ms(finding.costs)}"
