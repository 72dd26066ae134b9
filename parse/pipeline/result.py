"""What stragglers cost, in all and by worker, stage, data-parallel rank and kind of operation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np

from hpc.system.text import first_of, plural
from parse import stats
from parse.pipeline.replay import own_times_s, replayed_s, schedule, usual_times_s
from parse.pipeline.types import (
    Flags,
    Floats,
    GroupCost,
    GroupedBy,
    Kind,
    OperationGroup,
    PipelineResult,
    PipelineTrace,
    StepTime,
)
from parse.text import ELLIPSIS, GAP, TableData, number, text_of

KINDS = (
    (Kind.FORWARD,), (Kind.BACKWARD,), (Kind.FORWARD_SEND, Kind.FORWARD_RECV), (Kind.BACKWARD_SEND, Kind.BACKWARD_RECV),
    *((kind,) for kind in Kind if not kind.startswith(("forward", "backward"))),
)  # fmt: skip
"""The kinds of operations that are changed together: both ends of a transfer are one."""
MAX_GROUPS = 128
"""Of a grouping no more are replayed: those whose operations take longest beyond the usual."""
NOTABLE = 0.01
"""Stragglers that cost a smaller share of a step are none."""


def pipeline_result(trace: PipelineTrace) -> PipelineResult:
    """Replays a trace as recorded, without stragglers, and without each group's. Raises PipelineTraceError."""
    meetings = schedule(trace)
    own_s = own_times_s(trace, meetings)
    usual_s = usual_times_s(trace, own_s)
    groups, omitted = _groups(trace, (own_s - usual_s).sum(axis=1))
    operations, dp_ranks = _selected(trace, groups)
    none, every = np.zeros_like(operations[:1]), np.ones_like(operations[:1])
    all_ranks = np.ones_like(dp_ranks[:1])
    replayed = replayed_s(meetings, own_s, usual_s, none, all_ranks)[0]
    ideal = replayed_s(meetings, own_s, usual_s, every, all_ranks)[0]
    without = replayed_s(meetings, own_s, usual_s, operations, dp_ranks).mean(axis=1)
    only_these = replayed_s(meetings, usual_s, own_s, operations, dp_ranks).mean(axis=1)
    mean_s, ideal_s = float(replayed.mean()), float(ideal.mean())
    margin_s = stats.mean_margin(replayed.tolist())
    loss_s = mean_s - ideal_s
    has_stragglers = loss_s > 0 and loss_s >= max(NOTABLE * mean_s, margin_s or 0)
    costs = [
        GroupCost(
            group=group, without_s=without_s, alone_s=alone_s, pays_s=mean_s - without_s,
            share=(mean_s - without_s) / loss_s if has_stragglers else None,
        )
        for group, without_s, alone_s in zip(groups, without.tolist(), only_these.tolist(), strict=True)
    ]  # fmt: skip
    recorded = (trace.start_s + trace.duration_s).max(axis=(0, 2)) - trace.start_s.min(axis=(0, 2))
    return PipelineResult(
        operations=trace.start_s.size, stages=trace.stages, dp_ranks=len(trace.dp_ranks),
        steps=tuple(map(StepTime, trace.steps, recorded.tolist(), replayed.tolist())),
        recorded_s=float(recorded.mean()), replayed_s=mean_s, ideal_s=ideal_s, loss_s=loss_s,
        loss_margin_s=margin_s, has_stragglers=has_stragglers,
        costs=tuple(sorted(costs, key=lambda cost: -cost.pays_s)), omitted=omitted,
    )  # fmt: skip


