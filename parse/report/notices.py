"""How a setting scales, in a sentence; lines beside the table: warnings, and what must be known before its numbers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from hpc.model.findings import CheckFinding
from hpc.model.spec import FIND_MAX
from hpc.system.sanitize import plain
from hpc.system.text import first_of, grouped, inflect, plural
from parse import stats
from parse.alarms.nodes import nodes_alarms
from parse.alarms.table import of_runs
from parse.faults import unread
from parse.report.costs import cost_line, energy_notes
from parse.report.summary import (
    SIZE,
    Summary,
    identifying_values,
    labels,
    measured_in,
    named,
    naming,
    no_speedup_text,
    requested_values,
    setting_name,
)
from parse.runs.result import Result, by_setting, scaling_text, size
from parse.say.numbers import digits, ms, percent
from parse.text import Page, cut, shortened, wrapped

NAMED = 3
"""Points named behind a placeholder, at most."""
FILE_FIRST = re.compile(r"(?P<file>(?:not (?:read|analysed): )?[^\s:]*/[^\s:]*): (?P<text>.+)", re.DOTALL)
LABEL_SHARE = 0.4
"""Share of a shortened line that names take, at most."""
DECIDED = {
    "cpus_per_rank": "--cpus-per-rank", "batch_size": "--batch-size", "warmup_steps": "--warmup",
    "measured_steps": "--steps",
}  # fmt: skip
"""Sizes that a sweep decides by its machine and cases where they are not requested, and the options that set them."""
IN_THE_HEAD = {
    "apart": "case",
    "oversubscribed": "case",
    "nodes_simulated": "case",
    "unfused": "backend",
    "synchronises": "backend",
    "built_otherwise": "backend",
}
"""Alarms that must be known before any number is read, by the column whose values they name."""


class Weight(Enum):
    """What a notice does to the numbers: they are no result of scaling, and the headline says so; they are to be
    trusted less; or nothing."""

    INVALID = 1
    CAUTION = 2
    NOTE = 3


INVALID, CAUTION, NOTE = Weight


VOID = ("apart", "oversubscribed", "nodes_simulated")
"""Alarms of speeds that are no result of scaling."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A line beside the table: the names of the points or files that it is about, if any, and its text.

    `is_count`: it only counts the runs that other notices of the same point name one by one. `shared` is the text of
    one that all runs of a point share, without their number `runs`.
    """

    labels: tuple[str, ...] = ()
    text: str
    weight: Weight = CAUTION
    is_count: bool = False
    noun: str = "points"
    shared: str = ""
    runs: int = 0
    in_full: bool = False
    """It says what to do: never cut."""

    @property
    def line(self) -> str:
        return f"{', '.join(self.labels)}: {self.text}" if self.labels else self.text

    def shortened_line(self, width: int, short: Mapping[str, str]) -> str:
        """In one line of `width` cells at most, with the `short` names of its labels; of several labels their number,
        and as many of their names as there is room for."""
        names = [short[label] for label in self.labels]
        if len(names) > 1:
            listed = cut(", ".join(names), int(width * LABEL_SHARE))
            return cut(f"{len(names)} {self.noun} ({listed}): {self.text}", width)
        return cut("".join(f"{name}: " for name in names) + self.text, width)


def warnings(summary: Summary) -> list[str]:
    """All notices in full length, for formats that have no place for them."""
    return [plain(notice.line) for notice in [*before_the_numbers(summary), *below_the_table(summary)]]


def notice_lines(notices: Sequence[Notice], page: Page) -> tuple[list[str], int]:
    """A line for each notice, equal ones of several points as one, and how many of the lines lack a part of their text
    or of their names; on a verbose page in full length."""
    width = page.width
    if page.verbose:
        return wrapped((notice.line for notice in merged(notices)), width), 0
    lines, cut_short = [], 0
    short = shortened((label for notice in notices for label in notice.labels), int(width * LABEL_SHARE))
    for notice in merged(notices):
        if notice.weight is not NOTE and not notice.in_full:
            line = notice.shortened_line(width, short)
            cut_short += any(plain(part) not in line for part in (notice.text, *notice.labels))
            lines.append(line)
        else:
            lines += wrapped([notice.line], width)
    return lines, cut_short


def merged(notices: Sequence[Notice]) -> list[Notice]:
    """Notices of one text as one, also where points differ in the number of runs that share it; counts of runs that
    other notices name are left out."""
    alike = grouped(
        ((notice.shared, "" if notice.shared else notice.text, notice.noun, notice.weight), notice)
        for notice in notices
        if not notice.is_count
    )
    return [_merged(group) if len(group) > 1 else group[0] for group in alike.values()]


def _merged(alike: Sequence[Notice]) -> Notice:
    first, runs = alike[0], sum(notice.runs for notice in alike)
    labels = tuple(dict.fromkeys(label for notice in alike for label in notice.labels))
    return replace(first, labels=labels, runs=runs, text=f"all {runs} runs: {first.shared}" if runs else first.text)


def all_notices(summary: Summary) -> list[Notice]:
    """Those before the numbers and those below the table, merged."""
    return merged([*before_the_numbers(summary), *below_the_table(summary)])


def before_the_numbers(summary: Summary) -> list[Notice]:
    """The notices printed before any number, named by the value of their column, and by the measurement of several."""
    notices = []
    for flag, of in IN_THE_HEAD.items():
        texts = grouped(
            (alarm.text, named(requested_values(result), (of,), ["folder"] if measured_in(result) else []))
            for result in summary.results
            for alarm in result.alarms
            if alarm.name == flag
        )
        weight = INVALID if flag in VOID else CAUTION
        notices += [
            Notice(labels=tuple(dict.fromkeys(which)), text=text, weight=weight) for text, which in texts.items()
        ]
    if summary.reduced:
        text = f"sizes made small because the target has no GPU: {'; '.join(summary.reduced)}"
        notices.append(Notice(text=text, weight=NOTE))
    return notices


def below_the_table(summary: Summary) -> list[Notice]:
    """Alarms, runs that did not end ok, absent speedups, remarks, files not read."""
    notices: list[Notice] = []
    without: dict[tuple[str, Weight], list[str]] = {}
    blank: dict[str, list[str]] = {}
    for result, label in zip(summary.results, labels(summary.results), strict=True):
        counted = "fewer_runs" if result.planned_runs is not None and any(_not_ok(result)) else ""
        notices += [
            _of_alarm(alarm, label, is_count=alarm.name == counted)
            for alarm in result.alarms
            if alarm.name not in IN_THE_HEAD
        ]
        if result.published and not result.ok:
            for run in result.runs:
                blank.setdefault(run.outcome_text, []).append(label)
        else:
            notices += [Notice(labels=(label,), text=text) for text in _not_ok(result)]
        if result.no_speedup and result.median_speed is not None:
            weight = NOTE if len(summary.results) == 1 else CAUTION
            without.setdefault((no_speedup_text(result), weight), []).append(label)
    notices += [
        Notice(text=f"{placeholder} in place of a figure: {first_of(of, NAMED)}") for placeholder, of in blank.items()
    ]
    notices += [
        Notice(labels=tuple(of), text=f"no speedup: {reason}", weight=weight)
        for (reason, weight), of in without.items()
    ]
    notices += _sizes_apart(summary)
    notices += _threads_apart(summary)
    points = {result.requested.point: result for result in summary.results}
    for notes in (_strong_log, _meetings, _utilisation, energy_notes, partial(_input_cost, points)):
        notices += [
            Notice(labels=(label,), text=text, weight=NOTE)
            for result, label in zip(summary.results, labels(summary.results), strict=True)
            for text in notes(result)
        ]
    if cost := cost_line(summary):
        notices.append(Notice(text=cost, weight=NOTE))
    notices += [Notice(text=text) for text in nodes_alarms(summary.results)]
    notices += _diagnostic_notices(summary.diagnostics)
    if summary.benchmarks:
        from parse.report.table import problems

        notices += [Notice(labels=(file,), text=text, noun="files") for file, text in problems(summary.benchmarks)]
    notices += map(_of_file, summary.remarks)
    return [*notices, *(_of_file(unread(refusal)) for refusal in summary.refusals)]


def _of_alarm(alarm: CheckFinding, label: str, *, is_count: bool) -> Notice:
    notice = Notice(labels=(label,), text=alarm.text, is_count=is_count)
    runs: Any = alarm.figures["runs"] if "of" in alarm.figures else ()
    if not runs or len(runs) != alarm.figures["of"]:
        return notice
    return replace(notice, shared=alarm.text.removeprefix(f"{of_runs(alarm.figures)}: "), runs=len(runs))


def _sizes_apart(summary: Summary) -> Iterator[Notice]:
    """Cases that have no baseline in common for sizes alone that sweeps decide, as where each was measured by a sweep
    of its own: which sizes, and the options that set them."""
    settings = by_setting(result for result in summary.results if not result.requested.partly).values()
    for alike in grouped((_apart_from_sizes(setting[0]), setting) for setting in settings).values():
        for smaller, larger in itertools.combinations(sorted(alike, key=lambda setting: size(setting[0])), 2):
            cases = [[result.requested.case for result in setting] for setting in (smaller, larger)]
            if min(map(len, cases)) == 1 and not {*cases[0]} & {*cases[1]}:
                text = f"no baseline in common with {first_of(cases[0], NAMED)}: {_sizes_text(smaller[0], larger[0])}"
                yield Notice(labels=tuple(cases[1]), text=text, in_full=True)


def _threads_apart(summary: Summary) -> Iterator[Notice]:
    """Points that are compared, of which a launcher decided other numbers of threads."""
    for result, label in zip(summary.results, labels(summary.results), strict=True):
        if text := other_threads(result, base_of(result, summary.results)):
            yield Notice(labels=(label,), text=text, in_full=True)


def base_of(result: Result, results: Sequence[Result]) -> Result | None:
    """The point that its speedup is against, another one than itself."""
    point = result.base.point if result.base else result.requested.point
    return next((each for each in results if each.requested.point == point and each is not result), None)


def other_threads(result: Result, base: Result | None) -> str:
    """That a launcher decided other threads of a rank than at the base; empty where it did not."""
    if base is None or not result.requested.cpus_decided or result.run.cpus_per_rank == base.run.cpus_per_rank:
        return ""
    return (
        f"each rank has {plural(result.run.cpus_per_rank or 0, 'thread')}, on {result.base_case} "
        f"{base.run.cpus_per_rank}: not requested (torchrun sets OMP_NUM_THREADS=1 for several ranks alone), and it "
        "changes the speed; to compare the scale alone, give both one --cpus-per-rank or OMP_NUM_THREADS"
    )


def _apart_from_sizes(result: Result) -> frozenset[tuple[str, str]]:
    values = requested_values(result)
    return frozenset((name, value) for name, value in values.items() if name not in (*SIZE, *DECIDED))


def _sizes_text(other: Result, result: Result) -> str:
    """`cpus_per_rank is 4 there and 2 here; measure both with one --cpus-per-rank`."""
    theirs, ours = identifying_values(other), identifying_values(result)
    differ = [name for name in (*DECIDED, "workload") if theirs.get(name) != ours.get(name)]
    values = ", ".join(f"{name} is {theirs.get(name)} there and {ours.get(name)} here" for name in differ)
    return f"{values}; measure both with one {' and '.join(DECIDED.get(name, name) for name in differ)}"


def _strong_log(result: Result) -> Iterator[str]:
    """That logs are taken as strong scaling, which they do not state."""
    if result.requested.strong:
        yield f"strong scaling: these logs have one global batch size, {result.run.global_batch_size}"


def _meetings(result: Result) -> Iterator[str]:
    """What the recorded collectives take of a step, where there are several ranks."""
    if not result.meetings_ms or result.devices == 1:
        return
    step_ms = stats.mean([float(run.measured.step_s.mean()) * 1e3 for run in result.ok if run.measured])
    total_ms = sum(result.meetings_ms.values())
    of_each = ", ".join(f"{name} {digits(value)}" for name, value in result.meetings_ms.items())
    share = percent(total_ms / step_ms)
    yield f"collectives take {digits(total_ms)} of {ms(step_ms)} a step ({share}), waiting included: {of_each}"


def _utilisation(result: Result) -> Iterator[str]:
    """What an MFU is a share of, or why a point on GPUs has none."""
    if result.no_mfu and result.run.gpus_per_node:
        yield f"no MFU: {result.no_mfu}"
    elif result.mfu is not None:
        peak = next(run.measured.utilisation for run in result.ok if run.measured)
        of = f"MFU {result.mfu * 100:.1f} % of {peak.peak_tflops:g} TFLOPS a device in {peak.precision}: {peak.source}"
        each = f"{(peak.flops or 0) / 1e9:.4g} GFLOP a {result.run.unit.removesuffix('s')}"
        yield f"{of}; {each}: {peak.flops_by}" if peak.flops_by else of


def _input_cost(points: Mapping[str, Result], result: Result) -> Iterator[str]:
    """What reading files costs a point, where the same point with its input cached is among the `points`."""
    fields = replace(result.run, data_cache="device")
    cached = points.get(replace(result.requested, run=fields).point) if result.run.data_cache == "off" else None
    if cached is None or cached.median_speed is None or result.median_speed is None:
        return
    share = 1 - result.median_speed / cached.median_speed
    speeds = f"{result.median_speed:.2f} {result.unit} against {cached.median_speed:.2f} with --data-cache device"
    ours, theirs = result.interval, cached.interval
    if ours is None or theirs is None:
        yield f"input costs you {share * 100:.0f} %: {speeds}; too few runs to exclude scatter"
    elif ours.high < theirs.low:
        yield f"input costs you {share * 100:.0f} %: {speeds}"
    else:
        yield f"input costs nothing beyond the scatter of the runs: {speeds}"


def _of_file(line: str) -> Notice:
    """A line that begins with a file's path has the path for its label."""
    match = FILE_FIRST.fullmatch(line)
    return Notice(labels=(match["file"],), text=match["text"], noun="files") if match else Notice(text=line)


