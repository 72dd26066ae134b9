"""Runs that are final and wanted once more: all, those with an outcome, those whose environment has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.model.options import did_you_mean
from hpc.model.outcome import (
    FINAL_OUTCOMES,
    ExitRecord,
    Outcome,
    exit_records,
    final_record,
    is_final,
    request_reruns,
    requested_reruns,
)
from hpc.model.spec import RunSpec, SpecError
from launch.jobs.site import Site
from launch.sweep.provenance import changes_since

RETRIED = tuple(sorted(FINAL_OUTCOMES - {Outcome.OK}))
"""The outcomes after which a run is not run again unless `retry` names them."""


@dataclass(frozen=True, kw_only=True)
class RerunRequest:
    """Which final runs somebody wants again: those with these outcomes, those whose environment changed, all."""

    retry: tuple[Outcome, ...] = ()
    if_changed: bool = False
    force: bool = False


def outcomes_to_retry(text: str) -> tuple[Outcome, ...]:
    """The outcomes in a comma list of `retry`. Raises SpecError on one that needs no asking, or that is none."""
    chosen = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word not in set(Outcome):
            raise SpecError(f"retry {word!r} is no outcome; it takes {', '.join(RETRIED)}{did_you_mean(word, RETRIED)}")
        outcome = Outcome(word)
        if outcome is Outcome.OK:
            raise SpecError("retry ok: what ended ok is measured; --force runs everything again")
        if outcome not in FINAL_OUTCOMES:
            raise SpecError(f"retry {word}: a run that ended so is run again without asking: leave it out")
        chosen.append(outcome)
    if not chosen:
        raise SpecError(f"retry names no outcome; its first argument is a comma list of {', '.join(RETRIED)}")
    return tuple(chosen)


def ask_for(
    request: RerunRequest, runs: Sequence[RunSpec], traces: Path, site: Site | None, say: Callable[[str], None]
) -> None:
    """Notes beside the records which final runs are wanted again, and says how many and why.

    To be called with the folder's lock held.
    """
    records, again = exit_records(traces), requested_reruns(traces)
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
    request_reruns(traces, [record for run_id in chosen for record in records[run_id] if record.is_final])


def _changed(
    measured: Sequence[tuple[RunSpec, ExitRecord]], traces: Path, site: Site | None, say: Callable[[str], None]
) -> list[str]:
    """Of the runs that ended ok those whose recorded environment is not what is here now; says what changed."""
    chosen, unknown = [], set()
    for run, record in measured:
        found = changes_since(run, record.files(traces).trace, site)
        unknown |= set(found.unknown)
        if found.changed:
            chosen.append(run.run_id)
            say(f"{run.run_id}: {'; '.join(found.changed)}")
    say(f"--rerun-if-changed: {len(chosen)} of {len(measured)} runs that ended ok once more")
    for line in sorted(unknown):
        say(f"not compared: {line}")
    return chosen
