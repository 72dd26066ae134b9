"""The alarms of a summary: each rule returns the figures of a defect of one result, given all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpc.model.findings import CheckFinding, FigureValues
from hpc.system.text import first_of, inflect, plural, ranges
from parse.alarms import scaling, windows
from parse.alarms.scaling import SINGLE_FIGURE, Setting
from parse.runs.result import Result, by_setting
from parse.stats import MIN_COVERAGE

SHOWN = 3
"""At most this many runs that were not nested are named."""
_ALLOWED = f" with {2 * SINGLE_FIGURE:.0%} allowed between single published figures"


def sentence(name: str, figures: FigureValues, unit: str = "samples/s") -> str:
    """Returns the text of an alarm; its form may depend on the figure `source`. `unit` is that of its speeds."""
    form = SENTENCES.get(f"{name} of {figures.get('source')}") or SENTENCES[name]
    if not isinstance(form, str):
        return form(**figures)
    parts = {name: _listed(value) if isinstance(value, list) else value for name, value in figures.items()}
    parts |= {"runs": of_runs(figures)} if "of" in figures else {}
    return form.format(
        **parts,
        unit=unit,
        noun=unit.removesuffix("/s"),
        by=_basis(figures),
    )


def _basis(figures: FigureValues) -> str:
    """What the bounds of speeds are taken from; empty where there are none."""
    if figures.get("single_figures"):
        return _ALLOWED
    coverage: Any = figures.get("coverage")
    if coverage is None:
        return ""
    return " by intervals of 95 %" if coverage >= MIN_COVERAGE else " by the ranges of their runs"


def of_runs(figures: FigureValues) -> str:
    """Which of the runs of a point the figures concern: `run 1-3, 7`, or `all 5 runs`."""
    runs: Any = figures["runs"]
    return f"all {len(runs)} runs" if len(runs) == figures["of"] and len(runs) > 1 else f"run {ranges(runs)}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _nodes(hosts: Sequence[str]) -> str:
    return f"{' '.join(hosts[:4])} … ({len(hosts)} nodes)" if len(hosts) > 4 else " ".join(hosts)


def _preflight(check: str, unknown: bool, text: str, runs: Sequence[int]) -> str:
    first, *others = runs
    also = f"; run {_listed(others)} too" if others else ""
    return f"{check}: {'could not be looked at: ' if unknown else ''}{text} (run {first}{also})"


def _fewer_runs(ok: int, runs: int, outcomes: Mapping[str, int], source: str, missing: Sequence[int]) -> str:
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    if source == "plan":
        return f"{ok} of {runs} requested runs ended ok; {ended}"
    where = f" (run {_listed(missing)})" if missing else ""
    return f"{ok} of {runs} runs, by the numbers of their logs, have a speed; {ended}{where}"


def _disagreement(fact: str, runs: Mapping[str, Sequence[int]]) -> str:
    values = "; ".join(f"{value} (run {_listed(of_value)})" for value, of_value in runs.items())
    return f"runs or ranks differ in {fact}: {values}"


def _baseline_elsewhere(fact: str, values: Sequence[str], baseline: Sequence[str], base: str) -> str:
    other, its = " and ".join(baseline), " and ".join(values)
    return f"its base {base} ran with another {fact}: {other}, not {its}"


def _not_nested(outside: Sequence[Mapping[str, Any]]) -> str:
    runs = ["run {run}: {case} on {on}, not among {among}".format(
        **run, on=_nodes(run["outside"]), among=_nodes(run["nodes"])) for run in outside]  # fmt: skip
    listed = first_of(runs, SHOWN, "; ")
    return f"not nested, so nodes may differ: {listed}"


def _other_nodes(runs: Mapping[str, Sequence[int]]) -> str:
    allocations = "; ".join(f"{_nodes(nodes.split())} (run {_listed(its_runs)})" for nodes, its_runs in runs.items())
    return f"runs differ by their nodes, too: {allocations}"


def _as_published(
    printed: Mapping[str, Mapping[str, Sequence[int]]], computed: Mapping[str, float], source: str, runs: int
) -> str:
    figures = []
    for name, lines_by_text in printed.items():
        places = (f"{text} ({inflect(len(lines), 'line')} {_listed(lines)})" for text, lines in lines_by_text.items())
        figures.append(f"{name} {' and '.join(places)}")
    giver = {"runs": "its runs", "clean runs": f"its {runs} clean runs", "document": "its own figures"}[source]
    values = _listed(f"{value:.2f}" for value in computed.values())
    return f"its document prints {_listed(figures)}; {giver} give {values}"


def _packed(logs: Sequence[Mapping[str, Any]]) -> str:
    listed = _listed("{log} ({speed:.2f})".format(**log) for log in logs)
    jobs = f"{plural(len(logs), 'log')} of packed jobs, several on the same devices"
    return f"{jobs}, set aside: {listed}; the result is of the other runs"


def _outlying_runs(runs: Mapping[str, float], median: float) -> str:
    listed = _listed(f"{run} ({speed:.2f})" for run, speed in runs.items())
    return f"run {listed} is far from the median of {median:.2f}; it counts"


def _two_groups(slower: Mapping[str, float], faster: Mapping[str, float], apart: float) -> str:
    groups = [
        f"run{'s' if len(group) > 1 else ''} {_listed(f'{run} ({speed:.2f})' for run, speed in group.items())}"
        for group in (slower, faster)
    ]
    of_each = " are" if len(slower) == len(faster) == 1 else " are two groups,"
    return f"{' and '.join(groups)}{of_each} {apart:.1%} apart: not by chance alone"


def _contradicting_clocks(run: int, ranks: int, rank: int, steps: int, of_steps: int, jumps: int, off_ms: float) -> str:
    others = f" ({plural(ranks - 1, 'other rank')} too)" if ranks > 1 else ""
    jumped = f", {plural(jumps, 'jump')}" if jumps else ""
    return (
        f"run {run}: {steps} of {of_steps} steps are in no number: the clocks of rank {rank}'s device and host "
        f"contradict each other by up to {off_ms:.3f} ms{jumped}{others}"
    )


SENTENCES: Mapping[str, str | Callable[..., str]] = {
    "apart": "apart: not a scaling result ({reason})",
    "oversubscribed": "oversubscribed: not a scaling result ({reason})",
    "nodes_simulated": "simulated nodes: not a scaling result over nodes ({reason}: no network between them)",
    "preflight": _preflight,
    "unfused": (
        "nothing overlaps: with --timing phases gradients are reduced when all are there; --timing step measures the "
        "framework's own way"
    ),
    "synchronises": "the host waits for the device in every step",
    "built_otherwise": "{reason}: rebuild it by make horovod",
    "fewer_runs": _fewer_runs,
    "unmeasured": "{runs}: {reason}",
    "not_as_asked": (
        "{runs}: {ranks} ranks, {steps} steps, {samples} {noun} were measured; requested were {requested_ranks}, "
        "{requested_steps}, {requested_samples}"
    ),
    "superlinear": "more than linear: speedup {speedup:.2f} on {devices} devices, at least {speedup_low:.2f}{by}",
    "rising": (
        "speed per device rises with the devices: at least {per_device_low:.4g} {unit}, on {smaller_case} at most "
        "{smaller_per_device_high:.4g}{by}"
    ),
    "falling": (
        "more devices, less throughput: at most {speed_high:.2f} {unit}, on {smaller_case} at least "
        "{smaller_speed_low:.2f}{by}"
    ),
    "average_and_median": "average {average:.2f} and median {median:.2f} are {difference:+.1%} apart",
    "average_and_median of document": (
        "as published, average {average:.2f} and median {median:.2f} are {difference:+.1%} apart"
    ),
    "rates_and_wall_clock of document": (
        "it reports {printed:.2f} samples/s, but {wall_clock_from} are {wall_clock:.2f} by the clock: "
        "{difference:+.1%} apart"
    ),
    "rates_and_wall_clock of log": (
        "run {run}: its log prints {printed:.2f} {unit}, {difference:+.1%} from the {wall_clock:.2f} by its time "
        "stamps, which are the result"
    ),
    "rates_and_wall_clock of protocol": (
        "run {run}: its protocol's mean of rates, {printed:.2f} {unit}, is the result: {difference:+.1%} from the "
        "{wall_clock:.2f} by its time stamps"
    ),
    "window_and_steady_run": (
        "run {run}: {window} is the result, {speed:.2f} {unit}: {difference:+.1%} from the {steady_run:.2f} of the "
        "whole steady run ({steady_window})"
    ),
    "rates_and_wall_clock of steps": (
        "stalls: {long_steps} of {steps} steps take {long_step:g} × the median step or more. With them the speed is "
        "{difference:.1%} below the mean of the steps' rates, more than scatter explains"
    ),
    "disagreement": _disagreement,
    "baseline_elsewhere": _baseline_elsewhere,
    "not_nested": _not_nested,
    "other_nodes": _other_nodes,
    "unsteady": "the window is not steady: steps of its last third take {drift:+.1%} against its first",
    "outlying_runs": _outlying_runs,
    "two_groups": _two_groups,
    "loose_clocks": "the ranks' clocks leave {share:.1%} of the speed open",
    "loose_clocks of log": (
        "run {run}: coarse times of its log leave {share:.1%} of the speed open: --window all or more steps help"
    ),
    "contradicting_clocks": _contradicting_clocks,
    "wall_clock_set": (
        "run {run}: a node's wall clock was set by {shift_s:+.0f} s during attempt {attempt}; no duration has it in it"
    ),
    "wall_clock_set of trace": (
        "run {run}: a node's wall clock was set by {shift_s:+.0f} s during attempt {attempt}: its cost may be wrong by "
        "that"
    ),
    "repeated": "{runs}: attempts {attempts} ended ok; attempt {counted} counts",
    "noted": "{runs}: {evidence}",
    "log_remarks": "{runs}: {remark}",
    "contradictory": (
        "its document prints {rows} speeds of this size, {least:.2f} to {largest:.2f} ({ratio:.2f} times): they are no "
        "repeats, or one is wrong"
    ),
    "as_published": _as_published,
    "packed": _packed,
}


# The alarms of a summary: each rule returns the figures of a defect of one result, given all others.


Rule = Callable[[Result, Setting], Iterator[FigureValues]]
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        scaling.apart,
        scaling.oversubscribed, scaling.nodes_simulated, scaling.preflight, scaling.unfused, scaling.synchronises,
        scaling.built_otherwise, scaling.fewer_runs, scaling.unmeasured, scaling.not_as_asked, scaling.superlinear,
        scaling.rising, scaling.falling, scaling.average_and_median, windows.rates_and_wall_clock,
        windows.window_and_steady_run, scaling.disagreement,
        scaling.baseline_elsewhere, scaling.not_nested, scaling.other_nodes, windows.unsteady,
        windows.outlying_runs, windows.two_groups, windows.loose_clocks, windows.contradicting_clocks,
        windows.wall_clock_set,
        scaling.repeated, scaling.noted, scaling.log_remarks, scaling.contradictory, scaling.as_published,
        scaling.packed,
    )
}  # fmt: skip
"""All rules, in the order of their alarms."""


def judge(results: Sequence[Result]) -> tuple[Result, ...]:
    """Returns the results with their alarms; a diagnostic run has none, and no other is compared with it."""
    settings = by_setting(result for result in results if not result.run.diagnostic)
    return tuple(
        result if result.run.diagnostic else _with_alarms(result, settings[result.requested.setting])
        for result in results
    )


def _with_alarms(result: Result, setting: Setting) -> Result:
    alarms = [
        CheckFinding(name=name, text=sentence(name, figures, result.unit), figures=figures)
        for name, rule in RULES.items()
        for figures in rule(result, setting)
    ]
    return dataclasses.replace(result, alarms=tuple(alarms))
