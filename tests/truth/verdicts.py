"""Verdicts held against the truth: whom the ranks waited for, how long, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.ledger.verdict import ROTATING, TRANSIENT, ShapeKind, Straggler, Verdict
from parse.say.reasons import verdict_text
from tests.truth.cases import Expected
from tests.truth.exact import CAUSES, Known, Ms, Truth

ALLOWED_MS, ALLOWED = 1.0, 0.05
"""What a ledger may differ from the sleeps, whichever is larger."""
SAME_MS = 0.1
"""Figures of a verdict that lie closer are the same: one of the mean, one of certain steps."""
NOISE = 10
"""How many times the noise a delay must be for a verdict to be expected."""
FULL = 0.95
"""Share of the steps in which somebody is late who always is: load may make another rank later in a few."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Miss:
    """Something that a ledger has wrong. `machine` where it is right by the exact stamps: the machine
    took more time than the sleeps."""

    text: str
    machine: bool = False


@dataclass(frozen=True, kw_only=True)
class ArrivalSkew:
    """Means over the steps in which somebody is late: `skew` and `cause` [4] against the median rank, the lower one of
    an even number; `costs` is how much shorter a step of the window were without. All ms."""

    skew: float
    cause: Ms
    costs: float


def arrival_skew(truth: Truth, stragglers: Bools) -> ArrivalSkew:
    """That of these ranks in these steps, bool [rank, step]."""
    ranks, steps = stragglers.shape
    entry = truth.causes.sum(axis=2)
    median = np.argsort(entry, axis=0)[(ranks - 1) // 2]
    each = np.arange(steps)
    later = truth.causes - truth.causes[median, each]
    others = np.where(stragglers, -np.inf, entry).max(axis=0)
    return ArrivalSkew(
        skew=float(later.sum(axis=2)[stragglers].mean()),
        cause=later[stragglers].mean(axis=0),
        costs=float(np.maximum(0.0, entry.max(axis=0) - others).mean()),
    )


def step_without_ms(known: Known, stragglers: Bools) -> float:
    """The mean step of that run, ms, had these ranks in these steps [rank, step] slept no longer than the median rank,
    the lower one of an even number.

    By the exact stamps: each step is shorter by what the last entry into its reduction comes earlier.
    """
    slept = known.slept.causes.sum(axis=2)
    longer = np.where(stragglers, slept - np.sort(slept, axis=0)[(len(slept) - 1) // 2], 0.0)
    entry = known.stamped.causes.sum(axis=2)
    saved = entry.max(axis=0) - (entry - longer).max(axis=0)
    return float((known.stamped.terms.sum(axis=2).mean(axis=0) - saved).mean())


def held_against(verdict: Verdict, runs: Sequence[Known], expected: Expected, *, measured: bool) -> Iterator[Miss]:
    """What is wrong with a verdict on these runs; `measured` says whether its figures are those of the sleeps."""
    if verdict.kind not in expected.kinds:
        yield Miss(
            text=f"says {describe(verdict)}; true is {' or '.join(expected.kinds)}{_names(expected)}{_as_it_was(runs)}",
            machine=_drowns(runs, expected) if expected.ranks else _is_so(verdict, runs),
        )
        return
    if not isinstance(verdict, Straggler):
        return
    if verdict.ranks != expected.ranks or verdict.node != expected.node:
        yield Miss(text=f"says {describe(verdict)}; true is{_names(expected)}{_as_it_was(runs)}")
        return
    if not verdict.cause or (first := max(verdict.cause, key=verdict.cause.__getitem__)) != expected.cause:
        yield Miss(text=f"says {describe(verdict)}; true is that it is late by its {expected.cause}, not {first}")
    meeting = next(iter(verdict.meetings), "")
    if meeting != expected.meeting:
        yield Miss(text=f"its delay arises before {meeting or 'the only collective'}, not before {expected.meeting}")
    yield from _steps(verdict, runs, expected)
    if measured:
        yield from _figures(verdict, runs, expected)


def stragglers_of(known: Known, expected: Expected) -> Bools:
    """Who is late in which step, as it was injected: bool [rank, step]."""
    steps = known.steps % expected.every == 0
    if ROTATING in expected.kinds:
        return np.arange(len(known.slept.terms))[:, None] == known.steps % len(known.slept.terms)
    return np.isin(np.arange(len(known.slept.terms)), expected.ranks)[:, None] & steps


def describe(verdict: Verdict) -> str:
    """A verdict in a few words."""
    if not isinstance(verdict, Straggler):
        return verdict_text(verdict)
    who = verdict.node or f"rank {', '.join(map(str, verdict.ranks))}"
    cause = ", ".join(f"{name} {value:.2f}" for name, value in verdict.cause.items() if abs(value) >= SAME_MS)
    return f"{verdict.kind}: {who} {verdict.arrival_skew:.2f} ms in {verdict.share * 100:.0f} % ({cause})"


def _figures(verdict: Straggler, runs: Sequence[Known], expected: Expected) -> Iterator[Miss]:
    """Against the sleeps in the steps in which there were any, and the exact stamps in those that the verdict names."""
    slept = [arrival_skew(known.slept, stragglers_of(known, expected)) for known in runs]
    stamped = [arrival_skew(known.stamped, _named(verdict, known)) for known in runs]
    figures = {
        "arrival skew": (verdict.arrival_skew, [x.skew for x in slept], [x.skew for x in stamped]),
        "costs": (verdict.costs, [x.costs for x in slept], [x.costs for x in stamped]),
    }
    for at, name in enumerate(CAUSES):
        of = verdict.cause.get(name, 0.0), [float(x.cause[at]) for x in slept], [float(x.cause[at]) for x in stamped]
        figures[f"cause {name}"] = of
    for name, (figure, of_sleeps, of_stamps) in figures.items():
        true, exact = float(np.mean(of_sleeps)), float(np.mean(of_stamps))
        if abs(figure - true) > max(ALLOWED_MS, ALLOWED * true):
            yield Miss(
                text=f"{name} of the straggler: ledger {figure:.3f}, sleeps {true:.3f}, exact stamps {exact:.3f} ms",
                machine=abs(figure - exact) <= SAME_MS,
            )


def _named(verdict: Straggler, known: Known) -> Bools:
    """Who is late in which step by the verdict, as far as the exact stamps bear it out: bool [rank, step]."""
    entry = known.stamped.entries
    who = np.isin(np.arange(len(entry)), verdict.ranks)[:, None]
    if verdict.kind == ROTATING:
        return who & (entry == entry.max(axis=0))
    if verdict.steps:
        return who & np.isin(known.steps, verdict.steps)
    return who & (after_median(entry) > known.open_ms)


def after_median(entry: Ms) -> Ms:
    """How much later than the median rank each comes, [rank, step]."""
    return entry - np.sort(entry, axis=0)[(len(entry) - 1) // 2]


def beside_others(values: Ms, entry: Ms) -> Ms:
    """By how much each rank's value exceeds that of the median of the others, in the order of their `entry`; where they
    are even in number, the mean of the middle two. All [rank, step]."""
    beside = np.empty_like(values)
    for rank in range(len(entry)):
        others = np.delete(np.arange(len(entry)), rank)
        order = others[np.argsort(entry[others], axis=0)]
        middle = order[[(len(others) - 1) // 2, len(others) // 2]]
        beside[rank] = values[rank] - np.take_along_axis(values, middle, axis=0).mean(axis=0)
    return beside


def steps_of(verdict: Straggler, steps: npt.NDArray[np.int64]) -> Bools:
    """In which of these steps somebody is late by a verdict: all, those from one on or until it, or some."""
    if verdict.kind == TRANSIENT:
        return np.isin(steps, verdict.steps)
    shape = verdict.shape
    if shape is None or shape.step is None or shape.kind not in (ShapeKind.BEGINS, ShapeKind.ENDS):
        return np.full(len(steps), True)
    return (steps >= shape.step) == (shape.kind is ShapeKind.BEGINS)


def _steps(verdict: Straggler, runs: Sequence[Known], expected: Expected) -> Iterator[Miss]:
    """In which steps: named one by one where they are few, else as a share of the window."""
    if verdict.kind != TRANSIENT:
        if verdict.share < FULL:
            late = [(after_median(known.stamped.entries) > known.open_ms)[list(verdict.ranks)] for known in runs]
            exact = np.mean([each.any(axis=0) if verdict.kind == ROTATING else each.mean(axis=0) for each in late])
            text = f"late in {verdict.share * 100:.0f} % of the steps; true is in all{_as_it_was(runs)}"
            yield Miss(text=text, machine=abs(float(exact) - verdict.share) <= 1 - FULL)
        return
    known = runs[0]
    true = set(known.steps[stragglers_of(known, expected).any(axis=0)].tolist())
    entry = known.stamped.entries
    later = after_median(entry)[list(expected.ranks)].max(axis=0)
    last = np.isin(entry.argmax(axis=0), expected.ranks)
    for what, steps in (("not named", true - {*verdict.steps}), ("named, and nothing slept", {*verdict.steps} - true)):
        if steps:
            at = np.isin(known.steps, sorted(steps))
            shown = ", ".join(
                f"{step}: {ms:.2f}{'' if was_last else ' (not the last)'}"
                for step, ms, was_last in zip(sorted(steps), later[at], last[at], strict=True)
            )
            its = last[at] & (later[at] > ALLOWED_MS)
            yield Miss(
                text=f"steps {what}: in each, ms by which the rank came after the median rank: {shown}",
                machine=bool((~its).all() or _drowns(runs, expected) if what == "not named" else its.all()),
            )


def _drowns(runs: Sequence[Known], expected: Expected) -> bool:
    """Whether the sleeps are less than NOISE times what the others show by themselves: their last after their median,
    by the exact stamps."""
    slept, noise = [], []
    for known in runs:
        who = stragglers_of(known, expected)
        slept.append(arrival_skew(known.slept, who).skew)
        others = np.sort(np.where(who, np.nan, known.stamped.entries), axis=0)  # those that are left out come last
        count = (~who).sum(axis=0)
        steps = np.arange(len(count))
        noise.append(float(np.median(others[count - 1, steps] - others[(count - 1) // 2, steps])))
    return float(np.mean(slept)) < NOISE * float(np.mean(noise))


def _is_so(verdict: Verdict, runs: Sequence[Known]) -> bool:
    """Whether the ranks that a verdict names cost as much by the exact stamps, though nothing was injected."""
    if not isinstance(verdict, Straggler) or len(runs) != 1 or verdict.kind == ROTATING:
        return False
    who = np.isin(np.arange(len(runs[0].stamped.terms)), verdict.ranks)[:, None]
    steps = np.isin(runs[0].steps, verdict.steps) if verdict.steps else np.ones(len(runs[0].steps), np.bool_)
    return abs(arrival_skew(runs[0].stamped, who & steps).costs - verdict.costs) <= SAME_MS


def _names(expected: Expected) -> str:
    if not expected.ranks:
        return ""
    return f" {expected.node or 'rank ' + ', '.join(map(str, expected.ranks))}, {expected.cause}"


def _as_it_was(runs: Sequence[Known]) -> str:
    """When ranks came by the exact stamps."""
    entries = np.concatenate([known.stamped.entries for known in runs], axis=1)
    last = np.bincount(entries.argmax(axis=0), minlength=len(entries)) / entries.shape[1]
    shown = "; ".join(
        f"rank {rank} {np.median(of):.3f} (mean {of.mean():.3f}, last in {last[rank] * 100:.0f} %)"
        for rank, of in enumerate(entries)
    )
    return f". Exact stamps, ms after the first rank, median: {shown}"
