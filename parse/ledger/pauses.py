"""Who is away while a script pauses between its steps, and who waits for it: by what hooks recorded and time stamps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, END, GRADS_READY, REDUCED
from hpc.model.trace import Floats, Ints, RankReport, Trace, TraceError
from parse import stats
from parse.graph.reading import GraphReader
from parse.graph.roots import compared, roots
from parse.graph.step_graph import ARRIVES, ENDS, WAITS
from parse.ledger.finding import LeftOut, RankPauses
from parse.rules import HALF, NOTABLE, OF_ONE_RUN
from parse.term_kinds import WORK

USUAL_STEPS, USUAL_CELLS = 1000, 2_000_000
"""What a rank usually takes between two reductions is known from so many steps, fewer where these are more cells."""
_NOTHING_BESIDE = "another loader"
"""The loader of an evaluation is no kind beside it."""


@dataclass(frozen=True, kw_only=True)
class RunPauses:
    """The pauses of a run by who makes them, what costs most first. `slowdown`: the time that a sample takes with the
    pauses over that without; None where no samples are known. `first_steps`: None where ranks' reductions are not
    known."""

    by_ranks: tuple[RankPauses, ...]
    slowdown: float | None
    left_out: LeftOut
    first_steps: RunFirstSteps | None


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFirstSteps:
    """The steps of a run that are left out behind its pauses, each with its `place` [step] behind its pause, 0 for the
    first, and the number of the first step behind that `pause` [step].

    `longer` [step, rank, 3] is by how many ms a rank's own work (optimizer, data, compute) is longer than it usually is
    in the steps of the blocks; `late` [step, rank] ns how much of that the step's reduction waits for, negative where
    it is shorter. In 19 of 20 steps of the blocks the median rank takes at most `usually` ms longer.
    """

    place: Ints
    pause: Ints
    late: Ints
    longer: Floats
    usually: float


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pauses:
    """The pauses of a run: `steps` that follow them, `away` [pause, rank] ms, `kinds` [pause][rank], empty where none
    was recorded."""

    steps: Sequence[int]
    away: Floats
    kinds: Sequence[Sequence[frozenset[str]]]


def run_pauses(trace: Trace, blocks_ns: Sequence[tuple[int, int]], bound_ns: float) -> RunPauses | None:
    """Those inside the window of a script, None where there are none.

    `blocks_ns` are begin and end of its blocks on the global clock, `bound_ns` what the clocks leave open. Raises
    TraceError where the facts of a rank are damaged.
    """
    pauses = _pauses(trace)
    if pauses is None:
        return None
    first, stop = int(trace.blocks[0, 0]), int(trace.blocks[-1, 1])
    whole_ns, inside = blocks_ns[-1][1] - blocks_ns[0][0], int(np.diff(trace.blocks).sum())
    recorded = [pause_table(report, rank, "pauses") for rank, report in enumerate(trace.reports)]
    paused = sorted({step for its in recorded for step in its if first < step < stop})
    by_ranks = []
    for ranks, lengths in _by_ranks(pauses, bound_ns / 1e6).items():
        kinds = {kind for at in lengths for rank, its in enumerate(pauses.kinds[at]) if rank in ranks or not ranks
                 for kind in its}  # fmt: skip
        total = sum(lengths.values())
        by_ranks.append(
            RankPauses(
                ranks=ranks, kinds=tuple(sorted(kinds)), times=len(lengths), length=total / len(lengths),
                costs=total / (stop - first), share=total * 1e6 / whole_ns,
            )
        )  # fmt: skip
    return RunPauses(
        by_ranks=_dearest_first(by_ranks), slowdown=_slowdown(trace, blocks_ns, whole_ns),
        left_out=LeftOut(steps=stop - first - inside, of_steps=stop - first, pauses=len(paused)),
        first_steps=_first_steps(trace, paused),
    )  # fmt: skip


def of_point(runs: Sequence[RunPauses | None]) -> tuple[RankPauses, ...]:
    """The pauses of all runs together: means over these."""
    by_ranks: dict[tuple[int, ...], list[RankPauses]] = defaultdict(list)
    for run in runs:
        for each in run.by_ranks if run else ():
            by_ranks[each.ranks].append(each)
    return _dearest_first(
        RankPauses(
            ranks=ranks, kinds=tuple(sorted({kind for each in its for kind in each.kinds})),
            times=sum(each.times for each in its) / len(runs),
            length=sum(each.times * each.length for each in its) / sum(each.times for each in its),
            costs=sum(each.costs for each in its) / len(runs), share=sum(each.share for each in its) / len(runs),
        )
        for ranks, its in by_ranks.items()
    )  # fmt: skip


def speed_with_pauses(runs: Sequence[RunPauses | None], speeds: Sequence[float]) -> float | None:
    """The median speed, from those of the runs without their pauses; None where no run has any."""
    slowdowns = [1.0 if run is None else run.slowdown for run in runs]
    if not any(runs) or None in slowdowns or not speeds:
        return None
    return stats.median([speed / (slowdown or 1.0) for speed, slowdown in zip(speeds, slowdowns, strict=True)])


def _dearest_first(pauses: Sequence[RankPauses] | Iterator[RankPauses]) -> tuple[RankPauses, ...]:
    return tuple(sorted(pauses, key=lambda each: (-each.costs, each.ranks)))


def _slowdown(trace: Trace, blocks_ns: Sequence[tuple[int, int]], whole_ns: int) -> float | None:
    first, stop = int(trace.blocks[0, 0]), int(trace.blocks[-1, 1])
    inside = sum(int(np.asarray(trace.samples[:, begin:end]).sum()) for begin, end in trace.blocks.tolist())
    every = int(np.asarray(trace.samples[:, first:stop]).sum())
    if not inside or len(trace.blocks) == 1:  # its pauses are in its steps
        return None
    return (whole_ns / every) / (sum(end - begin for begin, end in blocks_ns) / inside)


# How long each rank is away in each pause.
#
# Of a rank with a record of its pause: its length less what the rank waited for others in it. Of one without: by how
# much longer than in other steps it takes from the reduction before to its next gradients, less its waits.


def _pauses(trace: Trace) -> _Pauses | None:
    first, stop = int(trace.blocks[0, 0]), int(trace.blocks[-1, 1])
    recorded = [
        pause_table(report, rank, "pauses") | pause_table(report, rank, "phases")
        for rank, report in enumerate(trace.reports)
    ]
    steps = sorted({step for its in recorded for step in its if first < step < stop})
    if not steps:
        return None
    waits = [pause_table(report, rank, "waits_at_pauses") for rank, report in enumerate(trace.reports)]
    away = np.zeros((len(steps), len(recorded)))
    for rank, its in enumerate(recorded):
        for at, step in enumerate(steps):
            if step in its:
                away[at, rank] = 1e3 * seconds_of(its[step], rank)
    unrecorded = np.array([[step not in its for its in recorded] for step in steps])
    if unrecorded.any():
        waited_ms = np.array(
            [[1e3 * _number(its.get(step, {}), rank) for rank, its in enumerate(waits)] for step in steps]
        )
        beyond_usual = _taken_ms(trace, steps) - waited_ms - _usual_ms(trace)
        away = np.where(unrecorded & (beyond_usual > 0), beyond_usual, away)  # NaN is not: no stamps
    return _Pauses(
        steps=steps, away=away,
        kinds=[[kinds_of(its[step]) if step in its else frozenset() for its in recorded] for step in steps],
    )  # fmt: skip


def _taken_ms(trace: Trace, steps: Sequence[int]) -> Floats:
    """From the reduction before each step to the rank's gradients in it [step, rank], NaN without stamps."""
    return np.stack([_between_ms(trace.stamps[:, step - 1 : step + 1])[:, 0] for step in steps])


