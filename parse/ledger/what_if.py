"""What a change would be worth: the recorded steps of each run replayed with some of their times changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from math import isnan, nan
from pathlib import Path

import numpy as np

from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT, END, GRADS_READY, REDUCED
from hpc.model.trace import Bools, Ints, Trace, TraceError
from hpc.model.trace_file import open_trace
from parse import stats
from parse.graph.findings import Bubble, ChainLink, StageImbalance, UnevenExperts
from parse.graph.imbalance import GraphRun
from parse.graph.peers import lower_median
from parse.graph.step_graph import ARRIVES, ENDS, NO_ROOT, WAITS
from parse.ledger.cells import like_the_others
from parse.ledger.finding import SpeedRange, Without
from parse.ledger.graph_what_if import LoaderTimes, ReplayCase, StragglerCells, chain_of, replays
from parse.ledger.loaders import has_figure, later_fetches_ns, loaders_ns
from parse.ledger.meetings import (
    NO_MEETINGS,
    MeetingKinds,
    StepPiece,
    awaited_calls,
    complete_parts,
    lacking_steps,
    meeting_kinds,
    read_pieces,
)
from parse.ledger.pace import PacedSteps, may_set_pace, pace_of, paced_steps
from parse.ledger.types import Change, Ledger, WhatIf
from parse.ledger.verdict import Paced, Straggler
from parse.rules import HALF, MATERIAL, READ_AT_ONCE, WORTH_NAMING
from parse.runs.processes import each_in_processes, processes_for
from parse.runs.result import Run
from parse.term_kinds import COMMUNICATION, COMPUTE, DATA, OPTIMIZER, TERM_KINDS, TERMS, WAIT, WORK, is_known

# The recorded steps of a run as what ranks do between their meetings, and the replay of these.
#
# A rank that has done its own work calls the next collective. It leaves it when all whom it waits for have called,
# after its own exposed communication. Without a change, that gives back the recorded ends to the nanosecond.


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A rank's own work by phase, each in ns [rank, step], and the event behind it.

    At `calls` it calls that meeting, at `waits` it waits for its result, which it has `exposed` [rank, step] after the
    last whom it waits for; a stage may have both, or none. All wait for `root`, NO_ROOT: for everybody. `present`
    [step] are the steps that have the event, None for all.
    """

    work: Mapping[str, Ints]
    calls: int | None = None
    waits: int | None = None
    root: int = NO_ROOT
    exposed: Ints | None = None
    present: Bools | None = None


@dataclass(frozen=True)
class _Event:
    """A moment on each rank [rank, step], ns, and what happens then, as in Stage; `leaves` is when a wait is over. In
    steps in which it is not `present` these are absent."""

    when: Ints
    calls: int | None = None
    waits: int | None = None
    root: int = NO_ROOT
    leaves: Ints | None = None
    exposed: Ints | None = None
    present: Bools | None = None

    def after(self, moments: Ints) -> float:
        """How long after these [rank, step] it is, in the mean of the steps that have it, ns."""
        apart = self.when - moments
        return float((apart if self.present is None else apart[:, self.present]).mean())


def stages(
    stamps_ns: Ints, terms: Set[str], meetings_ns: Ints | None = None, kinds: MeetingKinds = NO_MEETINGS
) -> list[Stage]:
    """From stamps on the global clock [rank, 1 + step, 6], of which the first step is there only for its end, and
    meetings [rank, step, meeting, 3]. `terms` are the names of the ledger's terms: what precedes a border that is not
    recorded is in the phase after it."""
    before, now = stamps_ns[:, :-1, END], stamps_ns[:, 1:]
    entered, end = now[:, :, GRADS_READY], now[:, :, END]
    last = np.broadcast_to(entered.max(axis=0), end.shape)
    edges, since = dict[str, tuple[Ints, Ints]](), before
    for kind in WORK[:-1]:
        until = entered if kind is COMPUTE else now[:, :, kind.stamp] if is_known(kind, terms) else since
        edges[kind.name], since = (since, until), until
    reduced = now[:, :, REDUCED] if is_known(COMMUNICATION, terms) else last
    reduction = _Event(entered, len(kinds), len(kinds), NO_ROOT, reduced, reduced - last)
    events, after = [], []
    for event in () if meetings_ns is None else _events(meetings_ns, kinds, entered):
        if event.after(entered) < 0:
            events.append(event)
        elif event.after(reduced) >= 0:
            after.append(event)  # those between are a part of the reduction
    to_reduction = _stages(before, [*events, reduction], edges)
    return to_reduction + _stages(reduced, [*after, _Event(end)], {OPTIMIZER.name: (reduced, end)})


