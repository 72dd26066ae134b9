"""Alarms about the runs of one point: their outcomes, their machines, the preflight checks, what logs print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hpc.model.findings import FigureValues, Finding, Severity, State
from hpc.model.spec import SAMPLES, SCRIPT, SYNTHETIC, UNKNOWN_DATA
from parse.alarms.scaling import Neighbours
from parse.attempt import Attempt, Machine, RunFields
from parse.result import MISSING, Result, Run

AVERAGE_APART = 0.05
MANY_REPEATS = 20
"""Logs with larger numbers are not numbered from 1 on: dates, jobs, groups."""
IMPLIED_BY_CROWDING = ("cores", "load")
"""Checks that fail wherever the machine is oversubscribed or has simulated nodes; those have alarms of their own."""


def oversubscribed(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    return _reasons(result.oversubscribed)


def nodes_simulated(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    return _reasons(result.nodes_simulated)


def built_otherwise(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    return _reasons(*(machine.built_otherwise for machine in result.machines))


def unfused(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    if any(machine.unfused for machine in result.machines):
        yield {}


def synchronises(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    if any(machine.synchronises for machine in result.machines):
        yield {}


def preflight(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """A check failed, or a fatal one could not be made; of several runs the text is the first's."""
    crowded = result.oversubscribed or result.nodes_simulated
    runs_by_check: dict[str, list[tuple[int, Finding]]] = {}
    for repeat, attempt in _attempts(result.ok):
        for finding in attempt.machine.findings if attempt.machine else ():
            unknown_fatal = finding.state is State.UNKNOWN and finding.severity is Severity.FATAL
            implied = crowded and finding.name in IMPLIED_BY_CROWDING
            if (finding.state is State.FAILED or unknown_fatal) and not implied:
                runs_by_check.setdefault(finding.name, []).append((repeat, finding))
    for name, pairs in runs_by_check.items():
        repeats, findings = zip(*pairs, strict=True)
        unknown, text = findings[0].state is State.UNKNOWN, findings[0].text
        yield {"check": name, "unknown": unknown, "text": text, "runs": [*repeats]}