def _usual_ms(trace: Trace) -> Floats:
    """What each rank takes there in the steps of the blocks, less its waits, in 19 of 20 of these [rank]."""
    taken, steps = [], 0
    for first, stop in trace.blocks.tolist():
        if steps < USUAL_STEPS:
            stamps = trace.stamps[:, first - 1 : stop]
            taken.append(_between_ms(stamps) - _waited_ms(trace, stamps, first - 1, stop))
            steps += stop - first
    joined = np.concatenate(taken, axis=1)
    usual = np.full(len(joined), np.nan)
    known = ~np.isnan(joined).any(axis=1)
    usual[known] = np.percentile(joined[known], 95, axis=1)
    return usual


def _between_ms(stamps: Ints) -> Floats:
    """[rank, step] from stamps [rank, 1 + step, 6]."""
    reduced, ready = stamps[:, :-1, REDUCED], stamps[:, 1:, GRADS_READY]
    return np.where((reduced == ABSENT) | (ready == ABSENT), np.nan, (ready - reduced) / 1e6)


def _waited_ms(trace: Trace, stamps: Ints, first: int, stop: int) -> Floats:
    """What each rank waits for results of collectives between two reductions [rank, step]."""
    if trace.meetings is None:
        return np.zeros((len(stamps), stamps.shape[1] - 1))
    meetings: Ints = np.asarray(trace.meetings[:, first:stop])
    begin = np.where(meetings[..., WAITS] == ABSENT, meetings[..., ARRIVES], meetings[..., WAITS])
    known = (begin != ABSENT) & (meetings[..., ENDS] != ABSENT)
    waited_ms = np.where(known, meetings[..., ENDS] - begin, 0) / 1e6
    after, before = begin >= stamps[:, :, None, REDUCED], begin <= stamps[:, :, None, GRADS_READY]
    waited: Floats = (waited_ms * after)[:, :-1].sum(axis=2) + (waited_ms * before)[:, 1:].sum(axis=2)
    return waited


