"""Finds the stragglers of a point: verdicts on the arrivals of each run and of all together, against equal ranks.

Null hypothesis: ranks differ by chance alone. Then permuting the ranks' names in each piece of the window changes
nothing, nor does permuting the work of a step's ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from parse import stats
from parse.ledger.arrivals import MATERIAL, Arrivals, Floats, pooled
from parse.ledger.breakdown import PIECES, StepBreakdown
from parse.ledger.meetings import Ints
from parse.ledger.transient import (
    Pool,
    Suspect,
    course,
    incidents,
    meetings_of,
    named,
    pool_of,
    rhythm,
    rotating,
    single_events,
    transients,
)
from parse.ledger.types import (
    CANNOT_TELL,
    NONE,
    PERSISTENT,
    Because,
    Floor,
    Lowering,
    RunLedger,
    Shape,
    ShapeKind,
    Verdict,
)

UNRESOLVED = 0.05
"""If the clocks' uncertainty exceeds this share of the step, the verdict cannot be `none` either."""
CHANCE, OF_ONE_RUN = 0.001, 0.005
"""The maximum false-positive rate of a persistent straggler among equal ranks whose pieces of a window are independent.
Those of real machines are not: load lasts. With 1 % every tenth point of equal ranks on busy cores accused one, with
0.5 % every thirtieth. The pieces of one run can hardly show less: two of four ranks that are late in all of them have
0.4 %."""
SHUFFLES, FEWER_SHUFFLES, SHUFFLED = 9999, 999, 4_000_000
"""Permutations tried, of two ranks all if they are few; fewer where more values (ranks × pieces) would be shuffled."""
TIMES = (4.0, 8.0, 16.0, 32.0)
"""The t of Chernoff's bound that are tried, in inverse distances of the observed mean from that of all ranks."""
SHOWS = 0.5
"""A straggler of all runs together shows in a run where it is typically late there by this part of MATERIAL, and the
latest."""
COSTLY_IN_FEW = 0.1
"""A persistent straggler of half of the runs or fewer is the point's where it costs this share of its step: load that
lasts makes ranks late in single runs."""
PROVABLE_IN = 0.3
"""A persistent straggler is provably late, beyond the clocks' bounds, in at least this share of the steps."""
TOGETHER = 0.5
"""Ranks that are late by at least this part of the latest rank's delay are late together."""


@dataclass(frozen=True, kw_only=True)
class PointVerdicts:
    """The verdicts on the runs of a point: each run's, that of all together, and those on stragglers behind it."""

    runs: tuple[RunLedger, ...]
    verdict: Verdict
    further: tuple[Verdict, ...] = ()


def point_verdicts(breakdowns: Sequence[StepBreakdown]) -> PointVerdicts:
    """Those by the evidence of all runs; where that names nobody, the one that most of the runs have."""
    by_run = [_verdicts([breakdown]) for breakdown in breakdowns]
    runs = tuple(map(_run_ledger, breakdowns, by_run))
    verdicts = stragglers(breakdowns, by_run)
    if verdicts and (verdicts[0].ranks or len(runs) == 1):
        first, *further = verdicts
    else:
        first, further = _of_most(runs, verdicts[0] if verdicts else None), []
    unmatched = any(breakdown.unmatched for breakdown in breakdowns)
    verdict = _with_lowering(_unless_unmatched(first, unmatched), breakdowns)
    return PointVerdicts(runs=runs, verdict=verdict, further=tuple(further))


def _unless_unmatched(verdict: Verdict, unmatched: bool) -> Verdict:
    """The verdict; that nobody is late is not known where somebody may be at collectives that were not matched."""
    if verdict.kind != NONE or not unmatched:
        return verdict
    return Verdict(kind=CANNOT_TELL, because=Because.UNMATCHED, bound=verdict.bound, of_runs=verdict.of_runs)


