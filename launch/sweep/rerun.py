"""Runs that are final and wanted once more: all, those with an outcome, those whose environment has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hpc.model.outcome import (
    ExitRecord,
    Outcome,
    ask_again,
    asked_again,
    exit_records,
    final_record,
    is_final,
    stem,
)
from hpc.model.spec import RunSpec
from launch.jobs.site import Site
from launch.sweep.provenance import changes_since
from launch.sweep.request import RerunRequest


def ask_for(
    request: RerunRequest, runs: Sequence[RunSpec], traces: Path, site: Site | None, say: Callable[[str], None]
) -> None:
    """Notes beside the records which final runs are wanted again, and says how many and why.

    To be called with the folder's lock held.
    """
    records, again = exit_records(traces), asked_again(traces)
    final = [run for run in runs if is_final(records.get(run.run_id, []), again)]
    standing = {run.run_id: record for run in final if (record := final_record(records[run.run_id])) is not None}
    chosen: list[str] = []
    if request.force:
        chosen += standing
        say(f"--force: {len(standing)} final runs once more")
    if request.retry:
        retried = [run_id for run_id, record in standing.items() if record.outcome in request.retry]
        chosen += retried
        say(f"retry {','.join(request.retry)}: {len(retried)} runs once more")
    if request.if_changed:
        measured = [(run, standing[run.run_id]) for run in final if standing[run.run_id].outcome is Outcome.OK]
        chosen += _changed(measured, traces, site, say)
    ask_again(traces, [record for run_id in chosen for record in records[run_id] if record.is_final])


def _changed(
    measured: Sequence[tuple[RunSpec, ExitRecord]], traces: Path, site: Site | None, say: Callable[[str], None]
) -> list[str]:
    """Of the runs that ended ok those whose recorded environment is not what is here now; says what changed."""
    chosen, unknown = [], set()
    for run, record in measured:
        found = changes_since(run, traces / f"{stem(run.run_id, record.attempt)}.h5", site)
        unknown |= set(found.unknown)
        if found.changed:
            chosen.append(run.run_id)
            say(f"{run.run_id}: {'; '.join(found.changed)}")
    say(f"--rerun-if-changed: {len(chosen)} of {len(measured)} runs that ended ok once more")
    for line in sorted(unknown):
        say(f"not compared: {line}")
    return chosen