def _diagnostic_notices(diagnostics: Sequence[Result]) -> Iterator[Notice]:
    """The diagnostic runs of the points, and those that did not end ok; of tries of find-max, which prints what they
    come to, their number."""
    if tries := sum(diagnostic.run.diagnostic == FIND_MAX for diagnostic in diagnostics):
        yield Notice(text=f"{plural(tries, 'run')} of find-max", weight=NOTE)
    diagnostics = [diagnostic for diagnostic in diagnostics if diagnostic.run.diagnostic != FIND_MAX]
    names: dict[str, str] = {}
    for kind in dict.fromkeys(diagnostic.run.diagnostic for diagnostic in diagnostics):
        of_kind = [diagnostic for diagnostic in diagnostics if diagnostic.run.diagnostic == kind]
        names |= {
            diagnostic.requested.point: f"{kind} of {name}"
            for diagnostic, name in zip(of_kind, labels(of_kind), strict=True)
        }
    if diagnostics:
        listed = ", ".join(
            f"{names[diagnostic.requested.point]} {runs_ok(diagnostic)} ok" for diagnostic in diagnostics
        )
        yield Notice(text=f"beside the points: {listed}", weight=NOTE)
    for diagnostic in diagnostics:
        yield from (Notice(labels=(names[diagnostic.requested.point],), text=text) for text in _not_ok(diagnostic))


