"""Runs that are final and wanted once more: all, those with an outcome, those whose environment has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hpc.model.outcome import (
    ExitRecord,
    Outcome,
    exit_records,
    final_record,
    is_final,
    request_reruns,
    requested_reruns,
)
from hpc.model.spec import RunSpec
from hpc.system.text import plural
from launch.jobs.site import Site
from launch.sweep.provenance import changes_since
from launch.sweep.request import SweepOptions


def choose_reruns(
    options: SweepOptions, runs: Sequence[RunSpec], traces: Path, site: Site | None, say: Callable[[str], None]
) -> None:
    """Writes rerun requests beside the records of final runs; prints how many and why. The folder must be locked."""
    records, rerun_requests = exit_records(traces), requested_reruns(traces)
    final = [run for run in runs if is_final(records.get(run.run_id, []), rerun_requests)]
    latest = {run.run_id: record for run in final if (record := final_record(records[run.run_id])) is not None}
    chosen: list[str] = []
    if options.force:
        chosen += latest
        say(f"--force: {len(latest)} final runs once more")
    if options.retry:
        retried = [run_id for run_id, record in latest.items() if record.outcome in options.retry]
        chosen += retried
        say(f"retry {','.join(options.retry)}: {plural(len(retried), 'run')} once more")
    if options.rerun_if_changed:
        measured = [(run, latest[run.run_id]) for run in final if latest[run.run_id].outcome is Outcome.OK]
        chosen += _changed(measured, traces, site, say)
    request_reruns(traces, [record for run_id in chosen for record in records[run_id] if record.is_final])


def _changed(
    measured: Sequence[tuple[RunSpec, ExitRecord]], traces: Path, site: Site | None, say: Callable[[str], None]
) -> list[str]:
    """The measured runs whose recorded environment differs from the present one."""
    chosen, unknown = [], set()
    for run, record in measured:
        changes = changes_since(run, record.files(traces).trace, site)
        unknown |= set(changes.unknown)
        if changes.changed:
            chosen.append(run.run_id)
            say(f"{run.run_id}: {'; '.join(changes.changed)}")
    say(f"--rerun-if-changed: {len(chosen)} of {len(measured)} runs that ended ok once more")
    for line in sorted(unknown):
        say(f"not compared: {line}")
    return chosen
