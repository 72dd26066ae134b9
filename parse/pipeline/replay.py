"""Step times of replayed operations: each starts as soon as what it waits for is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from parse.pipeline.types import Flags, Floats, Kind, PipelineTrace, PipelineTraceError

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
    for number, stage in enumerate(stages):
        for earlier, later in _order(trace, number, stage):
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


def _order(trace: PipelineTrace, number: int, stage: StageOperations) -> Iterator[tuple[int, int]]:
    """Pairs of operations of one worker of which the first ends before the second starts."""
    compute = sorted(stage[Kind.FORWARD] + stage[Kind.BACKWARD], key=lambda place: float(trace.start_s[place, 0, 0]))
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        if not stage[kind]:
            raise PipelineTraceError(f"stage {number} has no {kind}")
    if (trace.start_s[compute[1:]] < trace.start_s[compute[:-1]]).any():
        raise PipelineTraceError(f"stage {number} does not compute in the same order in all steps and ranks")
    yield from pairwise(compute)
    yield from pairwise([*stage[Kind.PARAMS_GATHER], stage[Kind.FORWARD][0]])
    yield from pairwise([compute[-1], *(place for kind in STEP_END for place in stage[kind])])
    for kind, recv, send, _ in DIRECTIONS:
        for of in (recv, send):
            if len(stage[of]) not in (0, len(stage[kind])):
                raise PipelineTraceError(
                    f"stage {number} has {len(stage[of])} {of} for {len(stage[kind])} {kind}: only schedules with one "
                    "chunk of the model per stage are read"
                )
            yield from pairwise(stage[of])
        yield from zip(stage[recv], stage[kind], strict=False)
        yield from zip(stage[kind], stage[recv][1:], strict=False)
        if stage[send]:
            yield from zip(stage[kind], stage[send], strict=True)


def _transfers(stages: Sequence[StageOperations]) -> Iterator[tuple[int, ...]]:
    """Each send with its recv on the neighbouring stage."""
    for _, recv, send, towards in DIRECTIONS:
        for number, stage in enumerate(stages):
            peer = number + towards
            recvs = stages[peer][recv] if 0 <= peer < len(stages) else []
            if len(stage[send]) != len(recvs):
                raise PipelineTraceError(
                    f"stage {number} has {len(stage[send])} {send}, and {len(recvs)} {recv} on stage {peer} are there"
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