def runs_ok(result: Result) -> str:
    """The number of ok runs and of all runs; a figure that a document publishes without its runs has neither."""
    if result.published and not result.ok:
        return "-"
    return f"{len(result.ok)}/{'?' if result.planned_runs is None else result.planned_runs}"


def _not_ok(result: Result) -> Iterator[str]:
    """Runs that did not end ok, by outcome, with the evidence of the first; logs with a problem have alarms instead."""
    bad = (run for run in result.runs if not run.measured and not (run.log and run.attempt and run.attempt.problem))
    for outcome, runs in grouped((run.outcome_text, run) for run in bad).items():
        repeats = ", ".join(str(run.requested.run.repeat) for run in runs)
        evidence = next((run.attempt.evidence for run in runs if run.attempt and run.attempt.evidence), "")
        yield f"run {repeats}: {outcome}{f' ({evidence})' if evidence else ''}"


# How a setting scales, in a sentence.

MAX_SETTINGS = 4
"""With more settings only the best and the worst scaling one are named."""
NAME_SHARE = 0.5
"""Share of a line that a setting's name takes, at most."""


def conclusion(summary: Summary, notices: Sequence[Notice], width: int) -> list[str]:
    """Sentences on how each setting scales, and one that counts runs and warnings; empty where there is no result."""
    if not summary.results:
        return []
    warning_count = sum(notice.weight is CAUTION for notice in merged(notices))
    counts = f"{warning_count or 'no'} {inflect(warning_count, 'warning')}"
    return [*scaling_lines(summary.results, width), "; ".join([*run_counts(summary.results), counts])]


