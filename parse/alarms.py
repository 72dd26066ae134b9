"""A summary judges itself: each rule looks at one result, beside all others, and says what is wrong, with figures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt

from parse import stats
from parse.result import Alarm, Result

AVERAGE_APART = 0.05
RATES_APART = 0.01
CLOCKS_APART = 0.01
DRIFT = 0.01
MIN_THIRD_STEPS = 10
BATCHES = 5
STEADY_SCORE = 2.5
"""With one run, only thirds whose batches do not overlap at all exceed it: 2 chances in 252 for a steady window."""

Rule = Callable[[Result, Sequence[Result]], Iterator[str]]


def judge(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results, each with the alarms that ring for it."""
    return tuple(
        dataclasses.replace(
            result,
            alarms=tuple(Alarm(name=name, text=text) for name, rule in RULES.items() for text in rule(result, results)),
        )
        for result in results
    )


def _oversubscribed(result: Result, _: Sequence[Result]) -> Iterator[str]:
    if result.oversubscribed:
        yield f"oversubscribed: not a scaling result ({result.oversubscribed})"


def _nodes_simulated(result: Result, _: Sequence[Result]) -> Iterator[str]:
    if result.nodes_simulated:
        yield (
            f"nodes_simulated: not a scaling result over nodes ({result.nodes_simulated}; "
            "no network between nodes was measured)"
        )


def _unfused(result: Result, _: Sequence[Result]) -> Iterator[str]:
    if any(machine.unfused for machine in result.machines):
        yield (
            "under fine stamps gradients are reduced when the last of them is there, to time the two apart: nothing "
            "overlaps; --stamps coarse measures the framework's own way"
        )


def _synchronises(result: Result, _: Sequence[Result]) -> Iterator[str]:
    if any(machine.synchronises for machine in result.machines):
        yield "the host waits for the device in every step"


def _built_otherwise(result: Result, _: Sequence[Result]) -> Iterator[str]:
    for said in dict.fromkeys(machine.built_otherwise for machine in result.machines):
        if said:
            yield f"{said}: make horovod builds it anew"


def _fewer_runs(result: Result, _: Sequence[Result]) -> Iterator[str]:
    if result.asked_runs is not None and len(result.ok) < result.asked_runs:
        words = Counter(run.word for run in result.runs if not run.measured)
        yield f"{len(result.ok)} of {result.asked_runs} runs asked for ended ok; {_list_of(words)}"


def _superlinear(result: Result, others: Sequence[Result]) -> Iterator[str]:
    """The least speedup that the intervals allow is above the number of devices."""
    baseline = _baseline(result, others)
    if baseline is None or result is baseline or result.speedup is None:
        return
    if result.interval and baseline.interval:
        least = result.interval.low / baseline.interval.high
        if least > result.run.devices:
            yield (
                f"speedup {result.speedup:.2f} on {result.run.devices} devices, "
                f"at least {least:.2f} by the intervals: more than linear"
            )


def _rising(result: Result, others: Sequence[Result]) -> Iterator[str]:
    """A device does more here than in a smaller case of the same point, beyond both intervals.

    The 1n1g baseline is left to the rule above, which says the same of it.
    """
    if result.interval is None:
        return
    least = result.interval.low / result.run.devices
    smaller = [
        (other.interval.high / other.run.devices, other)
        for other in others
        if other.interval
        and 1 < other.run.devices < result.run.devices
        and other.asked.baseline_point == result.asked.baseline_point
        and other.interval.high / other.run.devices < least
    ]
    if smaller:
        most, other = min(smaller, key=lambda pair: pair[0])
        yield (
            f"{least:.4g} samples/s per device or more, on {other.run.case} at most {most:.4g}: "
            "speed per device rises with the number of devices"
        )


def _average_and_median(result: Result, _: Sequence[Result]) -> Iterator[str]:
    if result.median_speed and result.average_speed is not None:
        apart = result.average_speed / result.median_speed - 1
        if abs(apart) > AVERAGE_APART:
            yield f"average {result.average_speed:.2f} and median {result.median_speed:.2f} are {apart:+.1%} apart"


def _rates_and_wall_clock(result: Result, _: Sequence[Result]) -> Iterator[str]:
    worst = max(
        (
            (run.measured.mean_of_rates / run.measured.throughput - 1, run.asked.run.repeat)
            for run in result.ok
            if run.measured
        ),
        key=lambda pair: abs(pair[0]),
        default=(0.0, 0),
    )
    if abs(worst[0]) > RATES_APART:
        yield (
            f"run {worst[1]}: the mean of the steps' rates is {worst[0]:+.1%} from the wall clock's speed: "
            "its steps differ much in length; the wall clock's speed is the result"
        )


def _disagreement(result: Result, _: Sequence[Result]) -> Iterator[str]:
    """Runs of a point, or ranks of a run, that met different devices, drivers or versions."""
    found: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for run in result.ok:
        if run.attempt and run.attempt.machine:
            machine = run.attempt.machine
            for name, values in {"ranks": (str(machine.ranks),), **machine.facts}.items():
                found.setdefault(name, {}).setdefault(values, []).append(run.asked.run.repeat)
    for name, groups in found.items():
        if len(groups) > 1 or any(len(values) > 1 for values in groups):
            said = "; ".join(f"{' and '.join(values)} (run {_numbers(runs)})" for values, runs in groups.items())
            yield f"runs or ranks differ in {name}: {said}"


