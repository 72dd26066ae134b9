"""What the checks at the start of a point's runs found."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.model.findings import Finding, Severity, State
from parse.alarms.scaling import Beside
from parse.result import Result

IMPLIED_BY_CROWDING = ("cores", "load")
"""What says less than that the machine is oversubscribed, or one for several nodes: no scaling result either way."""


def preflight(result: Result, _: Beside) -> Iterator[str]:
    """One line for each check that failed, or that a run may not fail and that could not be made; of several runs
    with figures of their own the first is quoted."""
    crowded = bool(result.oversubscribed or result.nodes_simulated)
    runs_by_check: dict[str, list[tuple[int, Finding]]] = {}
    for run in result.ok:
        if run.attempt is None or run.attempt.machine is None:
            continue
        for finding in run.attempt.machine.findings:
            raised = finding.state is State.FAILED or (
                finding.state is State.UNKNOWN and finding.severity is Severity.FATAL
            )
            if raised and not (crowded and finding.name in IMPLIED_BY_CROWDING):
                runs_by_check.setdefault(finding.name, []).append((run.requested.run.repeat, finding))
    for name, runs in runs_by_check.items():
        (first, finding), *others = runs
        unknown = "could not be looked at: " if finding.state is State.UNKNOWN else ""
        also = f"; run {', '.join(str(number) for number, _ in others)} too" if others else ""
        yield f"{name}: {unknown}{finding.text} (run {first}{also})"