def scaling_lines(results: Sequence[Result], width: int, beside: Result | None = None) -> Iterator[str]:
    """How each setting scales; nothing about that of `beside`, which somebody else describes."""
    settings = by_setting(results)
    full_names = setting_names([setting[0] for setting in settings.values()])
    short = shortened(full_names, int(width * NAME_SHARE))
    names = [short[name] for name in full_names]
    if len(settings) <= MAX_SETTINGS:
        yield from (
            f"{name}: {_of_setting(setting, is_alone=len(results) == 1)}"
            for name, setting in zip(names, settings.values(), strict=True)
            if all(result is not beside for result in setting)
        )
        return
    pairs = [(name, _largest(setting)) for name, setting in zip(names, settings.values(), strict=True)]
    scaled = [(name, largest) for name, largest in pairs if largest is not None]
    scaled.sort(key=lambda pair: -(pair[1].scaling_efficiency or 0.0))
    leads, without = [""] * len(scaled), len(settings) - len(scaled)
    if len(scaled) > MAX_SETTINGS:
        leads, scaled = [f"best of {len(scaled)} settings, ", "worst, "], [scaled[0], scaled[-1]]
    yield from (
        f"{lead}{name}: {_speedup(largest, results)}"
        for lead, (name, largest) in zip(leads, scaled, strict=True)
        if largest is not beside
    )
    if without:
        yield f"{without} of {len(settings)} settings: no speedup over a smaller case"