def _run_ledger(breakdown: StepBreakdown, verdicts: Sequence[Verdict]) -> RunLedger:
    return RunLedger(
        run_id=breakdown.run_id, step=breakdown.step_ns / 1e6,
        verdict=_unless_unmatched(verdicts[0], bool(breakdown.unmatched)),
        pauses=tuple(pause / 1e6 for pause in breakdown.pauses_ns),
        rank_pauses=breakdown.paused.by_ranks if breakdown.paused else (),
        bound=None if breakdown.arrivals is None else breakdown.arrivals.bound / 1e6,
        incidents=incidents(breakdown), problems=breakdown.problems,
    )  # fmt: skip


def _with_lowering(verdict: Verdict, breakdowns: Sequence[StepBreakdown]) -> Verdict:
    """The verdict, where it has a detection limit with what would lower it."""
    arrivals = [breakdown.arrivals for breakdown in breakdowns if breakdown.arrivals is not None]
    if verdict.limit is None or not arrivals:
        return verdict
    least_ns = MATERIAL * stats.mean([breakdown.step_ns for breakdown in breakdowns])
    lower = lowering(pooled(arrivals), limit_ns=verdict.limit * 1e6, least_ns=least_ns, bound_ns=verdict.bound * 1e6)
    return replace(verdict, lowering=lower)


def _of_most(runs: Sequence[RunLedger], together: Verdict | None) -> Verdict:
    """The verdict that most of the runs have: of the same kind on the same ranks, else on the same node.

    Where it names nobody, that of all runs `together` stands for it; also where half of the runs at most name somebody,
    who costs less in a mean step of all of them than the limit that it states.
    """
    verdicts = [run.verdict for run in runs]
    by_rank = [(each.kind, each.because, each.ranks) for each in verdicts]
    by_node = [(each.kind, each.because, each.node or each.ranks) for each in verdicts]
    keys: Sequence[tuple[object, ...]]
    for keys in (by_rank, by_node):
        commonest, count = Counter(keys).most_common(1)[0]
        if 2 * count > len(runs):
            same = [each if key == commonest else None for each, key in zip(verdicts, keys, strict=True)]
            averaged = _averaged(same)
            return together if together and not averaged.ranks else averaged
    naming = [each for each in verdicts if each.ranks]
    costs = sum(each.costs for each in naming) / len(runs)
    if together and together.limit is not None and 2 * len(naming) <= len(runs) and costs < together.limit:
        return together
    return Verdict(kind=CANNOT_TELL, because=Because.RUNS_DISAGREE, bound=max(run.bound or 0.0 for run in runs))


def _averaged(by_run: Sequence[Verdict | None]) -> Verdict:
    """The first of the runs' verdicts that count, with their means; the steps of a transient one run by run."""
    verdicts = [each for each in by_run if each is not None]
    first = verdicts[0]
    averaged = ("arrival_skew", "share", "costs", "bound")
    means: dict[str, Any] = {name: stats.mean([getattr(each, name) for each in verdicts]) for name in averaged}
    chances = [each.chance for each in verdicts if each.chance is not None]
    return replace(
        first,
        steps=first.steps if all(each.steps == first.steps for each in verdicts) else (),
        run_steps=tuple(each.steps if each else () for each in by_run) if first.steps else (),
        in_runs=len(verdicts),
        of_runs=len(by_run),
        shape=rhythm([each.steps for each in verdicts]) if first.steps else first.shape,
        cause={
            name: stats.mean([each.cause[name] for each in verdicts])
            for name in first.cause
            if all(name in each.cause for each in verdicts)
        },
        chance=max(chances) if len(chances) == len(verdicts) else None,
        **means,
    )


def verdict(run: StepBreakdown) -> Verdict:
    """The verdict on the straggler of one run."""
    return _verdicts([run])[0]