def _groups(trace: PipelineTrace, excess_s: Floats) -> tuple[list[OperationGroup], tuple[tuple[GroupedBy, int], ...]]:
    """The groups that are replayed, and how many of a grouping are not; by their operations' time beyond the usual, in
    s [operation, data-parallel rank]. Where there is one stage, or one data-parallel rank, workers replace the other.
    """
    by_worker = np.zeros((trace.stages, len(trace.dp_ranks)))
    np.add.at(by_worker, [operation.stage for operation in trace.operations], excess_s)
    groups, omitted = [], []
    for at in _largest(by_worker.ravel()):
        stage, column = divmod(at, len(trace.dp_ranks))
        groups.append(OperationGroup(
            by=GroupedBy.WORKER, dp_rank=trace.dp_ranks[column], stage=stage, rank=int(trace.ranks[column, stage]),
        ))  # fmt: skip
    if by_worker.size > MAX_GROUPS:
        omitted.append((GroupedBy.WORKER, by_worker.size - MAX_GROUPS))
    if min(by_worker.shape) > 1:
        stages, columns = _largest(by_worker.sum(axis=1)), _largest(by_worker.sum(axis=0))
        groups += [OperationGroup(by=GroupedBy.STAGE, stage=stage) for stage in stages]
        groups += [OperationGroup(by=GroupedBy.DP_RANK, dp_rank=trace.dp_ranks[column]) for column in columns]
        for by, total in ((GroupedBy.STAGE, len(by_worker)), (GroupedBy.DP_RANK, len(trace.dp_ranks))):
            if total > MAX_GROUPS:
                omitted.append((by, total - MAX_GROUPS))
    present = {operation.kind for operation in trace.operations}
    groups += [OperationGroup(by=GroupedBy.KIND, kinds=kinds) for kinds in KINDS if present.intersection(kinds)]
    return groups, tuple(omitted)


def _largest(excess_s: Floats) -> list[int]:
    """The places of the MAX_GROUPS largest, in descending order."""
    order: list[int] = np.argsort(-excess_s, kind="stable")[:MAX_GROUPS].tolist()
    return order


def _selected(trace: PipelineTrace, groups: Sequence[OperationGroup]) -> tuple[Flags, Flags]:
    """The operations [group, operation] and data-parallel ranks [group, data-parallel rank] of each group."""
    stages = np.array([operation.stage for operation in trace.operations])
    kinds = np.array([operation.kind for operation in trace.operations])
    operations = np.ones((len(groups), len(kinds)), bool)
    dp_ranks = np.ones((len(groups), len(trace.dp_ranks)), bool)
    for at, group in enumerate(groups):
        if group.stage is not None:
            operations[at] &= stages == group.stage
        if group.kinds is not None:
            operations[at] &= np.isin(kinds, group.kinds)
        if group.dp_rank is not None:
            dp_ranks[at] = np.array(trace.dp_ranks) == group.dp_rank
    return operations, dp_ranks


# What a pipeline trace says about stragglers, as text and JSON: returns strings, prints nothing.

SCHEMA = 1
MOST = 0.5
"""A worker, stage or data-parallel rank that pays this share of the loss is named."""
NOTABLE_GAPS = 0.05
"""A replay that leaves out a larger share of the recorded step, or adds one, is warned of."""
SHOWN = 8
"""As many groups of a grouping are shown; JSON has all."""
MIN_NAME = 20
"""Cells of a group's name at least, where it is cut in the middle."""
PLACES = (GroupedBy.WORKER, GroupedBy.STAGE, GroupedBy.DP_RANK)
"""From the narrowest to the widest."""
HEADS = (("", "by"), ("changed", ""), ("step without", "s"), ("pays", "s"), ("share", "%"), ("with it alone", "s"))


def text(result: PipelineResult, width: int) -> str:
    """The sentence, remarks, and what each group would pay."""
    workers = result.stages * result.dp_ranks
    size = (
        f"{plural(len(result.steps), 'step')} of {plural(workers, 'worker')}: {plural(result.stages, 'stage')} × "
        f"{plural(result.dp_ranks, 'data-parallel rank')}, {result.operations} operations"
    )
    table = TableData(heads=HEADS, rows=[*_rows(result)], label_columns=2, keys=2)
    table = table.shortened(1, max(MIN_NAME, width - table.width([0, *range(2, len(HEADS))]) - len(GAP)))
    return text_of([[sentence(result), *remarks(result)], "", size, "", table], width)