def pause_table(report: RankReport, rank: int, name: str) -> dict[int, Mapping[str, object]]:
    """A list of the script's facts, by step. Raises TraceError where it is none."""
    script = report.extra.get("script") or {}
    entries = script.get(name, ()) if isinstance(script, Mapping) else None
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise TraceError(f"{name} of the script of rank {rank} is no list")
    by_step = {}
    for entry in entries:
        step = entry.get("step") if isinstance(entry, Mapping) else None
        if not isinstance(step, int):
            raise TraceError(f"{name} of the script of rank {rank} has an entry without a step")
        by_step[step] = entry
    return by_step


def seconds_of(entry: Mapping[str, object], rank: int) -> float:
    """How long the rank was away in a pause, without what it waited for others. Raises TraceError."""
    return max(0.0, _number(entry, rank, "seconds") - _number(entry, rank))


def _number(entry: Mapping[str, object], rank: int, name: str = "waited_s") -> float:
    value = entry.get(name, 0.0)  # earlier traces have no waits
    if not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise TraceError(f"{name} of a pause of rank {rank} is {str(value)[:50]}, which is no time")
    return float(value)


def kinds_of(entry: Mapping[str, object]) -> frozenset[str]:
    """What a pause was for, as hooks recorded it."""
    kinds = {*str(entry.get("kind", "")).split(" and ")} - {""}
    return frozenset(kinds - {_NOTHING_BESIDE} or kinds)


# The first steps behind a pause, which are in no block: what a rank does there beyond what it usually does.


def _first_steps(trace: Trace, paused: Sequence[int]) -> RunFirstSteps | None:
    """Those behind the `paused` steps. None where there are none, or where it is not known when ranks have their
    gradients."""
    work = _own_of_blocks(trace)
    if work is None:
        return None
    graphs = None if trace.calls is None else GraphReader(trace)
    usual = work.mean(axis=0)
    steps: list[tuple[int, int]] = []
    longer, late = [], []
    for (_, before), (after, _) in pairwise(trace.blocks.tolist()):
        first = next((step for step in paused if before <= step < after), after)
        its = _own_ms(trace, first, after) if first < after else None
        stamps: Ints = trace.stamps[:, first - 1 : after]
        if its is None or (graphs is not None and (stamps[..., REDUCED] == ABSENT).any()):
            continue
        its -= usual
        ready = trace.stamps_globally(stamps[:, 1:], (range(GRADS_READY, GRADS_READY + 1),))
        for at, step in enumerate(range(first, after)):
            pause = max(each for each in paused if each <= step)
            if step == pause:  # the optimizer step is before the pause; without a recorded pause all is in the others'
                has_none = stamps[:, at + 1, BEGIN] == stamps[:, at, END]
                its[at, :, 0], its[at, has_none] = 0.0, 0.0
            steps.append((pause, step - pause))
            longer.append(its[at])
            longer_ns = 1e6 * its[at].sum(axis=1)
            awaited_ns = (
                _awaited_ns(ready[:, at, GRADS_READY], longer_ns) if graphs is None else _behind_peers_ns(graphs, step)
            )
            late.append(np.rint(np.where(longer_ns > 0, np.minimum(longer_ns, awaited_ns), longer_ns)))
    if not steps:
        return None
    its_pause, place = np.array(steps).T
    usually = float(np.percentile(middle_of((work - usual).sum(axis=2)), 95))
    return RunFirstSteps(
        place=place, pause=its_pause, late=np.stack(late).astype(np.int64), longer=np.stack(longer), usually=usually
    )