def stragglers(runs: Sequence[StepBreakdown], by_run: Sequence[Sequence[Verdict]] | None = None) -> tuple[Verdict, ...]:
    """The verdict on the runs of a point, by the evidence of all of them together; `by_run` are those on each alone.

    Behind that on the straggler that costs most stand those on others. One that names nobody has the detection limit.
    Empty where runs cannot be put together: they differ in the time stamps or meetings that they have, or in which
    ranks share a node.
    """
    if len({(run.arrivals and (run.arrivals.causes, run.arrivals.meetings), run.nodes) for run in runs}) > 1:
        return ()
    pool = pool_of(runs)
    if isinstance(pool, Verdict):
        return (pool,)
    first, *further = _judged(pool)
    known = {rank for each in (first, *further) for rank in each.ranks}
    if by_run is None:
        by_run = [_verdicts([run]) for run in runs]
    in_some_runs = sorted(_in_some_runs(runs, by_run, pool.step_ns, known), key=lambda each: -each.costs)
    if first.ranks or len(in_some_runs) == 1:  # else each run has another
        return (*([first] if first.ranks else []), *further, *in_some_runs)
    if first.kind is not NONE:
        return (first,)
    limit_ns = detection_limit_ns(
        pool.arrivals, least_ns=MATERIAL * pool.step_ns, bound_ns=pool.bound_ns, chance=_max_chance(pool.runs),
        shuffles=SHUFFLES,
    )  # fmt: skip
    return (replace(first, limit=None if limit_ns is None else limit_ns / 1e6),)


def _in_some_runs(
    runs: Sequence[StepBreakdown], by_run: Sequence[Sequence[Verdict]], step_ns: float, known: set[int]
) -> Iterator[Verdict]:
    """Persistent stragglers of half of the runs or fewer that cost COSTLY_IN_FEW of the point's step, each by the
    evidence of the runs that show it; without `known` ranks."""
    shown: dict[tuple[int, ...], list[StepBreakdown]] = {}
    for run, verdicts in zip(runs, by_run, strict=True) if len(runs) > 1 else ():
        for each in verdicts:
            if each.kind == PERSISTENT:
                shown.setdefault(each.ranks, []).append(run)
    for ranks, its_runs in shown.items():
        for each in _verdicts(its_runs) if not {*ranks} & known else ():
            costs = each.costs * len(its_runs) / len(runs)
            if (each.kind, each.ranks) == (PERSISTENT, ranks) and costs * 1e6 >= COSTLY_IN_FEW * step_ns:
                yield replace(each, in_runs=len(its_runs), of_runs=len(runs), costs=costs)


def _verdicts(runs: Sequence[StepBreakdown]) -> tuple[Verdict, ...]:
    """Those on runs that are alike, all of them together."""
    pool = pool_of(runs)
    return (pool,) if isinstance(pool, Verdict) else _judged(pool)


def _judged(pool: Pool) -> tuple[Verdict, ...]:
    """The verdicts: single events, and what all other steps show, what costs most first."""
    turns = rotating(pool)
    if turns:
        return (turns,)
    events = [*single_events(pool)]
    rest = pool.without(np.any([its for _, its in events], axis=0)) if events else pool
    usual = _apart(_persistent(rest), transients(rest))
    persistent = next((each for each in usual if each.kind == PERSISTENT), None)
    behind = [*_behind(rest, persistent)] if persistent else []
    known = {rank for each in behind for rank in each.ranks}
    candidates = [*(event for event, _ in events), *(each for each in usual if not {*each.ranks} & known)]
    if candidates:
        return (*sorted(candidates, key=lambda candidate: -candidate.costs), *behind)
    bound = pool.bound_ns / 1e6
    if bound * 1e6 > UNRESOLVED * pool.step_ns:
        return (Verdict(kind=CANNOT_TELL, because=Because.CLOCK, bound=bound),)
    ranks, pieces = pool.arrivals.ranks.typical.shape
    if max(1 / (1 + SHUFFLES), float(ranks) ** (1 - pieces)) > _max_chance(pool.runs):  # what the test can find at best
        return (Verdict(kind=CANNOT_TELL, because=Because.FEW_STEPS, bound=bound),)
    return (Verdict(kind=NONE, bound=bound),)