def _stages(begin: Ints, events: Sequence[_Event], edges: Mapping[str, tuple[Ints, Ints]]) -> list[Stage]:
    """Those that end with these events; the last one ends the last phase."""
    result = []
    for event in events:
        when = event.when if event.present is None else np.where(event.present, event.when, begin)
        if len(events) == 1:
            work = {phase: until - since for phase, (since, until) in edges.items()}
        else:
            work = {
                phase: np.clip(when, since, until) - np.clip(begin, since, until)
                for phase, (since, until) in edges.items()
            }
        result.append(
            Stage(
                work=work, calls=event.calls, waits=event.waits, root=event.root, exposed=event.exposed,
                present=event.present,
            )
        )  # fmt: skip
        if event.leaves is None:
            begin = when
        else:
            begin = event.leaves if event.present is None else np.where(event.present, event.leaves, begin)
    return result


def _events(meetings_ns: Ints, kinds: MeetingKinds, entered: Ints) -> list[_Event]:
    """The calls of the meetings and the waits for them, in their order; both at once where ranks wait at once."""
    events, awaited = [], awaited_calls(meetings_ns, kinds, 0.0)
    for at, root in enumerate(kinds.roots):
        arrives, waits, ends = (meetings_ns[:, :, at, stamp] for stamp in (ARRIVES, WAITS, ENDS))
        for_all = root == NO_ROOT or (awaited[:, :, at, ARRIVES].max(axis=0) == arrives.max(axis=0)).mean() >= 0.5
        its_root = NO_ROOT if for_all else root
        exposed = ends - np.maximum(waits, arrives.max(axis=0) if for_all else arrives[root])
        present = ends[0] != ABSENT if kinds.by_step else None
        if present is not None and not present.any():
            continue
        if (arrives == waits).all():
            events.append(_Event(waits, at, at, its_root, ends, exposed, present))
        else:
            events += [
                _Event(arrives, at, present=present), _Event(waits, None, at, its_root, ends, exposed, present),
            ]  # fmt: skip
    first = entered if kinds.by_step else meetings_ns[:, :, 0, ARRIVES]
    return sorted(events, key=lambda event: event.after(first))


def replay(
    ends: Ints, cases: Sequence[Sequence[Stage]], paced: PacedSteps | None, ahead: Ints
) -> tuple[Ints, Ints]:  # fmt: skip
    """The end of each rank [case, rank] after these steps, from its end before them. Where its loader sets the pace,
    that is so far `ahead` of the recorded [case, rank]; how far behind them."""
    if len(cases[0]) == 2 and cases[0][0].root == NO_ROOT and paced is None:
        return np.stack([_by_reductions(its, *case) for its, case in zip(ends, cases, strict=True)]), ahead
    steps = []
    for each in zip(*cases, strict=True):
        first = each[0]
        work = _by_step([_sum(stage) for stage in each])
        exposed = None if first.exposed is None else _by_step([_known(stage.exposed) for stage in each])
        steps.append((work, first, exposed))
    for step in range(len(steps[0][0])):
        called: dict[int, Ints] = {}
        for work, stage, exposed in steps:
            ends = ends + work[step]
            if stage.present is not None and not stage.present[step]:
                continue
            if stage.calls is not None:
                called[stage.calls] = ends
            if stage.waits is not None and exposed is not None:
                its = called.pop(stage.waits, ends)  # else its call is a part of the reduction
                needed = its.max(axis=1, keepdims=True) if stage.root == NO_ROOT else its[:, [stage.root]]
                at_once = (
                    stage.root == NO_ROOT and stage.calls == stage.waits
                )  # nothing waits later than the last calls
                ends = (needed if at_once else np.maximum(ends, needed)) + exposed[step]
        if paced is not None:
            ends, ahead = paced.begin_after(step, ends, ahead)
    return ends, ahead


