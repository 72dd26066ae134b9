"""Closes attempts that ended without a record, makes traces of their copies, and marks cancelled sweeps."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from shlex import join

from hpc.model.evidence import close_attempt, corrected_record, damaged_attempts, describe
from hpc.model.files import AttemptFiles
from hpc.model.outcome import ExitRecord, RecordError, exit_records
from hpc.model.trace import TraceError
from hpc.model.verdict import JobEnd
from hpc.recovery.collect import bring_home, collect
from hpc.recovery.folders import JournalError, attempt_folders, kept_traces
from hpc.system.atomic import write_atomic
from launch.follow.follower import write_missing_records
from launch.jobs.script import Folders


def close_ended(
    ends: Mapping[str, JobEnd], folders: Folders, say: Callable[[str], None], last_lines: dict[str, str] | None = None
) -> None:
    """Records the end of attempts whose jobs ended without doing so; makes traces of their copies.

    `last_lines` has the last line about each attempt: a caller that tries again says it once, until it changes.
    """
    last_lines = {} if last_lines is None else last_lines

    def recover(name: str) -> None:
        line = _recover(folders, name)
        if line and last_lines.get(name) != line:
            say(line)
        last_lines[name] = line

    write_missing_records(folders.traces, ends, folders.logs, recover)


Fetch = Callable[[str, Sequence[str]], str]
"""Runs a program on another machine; why that failed, empty if it did not."""


def mend_records(folders: Folders, say: Callable[[str], None], fetch: Fetch | None = None) -> None:
    """Judges attempts with unreadable records again, brings home the traces that nodes kept (`fetch`: from others), and
    removes stale parts of traces. The folder must be locked."""
    from hpc.recovery.recover import tidy

    for begin in damaged_attempts(folders.traces):
        name = begin.stem
        if line := _recover(folders, name):
            say(line)
        try:
            here = attempt_folders(folders.traces, name)
            record = close_attempt(begin, folders.logs, folders.traces, None, here)
        except OSError as error:
            say(f"{folders.traces / name}: what was recorded of it cannot be read, nor written anew ({error})")
            continue
        say(
            f"{folders.traces / name}: what was recorded of it cannot be read; judged anew by what else it left: "
            f"{record.outcome}: {record.evidence[0]}"
        )
    for line in (*bring_home(folders.traces), *tidy(folders.traces)):
        say(line)
    _correct_records(folders, say)
    last_records = [records[-1] for records in exit_records(folders.traces).values()]
    fetched = [_fetched(record, folders, say, fetch) for record in last_records]
    if any(fetched):
        for line in tidy(folders.traces):
            say(line)
        _correct_records(folders, say)


def _fetched(last: ExitRecord, folders: Folders, say: Callable[[str], None], fetch: Fetch | None) -> bool:
    """Whether the trace of this attempt was fetched from another machine, with what others keep of it; else shows how
    that is done."""
    places = [place.partition(":")[::2] for place in last.local_copies.split(", ") if place]
    program = [sys.executable, "-m", "hpc.recovery", "collect", "--stem", last.stem, "--to", str(folders.traces)]
    host, path = next((place for place in places if place[1].endswith(f"/{last.stem}.h5")), ("", ""))
    if host in ("", socket.gethostname()):
        return False
    problem = "" if fetch is None else fetch(host, program)
    where = f"{last.stem}: its whole trace is kept at {host}:{path}"
    if problem or fetch is None:
        by_srun = f" ({problem})" if problem else ""
        say(f"{where}{by_srun}; this on {host} brings it home, and the same sweep again: {join(program)}")
        return False
    say(f"{where}: fetched by srun")
    for other in {other: None for other, _ in places if other != host}:
        fetch(other, program)  # of its ranks nothing is needed any more: what stays is removed after a week
    return True


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


def _recover(folders: Folders, name: str) -> str:
    """Fetches the attempt's trace where this node keeps it, else makes one of its copies; a line about it, empty where
    there is neither."""
    partial = AttemptFiles.of_stem(folders.traces, name).partial
    from hpc.recovery.recover import recover

    try:
        if any(path.stem == name for path in kept_traces(folders.traces)):
            collect(folders.traces, name)
        return recover(partial) if partial.is_dir() else ""
    except (JournalError, TraceError, RecordError, OSError) as error:
        return f"not recovered: {error}; python -m hpc.recovery.recover {partial.parent} tries again"


def note_cancel(folders: Folders, sweep_id: str) -> None:
    """Marks the sweep as cancelled: a process that follows it, on any machine, submits no more of it."""
    write_atomic(folders.jobs / f"{sweep_id}.cancel", "")


def cancelled_at_ns(folders: Folders, sweep_id: str) -> int:
    """When the sweep was last cancelled, by the file server's clock; 0 for never."""
    try:
        return (folders.jobs / f"{sweep_id}.cancel").stat().st_mtime_ns
    except FileNotFoundError:
        return 0
