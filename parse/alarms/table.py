"""A summary judges itself: each rule looks at one result, beside all others, and says what is wrong, with figures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from parse.alarms.placement import not_nested, other_nodes
from parse.alarms.preflight import preflight
from parse.alarms.published import as_published, column, copied, packed
from parse.alarms.scaling import Beside, baseline_elsewhere, falling, rising, superlinear
from parse.alarms.windows import loose_clocks, rates_and_wall_clock, unsteady
from parse.result import MISSING, Alarm, Result, Run, by_setting

AVERAGE_APART = 0.05
MANY_REPEATS = 20
"""Logs with larger numbers are not numbered from 1 on: dates, jobs, groups."""

TWINS = 3
"""Of columns with the same figures as many are named."""

Rule = Callable[[Result, Beside], Iterator[str]]


def judge(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results, each with the alarms that ring for it; what is no training has none, and rings for none."""
    trainings = [result for result in results if not result.run.diagnostic]
    judged = (
        dataclasses.replace(
            result,
            alarms=tuple(
                Alarm(name=name, text=text) for name, rule in RULES.items() for text in rule(result, neighbours)
            ),
        )
        for result, neighbours in zip(trainings, _beside(trainings), strict=True)
    )
    return tuple(result if result.run.diagnostic else next(judged) for result in results)


def _beside(results: Sequence[Result]) -> list[Beside]:
    """What each result is judged beside; twins are given to the first of a setting only."""
    settings = by_setting(results)
    columns = {name: column(setting) for name, setting in settings.items()}
    alike: dict[tuple[tuple[int, int, float], ...], list[str]] = {}
    for name, speeds in columns.items():
        if speeds:
            alike.setdefault(speeds, []).append(name)
    beside_per_result = []
    for result in results:
        name = result.requested.baseline_point
        setting = settings[name]
        same = alike.get(columns[name], [])[: TWINS + 1] if result is setting[0] else []
        others = [settings[other][0] for other in same if other != name]
        beside_per_result.append(Beside(setting=tuple(setting), twins=tuple(others[:TWINS])))
    return beside_per_result


def _oversubscribed(result: Result, _: Beside) -> Iterator[str]:
    if result.oversubscribed:
        yield f"oversubscribed: not a scaling result ({result.oversubscribed})"


def _nodes_simulated(result: Result, _: Beside) -> Iterator[str]:
    if result.nodes_simulated:
        yield (
            f"nodes_simulated: not a scaling result over nodes ({result.nodes_simulated}; "
            "no network between nodes was measured)"
        )


def _unfused(result: Result, _: Beside) -> Iterator[str]:
    if any(machine.unfused for machine in result.machines):
        yield (
            "with --timing phases gradients are reduced when the last of them is there, to time the two apart: nothing "
            "overlaps; --timing step measures the framework's own way"
        )


def _synchronises(result: Result, _: Beside) -> Iterator[str]:
    if any(machine.synchronises for machine in result.machines):
        yield "the host waits for the device in every step"


def _built_otherwise(result: Result, _: Beside) -> Iterator[str]:
    for reason in dict.fromkeys(machine.built_otherwise for machine in result.machines):
        if reason:
            yield f"{reason}: make horovod builds it anew"


def _fewer_runs(result: Result, _: Beside) -> Iterator[str]:
    outcomes = Counter(run.outcome_text for run in result.runs if not run.measured)
    if result.planned_runs is not None:
        if len(result.ok) < result.planned_runs:
            yield f"{len(result.ok)} of {result.planned_runs} runs asked for ended ok; {_list_of(outcomes)}"
        return
    numbers = {run.requested.run.repeat for run in result.runs if _is_numbered(run)}
    count = max(numbers, default=0)
    absent = sorted(set(range(1, count)) - numbers) if count <= MANY_REPEATS else []
    outcomes.update({MISSING: len(absent)} if absent else {})
    if numbers and outcomes:
        yield (
            f"{len(result.ok)} of {len(result.runs) + len(absent)} runs, by the numbers of their logs, have a speed; "
            f"{_list_of(outcomes)}{f' (run {_numbers(absent)})' if absent else ''}"
        )


def _is_numbered(run: Run) -> bool:
    """Whether the name of its log says which repeat it is."""
    return run.attempt is not None and run.attempt.log is not None and "repeat" not in run.requested.unknown