def _by_reductions(ends: Ints, to_reduction: Stage, after: Stage) -> Ints:
    """As `replay`, of one case [rank], where ranks meet at the reduction alone: what they do from one on, until they
    call the next, moves that by as much as it takes the slowest."""
    work = _sum(to_reduction)
    rest = _known(to_reduction.exposed) + _sum(after)
    between = (rest[:, :-1] + work[:, 1:]).max(axis=0)
    last: Ints = (ends + work[:, 0]).max() + between.sum() + rest[:, -1]
    return last


def _sum(stage: Stage) -> Ints:
    """All of a rank's own work [rank, step]."""
    return reduce(np.add, stage.work.values())


def _by_step(cases: Sequence[Ints]) -> Ints:
    """[step, case, rank] from the cases' [rank, step]: a step's values are adjacent."""
    return np.stack([np.ascontiguousarray(case.T) for case in cases], axis=1)


def _known(exposed: Ints | None) -> Ints:
    assert exposed is not None
    return exposed


NO_LOADERS = (
    f"{Change.INPUT}: not known, since it is not recorded what the script's loaders took of the time before its "
    "forward (no DataLoader was seen, or its trace is of an earlier version)"
)
FORETOLD = (0.79, 1.10)
"""Where ranks share cores, what was replayed without a cause was so many times the speed with the cause really removed:
ranks that wait leave their core to others, and threads that are gone do, too."""
REPLAYED = 6
"""So many stragglers are replayed one behind another; what those behind them cost is by their cells alone."""
CACHED_STAMPS = 100_000
"""Ranks × steps that are replayed at once where ranks meet at the reduction alone: so few stay in the core's cache."""


def what_ifs(ledger: Ledger) -> tuple[WhatIf, ...]:
    """The changes that the recorded time stamps allow, the one that pays most first; reads the traces again.

    Empty where there is one rank, or where ranks' arrivals cannot be compared.
    """
    terms = {term.name for term in ledger.terms}
    if len(ledger.ranks) < 2 or WAIT.name not in terms:
        return ()
    possible = {
        Change.MEDIAN: True, **{Change(kind.free): kind.name in terms for kind in TERM_KINDS if kind.free},
    }  # fmt: skip
    cases = [ReplayCase(change=change) for change, is_possible in possible.items() if is_possible]
    cases += _graph_cases(ledger)
    processes = processes_for(run.trace for run in ledger.result.for_ledger if run.trace)
    recorded, by_case = _speeds(ledger, ledger.stragglers, cases, processes)
    values = (
        WhatIf(
            change=case.change, dimension=case.dimension, speed=stats.median(speeds),
            interval=stats.median_interval(speeds), gain=stats.median(speeds) / stats.median(recorded) - 1,
            possible=_possible(ledger, speeds),
        )
        for case, speeds in by_case.items()
        if speeds
    )  # fmt: skip
    without = next((finding.without for finding, _ in ledger.findings_of(Straggler) if finding.without), None)
    of_straggler = () if without is None else (
        WhatIf(
            change=Change.STRAGGLER, speed=without.speed, interval=without.interval,
            gain=without.speed / without.recorded - 1, possible=without.possible,
        ),
    )  # fmt: skip
    return tuple(sorted((*of_straggler, *values), key=lambda what_if: -what_if.gain))


