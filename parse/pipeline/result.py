"""What stragglers cost, in all and by worker, stage, data-parallel rank and kind of operation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse import stats
from parse.pipeline.replay import own_times_s, replayed_s, usual_times_s
from parse.pipeline.schedule import schedule
from parse.pipeline.types import (
    Flags,
    Floats,
    Group,
    GroupCost,
    GroupedBy,
    Kind,
    PipelineResult,
    PipelineTrace,
    StepTime,
)

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


def _groups(trace: PipelineTrace, excess_s: Floats) -> tuple[list[Group], tuple[tuple[GroupedBy, int], ...]]:
    """The groups that are replayed, and how many of a grouping are not; by their operations' time beyond the usual, in
    s [operation, data-parallel rank]. Where there is one stage, or one data-parallel rank, workers stand for the other.
    """
    by_worker = np.zeros((trace.stages, len(trace.dp_ranks)))
    np.add.at(by_worker, [operation.stage for operation in trace.operations], excess_s)
    groups, omitted = [], []
    for at in _largest(by_worker.ravel()):
        stage, column = divmod(at, len(trace.dp_ranks))
        groups.append(Group(
            by=GroupedBy.WORKER, dp_rank=trace.dp_ranks[column], stage=stage, rank=int(trace.ranks[column, stage]),
        ))  # fmt: skip
    if by_worker.size > MAX_GROUPS:
        omitted.append((GroupedBy.WORKER, by_worker.size - MAX_GROUPS))
    if min(by_worker.shape) > 1:
        stages, columns = _largest(by_worker.sum(axis=1)), _largest(by_worker.sum(axis=0))
        groups += [Group(by=GroupedBy.STAGE, stage=stage) for stage in stages]
        groups += [Group(by=GroupedBy.DP_RANK, dp_rank=trace.dp_ranks[column]) for column in columns]
        for by, total in ((GroupedBy.STAGE, len(by_worker)), (GroupedBy.DP_RANK, len(trace.dp_ranks))):
            if total > MAX_GROUPS:
                omitted.append((by, total - MAX_GROUPS))
    present = {operation.kind for operation in trace.operations}
    groups += [Group(by=GroupedBy.KIND, kinds=kinds) for kinds in KINDS if present.intersection(kinds)]
    return groups, tuple(omitted)


def _largest(excess_s: Floats) -> list[int]:
    """The places of the MAX_GROUPS largest, in descending order."""
    order: list[int] = np.argsort(-excess_s, kind="stable")[:MAX_GROUPS].tolist()
    return order


def _selected(trace: PipelineTrace, groups: Sequence[Group]) -> tuple[Flags, Flags]:
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