def _apart(persistent: Verdict | None, transient: Sequence[Verdict]) -> list[Verdict]:
    """All of them, but of the same rank only one: the transient one if its other steps cost less. The steps that stand
    out are in the costs of the persistent one, too."""
    if persistent is None:
        return [*transient]
    same = [each for each in transient if {*each.ranks} <= {*persistent.ranks}]
    others = [each for each in transient if each not in same]
    if same and persistent.costs < 2 * sum(each.costs for each in same):
        return [*same, *others]
    return [persistent, *others]


def _persistent(pool: Pool, known: Sequence[int] = ()) -> Verdict | None:
    """A rank, several, or a node that are late in nearly all of the window, in more than half of the runs.

    `known` are ranks that are stragglers already: the others are compared with one another.
    """
    arrivals = pool.arrivals
    compared = [rank for rank in range(len(pool.nodes)) if rank not in known]
    suspect = _usual_suspect(pool, compared)
    if suspect is None:
        return None
    ranks = list(suspect.ranks)
    typical = arrivals.ranks.typical
    typical_ns = float(typical[ranks].mean())
    costs_ns = _further_costs_ns(pool, ranks, compared) if known else _costs_ns(arrivals, suspect)
    if min(typical_ns, costs_ns) < MATERIAL * pool.step_ns:  # a few bad steps alone cost much, too
        return None
    in_runs = sum(_shows(pool, run, ranks, compared) for run in range(pool.runs))
    if 2 * in_runs <= pool.runs:
        return None
    chance = _chance(typical[compared], pool.runs)
    if suspect.node is not None and not known:
        chance = min(chance, _chance(arrivals.nodes.typical, pool.runs))
    if chance > _max_chance(pool.runs):
        return None
    bound_ns = pool.bound_ns
    late_steps, causes = arrivals.late_steps[ranks], arrivals.rank_cause[ranks]
    if typical_ns <= bound_ns or late_steps.mean() < PROVABLE_IN * len(arrivals.steps):
        return Verdict(
            kind=CANNOT_TELL, because=Because.CLOCK, bound=bound_ns / 1e6, arrival_skew=typical_ns / 1e6, chance=chance
        )
    weights = late_steps / max(1, late_steps.sum())
    return Verdict(
        kind=PERSISTENT, ranks=suspect.ranks, node=pool.host(suspect), in_runs=in_runs, of_runs=pool.runs,
        shape=_course(pool, suspect),
        arrival_skew=float(causes.sum(axis=1) @ weights) / 1e6,
        cause=named(arrivals, weights @ causes), meetings=meetings_of(arrivals, ranks),
        share=float(late_steps.mean()) / len(arrivals.steps), costs=costs_ns / 1e6, bound=bound_ns / 1e6,
        chance=chance,
    )  # fmt: skip


def _shows(pool: Pool, run: int, ranks: Sequence[int], compared: Sequence[int]) -> bool:
    """Whether a run shows that these ranks are late: typically by SHOWS of MATERIAL there, and no less than the others
    compared. What differs between runs may make other ranks late in each."""
    usual = pool.arrivals.ranks.typical[:, pool.arrivals.piece_run == run].mean(axis=1)
    others = [usual[rank] for rank in compared if rank not in ranks]
    late_ns = float(usual[list(ranks)].mean())
    return bool(late_ns >= max(SHOWS * MATERIAL * pool.step_ns, *others))


def _course(pool: Pool, suspect: Suspect) -> Shape:
    """The shape of the delay by what it typically is in the pieces of the windows; the step in which one begins or ends
    by all steps in which the suspect comes last, if they show it."""
    arrivals = pool.arrivals
    typical_ms = arrivals.ranks.typical[list(suspect.ranks)].mean(axis=0) / 1e6
    length = len(arrivals.steps) // len(typical_ms)
    shape = course(
        [np.repeat(typical_ms[arrivals.piece_run == run], length) for run in range(pool.runs)], int(arrivals.steps[0])
    )
    if shape.kind not in (ShapeKind.BEGINS, ShapeKind.ENDS):
        return shape
    by_steps = pool.course(np.isin(arrivals.ranks.last, suspect.ranks))
    return by_steps if by_steps.kind is shape.kind else shape