def _graph_cases(ledger: Ledger) -> Iterator[ReplayCase]:
    """Those of ranks that meet in several groups."""
    dimensions = [each.dimension for each in ledger.dimensions]
    yield from (ReplayCase(change=Change.COMMUNICATION, dimension=each) for each in dimensions if len(dimensions) > 1)
    changes = {StageImbalance: Change.STAGES, UnevenExperts: Change.EXPERTS, Bubble: Change.BUBBLE}
    yield from (ReplayCase(change=change) for kind, change in changes.items() if ledger.findings_of(kind))


def with_what_ifs(ledger: Ledger) -> Ledger:
    """The ledger with `what_ifs`; where a trace cannot be read once more, with the reason among its remarks."""
    try:
        values = what_ifs(ledger)
    except TraceError as error:
        return replace(ledger, remarks=(*ledger.remarks, f"what changes would be worth is not known: {error}"))
    remarks = ledger.remarks
    if values and ledger.result.run.backend == SCRIPT and all(each.change is not Change.INPUT for each in values):
        remarks = (*remarks, NO_LOADERS)
    return replace(ledger, what_ifs=values, remarks=remarks)


def priced(ledger: Ledger, late: Sequence[Straggler]) -> list[tuple[Straggler, Without | None]]:
    """The stragglers with what each costs: what the recorded steps are shorter by when those before it and it are taken
    out; and the speed without the first. Where ranks meet in several groups with who waits for them, too. Reads the
    traces again.

    Where the order in which ranks arrive is not a term they keep the costs that they are named with.
    """
    as_named: list[tuple[Straggler, Without | None]] = [(each, None) for each in late]
    if not late or all(term.name != WAIT.name for term in ledger.terms):
        return as_named
    first = late[0]
    if not all(cells.are_all for each in late for cells in each.cells):
        recorded = stats.median([run.measured.throughput for run in ledger.result.for_ledger if run.measured])
        speed = recorded * ledger.step.value / max(ledger.step.value - first.costs, 1e-9)
        return [(first, Without(speed=speed, interval=None, recorded=recorded)), *as_named[1:]]
    replayed = late[:REPLAYED]
    cases = [ReplayCase(change=Change.STRAGGLER, count=count) for count in range(1, len(replayed) + 1)]
    speeds_of_runs, by_case = _speeds(ledger, late, cases)
    if not speeds_of_runs:
        return as_named
    steps_ms = [run.step for run in ledger.runs][: len(speeds_of_runs)]
    saved_ms = [0.0]
    for case in cases:
        pairs = zip(steps_ms, speeds_of_runs, by_case[case], strict=True)
        saved_ms.append(stats.mean([step * (1 - speed / without) for step, speed, without in pairs]))
    costs = [max(0.0, after - before) for before, after in pairwise(saved_ms)]
    costed = [replace(each, costs=its) for each, its in zip(replayed, costs, strict=True)] + list(late[REPLAYED:])
    in_all, speeds = first.in_runs == first.of_runs, by_case[cases[0]]
    # What is late in some of the runs alone moves their median by nothing: then it is the speed of their mean step.
    slowness = sum(1 / each for each in speeds_of_runs)
    recorded = stats.median(speeds_of_runs) if in_all else len(speeds_of_runs) / slowness
    without = Without(
        speed=recorded * ledger.step.value / max(ledger.step.value - saved_ms[1], 1e-9), recorded=recorded,
        interval=stats.median_interval(speeds) if in_all else None, possible=_possible(ledger, speeds),
    )  # fmt: skip
    # Who is late behind those before it may wait for others anyway: then its replay saves nothing.
    least = MATERIAL * ledger.step.value
    shown = [each for at, each in enumerate(costed) if not at or each.costs >= least]
    chains = [replace(each, chain=_chain(ledger, each)) for each in shown] if ledger.dimensions else shown
    if chains[0].costs < WORTH_NAMING * ledger.step.value:
        if _in_a_run(ledger, lambda trace: pace_of(trace) is not None):
            chains[0] = replace(chains[0], paced=Paced.YES)
    elif max(first.cause, key=first.cause.__getitem__, default="") != DATA.cause and _in_a_run(ledger, may_set_pace):
        chains = [replace(each, paced=Paced.PERHAPS) for each in chains]
    return [(each, None if at else without) for at, each in enumerate(chains)]