def _average_and_median(result: Result, _: Beside) -> Iterator[str]:
    """Of its runs, and, where a document has its own, of those that it prints."""
    pairs = {"": (result.average_speed, result.median_speed)}
    if result.published:
        pairs["as published, "] = (result.published.average, result.published.median)
    for whose, (average, median) in pairs.items():
        if median and average is not None and abs(average / median - 1) > AVERAGE_APART:
            yield f"{whose}average {average:.2f} and median {median:.2f} are {average / median - 1:+.1%} apart"


def _disagreement(result: Result, _: Beside) -> Iterator[str]:
    """Runs of a point, or ranks of a run, that met different devices, drivers or versions."""
    runs_by_value: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for run in result.ok:
        if run.attempt and run.attempt.machine:
            machine = run.attempt.machine
            for name, values in {"ranks": (str(machine.ranks),), **machine.facts}.items():
                runs_by_value.setdefault(name, {}).setdefault(values, []).append(run.requested.run.repeat)
    for name, groups in runs_by_value.items():
        if len(groups) > 1 or any(len(values) > 1 for values in groups):
            values_with_runs = "; ".join(
                f"{' and '.join(values)} (run {_numbers(runs)})" for values, runs in groups.items()
            )
            yield f"runs or ranks differ in {name}: {values_with_runs}"


def _not_as_requested(result: Result, _: Beside) -> Iterator[str]:
    """A trace is not of what was asked for. Of a log nothing was asked: its window is what it prints."""
    for run in result.ok:
        if run.measured is None or run.attempt is None or run.attempt.machine is None or run.attempt.log:
            continue
        requested = run.requested.run
        ranks, samples, steps = run.attempt.machine.ranks, run.measured.samples, len(run.measured.step_s)
        wanted = requested.ranks, requested.measured_steps
        if (ranks, steps) != wanted or samples != requested.global_batch_size * steps:
            wanted_samples = requested.global_batch_size * requested.measured_steps
            yield (
                f"run {requested.repeat}: {ranks} ranks, {steps} steps, {samples} samples were measured; asked for "
                f"were {requested.ranks}, {requested.measured_steps}, {wanted_samples}"
            )


def _unmeasured(result: Result, _: Beside) -> Iterator[str]:
    for run in result.runs:
        if run.attempt and run.attempt.problem and not run.measured:
            yield f"run {run.requested.run.repeat}: {run.attempt.problem}"


def _repeated(result: Result, _: Beside) -> Iterator[str]:
    """A run that was done again although it had ended ok: only one of its attempts counts."""
    for run in result.ok:
        if len(run.ok_attempts) > 1 and run.attempt:
            numbers = _numbers(run.ok_attempts)
            yield f"run {run.requested.run.repeat}: attempts {numbers} ended ok; attempt {run.attempt.number} counts"


def _noted(result: Result, _: Beside) -> Iterator[str]:
    """What an ok run found odd about itself, such as losses that are not finite."""
    for run in result.ok:
        if run.attempt and run.attempt.evidence:
            yield f"run {run.requested.run.repeat}: {run.attempt.evidence}"


def _log_remarks(result: Result, _: Beside) -> Iterator[str]:
    """What is odd about the logs, each once, with the runs that have it."""
    runs_by_remark: dict[str, list[int]] = {}
    for run in result.runs:
        if run.attempt and run.attempt.log:
            for remark in run.attempt.log.remarks:
                runs_by_remark.setdefault(remark, []).append(run.requested.run.repeat)
    for remark, runs in runs_by_remark.items():
        yield f"run {_numbers(runs)}: {remark}"


RULES: dict[str, Rule] = {
    "oversubscribed": _oversubscribed,
    "nodes_simulated": _nodes_simulated,
    "preflight": preflight,
    "unfused": _unfused,
    "synchronises": _synchronises,
    "built_otherwise": _built_otherwise,
    "fewer_runs": _fewer_runs,
    "unmeasured": _unmeasured,
    "not_as_asked": _not_as_requested,
    "superlinear": superlinear,
    "rising": rising,
    "falling": falling,
    "average_and_median": _average_and_median,
    "rates_and_wall_clock": rates_and_wall_clock,
    "disagreement": _disagreement,
    "baseline_elsewhere": baseline_elsewhere,
    "not_nested": not_nested,
    "other_nodes": other_nodes,
    "unsteady": unsteady,
    "loose_clocks": loose_clocks,
    "repeated": _repeated,
    "noted": _noted,
    "log_remarks": _log_remarks,
    "as_published": as_published,
    "packed": packed,
    "copied": copied,
}


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _list_of(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
