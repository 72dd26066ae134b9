"""The alarms of a summary: each rule returns the figures of a defect of one result, given all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from hpc.model.findings import CheckFinding, FigureValues
from parse.alarms import scaling, windows
from parse.alarms.scaling import Setting
from parse.alarms.text import sentence
from parse.runs.result import Result, by_setting

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
        windows.outlying_runs, windows.loose_clocks, windows.contradicting_clocks, windows.wall_clock_set,
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
