"""The files of an attempt, and the traces folder that they are in.

After a mount is lost or a folder moved, the path does not exist or names another folder. Files written there would be
lost to every reader, so nothing here recreates a folder that existed at the start.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Self

EXIT, BEGIN, TRACE, PARTIAL = ".exit.json", ".begin.json", ".h5", ".partial"
CHECKPOINT = ".checkpoint"
RERUN = ".rerun"
"""The file that requests another attempt after this one."""
_OF_ATTEMPT = r"(?P<run_id>.+)\.(?P<attempt>\d+)"
EXIT_RECORD = re.compile(rf"{_OF_ATTEMPT}\.exit\.json")
BEGIN_RECORD = re.compile(rf"{_OF_ATTEMPT}\.begin\.json")
RANK_NOTE = re.compile(rf"{_OF_ATTEMPT}\.rank(?P<rank>\d+)\.json")
PLAN = re.compile(r"plan\..+\.json")
_STEM = re.compile(_OF_ATTEMPT)
OF_SWEEP = re.compile(
    rf"(?:{_OF_ATTEMPT}\.(?:h5|checkpoint|kept|rerun|signal|stacks\.txt|(?:exit|begin|hang|rank\d+)\.json)"
    r"|.+\.job\.json|submitted\.jsonl|[0-9a-f]{16}\.sh)(?:\.damaged(?:\.\d+)?)?"
)
"""Names that a sweep gives to files of attempts, to what it knows of its jobs, and to kept scripts."""
DAMAGED = ".damaged"
"""Suffix of an unreadable file whose place another one takes."""

STALE_S = 600.0
"""Age in seconds at which a part of an ended attempt is stale: a live writer would have renewed it."""
ABANDONED_S = 86400.0
"""The same of an attempt without an exit record."""
_PART = re.compile(
    r"\.?(?P<stem>.+\.\d+)\.(?:h5|checkpoint|(?:exit|begin|hang|rank\d+)\.json|stacks\.txt)(?:\.(?P<host>[^/]+)\.(?P<pid>\d+))?\.part"
    r"|\.(?P<removed>.+\.\d+)\.partial(?:\.(?P<remover_host>[^/]+)\.(?P<remover>\d+))?\.over"
)
"""Names of our files in the making, with the process that makes them, and of `.partial` folders being removed."""


class _File:
    """The path of an attempt's file with this suffix."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __get__(self, files: AttemptFiles, _: object = None) -> Path:
        return files.traces / f"{files.stem}{self._suffix}"


@dataclass(frozen=True)
class AttemptFiles:
    """The paths of everything that an attempt of a run leaves in the traces folder."""

    traces: Path
    run_id: str
    attempt: int

    @classmethod
    def of_stem(cls, traces: Path, stem: str) -> Self:
        """Those of the attempt `<run id>.<attempt>`. Raises ValueError where the stem is of another form."""
        match = _STEM.fullmatch(stem)
        if match is None:
            raise ValueError(f"{stem!r} is not of the form RUN_ID.ATTEMPT")
        return cls(traces, match["run_id"], int(match["attempt"]))

    @property
    def stem(self) -> str:
        """The prefix of all these file names, and the name of the attempt: `<run id>.<attempt>`."""
        return f"{self.run_id}.{self.attempt}"

    trace = _File(TRACE)
    """The trace of all ranks, written by rank 0 or by the recovery."""
    begin_record = _File(BEGIN)
    """BeginRecord; making the file takes the attempt's number."""
    exit_record = _File(EXIT)
    partial = _File(PARTIAL)
    """The folder of the ranks' journals, collected or as last copied."""
    hang = _File(".hang.json")
    """The watchdog's reason for ending the run."""
    signal = _File(".signal")
    """The note of launch.step that a signal ends the job: the signal's name and the time."""
    local_copies = _File(".kept")
    """The nodes' paths of files that could not be moved to the traces."""
    checkpoint = _File(CHECKPOINT)
    """Where a whole training goes on, as of the last epoch that this attempt completed."""
    rerun_request = _File(RERUN)
    """The empty file that requests another attempt after this one."""

    @property
    def rerun_is_requested(self) -> bool:
        """Whether another attempt is requested."""
        return self.rerun_request.exists()

    def earlier_checkpoints(self) -> list[Path]:
        """Those of the run's attempts before this one, the latest first."""
        before = (AttemptFiles(self.traces, self.run_id, number) for number in range(self.attempt - 1, 0, -1))
        return [files.checkpoint for files in before if files.checkpoint.exists()]

    def rank_note(self, rank: int) -> Path:
        """RankNote of a rank that failed."""
        return self.traces / f"{self.stem}.rank{rank}.json"

    def rank_notes(self) -> list[Path]:
        """The notes that are there, sorted by name."""
        paths = self.traces.glob(f"{escape(self.stem)}.rank*.json")
        return sorted(path for path in paths if RANK_NOTE.fullmatch(path.name))

    def error(self, logs: Path) -> Path:
        """Standard error of the attempt's launcher."""
        return logs / f"{self.stem}.err"


