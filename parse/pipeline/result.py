"""What stragglers cost, by replayed step times: in all and by worker, stage, data-parallel rank and kind."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from hpc.system.text import first_of, plural
from parse import stats
from parse.pipeline.read import (
    Flags,
    Floats,
    GroupCost,
    GroupedBy,
    Kind,
    OperationGroup,
    PipelineResult,
    PipelineTrace,
    PipelineTraceError,
    StepTime,
)
from parse.text import ELLIPSIS, GAP, TableData, number, text_of

# What an operation waits for: the schedule of pipeline-parallel training with one chunk of the model per stage.
#
#     compute     a stage computes in the recorded order; a forward or backward starts after its recv, a send after its
#                 compute; a recv is posted when the compute before is over
#     send, recv  the n-th forward-send of a stage meets the n-th forward-recv of the next stage, the n-th backward-send
#                 the n-th backward-recv of the stage before; those of one kind and stage follow one another
#     begin       params-all-gather, before the first forward; across data-parallel ranks
#     end         after the last compute, in this order: gc, layernorm-grads-all-reduce, embedding-grads-all-reduce (of
#                 first and last stage), grads-reduce-scatter (across data-parallel ranks), optimizer-clip-main-grad
#                 (across all workers), optimizer
#
# After J. Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI 2025).

DIRECTIONS = (
    (Kind.FORWARD, Kind.FORWARD_RECV, Kind.FORWARD_SEND, 1),
    (Kind.BACKWARD, Kind.BACKWARD_RECV, Kind.BACKWARD_SEND, -1),
)
"""Compute, the recv before it, the send after it, and how many stages on that send goes."""
STEP_END = (
    Kind.GC, Kind.LAYERNORM_REDUCE, Kind.EMBEDDING_REDUCE, Kind.GRADS_SCATTER, Kind.CLIP, Kind.OPTIMIZER
)  # fmt: skip
"""What follows the last compute, in this order."""
ACROSS_DP_RANKS = frozenset({Kind.PARAMS_GATHER, Kind.GRADS_SCATTER, Kind.CLIP})

StageOperations = dict[Kind, list[int]]
"""The places of a stage's operations in `PipelineTrace.operations`, by kind, in order."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Operations that begin to work when the last of them has started; a computation is one by itself."""

    operations: tuple[int, ...]
    after: tuple[int, ...]
    """The operations that must have ended."""
    across_dp_ranks: bool

    @property
    def is_communication(self) -> bool:
        """Whether an operation may wait for another worker."""
        return self.across_dp_ranks or len(self.operations) > 1


def schedule(trace: PipelineTrace) -> tuple[Meeting, ...]:
    """The meetings of a step, each behind those it waits for.

    Raises PipelineTraceError where the trace has another schedule.
    """
    stages: list[StageOperations] = [defaultdict(list) for _ in range(trace.stages)]
    for place, operation in enumerate(trace.operations):
        stages[operation.stage][operation.kind].append(place)
    after: dict[int, list[int]] = defaultdict(list)
    for position, stage in enumerate(stages):
        for earlier, later in _order(trace, position, stage):
            after[later].append(earlier)
    together = [*_transfers(stages), *_common(stages)]
    met = {place for places in together for place in places}
    together += [(place,) for place in range(len(trace.operations)) if place not in met]
    meeting_of = {place: at for at, places in enumerate(together) for place in places}
    meetings = [
        Meeting(
            operations=places,
            after=tuple(sorted({earlier for place in places for earlier in after[place]})),
            across_dp_ranks=trace.operations[places[0]].kind in ACROSS_DP_RANKS,
        )
        for places in together
    ]
    waits_for = {at: {meeting_of[place] for place in meeting.after} for at, meeting in enumerate(meetings)}
    try:
        return tuple(meetings[at] for at in TopologicalSorter(waits_for).static_order())
    except CycleError as error:
        circle = [str(trace.operations[together[at][0]]) for at in error.args[1][:3]]
        raise PipelineTraceError(f"operations wait for one another in a circle: {', '.join(circle)} …") from None


def _order(trace: PipelineTrace, position: int, stage: StageOperations) -> Iterator[tuple[int, int]]:
    """Pairs of operations of one worker of which the first ends before the second starts."""
    compute = sorted(stage[Kind.FORWARD] + stage[Kind.BACKWARD], key=lambda place: float(trace.start_s[place, 0, 0]))
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        if not stage[kind]:
            raise PipelineTraceError(f"stage {position} has no {kind}")
    if (trace.start_s[compute[1:]] < trace.start_s[compute[:-1]]).any():
        raise PipelineTraceError(f"stage {position} does not compute in the same order in all steps and ranks")
    yield from pairwise(compute)
    yield from pairwise([*stage[Kind.PARAMS_GATHER], stage[Kind.FORWARD][0]])
    yield from pairwise([compute[-1], *(place for kind in STEP_END for place in stage[kind])])
    for kind, recv, send, _ in DIRECTIONS:
        for of in (recv, send):
            if len(stage[of]) not in (0, len(stage[kind])):
                raise PipelineTraceError(
                    f"stage {position} has {len(stage[of])} {of} for {len(stage[kind])} {kind}: only schedules with "
                    "one chunk of the model per stage are read"
                )
            yield from pairwise(stage[of])
        yield from zip(stage[recv], stage[kind], strict=False)
        yield from zip(stage[kind], stage[recv][1:], strict=False)
        if stage[send]:
            yield from zip(stage[kind], stage[send], strict=True)