def _in_a_run(ledger: Ledger, is_so: Callable[[Trace], bool]) -> bool:
    """Whether that is so in one of the replayed runs of ranks that all meet."""
    for run in () if ledger.dimensions else _replayable(ledger):
        if run.trace is not None:
            with open_trace(run.trace) as trace:
                if is_so(trace):
                    return True
    return False


def _chain(ledger: Ledger, verdict: Straggler) -> tuple[ChainLink, ...]:
    for number, run in enumerate(_replayable(ledger)):
        for ranks, steps in verdict.cells_of_run(number)[:1]:
            if run.trace is not None and steps != ():
                with open_trace(run.trace) as trace:
                    return chain_of(trace, ranks, steps)
    return ()


def _possible(ledger: Ledger, speeds: Sequence[float]) -> SpeedRange | None:
    """The speeds of runs that are replayed with a change, as far apart as FORETOLD were; None where no cores are
    shared."""
    if not ledger.shares_cores:
        return None
    low, high = FORETOLD
    return SpeedRange(low=min(speeds) / high, high=max(speeds) / low)


def _replayable(ledger: Ledger) -> list[Run]:
    """The runs of the ledger, in its order."""
    by_id = {run.run_id: run for run in ledger.result.for_ledger}
    return [by_id[run.run_id] for run in ledger.runs if run.run_id in by_id]


def _speeds(
    ledger: Ledger, late: Sequence[Straggler], cases: Sequence[ReplayCase], processes: int = 1
) -> tuple[list[float], dict[ReplayCase, list[float]]]:
    """Of each run of the ledger with a trace: the recorded speed, and that of each case; `late` are the stragglers."""
    runs = [
        (run.trace, number, run.measured.throughput)
        for number, run in enumerate(_replayable(ledger))
        if run.trace is not None and run.measured is not None
    ]
    terms = {term.name for term in ledger.terms}

    def of_run(run: tuple[Path, int, float]) -> list[float]:
        delays = [each.cells_of_run(run[1]) for each in late]
        with open_trace(run[0]) as trace:
            return replayed_speeds(trace, terms, cases, delays, in_groups=bool(ledger.dimensions))

    speeds = [*each_in_processes(of_run, runs, processes)]
    by_case = {case: [of[at] for of in speeds] for at, case in enumerate(cases)}
    by_case = {case: of for case, of in by_case.items() if not any(map(isnan, of))}
    return [throughput for *_, throughput in runs], by_case


def replayed_speeds(
    trace: Trace, terms: Set[str], cases: Sequence[ReplayCase | None], delays: Sequence[StragglerCells] = (), *,
    in_groups: bool = False,
) -> list[float]:  # fmt: skip
    """The speed of a run, in its unit, with each of these changes, None for no change.

    `terms` are the names of the ledger's terms, `delays` the stragglers' in this run. Ranks that meet `in_groups` are
    replayed by their graph. Steps that lack stamps become as much shorter as the others. NaN for input of a script of
    which it was not recorded what its loaders took. Raises TraceError where the clocks cannot be compared.
    """
    fetches_ns = partial(_fetches_ns, trace) if trace.run.is_script else None
    if in_groups:
        known = [case for case in cases if case is not None]
        run = GraphRun(trace)
        replayed = replays(run, known, delays, fetches_ns)
        durations_ns = (replayed.durations.sum(axis=0) * (run.whole_ns / replayed.recorded.sum())).tolist()
    else:
        durations_ns = _durations_ns(trace, terms, cases, delays, fetches_ns)
    samples = sum(int(np.asarray(trace.samples[:, first:stop]).sum()) for first, stop in trace.blocks.tolist())
    knows_loaders = fetches_ns is None or has_figure(trace)
    return [
        nan if case is not None and case.change is Change.INPUT and not knows_loaders else samples / case_ns * 1e9
        for case, case_ns in zip(cases, durations_ns, strict=True)
    ]