def middle_of(values: Floats) -> Floats:
    """That of the median rank, the lower one of an even number, from [step, rank]."""
    middle: Floats = np.sort(values, axis=1)[:, (values.shape[1] - 1) // 2]
    return middle


def _own_of_blocks(trace: Trace) -> Floats | None:
    """What ranks do themselves in steps of the blocks, as of `_own_ms`; None where that is not known."""
    of_each = max(1, min(USUAL_STEPS, USUAL_CELLS // len(trace.stamps)) // len(trace.blocks))
    known = [_own_ms(trace, first, min(stop, first + of_each)) for first, stop in trace.blocks.tolist()]
    of_blocks = [each for each in known if each is not None]
    return np.concatenate(of_blocks) if len(of_blocks) == len(known) else None


def _own_ms(trace: Trace, first: int, stop: int) -> Floats | None:
    """What each rank does itself in steps `first` to `stop` − 1, from the reduction before, or the end of a pause, to
    its gradients, without waiting for results of collectives: by CAUSES behind the first [step, rank, 3]; one whose end
    is not known is 0. None where stamps are missing."""
    stamps = trace.stamps[:, first - 1 : stop]
    before, now = stamps[:, :-1], stamps[:, 1:]
    begin, ready = now[..., BEGIN], now[..., GRADS_READY]
    edges = [np.where(before[..., END] == begin, before[..., REDUCED], begin), begin]
    for kind in WORK[:-2]:
        edges.append(np.where(now[..., kind.stamp] == ABSENT, edges[-1], now[..., kind.stamp]))
    edges.append(ready)
    if min(int(edge.min()) for edge in edges) == ABSENT:
        return None
    work = np.diff(edges, axis=0)
    if trace.meetings is not None:
        meetings: Ints = np.asarray(trace.meetings[:, first - 1 : stop])
        waits = np.where(meetings[..., WAITS] == ABSENT, meetings[..., ARRIVES], meetings[..., WAITS])
        known = (waits != ABSENT) & (meetings[..., ENDS] != ABSENT)
        for part, (since, until) in enumerate(pairwise(edges)):
            for of_step in (slice(None, -1), slice(1, None)):  # those behind a reduction are the step's before
                begins, ends = (
                    np.clip(each[:, of_step], since[..., None], until[..., None])
                    for each in (waits, meetings[..., ENDS])
                )
                work[part] -= np.where(known[:, of_step], ends - begins, 0).sum(axis=2)
    return np.moveaxis(work, 0, 2).swapaxes(0, 1) / 1e6


def _awaited_ns(ready: Ints, longer_ns: Floats) -> Floats:
    """Of ranks that have their gradients at these moments, and take so much longer [rank]: how long the others wait for
    each at most."""
    after = ready - ready.min()
    awaited: Floats = np.maximum(after - float((after - np.maximum(longer_ns, 0)).max()), 0)
    return awaited


def _behind_peers_ns(graphs: GraphReader, step: int) -> Floats:
    """The same of ranks that meet in groups: by how much a step is longer for what each takes longer than its peers,
    from the end of a pause on. Raises TraceError where it is not known whom they wait for."""
    stamps_ns = graphs.trace.global_stamps(step - 1, step + 1)
    stamps_ns[:, 0, END] = stamps_ns[:, 1, BEGIN]
    (steps,) = graphs.read(step, stamps_ns)
    return np.maximum(roots(compared(graphs.peers(steps), steps)).late[:, 0], 0).astype(np.float64)


# Who makes the others wait.


def _by_ranks(pauses: _Pauses, bound: float) -> dict[tuple[int, ...], dict[int, float]]:
    """By ranks, and by pause, ms by how much longer than most ranks they are away. No ranks: what all are away."""
    ranks = pauses.away.shape[1]
    middle = middle_of(pauses.away)
    longest = pauses.away.max(axis=1)
    by_ranks: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for at, (usual, maximum) in enumerate(zip(middle.tolist(), longest.tolist(), strict=True)):
        common = usual >= NOTABLE * maximum
        beyond = maximum - usual
        if ranks > 1 and beyond > max(bound, NOTABLE * maximum):
            its = tuple(np.flatnonzero(pauses.away[at] - usual >= HALF * beyond).tolist())
            by_ranks[its][at] = beyond
        if common:
            by_ranks[()][at] = usual
    alike = by_ranks.get((), {})
    for its in [its for its in by_ranks if its and not _distinguished(pauses, its, by_ranks[its], alike)]:
        for at, beyond in by_ranks.pop(its).items():
            by_ranks[()][at] = alike.get(at, 0.0) + beyond  # somebody is the longest
            alike = by_ranks[()]
    return {its: lengths for its, lengths in by_ranks.items() if lengths}


def _distinguished(
    pauses: _Pauses, ranks: Sequence[int], lengths: Mapping[int, float], alike: Mapping[int, float]
) -> bool:
    """Whether these ranks are away in a way that chance does not explain: while others are not, for something else, or
    always the same of all that pause."""
    if any(at not in alike for at in lengths):
        return True
    others = sorted({*range(pauses.away.shape[1])}.difference(ranks))
    if all(pauses.kinds[at][ranks[0]] not in [pauses.kinds[at][rank] for rank in others] for at in lengths):
        return True
    share = 1 / pauses.away.shape[1]
    return bool(stats.binomial_tail(len(alike), len(lengths), share) / share <= OF_ONE_RUN)