def fewer_runs(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """Fewer runs are ok than the plan has, or than the numbers in the names of logs show."""
    outcomes = Counter(run.outcome_text for run in result.runs if not run.measured)
    if result.planned_runs is not None:
        runs, source, missing, lacking = result.planned_runs, "plan", [], len(result.ok) < result.planned_runs
    else:
        numbers = {run.requested.run.repeat for run in result.runs if _is_numbered(run)}
        count = max(numbers, default=0)
        missing = sorted(set(range(1, count)) - numbers) if count <= MANY_REPEATS else []
        outcomes.update({MISSING: len(missing)} if missing else {})
        runs, source, lacking = len(result.runs) + len(missing), "logs", bool(numbers and outcomes)
    if lacking:
        yield {"ok": len(result.ok), "runs": runs, "outcomes": outcomes, "source": source, "missing": missing}


def average_and_median(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    speeds = {"runs": (result.average_speed, result.median_speed)}
    if result.published:
        speeds["document"] = (result.published.average, result.published.median)
    for source, (average, median) in speeds.items():
        if median and average is not None and abs(average / median - 1) > AVERAGE_APART:
            yield {"average": average, "median": median, "difference": average / median - 1, "source": source}


def disagreement(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """Runs of a point, or ranks of a run, met different devices, drivers or versions."""
    runs_by_value: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for repeat, attempt in _attempts(result.ok):
        if machine := attempt.machine:
            for name, values in {"ranks": (str(machine.ranks),), **machine.facts}.items():
                runs_by_value.setdefault(name, {}).setdefault(values, []).append(repeat)
    for name, runs in runs_by_value.items():
        if len(runs) > 1 or any(len(values) > 1 for values in runs):
            yield {"fact": name, "runs": {" and ".join(values): numbers for values, numbers in runs.items()}}


def not_as_asked(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """The ranks, steps or samples of a trace are not those of its run; a log has no request to compare with."""
    yield from _by_figures(_not_as_requested(result), len(result.ok))


def _not_as_requested(result: Result) -> Iterator[tuple[int, FigureValues]]:
    for run in result.ok:
        if run.measured is None or run.attempt is None or run.attempt.machine is None or run.attempt.log:
            continue
        spec, names = run.requested.run, ("ranks", "steps", "samples")
        if spec.backend == SCRIPT:  # which decides by itself when it ends, pauses, and how many samples it reads
            continue
        measured = run.attempt.machine.ranks, len(run.measured.step_s), run.measured.samples
        batch, steps = spec.global_batch_size or 0, spec.measured_steps or 0
        length = _length(spec, run.attempt.machine)
        requested = spec.ranks or 0, steps, measured[2] if length is None else batch * length * steps
        reads_files = spec.data not in (None, SYNTHETIC, UNKNOWN_DATA)  # the last batch of an epoch has what is left
        if measured[:2] != requested[:2] or measured[2] > requested[2] or (measured != requested and not reads_files):
            figures = {f"requested_{name}": count for name, count in zip(names, requested, strict=True)}
            yield spec.repeat, {**dict(zip(names, measured, strict=True)), **figures}


def _length(run: RunFields, machine: Machine) -> int | None:
    """The samples of one member of a batch: where they are tokens, those of a sequence; None where that is unknown."""
    if run.unit == SAMPLES:
        return 1
    length = machine.options.get("sequence_length", "")
    return int(length) if length.isdecimal() else None


def unmeasured(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    problems = (
        (run.requested.run.repeat, {"reason": run.attempt.problem})
        for run in result.runs
        if run.attempt and run.attempt.problem and not run.measured
    )
    return _by_figures(problems, len(result.runs))


def repeated(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """Several attempts of a run ended ok: only one counts."""
    several: Iterable[tuple[int, FigureValues]] = (
        (run.requested.run.repeat, {"attempts": [*run.ok_attempts], "counted": run.attempt.number})
        for run in result.ok
        if len(run.ok_attempts) > 1 and run.attempt
    )
    return _by_figures(several, len(result.ok))


def noted(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    """Ok runs have evidence of something odd, such as losses that are not finite."""
    evidence = ((at, {"evidence": attempt.evidence}) for at, attempt in _attempts(result.ok) if attempt.evidence)
    return _by_figures(evidence, len(result.ok))


def log_remarks(result: Result, _: Neighbours) -> Iterator[FigureValues]:
    logs = ((at, attempt.log) for at, attempt in _attempts(result.runs) if attempt.log)
    return _by_figures(((at, {"remark": text}) for at, log in logs for text in log.remarks), len(result.runs))


def _by_figures(pairs: Iterable[tuple[int, FigureValues]], of: int) -> Iterator[FigureValues]:
    """Figures that several runs have alike, once: with the repeats that have them, and of how many."""
    figures: dict[str, FigureValues] = {}
    runs: dict[str, list[int]] = {}
    for repeat, its in pairs:
        key = repr(its)
        figures.setdefault(key, its)
        runs.setdefault(key, []).append(repeat)
    return ({"runs": runs[key], "of": of, **figures[key]} for key in figures)


def _attempts(runs: tuple[Run, ...]) -> Iterator[tuple[int, Attempt]]:
    """Yields the repeat and the attempt of each run that has one."""
    return ((run.requested.run.repeat, run.attempt) for run in runs if run.attempt)


def _reasons(*reasons: str) -> Iterator[FigureValues]:
    return ({"reason": reason} for reason in dict.fromkeys(reasons) if reason)


def _is_numbered(run: Run) -> bool:
    """Whether the name of its log has the number of the repeat."""
    return run.attempt is not None and run.attempt.log is not None and run.requested.run.is_numbered
