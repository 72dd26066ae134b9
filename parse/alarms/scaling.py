"""The rules that return figures: about how the points of one setting scale, and about the runs of a point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hpc.model.findings import CheckFinding, FigureValues, Severity, State
from hpc.model.run_fields import RunFields
from hpc.model.spec import SAMPLES, SCRIPT, SYNTHETIC, UNKNOWN_DATA
from hpc.system.text import grouped, natural, plural
from parse.runs.attempt import Attempt, Machine
from parse.runs.result import MISSING, Figure, Result, Run, by_setting, size
from parse.stats import Interval

SINGLE_FIGURE = 0.01
"""A published speed without its runs has no scatter: it is taken to this share either way, so two of them to 2 %; to
a unit of its last digit if that is more, as some documents cut figures off."""


Setting = Sequence[Result]
"""The results that a result is compared with: those that differ in size only, itself among them."""


def speed_interval(result: Result) -> Interval | None:
    """Returns the interval of the median of its runs; of a single published figure its margin, else None."""
    if result.interval or result.published is None or result.median_speed is None:
        return result.interval
    margin = max(SINGLE_FIGURE, _last_digit(result))
    return Interval(result.median_speed * (1 - margin), result.median_speed * (1 + margin), 0.0)


def _basis(result: Result, other: Result) -> FigureValues:
    """Whether a speed of the two is a single published figure; else what both of their intervals cover at least."""
    if result.interval is None or other.interval is None:
        return {"single_figures": True}
    return {"single_figures": False, "coverage": min(result.interval.coverage, other.interval.coverage)}


def base_of(result: Result, setting: Setting) -> Result | None:
    """Returns the point that its speedup is measured against."""
    point = result.base.point if result.base else None
    return next((other for other in setting if other.requested.point == point), None)


def superlinear(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """The least speedup over one device that the intervals allow is above the number of devices."""
    of_base = base_of(result, setting)
    if of_base is None or result is of_base or result.speedup is None or of_base.devices > 1:
        return
    interval, base = speed_interval(result), speed_interval(of_base)
    if interval and base and (speedup_low := interval.low / base.high) > result.devices:
        yield {
            "speedup": result.speedup,
            "speedup_low": speedup_low,
            "devices": result.devices,
            **_basis(result, of_base),
        }


def rising(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """Speed per device is higher than in a smaller case, beyond both intervals; `superlinear` compares with a base of
    one device."""
    if (interval := speed_interval(result)) is None or result.median_speed is None:
        return
    devices, base = result.devices, result.base
    smaller = [
        (its.high / other.devices, other)
        for other in setting
        if other.devices < devices
        and (other.devices > 1 or not base or base.devices > 1)
        and (its := speed_interval(other))
        and its.high / other.devices < interval.low / devices
    ]
    high, other = min(smaller, key=lambda pair: pair[0], default=(0.0, result))
    if smaller and other.median_speed:
        yield {
            "per_device_low": interval.low / devices,
            "smaller_case": other.requested.case,
            "smaller_per_device_high": high,
            "speed_ratio": result.median_speed / other.median_speed,
            "device_ratio": devices / other.devices,
            **_basis(result, other),
        }


def falling(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """Fewer devices are faster together, beyond both intervals."""
    if (interval := speed_interval(result)) is None:
        return
    faster = [
        (its.low, other)
        for other in setting
        if other.devices < result.devices and (its := speed_interval(other)) and interval.high < its.low
    ]
    if faster:
        low, other = max(faster, key=lambda pair: pair[0])
        yield {
            "speed_high": interval.high,
            "devices": result.devices,
            "smaller_case": other.requested.case,
            "smaller_devices": other.devices,
            "smaller_speed_low": low,
            **_basis(result, other),
        }


def baseline_elsewhere(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """The base met another device, driver or version, so the speedup compares more than the scale."""
    of_base = base_of(result, setting)
    if of_base is None or of_base is result:
        return
    facts, base_facts = result.facts, of_base.facts
    for name in sorted(facts.keys() & base_facts.keys()):
        if name != "transport" and not facts[name] & base_facts[name]:
            yield {"fact": name, "values": sorted(facts[name]), "baseline": sorted(base_facts[name]),
                   "base": of_base.requested.case}  # fmt: skip


# Alarms about nested runs: smaller cases must run on some of the nodes of larger ones, block by block.


def not_nested(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """A smaller case of the same block ran on a node that this one did not run on."""
    outside: list[FigureValues] = [
        {"run": repeat, "case": other.requested.case, "outside": _names(smaller - nodes), "nodes": _names(nodes)}
        for other, repeat, smaller, nodes in _pairs(result, setting)
        if smaller - nodes
    ]
    if outside:
        yield {"outside": outside}


def other_nodes(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """The blocks of the largest nested case ran on different nodes: in several jobs, or after a requeue."""
    largest = max(other.run.nodes or 0 for other in setting)
    if result.run.placement != "nested" or (result.run.nodes or 0) < largest:
        return
    runs_by_nodes = grouped((" ".join(_names(hosts)), repeat) for repeat, hosts in _hosts(result).items())
    if len(runs_by_nodes) > 1:
        yield {"runs": runs_by_nodes}


def _names(nodes: Iterable[str]) -> list[str]:
    return sorted(nodes, key=natural)


def nested_summary(results: Sequence[Result]) -> str:
    """Returns the line on nested points for the head of a summary; empty if there are none, or not all are nested."""
    nested = [result for result in results if result.run.placement == "nested"]
    if not nested or any(alarm.name == "not_nested" for result in nested for alarm in result.alarms):
        return ""
    settings = by_setting(nested)
    if any(result.run.nodes != 1 and result.ok and not _hosts(result) for result in nested):
        return "placement nested: the order of the runs was shuffled; their nodes have no names of their own"
    pairs = [pair for result in nested for pair in _pairs(result, settings[result.requested.setting])]
    if not pairs:
        return "placement nested: no block has two cases with known nodes, so nesting cannot be checked"
    hosts = {host for _, _, smaller, nodes in pairs for host in smaller | nodes}
    blocks = {repeat for _, repeat, _, _ in pairs}
    return (
        f"placement nested (same nodes): in {plural(len(blocks), 'block')} every smaller case ran on nodes of the "
        f"larger ones; {plural(len(hosts), 'node')} in all"
    )


def _pairs(result: Result, setting: Iterable[Result]) -> Iterator[tuple[Result, int, frozenset[str], frozenset[str]]]:
    """Yields each run of a smaller case in the same block: the case, the block, its nodes and those of `result`."""
    if result.run.placement != "nested":
        return
    size, hosts = (result.run.nodes or 0, result.devices), _hosts(result)
    for other in setting:
        if (other.run.nodes or 0, other.devices) < size:
            smaller = _hosts(other)
            yield from ((other, at, smaller[at], hosts[at]) for at in sorted(smaller.keys() & hosts.keys()))


def _hosts(result: Result) -> dict[int, frozenset[str]]:
    """Returns the nodes of each ok run by its repeat, without runs whose nodes have no names of their own."""
    return {
        run.requested.run.repeat: frozenset(run.attempt.machine.hosts)
        for run in result.ok
        if run.attempt and run.attempt.machine and len(run.attempt.machine.hosts) == run.requested.run.nodes
    }


# Alarms about published figures: the rules that compare a document's statements with its own numbers.

RUNS_UNIT = 0.01
"""The unit of the last digit of a published speed of a single run."""


def as_published(result: Result, setting: Setting) -> Iterator[FigureValues]:
    """A printed figure differs from the one computed of the numbers beside it by more than rounding."""
    if result.published is None:
        return
    base = printed_base(setting)
    speedup = result.median_speed / base.median_speed if result.median_speed and base and base.median_speed else None
    computed = {"median": result.median_speed, "average": result.average_speed, "speedup": speedup}
    printed: dict[str, dict[str, list[int]]] = {}
    for figure in result.published.figures:
        value = computed.get(figure.what)
        if value is not None and abs(figure.value - value) > _rounding(figure, result, base):
            printed.setdefault(figure.what, {}).setdefault(figure.text, []).append(figure.line)
    if printed:
        source = "document" if not result.ok else "clean runs" if result.published.packed else "runs"
        values = {name: value for name in printed if (value := computed[name]) is not None}
        yield {"printed": printed, "computed": values, "source": source, "runs": len(result.ok)}


def contradictory(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Rows of a document have speeds of one size that are too far apart for repeats."""
    if result.contradiction:
        least, largest = result.contradiction
        yield {"rows": len(result.ok), "least": least, "largest": largest, "ratio": largest / least}


