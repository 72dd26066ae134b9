"""Closes what ended without a record, makes traces of what was copied, and says how a sweep's runs stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpc.model.evidence import close_attempt, corrected_record, damaged_attempts, describe
from hpc.model.files import AttemptFiles
from hpc.model.outcome import ExitRecord, Outcome, RecordError, exit_records, read_rank_note
from hpc.model.trace import TraceError
from hpc.model.verdict import JobEnd
from hpc.recovery.folders import JournalError
from hpc.system.atomic import write_atomic
from launch.cluster.local import LocalCluster
from launch.cluster.slurm import SlurmCluster
from launch.follow.follower import write_missing_records
from launch.jobs.script import Folders
from launch.sweep.run_status import RunStatus, describe_states


def close_attempts(
    cluster: LocalCluster | SlurmCluster, job_ids: Sequence[str], folders: Folders, say: Callable[[str], None]
) -> None:
    """Records what became of the attempts of jobs that ended without doing so; makes traces of what they left."""
    close_ended(cluster.ends(job_ids), folders, say)


def close_ended(ends: Mapping[str, JobEnd], folders: Folders, say: Callable[[str], None]) -> None:
    """The same for jobs of which it is known how they ended."""
    write_missing_records(folders.traces, ends, folders.logs, lambda name: _recover(folders, name, say))


def mend_records(folders: Folders, say: Callable[[str], None]) -> None:
    """Judges attempts anew whose records cannot be read, and removes what lies beside whole traces or was left
    half-written; to be called with the folder's lock held."""
    from hpc.recovery.recover import tidy

    for begin in damaged_attempts(folders.traces):
        name = begin.stem
        _recover(folders, name, say)
        try:
            record = close_attempt(begin, folders.logs, folders.traces, None)
        except OSError as error:
            say(f"{folders.traces / name}: what was recorded of it cannot be read, nor written anew ({error})")
            continue
        say(
            f"{folders.traces / name}: what was recorded of it cannot be read; judged anew by what else it left: "
            f"{record.outcome}: {record.evidence[0]}"
        )
    for line in tidy(folders.traces):
        say(line)
    _correct_records(folders, say)


def _correct_records(folders: Folders, say: Callable[[str], None]) -> None:
    """Makes `ok` of recorded attempts that a whole trace contradicts."""
    traces = {path.name.removesuffix(".h5") for path in folders.traces.glob("*.h5")}
    for records in exit_records(folders.traces).values():
        for record in records:
            name = record.stem
            if name not in traces or (corrected := corrected_record(record, folders.traces)) is None:
                continue
            try:
                corrected.write(folders.traces)
            except OSError as error:
                say(f"{folders.traces / name}: its trace is whole, and its record cannot be corrected ({error})")
            else:
                say(f"{name}: {describe(corrected)}; {corrected.evidence[1]}")


def _recover(folders: Folders, name: str, say: Callable[[str], None]) -> None:
    """Makes a trace of the attempt's copies, if there are any."""
    partial = AttemptFiles.of_stem(folders.traces, name).partial
    if not partial.is_dir():
        return
    from hpc.recovery.recover import recover

    try:
        say(recover(partial))
    except (JournalError, TraceError, RecordError, OSError) as error:
        say(f"not recovered: {error}; python -m hpc.recovery.recover {partial.parent} tries again")


def note_cancel(folders: Folders, sweep_id: str) -> None:
    """Marks the sweep as cancelled: a process that follows it, on any machine, submits no more of it."""
    write_atomic(folders.jobs / f"{sweep_id}.cancel", "")


def cancelled_at_ns(folders: Folders, sweep_id: str) -> int:
    """When the sweep was last cancelled, by the file server's clock; 0 for never."""
    try:
        return (folders.jobs / f"{sweep_id}.cancel").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def describe_runs(runs: Sequence[RunStatus], folders: Folders) -> list[str]:
    """Counts of the runs by state, and a line for each that is begun or not ok."""
    lines = [describe_states(runs)]
    for run in runs:
        if run.open is not None and not run.final:
            lines.append(
                f"  {run.run_id}: begun in job {run.open.job_id}, no record yet; "
                "python -m hpc.sweep status shows its state"
            )
        elif run.record is not None and run.record.outcome is not Outcome.OK:
            lines.append(f"  {run.run_id}: {run.record.outcome}: {describe_failure(run.record, folders)}")
        lines += [f"  {problem}" for problem in run.problems]
    return lines


def describe_failure(record: ExitRecord, folders: Folders) -> str:
    """The evidence of the outcome, and the path of the attempt's whole output."""
    files = record.files(folders.traces)
    reasons = list(record.evidence[:1])
    if not reasons:
        for path in files.rank_notes()[:1]:
            try:
                note = read_rank_note(path)
            except RecordError as error:
                reasons.append(str(error))
            else:
                reasons.append(f"rank {note.rank}: {note.exception}: {note.message}")
    return "; ".join([*reasons, f"see {files.error(folders.logs)}"])