def _behind(pool: Pool, first: Verdict) -> Iterator[Verdict]:
    """Further persistent stragglers, each among the ranks that are none so far."""
    known = [*first.ranks]
    while len(known) < len(pool.nodes) // 2 and (further := _persistent(pool, known)):
        if further.kind != PERSISTENT:
            return
        yield further
        known += further.ranks


def _usual_suspect(pool: Pool, compared: Sequence[int]) -> Suspect | None:
    """The rank of those compared whose typical arrival skew is the largest, with those near it whose skew has the same
    main cause; a node where they are all of its ranks."""
    usual = pool.arrivals.ranks.typical.mean(axis=1)
    latest = max(compared, key=lambda rank: usual[rank])
    if usual[latest] <= 0:
        return None
    main_cause = pool.arrivals.rank_cause.argmax(axis=1)
    near = [rank for rank in compared if usual[rank] >= TOGETHER * usual[latest]]
    if len(near) > len(pool.nodes) // 2:
        return None  # where most are late the few others are early
    ranks = tuple(rank for rank in near if main_cause[rank] == main_cause[latest])
    nodes = {pool.nodes[rank] for rank in ranks}
    if len(nodes) == 1 and len({*pool.nodes}) > 1 and (whole := pool.node(nodes.pop())).ranks == ranks:
        return whole
    return Suspect(ranks=ranks)


def _further_costs_ns(pool: Pool, ranks: Sequence[int], compared: Sequence[int]) -> float:
    """The mean time that these ranks typically come after the latest of the others compared."""
    usual = pool.arrivals.ranks.typical.mean(axis=1)
    others = [rank for rank in compared if rank not in ranks]
    return float(usual[list(ranks)].mean() - max((usual[rank] for rank in others), default=0.0))


def _costs_ns(arrivals: Arrivals, suspect: Suspect) -> float:
    """The mean time that the suspect adds to a step: up to the next rank, or node; for several ranks, to the median."""
    if suspect.node is not None:
        lost = np.where(arrivals.nodes.last == suspect.node, arrivals.nodes.gap, 0)
    else:
        later = arrivals.ranks.gap if len(suspect.ranks) == 1 else arrivals.skew
        lost = np.where(np.isin(arrivals.ranks.last, suspect.ranks), later, 0)
    return float(lost.astype(np.float64).mean())


def _max_chance(runs: int) -> float:
    return CHANCE if runs > 1 else OF_ONE_RUN