def _durations_ns(
    trace: Trace, terms: Set[str], cases: Sequence[ReplayCase | None], delays: Sequence[StragglerCells],
    fetches_ns: LoaderTimes | None,
) -> list[float]:  # fmt: skip
    """How long the steps of a run take in each case, where all ranks meet."""
    borders = {kind.ends_at for kind in TERM_KINDS if is_known(kind, terms)}
    kinds = meeting_kinds(trace) if {*TERMS} <= {*terms} else NO_MEETINGS
    duration_ns, recorded_ns, whole_ns = np.zeros(len(cases)), 0, 0
    ranks = len(trace.stamps)
    length = max(1, (READ_AT_ONCE if len(kinds) else CACHED_STAMPS) // (ranks * (1 + len(kinds))))
    pace = pace_of(trace) if is_known(DATA, terms) else None

    def changed(whole: StepPiece) -> tuple[int, list[tuple[int, int, int, Ints, PacedSteps | None, list[list[Stage]]]]]:
        """The length of a piece; its parts without steps that lack stamps: first step, stop, length, the ends of the
        ranks before it, its steps where loaders set the pace, and the stages of each case."""
        parts = []
        for part in complete_parts(whole, lacking_steps(whole, borders, kinds)):
            meetings_ns = None if part.meetings_ns is None else part.meetings_ns[:, 1:]
            its_stages = stages(part.stamps_ns, terms, meetings_ns, kinds)
            late = _late_cells(delays, ranks, np.arange(part.first, part.stop + 1))
            fetched_ns = None if fetches_ns is None else fetches_ns(part.first, part.stop)
            of_cases = [
                its_stages if case is None
                else _input_ready(its_stages, fetched_ns) if case.change is Change.INPUT
                else [_changed(each, case, late, len(kinds)) for each in its_stages]
                for case in cases
            ]  # fmt: skip
            begins_ns, paced = part.stamps_ns[:, 0, END].copy(), None
            if pace is not None:
                keeps = np.array([_keeps_loader(its_stages, each) for each in of_cases])
                ends_ns = part.stamps_ns[:, 1:, END].copy()
                paced = paced_steps(pace, ends_ns, its_stages[0].work[DATA.name], keeps)
            parts.append((part.first, part.stop, _length_ns(part), begins_ns, paced, of_cases))
        return _length_ns(whole), parts

    for first, stop in trace.blocks.tolist():
        ends, reached = np.zeros((len(cases), ranks), np.int64), -1
        pieces = [(begin, min(begin + length, stop)) for begin in range(first, stop, length)]
        for its_ns, parts in map(changed, read_pieces(trace, kinds, pieces)):
            whole_ns += its_ns
            for part_first, part_stop, part_ns, begins_ns, paced, of_cases in parts:
                recorded_ns += part_ns
                if part_first != reached:
                    duration_ns += ends.max(axis=1)
                    ends = np.repeat(begins_ns[None] - begins_ns.max(), len(cases), axis=0)
                    shift = ends - begins_ns
                ends, shift, reached = *replay(ends, of_cases, paced, shift), part_stop
        duration_ns += ends.max(axis=1)
    return [*(duration_ns * (whole_ns / recorded_ns)).tolist()]


def _length_ns(piece: StepPiece) -> int:
    """From the latest end before its steps to that of the last of them."""
    begins_ns, ends_ns = piece.stamps_ns[:, 0, END], piece.stamps_ns[:, -1, END]
    return int(ends_ns.max() - begins_ns.max())


def _late_cells(delays: Sequence[StragglerCells], ranks: int, steps: Ints) -> list[Bools]:
    """The cells of the first straggler, of the first two, and so on, in these steps [rank, step]."""
    cells = np.zeros((len(delays), ranks, len(steps)), np.bool_)
    for its, delay in zip(cells, delays, strict=True):
        for its_ranks, its_steps in delay:
            late = np.ones(len(steps), np.bool_) if its_steps is None else np.isin(steps, its_steps)
            its[np.ix_(np.array(its_ranks, np.int64), late)] = True
    return [*np.logical_or.accumulate(cells)]


def _keeps_loader(recorded: Sequence[Stage], changed: Sequence[Stage]) -> Bools:
    """Whose loader keeps its pace in a change [rank]: not where what a rank saves is mostly its data."""
    data, its = recorded[0].work[DATA.name].sum(axis=1), changed[0].work.get(DATA.name)
    of_data = data - (lower_median(data, axis=0) if its is None else its.sum(axis=1))
    saved = sum((_sum(before) - _sum(after)).sum(axis=1) for before, after in zip(recorded, changed, strict=True))
    keeps: Bools = (of_data <= HALF * saved) | (saved <= HALF * of_data)
    return keeps


def _input_ready(of: Sequence[Stage], fetches_ns: Mapping[str, Ints] | None) -> list[Stage]:
    """The stages without waiting for input: that is their data, of a script what its loaders took, by phase."""
    remaining = dict(fetches_ns or {})
    changed = []
    for stage in of:
        work = dict(stage.work)
        if fetches_ns is None and DATA.name in work:
            work[DATA.name] = np.zeros_like(work[DATA.name])
        for phase in remaining.keys() & work.keys():
            waited = np.minimum(work[phase], remaining[phase])
            work[phase] = work[phase] - waited
            remaining[phase] = remaining[phase] - waited
        changed.append(replace(stage, work=work))
    return changed


def _fetches_ns(trace: Trace, first: int, stop: int) -> dict[str, Ints]:
    """What a script's loaders took in these steps, ns [rank, step], by the phase in which it is."""
    return {DATA.name: loaders_ns(trace, first, stop), COMPUTE.name: later_fetches_ns(trace, first, stop)}


def _changed(stage: Stage, case: ReplayCase, late: Sequence[Bools], reduction: int) -> Stage:
    """The stage with this change; `late` are `_late_cells` of its steps and of the one that follows, `reduction` is the
    number of that of the gradients among the meetings."""
    match case.change:
        case Change.INPUT | Change.STAGES | Change.EXPERTS | Change.BUBBLE:
            raise ValueError(f"{case.change} is of all stages together, or of ranks in several groups")
        case Change.COMMUNICATION:
            return stage if stage.exposed is None else replace(stage, exposed=np.zeros_like(stage.exposed))
        case Change.MEDIAN:
            whole = np.sum([*stage.work.values()], axis=0)
            return replace(stage, work={COMPUTE.name: np.broadcast_to(lower_median(whole.T, axis=1), whole.shape)})
        case Change.STRAGGLER:
            # A late optimizer step, or leaving the reduction late, delays the step that follows.
            now, after = slice(None, -1), slice(1, None)
            cells, named = late[case.count - 1], late[-1]
            work = {}
            for phase, ns in stage.work.items():
                at = after if phase == OPTIMIZER.name else now
                work[phase] = like_the_others(ns, cells[:, at], named[:, at])
            exposed = stage.exposed
            if exposed is not None:
                at = after if stage.waits == reduction else now
                exposed = like_the_others(exposed, cells[:, at], named[:, at])
            return replace(stage, work=work, exposed=exposed)
