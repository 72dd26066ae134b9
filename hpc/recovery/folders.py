"""Where a node keeps what ranks leave: folders nobody else can read, whether a rank lives, and what is removed when."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hpc.model import files
from hpc.model.files import TracesFolder

_Made = TypeVar("_Made")

PARTIAL = files.PARTIAL
"""`TRACES/STEM.partial/` holds what has come to the traces from journals of an attempt."""
PART = ".part"
"""How the hidden name of a file ends that is still written: `.NAME.HOST.PID.part`."""
WHOLE = ".whole"
"""`rank<k>.whole` in a `.partial` folder says that the rank's journal was collected, and is no copy made before."""
BEAT = ".beat"
"""`<host name>.beat` beside copies is new after each look of the copier that could be written; it holds the seconds
between looks."""
FORGOTTEN_S = 7 * 86400.0
"""Journals of dead ranks that are older are removed by the next attempt on their node."""
BEGUN = "begun"
"""This file of a folder is as old as the attempt, and holds st_dev and st_ino of the traces folder at that time."""
OF_RANK = re.compile(r"rank(\d+)\.(?:json|json\.new|stamps|stacks)")
_PASSING = "nccl."
"""What files of this node are called that nobody needs after the run."""


class JournalError(Exception):
    """A journal cannot be made or read; the text names the file and what is wrong with it."""


def attempt_folder(traces: Path, stem: str) -> Path:
    """This node's folder of an attempt, nobody else's to read, made where it is not there yet.

    Raises JournalError if no place on this node can be had for it.
    """
    return in_attempt_folder(traces, stem, "files of this user", lambda folder: folder)


def in_attempt_folder(
    traces: Path, stem: str, what: str, make: Callable[[Path], _Made], passed_over: list[str] | None = None
) -> _Made:
    """What `make` returns for the first folder of the attempt on this node in which it raises no OSError.

    Places without room or rights are passed over; `passed_over` gets a line for each. `clean` waits while `make` runs,
    since a rank counts as dead until it has locked its first file. Raises JournalError, with all places and `what` was
    to be made, where no place will do.
    """
    failures = [] if passed_over is None else passed_over
    for base in _bases():
        try:
            _make_private(base)
            with _held(base, fcntl.LOCK_SH):
                return make(_made(base / _key(traces, stem), traces))
        except OSError as error:
            failures.append(f"{error.filename or base}: {error.strerror or error}")
    raise JournalError(f"no place on {socket.gethostname()} for {what}: {'; '.join(failures)}")


def _made(folder: Path, traces: Path) -> Path:
    """The folder; who makes it removes what ranks of other attempts left that are long dead and were never collected.

    `begun` keeps its first age, and the identity of the traces folder at that time: it has content, so that a full file
    system is noticed here.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        clean(FORGOTTEN_S)
    try:
        descriptor = os.open(folder / BEGUN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return folder
    try:
        os.write(descriptor, _identity(traces))
    except OSError as error:
        (folder / BEGUN).unlink(missing_ok=True)
        remove_if_empty(folder)
        raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        os.close(descriptor)
    return folder


def _identity(traces: Path) -> bytes:
    try:
        status = traces.stat()
    except OSError:
        return b"unknown\n"
    return f"{status.st_dev} {status.st_ino}\n".encode()


def traces_folder(folder: Path, traces: Path, stem: str) -> TracesFolder:
    """The traces folder as it was when the attempt's folder on this node was made."""
    try:
        numbers = (folder / BEGUN).read_text().split()
    except OSError:
        numbers = []
    known = len(numbers) == 2 and all(number.isdigit() for number in numbers)
    return TracesFolder(traces, stem, (int(numbers[0]), int(numbers[1])) if known else None)


def attempt_folders(traces: Path, stem: str) -> list[Path]:
    """The folders of an attempt that are there on this node."""
    return [folder for base in _private_folders() if (folder := base / _key(traces, stem)).is_dir()]


def lives(folder: Path, rank: int) -> bool:
    """Whether the rank with files in this folder is there, or a child of it: it holds a lock on one of them."""
    return any(_locked(folder / f"rank{rank}.{kind}") for kind in ("stamps", "stacks"))


def host_path(folder: Path) -> str:
    """The path of a file or folder of this node as HOST:PATH."""
    return f"{socket.gethostname()}:{folder}"


def clean(older_s: float = 0.0) -> int:
    """Removes this user's journals whose ranks are dead, on this node; returns of how many ranks.

    Of attempts only that began at least so long ago. A trace that is kept there stays.
    """
    if older_s == 0.0:
        removed = 0
        for base in _private_folders():
            with _held(base, fcntl.LOCK_EX):
                removed += sum(remove_dead(folder) for folder in base.iterdir())
        return removed
    folders = [folder for base in _private_folders() for folder in base.iterdir()]
    return sum(remove_dead(folder) for folder in folders if time.time() - _begun_s(folder) >= older_s)


@contextmanager
def _held(base: Path, kind: int) -> Iterator[None]:
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _begun_s(folder: Path) -> float:
    """When an attempt's first rank came, by this node's clock; now, for one that is making its folder."""
    try:
        return (folder / BEGUN).stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _key(traces: Path, stem: str) -> str:
    """Two sweeps may run the same attempt at the same time: their folders tell them apart."""
    return f"{stem}-{hashlib.sha256(os.fsencode(traces.resolve())).hexdigest()[:8]}"


def _bases() -> list[Path]:
    places = ("/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/tmp")
    return [Path(place) / f"rankwise-{os.getuid()}" for place in dict.fromkeys(places)]


def _is_private(folder: Path) -> bool:
    """Whether the folder is this user's and nobody else's; a link that another user put there is not."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _private_folders() -> Iterator[Path]:
    return (base for base in _bases() if _is_private(base))


def _make_private(base: Path) -> None:
    """Makes a base folder where it is not there yet. Raises OSError where it is not this user's alone."""
    base.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(base):
        raise PermissionError(errno.EACCES, "not a folder of mode 0700 of this user", str(base))


def remove_dead(folder: Path) -> int:
    """Removes the files of dead ranks, and the folder where it is empty then; returns the number of dead ranks."""
    ranks = {int(match[1]) for path in folder.glob("rank*") if (match := OF_RANK.fullmatch(path.name))}
    dead = [rank for rank in ranks if not lives(folder, rank)]
    for rank in dead:
        remove_rank(folder / f"rank{rank}.stamps")
    remove_if_empty(folder)
    return len(dead)


def _locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def remove_rank(path: Path) -> None:
    for kind in (".json", ".json.new", ".stacks", ".stamps"):
        path.with_suffix(kind).unlink(missing_ok=True)
    remove_if_empty(path.parent)


def remove_if_empty(folder: Path) -> None:
    """Removes the folder once nothing of a rank is in it: the last rank of a node does it."""
    try:
        remaining = [path for path in folder.iterdir() if path.name != BEGUN and not path.name.startswith(_PASSING)]
        if not remaining:
            shutil.rmtree(folder)
    except OSError:
        return