def _chance(typical: Floats, runs: int) -> float:
    """The probability of so large a mean over the pieces [rank, piece] if names are permuted in every piece; where it
    is above what so many runs may have, a lower limit of it that is above that, too."""
    if typical.shape[1] >= 2 * PIECES * runs:
        typical = np.stack([part.mean(axis=1) for part in np.array_split(typical, PIECES * runs, axis=1)], axis=1)
    ranks, pieces = typical.shape
    if (exchanges := all_exchanges(ranks, pieces)) is not None:
        apart = exchanges @ (typical[0] - typical[1])
        return float((np.abs(apart) >= abs(apart[0]) * (1 - 1e-12)).mean())
    least = typical.mean(axis=1).max() * (1 - 1e-12)
    shuffles = max(FEWER_SHUFFLES, min(SHUFFLES, SHUFFLED // typical.size))
    if _log_chance(typical, least) < -log(1 + shuffles):  # less than they can show
        return 1 / (1 + shuffles)
    random = np.random.default_rng(ranks * 1_000_003 + pieces)
    by_piece = np.ascontiguousarray(typical.T)
    shuffled = np.empty_like(by_piece)
    as_large = 0
    for _ in range(shuffles):
        random.permuted(by_piece, axis=1, out=shuffled)
        as_large += bool(shuffled.mean(axis=0).max() >= least)
        if (1 + as_large) / (1 + shuffles) > _max_chance(runs):
            break
    return (1 + as_large) / (1 + shuffles)


def _log_chance(typical: Floats, least: float) -> float:
    """An upper limit of the logarithm of the probability that one permutation of the names in every piece [rank, piece]
    gives some rank a mean of `least`.

    By Chernoff's bound, P(Σ x ≥ 0) ≤ Π E exp(t · x) for every t > 0, with x the values of the pieces less `least`.
    """
    reach = least - float(typical.mean())
    if reach <= 0:
        return 0.0
    largest = typical.max(axis=0)
    limits = [
        float((t * (largest - least) + np.log(np.exp(t * (typical - largest)).mean(axis=0))).sum())
        for t in (times / reach for times in TIMES)
    ]
    return log(len(typical)) + min(limits)


# How late a rank would have to be to be named: the detection limit of the test for persistent stragglers.

SIGMAS_OF_POWER = 1.2816 * 2**0.5
"""Standard errors above a critical value at which nine of ten other measurements are beyond it: the limit is itself
measured, with the same error (normal distribution)."""
RANKS = 8
"""As many ranks are tried in the role of the late one, spread over all."""
LIMIT_SHUFFLED = 1_000_000
"""So many values are shuffled, or more where 1 in `chance` shuffles take them."""
MANY, OF_MANY = 5_000, 100
"""Of more values (ranks × pieces) so many shuffles show how the largest mean scatters; it bounds time and memory."""
FEW = 4096
"""So many permutations are all tried."""
HALVINGS = 30
MAX_TIMES = 100.0
"""More runs or steps than so many times as many are no advice."""


def detection_limit_ns(
    arrivals: Arrivals, *, least_ns: float, bound_ns: float, chance: float, shuffles: int
) -> float | None:
    """The delay in every step, in ns, from which a rank is named persistent in nine of ten measurements like this one.

    As in the test, the rank must be beyond what permuted names of ranks show with probability `chance`, beyond the
    clocks' bounds `bound_ns`, and typically late by `least_ns` and cost as much. None where no delay would be enough.
    """
    by_chance_ns = _beyond_chance_ns(arrivals.ranks.typical, chance, shuffles)
    if by_chance_ns is None:
        return None
    usual, runs = arrivals.usual, arrivals.piece_run
    late_ns = (
        max(by_chance_ns, least_ns, bound_ns) - float(usual.mean()) + SIGMAS_OF_POWER * _standard_error(usual, runs)
    )
    return max(late_ns, _costing_ns(arrivals.margin, least_ns))


def lowering(arrivals: Arrivals, *, limit_ns: float, least_ns: float, bound_ns: float) -> Lowering:
    """How many times as many runs or steps would halve the limit of `detection_limit_ns`, which had these arguments.

    The scatter of what permuted names show and all standard errors fall with the square root of the number; the clocks'
    bounds, the least delay and the costs that make a straggler do not.
    """
    usual, typical = float(arrivals.usual.mean()), float(arrivals.ranks.typical.mean())
    error_ns = SIGMAS_OF_POWER * _standard_error(arrivals.usual, arrivals.piece_run)
    by_chance_ns = limit_ns + usual - error_ns  # or less, where the costs make the limit

    def limit(times: float) -> float:
        falls_by = float(times**0.5)
        chance_ns = typical + (by_chance_ns - typical) / falls_by
        late_ns = max(chance_ns, least_ns, bound_ns) - usual + error_ns / falls_by
        return float(max(late_ns, _costing_ns(arrivals.margin, least_ns, times)))

    floor_ns = limit(float("inf"))
    by_clock = bound_ns > max(least_ns, typical) and bound_ns - usual >= floor_ns
    floor = Floor.CLOCK if by_clock else Floor.SHARE
    low, high = 1.0, MAX_TIMES
    if limit(high) > limit_ns / 2:
        return Lowering(times=None, least=floor_ns / 1e6, floor=floor)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if limit(middle) > limit_ns / 2 else (low, middle)
    return Lowering(times=high, least=floor_ns / 1e6, floor=floor)


def _costing_ns(margin: Ints, cost_ns: float, times: float = 1.0) -> float:
    """How late a rank must be to add `cost_ns` to a step on average, in nine of ten windows of `times` as many
    steps."""

    def costs(delay: float) -> float:
        lost = np.maximum(margin + delay, 0)
        return float(lost.mean() - SIGMAS_OF_POWER * lost.std() / (times * len(lost)) ** 0.5)

    low, high = 0.0, cost_ns + float(-margin.min(initial=0)) + float(np.ptp(margin))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if costs(middle) < cost_ns else (low, middle)
    return high


def _beyond_chance_ns(typical: Floats, chance: float, shuffles: int) -> float | None:
    """The mean that a late rank needs to exceed those of permuted names: the median over ranks in that role."""
    ranks, pieces = typical.shape
    shuffles = max(round(1 / chance), min(shuffles, LIMIT_SHUFFLED // typical.size))
    random = np.random.default_rng(ranks * 1_000_003 + pieces)
    if typical.size > MANY:  # of so many ranks none is dealt several of the late one's pieces
        largest = [float(random.permuted(typical, axis=0).mean(axis=1).max()) for _ in range(OF_MANY)]
        return _exceeded_by(chance, largest)
    exchanges = all_exchanges(ranks, pieces)
    if exchanges is not None:
        order, allowed = np.stack([exchanges < 0, exchanges > 0], axis=1).astype(np.int64), int(chance * len(exchanges))
    else:
        order = random.permuted(np.broadcast_to(np.arange(ranks)[:, None], (shuffles, ranks, pieces)), axis=1)
        allowed = int(chance * (1 + shuffles)) - 1
    shuffled = np.take_along_axis(typical[None], order, axis=1).mean(axis=2)
    limits = []
    for late in {*np.linspace(0, ranks - 1, min(RANKS, ranks)).round().astype(int).tolist()}:
        takes = (order == late).mean(axis=2)
        limit = _exceeding(shuffled - float(typical[late].mean()) * takes, takes, allowed)
        if limit is not None:
            limits.append(limit)
    return float(np.median(limits)) if limits else None


def _exceeded_by(chance: float, maxima: Sequence[float]) -> float:
    """What maxima of many values, of which these are some, exceed with this probability.

    By Gumbel's distribution with their mean and standard deviation (Coles, An Introduction to Statistical Modeling of
    Extreme Values, 2001, 3.1). Means of several values reach it slowly: for these it is a few per cent too large.
    """
    scale = float(np.std(maxima, ddof=1)) * 6**0.5 / np.pi
    return float(np.mean(maxima)) - scale * (np.euler_gamma + float(np.log(-np.log1p(-chance))))


def all_exchanges(ranks: int, pieces: int) -> Ints | None:
    """Of two ranks all ways to permute their names in every piece, none changed first: [way, piece] 1 or, changed, -1;
    None where there are more ranks, or more ways than FEW."""
    if ranks != 2 or pieces > FEW.bit_length() - 1:
        return None
    return 1 - 2 * (np.arange(2**pieces)[:, None] >> np.arange(pieces) & 1)


def _exceeding(shuffled: Floats, takes: Floats, allowed: int) -> float | None:
    """The delay in ns that exceeds the largest mean of all but `allowed` of the shuffles [shuffle, rank], of which each
    rank `takes` a share of the delay with it; None if none does."""

    def is_beyond(delay: float) -> bool:
        return int(((shuffled + delay * takes).max(axis=1) >= delay).sum()) <= allowed

    low, high = 0.0, max(float(shuffled.max()), 1.0)
    for _ in range(HALVINGS):
        if is_beyond(high):
            break
        low, high = high, 2 * high
    else:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high


def _standard_error(values: Floats, runs: Ints) -> float:
    """That of the mean over pieces [piece]; where there are three runs the larger one, of pieces or of runs."""
    errors = [float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0]
    means = [float(values[runs == run].mean()) for run in np.unique(runs)]
    if len(means) > 2:
        errors.append(float(np.std(means, ddof=1)) / len(means) ** 0.5)
    return max(errors)