def setting_names(firsts: Sequence[Result]) -> list[str]:
    """The names of settings, of each of which this is the first point."""
    names = [name for name in naming(firsts) if name not in ("backend", "workload")] if len(firsts) > 1 else []
    return [setting_name(requested_values(first), names) for first in firsts]


def _largest(setting: Sequence[Result]) -> Result | None:
    """The largest case that has a speedup over a smaller one."""
    scaled = [result for result in setting if result.speedup is not None and (result.ideal or 0.0) > 1]
    return max(scaled, key=lambda result: (result.devices, result.run.nodes or 0), default=None)


def _of_setting(setting: Sequence[Result], *, is_alone: bool) -> str:
    """How it scales; of a point that `is_alone` nobody expects a speedup."""
    largest = _largest(setting)
    if largest is not None:
        return "; ".join([_speedup(largest, setting), *without_speed(setting, largest)])
    measured = [result for result in setting if result.median_speed is not None]
    if not measured:
        (first, *others) = setting
        reasons = {run.attempt.problem for run in first.runs if run.attempt and run.attempt.log}
        reason = f": {reasons.pop()}" if not others and len(reasons) == 1 and all(reasons) else ""
        return f"no speed of {', '.join(_case(result) for result in setting)}{reason}"
    largest_measured = max(measured, key=lambda result: result.devices)
    on = _case(largest_measured)
    speed = ": ".join([*no_scaling_result(largest_measured), f"{largest_measured.speed_text} on {on}"])
    return speed if is_alone else f"{speed}; {unscaled_text(largest_measured)}"