def as_json(result: PipelineResult) -> str:
    """The figures and the sentence; docs/pipeline_traces.md has the members."""
    members = dataclasses.asdict(result)
    members["costs"] = [cost.pop("group") | cost for cost in members["costs"]]
    members["omitted"] = dict(result.omitted)
    words = {"sentence": sentence(result), "remarks": list(remarks(result))}
    return json.dumps({"schema": SCHEMA, **words, **members}, indent=2, allow_nan=False) + "\n"


def sentence(result: PipelineResult) -> str:
    """What stragglers cost; which place, and which kind of operation, pays most."""
    times = (
        f"a step takes {_seconds(result.recorded_s)} ({_seconds(result.replayed_s)} without the gaps between "
        f"operations), without stragglers {_seconds(result.ideal_s)}"
    )
    if not result.has_stragglers:
        return f"{times}: they cost less than 1 % of a step, or less than steps differ by"
    faster = f": {result.replayed_s / result.ideal_s:.2f} times as fast" if result.ideal_s else ""
    margin = ""
    if result.loss_margin_s is not None:
        margin = f" ±{_seconds(result.loss_margin_s)} (covers {stats.t_coverage(len(result.steps)) * 100:.0f} %)"
    loss = f"{_seconds(result.loss_s)}{margin}"
    place = _main_place(result)
    if place is None:
        where = f"no worker, stage or data-parallel rank alone pays half of the {loss}"
    else:
        where = (
            f"most of the {loss} comes from {name(place.group)}: with its operations at the usual time a step takes "
            f"{_seconds(place.without_s)} ({_percent(place)})"
        )
    kind = next(cost for cost in result.costs if cost.group.by is GroupedBy.KIND)
    return f"{times}{faster}; {where}; of the kinds of operations {name(kind.group)} pays most ({_percent(kind)})"


def remarks(result: PipelineResult) -> Iterator[str]:
    """What must be known beside the sentence."""
    gaps = 1 - result.replayed_s / result.recorded_s
    if abs(gaps) > NOTABLE_GAPS:
        less = "shorter" if gaps > 0 else "longer"
        yield (
            f"warning: the replayed step is {100 * abs(gaps):.0f} % {less} than the recorded one: much of a step is "
            "not in the recorded operations, or they wait for one another in another way; do not rely on the figures"
        )
    if result.omitted:
        counts = [plural(count, by) for by, count in result.omitted]
        yield f"not replayed, since others take longer beyond the usual time: {first_of(counts, len(counts))}"


def name(group: OperationGroup) -> str:
    """A group in words."""
    if group.by is GroupedBy.KIND:
        return "+".join(group.kinds or ())
    if group.by is GroupedBy.WORKER:
        return f"rank {group.rank} (stage {group.stage}, data-parallel rank {group.dp_rank})"
    return f"{group.by} {group.stage if group.by is GroupedBy.STAGE else group.dp_rank}"


def _main_place(result: PipelineResult) -> GroupCost | None:
    """What pays most in the narrowest grouping in which it pays MOST of the loss; None where none does."""
    for by in PLACES:
        costs = [cost for cost in result.costs if cost.group.by is by]
        if costs and costs[0].share is not None and costs[0].share >= MOST:
            return costs[0]
    return None


def _rows(result: PipelineResult) -> Iterator[tuple[str, ...]]:
    """Groupings by what their first pays, at most SHOWN groups of each."""
    for by in dict.fromkeys(cost.group.by for cost in result.costs):
        costs = [cost for cost in result.costs if cost.group.by is by]
        for at, cost in enumerate(costs[:SHOWN]):
            seconds = (f"{value:z.3f}" for value in (cost.without_s, cost.pays_s))
            yield by if not at else "", name(cost.group), *seconds, number(cost.share, 100, 1), f"{cost.alone_s:.3f}"
        if len(costs) > SHOWN:
            yield "", f"and {len(costs) - SHOWN} more", *(4 * (ELLIPSIS,))


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if abs(value) >= 10 else f"{value:.3f} s"


def _percent(cost: GroupCost) -> str:
    return f"{100 * (cost.share or 0):.0f} %"