def host_path(path: Path) -> str:
    """The path of a file or folder of this node as HOST:PATH."""
    return f"{os.uname().nodename}:{path}"


def aside_of(path: Path) -> Path:
    """An unused name for a damaged file or folder that is set aside."""
    aside, number = path.with_name(f"{path.name}{DAMAGED}"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}.{number}")
    return aside


def set_aside(path: Path) -> Path:
    """Gives a damaged file or folder another name, so that another one can take its place; returns that."""
    return path.rename(aside_of(path))


class FolderReplaced(OSError):
    """Another folder is at the path of the traces folder; errno is ESTALE: the right one may come back."""


@dataclass(frozen=True)
class TracesFolder:
    """The traces folder at `path` for the attempt `stem`; `identity` is its (st_dev, st_ino) at the start, None where
    it was not recorded."""

    path: Path
    stem: str
    identity: tuple[int, int] | None = None

    @classmethod
    def of(cls, files: AttemptFiles) -> Self:
        """The folder of these files, without its identity."""
        return cls(files.traces, files.stem)

    @classmethod
    def at_start(cls, path: Path, stem: str) -> Self:
        """The folder at the begin of the attempt. Raises OSError where there is none."""
        status = path.stat()
        return cls(path, stem, (status.st_dev, status.st_ino))

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder. Raises OSError where it cannot be reached, FolderReplaced where another one is at
        its path.

        A network file system that is mounted again has another st_dev: there the attempt's begin record identifies it.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if self.identity not in (None, (status.st_dev, status.st_ino)) and not self._has_begin_record(descriptor):
                reason = "not the folder that was there when the attempt began; is its file system mounted?"
                raise FolderReplaced(errno.ESTALE, reason, str(self.path))
            yield descriptor
        finally:
            os.close(descriptor)

    def require(self) -> None:
        """Raises as `opened`."""
        with self.opened():
            pass

    def make(self, name: str) -> Path:
        """Makes a folder in it where it is not there yet; returns its path. Raises as `opened`."""
        with self.opened() as descriptor:
            try:
                os.mkdir(name, dir_fd=descriptor)  # relative to this very folder, not to its path
            except FileExistsError:
                if not (self.path / name).is_dir():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path / name)) from None
        return self.path / name

    def _has_begin_record(self, descriptor: int) -> bool:
        try:
            os.stat(f"{self.stem}{BEGIN}", dir_fd=descriptor)
        except FileNotFoundError:
            return False
        return True


def name_of_removed(folder: Path) -> Path:
    """The name of a `.partial` folder while it is removed."""
    return folder.with_name(f".{folder.name}.{os.uname().nodename}.{os.getpid()}.over")


def remove_stale_parts(traces: Path, stem: str | None = None) -> list[str]:
    """Removes parts that have no live writer, of all attempts or of one; returns their names.

    A part stays as long as its process runs on this machine, its attempt has no exit record and it is younger than
    ABANDONED_S, or it is younger than STALE_S. Nothing that has another name is touched. Raises OSError where the
    folder cannot be read or a part cannot be removed.
    """
    parts = [(path, match) for path in sorted(traces.iterdir()) if (match := _PART.fullmatch(path.name))]
    removed = []
    for path, match in parts:
        of_attempt, is_folder = match["stem"] or match["removed"], match["stem"] is None
        if stem not in (None, of_attempt) or path.is_symlink() or path.is_dir() != is_folder:
            continue
        if _may_be_written(path, match, STALE_S if (traces / f"{of_attempt}{EXIT}").exists() else ABANDONED_S):
            continue
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed


def _may_be_written(path: Path, match: re.Match[str], stale_s: float) -> bool:
    host, pid = match["host"] or match["remover_host"], match["pid"] or match["remover"]
    if host == os.uname().nodename and Path(f"/proc/{pid}").exists():
        return True
    try:
        changed_s = path.stat().st_mtime
    except FileNotFoundError:  # its writer has just renamed it
        return True
    return server_time_s(path.parent) - changed_s < stale_s


def server_time_s(folder: Path) -> float:
    """The time by the clock that times of files in the folder have: the file server's, where there is one; else this
    machine's."""
    from tempfile import TemporaryFile  # most commands write no file

    with suppress(OSError), TemporaryFile(dir=folder, prefix=".now.") as file:
        return os.fstat(file.fileno()).st_mtime
    return time.time()