def packed(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Logs of several jobs on the same devices, which the document counts as runs, or has in the place of one."""
    if result.published and result.published.packed:
        yield {"logs": [{"log": name, "speed": speed} for name, speed in result.published.packed]}


def printed_base(setting: Sequence[Result]) -> Result | None:
    """Returns the point that the speedups which a document prints for a setting are against: the smallest for which it
    prints one, if that is 1, else the one on one device; None where the document does not say."""
    ordered = sorted(setting, key=size)
    printing = (each for each in ordered if each.published and each.published.speedup is not None)
    first = next(printing, None)
    if first and first.published and first.published.speedup == 1:
        return first
    return next((each for each in ordered if each.devices == 1), None)


def _rounding(figure: Figure, result: Result, base: Result | None) -> float:
    """Returns the largest difference between a printed and a computed figure that rounding alone explains."""
    half_unit = 0.5 * 10.0**-figure.decimals * (1 + 1e-9)
    if figure.what != "speedup":
        return half_unit + (0.5 * RUNS_UNIT if result.ok else 0.0)
    if base is None or not base.median_speed or not result.median_speed:
        return half_unit
    relative = _last_digit(result) + _last_digit(base)
    return half_unit + result.median_speed / base.median_speed * relative / 2


def _last_digit(result: Result) -> float:
    """Returns the unit of the last digit of the median, as a share."""
    printed = result.published.all("median") if result.published and not result.ok else ()
    unit = 10.0 ** -printed[0].decimals if printed else RUNS_UNIT
    return unit / (result.median_speed or math.inf)


# Rules about the runs of a point.

AVERAGE_APART = 0.05
MANY_REPEATS = 20
"""Logs with larger numbers are not numbered from 1 on: dates, jobs, groups."""
IMPLIED_BY_CROWDING = ("cores", "load")
"""Checks that fail wherever the machine is oversubscribed or has simulated nodes; those have alarms of their own."""


def apart(result: Result, _: Setting) -> Iterator[FigureValues]:
    return _reasons(result.apart)


def oversubscribed(result: Result, _: Setting) -> Iterator[FigureValues]:
    return _reasons(result.oversubscribed)


def nodes_simulated(result: Result, _: Setting) -> Iterator[FigureValues]:
    return _reasons(result.nodes_simulated)


def built_otherwise(result: Result, _: Setting) -> Iterator[FigureValues]:
    return _reasons(*(machine.built_otherwise for machine in result.machines))


def unfused(result: Result, _: Setting) -> Iterator[FigureValues]:
    if any(machine.unfused for machine in result.machines):
        yield {}


def synchronises(result: Result, _: Setting) -> Iterator[FigureValues]:
    if any(machine.synchronises for machine in result.machines):
        yield {}


def preflight(result: Result, _: Setting) -> Iterator[FigureValues]:
    """A check failed, or a fatal one could not be made; of several runs the text is the first's."""
    crowded = result.oversubscribed or result.nodes_simulated
    runs_by_check: dict[str, list[tuple[int, CheckFinding]]] = {}
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


def fewer_runs(result: Result, _: Setting) -> Iterator[FigureValues]:
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


def average_and_median(result: Result, _: Setting) -> Iterator[FigureValues]:
    speeds = {"runs": (result.average_speed, result.median_speed)}
    if result.published:
        speeds["document"] = (result.published.average, result.published.median)
    for source, (average, median) in speeds.items():
        if median and average is not None and abs(average / median - 1) > AVERAGE_APART:
            yield {"average": average, "median": median, "difference": average / median - 1, "source": source}


def disagreement(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Runs of a point, or ranks of a run, met different devices, drivers or versions."""
    runs_by_value: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for repeat, attempt in _attempts(result.ok):
        if machine := attempt.machine:
            for name, values in {"ranks": (str(machine.ranks),), **machine.facts}.items():
                runs_by_value.setdefault(name, {}).setdefault(values, []).append(repeat)
    for name, runs in runs_by_value.items():
        if len(runs) > 1 or any(len(values) > 1 for values in runs):
            yield {"fact": name, "runs": {" and ".join(values): numbers for values, numbers in runs.items()}}


def not_as_asked(result: Result, _: Setting) -> Iterator[FigureValues]:
    """The ranks, steps or samples of a trace are not those of its run; a log has no request to compare with."""
    yield from _by_figures(_not_as_requested(result), len(result.ok))


def _not_as_requested(result: Result) -> Iterator[tuple[int, FigureValues]]:
    for run in result.ok:
        attempt = run.attempt
        if run.measured is None or attempt is None or attempt.machine is None or attempt.log or attempt.summarized:
            continue
        spec, names = run.requested.run, ("ranks", "steps", "samples")
        if spec.backend == SCRIPT:  # which decides by itself when it ends, pauses, and how many samples it reads
            continue
        measured = attempt.machine.ranks, len(run.measured.step_s), run.measured.samples
        batch, steps = spec.global_batch_size or 0, spec.measured_steps or 0
        length = _length(spec, attempt.machine)
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


def unmeasured(result: Result, _: Setting) -> Iterator[FigureValues]:
    problems = (
        (run.requested.run.repeat, {"reason": run.attempt.problem})
        for run in result.runs
        if run.attempt and run.attempt.problem and not run.measured
    )
    return _by_figures(problems, len(result.runs))


def repeated(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Several attempts of a run ended ok: only one counts."""
    several: Iterable[tuple[int, FigureValues]] = (
        (run.requested.run.repeat, {"attempts": [*run.ok_attempts], "counted": run.attempt.number})
        for run in result.ok
        if len(run.ok_attempts) > 1 and run.attempt
    )
    return _by_figures(several, len(result.ok))


def noted(result: Result, _: Setting) -> Iterator[FigureValues]:
    """Ok runs have evidence of something odd, such as losses that are not finite."""
    evidence = ((at, {"evidence": attempt.evidence}) for at, attempt in _attempts(result.ok) if attempt.evidence)
    return _by_figures(evidence, len(result.ok))


def log_remarks(result: Result, _: Setting) -> Iterator[FigureValues]:
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