def _baseline_elsewhere(result: Result, others: Sequence[Result]) -> Iterator[str]:
    """The baseline met another device, driver or version, so the speedup compares more than the scale."""
    baseline = _baseline(result, others)
    if baseline is None or baseline is result:
        return
    here, there = result.facts, baseline.facts
    for name in sorted(here.keys() & there.keys()):
        if name != "transport" and not here[name] & there[name]:
            yield f"its baseline ran with another {name}: {_words(there[name])}, not {_words(here[name])}"


def _not_as_asked(result: Result, _: Sequence[Result]) -> Iterator[str]:
    for run in result.ok:
        if run.measured is None or run.attempt is None or run.attempt.machine is None:
            continue
        asked = run.asked.run
        ranks, samples, steps = run.attempt.machine.ranks, run.measured.samples, len(run.measured.step_s)
        if (ranks, steps) != (asked.ranks, asked.measured_steps) or samples != asked.global_batch_size * steps:
            yield (
                f"run {asked.repeat}: {ranks} ranks, {steps} steps, {samples} samples were measured; asked for were "
                f"{asked.ranks}, {asked.measured_steps}, {asked.global_batch_size * asked.measured_steps}"
            )


def _unmeasured(result: Result, _: Sequence[Result]) -> Iterator[str]:
    for run in result.runs:
        if run.attempt and run.attempt.problem and not run.measured:
            yield f"run {run.asked.run.repeat}: {run.attempt.problem}"


def _repeated(result: Result, _: Sequence[Result]) -> Iterator[str]:
    """A run that was done again although it had ended ok: only one of its attempts counts."""
    for run in result.ok:
        if len(run.ok_attempts) > 1 and run.attempt:
            numbers = _numbers(run.ok_attempts)
            yield f"run {run.asked.run.repeat}: attempts {numbers} ended ok; attempt {run.attempt.number} counts"


def _noted(result: Result, _: Sequence[Result]) -> Iterator[str]:
    """What an ok run found odd about itself, such as losses that are not finite."""
    for run in result.ok:
        if run.attempt and run.attempt.evidence:
            yield f"run {run.asked.run.repeat}: {run.attempt.evidence}"


def _loose_clocks(result: Result, _: Sequence[Result]) -> Iterator[str]:
    worst = max((run.measured.clock_share for run in result.ok if run.measured), default=0.0)
    if worst > CLOCKS_APART:
        yield f"the ranks' clocks are known so loosely that they leave {worst:.1%} of the speed open"


def _unsteady(result: Result, _: Sequence[Result]) -> Iterator[str]:
    """First and last third of the windows differ, beyond the runs' scatter.

    Each third of a run's step times is cut into batches (neighbouring steps are alike, batches less so) and their
    medians compared by rank sums (Mann and Whitney 1947), added up over the runs (van Elteren 1960).
    """
    windows = [run.measured.step_s for run in result.ok if run.measured]
    thirds = [_thirds(step_s) for step_s in windows if len(step_s) >= 3 * MIN_THIRD_STEPS]
    if not thirds or result.median_speed is None:
        return
    drift = stats.median([float(np.median(last) / np.median(first)) - 1 for first, last in thirds])
    wins = sum(_wins(_batch_medians(first), _batch_medians(last)) for first, last in thirds)
    expected, variance = BATCHES**2 / 2, BATCHES**2 * (2 * BATCHES + 1) / 12
    score = (wins - len(thirds) * expected) / sqrt(len(thirds) * variance)
    scatter = (result.interval.high - result.interval.low) / 2 / result.median_speed if result.interval else 0.0
    if abs(score) > STEADY_SCORE and abs(drift) > max(DRIFT, scatter):
        yield f"the window is not steady: steps of its last third take {drift:+.1%} against its first"


def _thirds(step_s: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    third = len(step_s) // 3
    return step_s[:third], step_s[-third:]


def _batch_medians(step_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.array([np.median(batch) for batch in np.array_split(step_s, BATCHES)])


def _wins(first: npt.NDArray[np.float64], last: npt.NDArray[np.float64]) -> float:
    """How many pairs have the larger value in the last third; ties count half."""
    return float((last[:, None] > first).sum() + (last[:, None] == first).sum() / 2)


RULES: dict[str, Rule] = {
    "oversubscribed": _oversubscribed,
    "nodes_simulated": _nodes_simulated,
    "unfused": _unfused,
    "synchronises": _synchronises,
    "built_otherwise": _built_otherwise,
    "fewer_runs": _fewer_runs,
    "unmeasured": _unmeasured,
    "not_as_asked": _not_as_asked,
    "superlinear": _superlinear,
    "rising": _rising,
    "average_and_median": _average_and_median,
    "rates_and_wall_clock": _rates_and_wall_clock,
    "disagreement": _disagreement,
    "baseline_elsewhere": _baseline_elsewhere,
    "unsteady": _unsteady,
    "loose_clocks": _loose_clocks,
    "repeated": _repeated,
    "noted": _noted,
}


def _baseline(result: Result, others: Sequence[Result]) -> Result | None:
    wanted = result.asked.baseline_point
    return next((other for other in others if other.asked.point == wanted), None)


def _words(values: set[str]) -> str:
    return " and ".join(sorted(values))


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _list_of(words: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
