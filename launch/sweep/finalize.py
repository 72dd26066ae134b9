"""Closes attempts that ended without a record, makes traces of their copies, and marks cancelled sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpc.model.evidence import close_attempt, corrected_record, damaged_attempts, describe
from hpc.model.files import AttemptFiles
from hpc.model.outcome import RecordError, exit_records
from hpc.model.trace import TraceError
from hpc.model.verdict import JobEnd
from hpc.recovery.folders import JournalError
from hpc.system.atomic import write_atomic
from launch.follow.follower import write_missing_records
from launch.jobs.script import Folders


def close_ended(ends: Mapping[str, JobEnd], folders: Folders, say: Callable[[str], None]) -> None:
    """Records the end of attempts whose jobs ended without doing so; makes traces of their copies."""
    write_missing_records(folders.traces, ends, folders.logs, lambda name: _recover(folders, name, say))


def mend_records(folders: Folders, say: Callable[[str], None]) -> None:
    """Judges attempts with unreadable records again, and removes stale parts of traces. The folder must be locked."""
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
