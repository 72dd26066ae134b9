"""What measured the runs of a summary, and when: device, driver, commit, versions, days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parse.attempt import COMMIT, facts_of
from parse.measurements import days
from parse.result import Run

MACHINE = {"device": "device", "driver": "driver", "cpu": "cpu", "transport": "transport", "commit": COMMIT}
"""Members of the JSON page, by the name of the fact. All other facts are versions, or the header of a log."""


def provenance(runs: Sequence[Run]) -> dict[str, Any]:
    """The members of the JSON page: all values of the runs, sorted. `versions` are those that traces have, `header` the
    further facts of logs; `date` is None where nothing records it."""
    traces, logs = (
        facts_of(run.machine for run in runs if run.machine and bool(run.log) is of_logs) for of_logs in (False, True)
    )
    return {
        "date": days(run.attempt.begin_unix_s for run in runs if run.attempt) or None,
        **{name: sorted({*traces.get(fact, ()), *logs.get(fact, ())}) for name, fact in MACHINE.items()},
        "versions": _others(traces),
        "header": _others(logs),
    }


def _others(facts: dict[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(values) for name, values in sorted(facts.items()) if name not in MACHINE.values()}