def _transfers(stages: Sequence[StageOperations]) -> Iterator[tuple[int, ...]]:
    """Each send with its recv on the neighbouring stage."""
    for _, recv, send, towards in DIRECTIONS:
        for position, stage in enumerate(stages):
            peer = position + towards
            recvs = stages[peer][recv] if 0 <= peer < len(stages) else []
            if len(stage[send]) != len(recvs):
                raise PipelineTraceError(
                    f"stage {position} has {len(stage[send])} {send}, and {len(recvs)} {recv} on stage {peer} are there"
                )
            yield from zip(stage[send], recvs, strict=True)
        first = stages[0 if towards > 0 else -1]
        if first[recv]:
            raise PipelineTraceError(f"the {'first' if towards > 0 else 'last'} stage has {recv}, but none sends to it")


def _common(stages: Sequence[StageOperations]) -> Iterator[tuple[int, ...]]:
    """What several stages of a data-parallel rank do together: reduce the embedding's gradients, clip."""
    ends = (stages[0], stages[-1]) if len(stages) > 1 else (stages[0],)
    for kind, members in ((Kind.EMBEDDING_REDUCE, ends), (Kind.CLIP, stages)):
        counts = {len(stage[kind]) for stage in members}
        if len(counts) > 1:
            raise PipelineTraceError(f"stages differ in the number of {kind}: {', '.join(map(str, sorted(counts)))}")
        yield from zip(*(stage[kind] for stage in members), strict=True)


MEAN_OF = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.GC, Kind.OPTIMIZER})
"""Kinds whose usual time is the mean: all their work is done, but evenly shared out. That of the others, communication,
is the median, which a few slow transfers do not change."""
CHUNK_VALUES = 1 << 15
"""As many cases are replayed at once as have this many ends of an operation, or one."""


def own_times_s(trace: PipelineTrace, meetings: Sequence[Meeting]) -> Floats:
    """What each operation takes without waiting for other workers, in s [operation, step, data-parallel rank].

    Of a computation its duration; of communication from when the last worker has started, and 0 where the clocks leave
    less than nothing.
    """
    own_s = trace.duration_s.copy()
    for meeting in meetings:
        if meeting.is_communication:
            places = list(meeting.operations)
            entered = trace.start_s[places].max(axis=0)
            if meeting.across_dp_ranks:
                entered = entered.max(axis=-1, keepdims=True)
            own_s[places] = np.maximum(trace.start_s[places] + trace.duration_s[places] - entered, 0)
    return own_s


def usual_times_s(trace: PipelineTrace, own_s: Floats) -> Floats:
    """The mean or median of each operation's kind over all workers and steps, in s [operation, 1, 1]."""
    kinds = np.array([operation.kind for operation in trace.operations])
    usual_s = np.empty((len(kinds), 1, 1))
    for kind in np.unique(kinds).tolist():
        of = kinds == kind
        usual_s[of] = np.mean(own_s[of]) if kind in MEAN_OF else np.median(own_s[of])
    return usual_s


def replayed_s(
    meetings: Sequence[Meeting], own_s: Floats, changed_s: Floats, operations: Flags, dp_ranks: Flags
) -> Floats:
    """Step times in s [case, step], replayed with `own_s` but `changed_s` for what a case selects.

    A case changes `operations` [case, operation] of `dp_ranks` [case, data-parallel rank]. Both times broadcast to
    [operation, step, data-parallel rank].
    """
    shape = np.broadcast_shapes(own_s.shape, changed_s.shape)
    own_s, changed_s = np.broadcast_to(own_s, shape), np.broadcast_to(changed_s, shape)
    length = max(1, CHUNK_VALUES // (shape[1] * shape[2]))
    chunks = [
        _replayed_chunk(meetings, own_s, changed_s, operations[at : at + length], dp_ranks[at : at + length])
        for at in range(0, len(operations), length)
    ]
    return np.concatenate(chunks)


def _replayed_chunk(
    meetings: Sequence[Meeting], own_s: Floats, changed_s: Floats, operations: Flags, dp_ranks: Flags
) -> Floats:
    begin = np.zeros((len(operations), *own_s.shape[1:]))
    last: Floats = begin.max(axis=-1)
    ends: dict[int, Floats] = {}
    for meeting, released in zip(meetings, _released(meetings), strict=True):
        entered = begin
        for place in meeting.after:
            entered = np.maximum(entered, ends[place])
        if meeting.across_dp_ranks:
            entered = entered.max(axis=-1, keepdims=True)
        for place in meeting.operations:
            changed = (operations[:, place, None] & dp_ranks)[:, None, :]
            ends[place] = entered + np.where(changed, changed_s[place], own_s[place])
            last = np.maximum(last, ends[place].max(axis=-1))
        for place in released:
            del ends[place]
    return last


def _released(meetings: Sequence[Meeting]) -> list[list[int]]:
    """For each meeting the operations whose ends are not needed after it."""
    last_use: dict[int, int] = {}
    for at, meeting in enumerate(meetings):
        last_use |= dict.fromkeys((*meeting.after, *meeting.operations), at)
    released: list[list[int]] = [[] for _ in meetings]
    for place, at in last_use.items():
        released[at].append(place)
    return released


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