def _case(result: Result) -> str:
    return result.requested.case if result.devices else "? devices"


def unscaled_text(result: Result) -> str:
    """Why a measured point, the largest of its setting, does not show how that scales."""
    return f"no speedup: {no_speedup_text(result) or 'no larger case with all else equal has a speed'}"


def without_speed(setting: Sequence[Result], result: Result) -> list[str]:
    """The larger cases that have no speed, and the smaller ones that it is not measured against for want of one."""
    larger = [each for each in setting if each.median_speed is None and each.devices > result.devices]
    smaller = result.base.smaller if result.base else ()
    texts = [f"no speed of {', '.join(each.requested.case for each in larger)}"] if larger else []
    return texts + [f"not against {case}: {outcome}" for case, outcome in smaller]


NO_RESULT = "not a scaling result "


def no_scaling_result(result: Result) -> list[str]:
    """`not a scaling result (more ranks than cores)`; nothing where it is one."""
    flags = {
        "copies that never meet": result.apart,
        result.oversubscribed.partition(":")[0]: result.oversubscribed,
        "simulated nodes": result.nodes_simulated,
    }
    reasons = [name for name, reason in flags.items() if reason]
    return [f"{NO_RESULT}({', '.join(reasons)})"] if reasons else []


def _speedup(result: Result, results: Sequence[Result]) -> str:
    """`4n8g runs 3.14 × as fast as 1n8g on 4 times the devices (79 % of ideal)`, or why 4n8g is not a scaling result,
    whose figures are in the table alone; the `results` have its base."""
    if void := no_scaling_result(result):
        return f"{result.requested.case} is {void[0]}"
    speedup, efficiency = scaling_text(result)
    runs = f"{result.requested.case} runs {speedup} ({efficiency} of ideal)"
    return ", ".join([runs, *beyond_ideal(result, results)])


BEYOND = 1.05
"""An efficiency above this is no effect of the devices alone."""


def beyond_ideal(result: Result, results: Sequence[Result]) -> list[str]:
    """`more than linear: …` where it scales better than devices alone allow; nothing elsewhere."""
    if result.scaling_efficiency is None or result.scaling_efficiency <= BEYOND:
        return []
    base = base_of(result, results)
    threads = ""
    if base is not None and result.run.cpus_per_rank != base.run.cpus_per_rank:
        each = plural(result.run.cpus_per_rank or 0, "thread")
        threads = f" (a rank has {each}, on {result.base_case} {base.run.cpus_per_rank})"
    return [f"more than linear: more differs than the devices{threads}"]


def run_counts(results: Sequence[Result]) -> list[str]:
    """`8 of 9 runs ok, 1 oom`; nothing where there is no run."""
    runs = [run for result in results if not (result.published and not result.ok) for run in result.runs]
    missing = Counter(run.outcome_text for run in runs if not run.measured)
    parts = [f"{sum(run.measured is not None for run in runs)} of {len(runs)} runs ok"] if runs else []
    parts += [f"{count} {outcome}" for outcome, count in missing.most_common()]
    return [", ".join(parts)] if parts else []
