"""The process `python -m hpc.node_agent.copier` beside a node's ranks: copies their journals to the traces.

It stands outside the ranks, in a session of its own: whatever ends them, it makes a last copy and ends when no rank of
the attempt lives on its node. SIGTERM, which comes before a job is killed, has it copy at once; it goes on after that.
Of a run that ended well it removes the copies, told so on its standard input. docs/recovery.md has the whole way.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from hpc.model.timestamps import ABSENT, BEGIN, END, STAMPS
from hpc.node_agent.cores import stand_aside
from hpc.recovery.folders import BEAT, PARTIAL, lives, traces_folder
from hpc.recovery.journal import ROW_BYTES, journal_bytes
from hpc.system.sanitize import deny_world_writing

END_COMMAND = b"end\n"
_CHUNK_STEPS = 8192
_ORPHANED_POLL_S = 0.1


class RankCopy:
    """The copy of one rank's journal in the `.partial` folder, which a look brings up to date."""

    def __init__(self, folder: Path, partial: Path, rank: int) -> None:
        self._header, self._stamps = folder / f"rank{rank}.json", folder / f"rank{rank}.stamps"
        self._partial = partial
        self._traces = traces_folder(folder, partial.parent, partial.name.removesuffix(PARTIAL))
        self._source = self._target = -1
        self._steps = 0
        self._identity: tuple[int, int] | None = None
        self._header_seen: tuple[int, int] | None = None
        self._rows = self._samples = 0  # so many are on the disk
        self._over = False

    def look(self) -> None:
        """Copies what is new: the rows of completed steps, then that they are complete, so that no half step shows.

        Nothing is copied any more where the journal has been collected. Raises OSError; what could not be copied is
        tried again by the next call.
        """
        if self._over or not self._opened():
            return
        try:
            if not self._made():
                self._close()
                return
            self._copy_header()
            completed = self._completed()
            rows = self._resolved(completed)
            if rows > self._rows:
                self._copy(self._rows * ROW_BYTES, rows * ROW_BYTES)
                self._rows = rows
            if completed > self._samples:
                start = self._steps * ROW_BYTES
                self._copy(start + 8 * self._samples, start + 8 * completed)
                self._samples = completed
        except OSError:
            if os.fstat(self._source).st_nlink == 0:  # collected meanwhile, and the copies are gone
                self._close()
                return
            if self._target >= 0:
                with suppress(OSError):
                    os.close(self._target)
                self._target = -1
            raise

    @property
    def stands(self) -> bool:
        """Whether there is a copy of which the last look was good."""
        return self._target >= 0

    def remove(self) -> None:
        """Removes the copy."""
        for path in (self._copied_stamps, self._copied_header, self._beside):
            path.unlink(missing_ok=True)

    @property
    def _copied_stamps(self) -> Path:
        return self._partial / self._stamps.name

    @property
    def _copied_header(self) -> Path:
        return self._partial / self._header.name

    @property
    def _beside(self) -> Path:
        return self._partial / f".{self._header.name}.new"

    def _opened(self) -> bool:
        """Whether there is a journal to copy."""
        if self._source < 0:
            try:
                self._source = os.open(self._stamps, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
            self._steps = os.fstat(self._source).st_size // journal_bytes(1)
        if os.fstat(self._source).st_nlink == 0:
            self._close()
        return not self._over

    def _made(self) -> bool:
        """Whether the copy's file is there and ours: one that was collected in the meantime is better than any copy."""
        if self._target >= 0:
            return True
        self._traces.make(self._partial.name)
        if self._identity is None:
            try:
                target = os.open(self._copied_stamps, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                return False
            try:
                _fill(target, self._steps)
            except OSError:
                os.close(target)
                self._copied_stamps.unlink(missing_ok=True)
                raise
        else:
            target = os.open(self._copied_stamps, os.O_RDWR | os.O_CLOEXEC)
        status = os.fstat(target)
        if self._identity not in (None, (status.st_dev, status.st_ino)):
            os.close(target)
            return False
        self._identity, self._target = (status.st_dev, status.st_ino), target
        return True

    def _copy_header(self) -> None:
        try:
            status = self._header.stat()
            seen = status.st_ino, status.st_mtime_ns
            if seen == self._header_seen:
                return
            content = self._header.read_bytes()
        except FileNotFoundError:  # collected just now
            return
        with self._beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._beside.replace(self._copied_header)
        self._header_seen = seen

    def _completed(self) -> int:
        """How many steps the rank has completed by now."""
        done = self._samples
        while done < self._steps:
            counts = self._numbers(self._steps * ROW_BYTES + 8 * done, min(_CHUNK_STEPS, self._steps - done))
            if ABSENT in counts:
                return done + counts.index(ABSENT)
            done += len(counts)
        return done

    def _resolved(self, completed: int) -> int:
        """How many of the completed steps have their stamps: a device's come only at the end of a segment."""
        done, width = self._rows, len(STAMPS)
        while done < completed:
            rows = self._numbers(done * ROW_BYTES, min(_CHUNK_STEPS, completed - done) * width)
            ends = [column.index(ABSENT) for column in (rows[BEGIN::width], rows[END::width]) if ABSENT in column]
            if ends:
                return done + min(ends)
            done += len(rows) // width
        return done

    def _numbers(self, offset: int, count: int) -> array[int]:
        return array("q", os.pread(self._source, 8 * count, offset))

    def _copy(self, offset: int, stop: int) -> None:
        while offset < stop:
            piece = os.pread(self._source, min(stop - offset, _CHUNK_STEPS * ROW_BYTES), offset)
            _write(self._target, piece, offset)
            offset += len(piece)
        os.fdatasync(self._target)

    def _close(self) -> None:
        self._over = True
        for file in (self._source, self._target):
            if file >= 0:
                with suppress(OSError):  # of a copy that nobody needs
                    os.close(file)
        self._source = self._target = -1


class Copies:
    """The copies of a node's ranks, looked after every `interval_s`. `folders` is where the journal of each rank is."""

    def __init__(self, folders: Mapping[int, Path], partial: Path, interval_s: float) -> None:
        self.interval_s = interval_s
        self._folders, self._partial = folders, partial
        self._of_ranks = [RankCopy(folder, partial, rank) for rank, folder in folders.items()]
        self._beat = partial / f"{os.uname().nodename}{BEAT}"
        self._reported: set[str] = set()

    def look(self) -> None:
        """Brings all copies up to date. A failure is reported once per reason and tried again by the next look."""
        failed = False
        for copy in self._of_ranks:
            try:
                copy.look()
            except OSError as error:
                failed = True
                self._complain(error)
        try:
            if not failed and any(copy.stands for copy in self._of_ranks):
                self._beat.write_text(f"{self.interval_s:g}\n")
        except OSError as error:
            self._complain(error)

    def remove(self) -> None:
        """Removes the copies, and their folder where that was all: another node's copier may still have to."""
        try:
            for copy in self._of_ranks:
                copy.remove()
            self._beat.unlink(missing_ok=True)
        except OSError as error:
            self._complain(error)
        with suppress(OSError):
            self._partial.rmdir()

    def ranks_live(self) -> bool:
        """Whether any of the ranks is there."""
        return any(lives(folder, rank) for rank, folder in self._folders.items())

    def _complain(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason in self._reported:
            return
        self._reported.add(reason)
        text = f"{error.filename or self._partial}: {reason}"
        print(f"stamps cannot be copied to the traces, tried again ({text})", file=sys.stderr, flush=True)
        _report(failed=text)


def copy_until_over(copies: Copies, wake: int) -> None:
    """Looks every interval, and whenever `wake` can be read.

    Returns on END_COMMAND from standard input, which removes the copies, or after a last look when standard input has
    ended and no rank lives.
    """
    watched, due_s = [0, wake], monotonic() + copies.interval_s
    while True:
        limit_s = max(0.0, due_s - monotonic())
        ready, _, _ = select.select(watched, [], [], limit_s if 0 in watched else min(limit_s, _ORPHANED_POLL_S))
        if 0 in ready:
            if os.read(0, 64).startswith(END_COMMAND):
                copies.remove()
                return
            watched = [wake]
        over = 0 not in watched and not copies.ranks_live()
        if wake in ready:
            os.read(wake, 64)
        if over or wake in ready or monotonic() >= due_s:
            copies.look()
            due_s = monotonic() + copies.interval_s
        if over:
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.node_agent.copier`; a node's first rank starts it."""
    parser = argparse.ArgumentParser(
        prog="python -m hpc.node_agent.copier", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--to", type=Path, required=True, metavar="PARTIAL", help="the folder of the copies")
    parser.add_argument("--interval-s", type=float, required=True, help="seconds between two looks")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="where the ranks run")
    parser.add_argument(
        "--ranks", nargs="+", action="append", required=True, metavar=("FOLDER", "RANK"), help="ranks by their folder"
    )
    arguments = parser.parse_args(argv)
    wake = _catch_signals()
    deny_world_writing()
    _report(placed=stand_aside(set(arguments.cores)))
    folders = {int(rank): Path(folder) for folder, *ranks in arguments.ranks for rank in ranks}
    copy_until_over(Copies(folders, arguments.to, arguments.interval_s), wake)
    return 0


def _catch_signals() -> int:
    """Ignores what is sent to all of a job, but for SIGTERM, which makes the returned file readable."""
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    return read


def _fill(file: int, steps: int) -> None:
    """Writes a journal of which nothing is known yet: from then on there is room for all of it."""
    empty = array("q", [ABSENT]) * (_CHUNK_STEPS * (len(STAMPS) + 1))
    size = journal_bytes(steps)
    for offset in range(0, size, journal_bytes(_CHUNK_STEPS)):
        _write(file, empty.tobytes()[: size - offset], offset)
    os.fsync(file)


def _write(file: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _report(**what: str) -> None:
    """A line of JSON to the rank that started this; it may be gone."""
    with suppress(OSError):
        os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
