"""The private folders of ranks' files on a node, the check that a rank is alive, and the removal of old files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from hpc.model import files
from hpc.model.files import TracesFolder
from hpc.system.regular_file import open_regular, read_text

_Made = TypeVar("_Made")

PARTIAL = files.PARTIAL
"""`TRACES/STEM.partial/` holds the collected or copied journals of an attempt."""
PART = ".part"
"""Suffix of the hidden name of an unfinished file: `.NAME.HOST.PID.part`."""
WHOLE = ".whole"
"""`rank<k>.whole` in a `.partial` folder marks a collected journal, as opposed to an earlier copy."""
BEAT = ".beat"
"""`<host name>.beat` beside copies is renewed by each look of the node's helper that could be written; it holds the
seconds between looks."""
LIVES_S = 60.0
"""An attempt without an exit record whose copies are no older, or that began since, is taken for one that runs."""
FORGOTTEN_S = 7 * 86400.0
"""Journals of dead ranks that are older are removed by the next attempt on their node."""
BEGUN = "begun"
"""This file of a folder is as old as the attempt, and holds st_dev and st_ino of the traces folder at that time."""
OF_RANK = re.compile(r"rank(\d+)\.(?:json|json\.new|stamps|stacks|unmeasured)")
_TEMPORARY = ("nccl.", "events.")
"""The prefixes of what is not needed after the run: logs of NCCL, events of scripts."""


class JournalError(Exception):
    """A journal cannot be made or read; the text names the file and what is wrong with it."""


def attempt_folder(traces: Path, stem: str) -> Path:
    """This node's private folder of an attempt, created if absent.

    Raises JournalError if no place on this node can be had for it.
    """
    return in_attempt_folder(traces, stem, "files of this user", lambda folder: folder)


def in_attempt_folder(
    traces: Path, stem: str, content: str, make: Callable[[Path], _Made], passed_over: list[str] | None = None
) -> _Made:
    """The result of `make` for the first folder of the attempt on this node in which it raises no OSError.

    Places without room or rights are passed over; `passed_over` gets a line for each. `clean` waits while `make` runs,
    since a rank counts as dead until it has locked its first file. Raises JournalError, which names `content` and all
    places, where no place will do.
    """
    failures = [] if passed_over is None else passed_over
    for base in _bases():
        try:
            _make_private(base)
            with _held(base, fcntl.LOCK_SH):
                return make(_made(base / _key(traces, stem), traces))
        except OSError as error:
            failures.append(f"{error.filename or base}: {error.strerror or error}")
    remedy = "TMPDIR, set for the job, names a folder of yours that is tried as well"
    raise JournalError(f"no place on {socket.gethostname()} for {content}: {'; '.join(failures)}. {remedy}")


def _made(folder: Path, traces: Path) -> Path:
    """The folder; who makes it removes what ranks of other attempts left that are long dead and were never collected.

    `begun` keeps its first age, and the identity of the traces folder at that time: it has content, so that a full file
    system is noticed here.
    """
    is_new = True
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        is_new = False
    else:
        clean(FORGOTTEN_S)
    try:
        descriptor = os.open(folder / BEGUN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return folder
    except OSError:
        if is_new:
            with suppress(OSError):  # it has a rank's file
                folder.rmdir()
        raise
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
        numbers = read_text(folder / BEGUN).split()
    except OSError:
        numbers = []
    known = len(numbers) == 2 and all(number.isdigit() for number in numbers)
    return TracesFolder(traces, stem, (int(numbers[0]), int(numbers[1])) if known else None)


def attempt_folders(traces: Path, stem: str) -> list[Path]:
    """The folders of an attempt that are there on this node."""
    return [folder for base in _private_folders() if (folder := base / _key(traces, stem)).is_dir()]


def kept_traces(traces: Path) -> list[Path]:
    """The whole traces on this node that rank 0 of an attempt could not write to the traces folder."""
    paths = [path for base in _private_folders() for path in base.glob(f"*-{_digest(traces)}/*.h5")]
    return sorted(path for path in paths if path.parent.name == _key(traces, path.stem))


def attempts_here(traces: Path) -> list[str]:
    """The stems of the attempts of this traces folder that have a folder on this node."""
    names = {path.name for base in _private_folders() for path in base.glob(f"*-{_digest(traces)}")}
    return sorted(name.rpartition("-")[0] for name in names)


def living_ranks(traces: Path, stem: str) -> list[int]:
    """The ranks of the attempt that are alive on this node."""
    return sorted(rank for base in attempt_folders(traces, stem) for rank in _ranks_in(base) if lives(base, rank))


def lives(folder: Path, rank: int) -> bool:
    """Whether the rank with files in this folder is there, or a child of it: it holds a lock on one of them."""
    return any(_locked(folder / f"rank{rank}.{kind}") for kind in ("stamps", "stacks"))


def life_sign(traces: Path, stem: str) -> str:
    """Why an attempt is taken for one that runs, whatever its scheduler lists: a rank is alive on this node, or copies
    were renewed just now. Empty without a sign."""
    if living := living_ranks(traces, stem):
        return f"rank {living[0]} is alive on {socket.gethostname()}"
    copied = copied_just_now(traces / f"{stem}{PARTIAL}")
    return f"its time stamps were {copied}" if copied else ""


def copied_just_now(partial: Path) -> str:
    """The age of copies that were renewed within LIVES_S, or within three looks of their node's helper, as text. Empty
    without such copies."""
    ages = [(float("inf"), 0.0)]
    for path in partial.glob(f"*{BEAT}"):
        with suppress(FileNotFoundError, ValueError):  # it is taken away meanwhile, or being written, or a broken link
            interval_s = float(read_text(path).strip() or 0)
            ages.append((files.server_time_s(partial.parent) - path.stat().st_mtime, interval_s))
    age_s, interval_s = min(ages)
    return f"copied {max(0.0, age_s):.0f} s ago" if age_s <= max(LIVES_S, 3 * interval_s) else ""


def clean(older_s: float = 0.0) -> int:
    """Removes this user's journals whose ranks are dead, on this node; returns the number of ranks.

    Attempts that began more recently than this age are left alone. A trace stored there stays.
    """
    removed = 0
    for base in _private_folders():
        with nullcontext() if older_s else _held(base, fcntl.LOCK_EX):
            folders = [folder for folder in base.iterdir() if time.time() - _begun_s(folder) >= older_s]
            removed += sum(map(remove_dead, folders))
    return removed


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
    except (FileNotFoundError, NotADirectoryError):
        return time.time()


def _key(traces: Path, stem: str) -> str:
    """The part of a name that distinguishes sweeps with the same attempt, from the traces folder."""
    return f"{stem}-{_digest(traces)}"


def _digest(traces: Path) -> str:
    return hashlib.sha256(os.fsencode(traces.resolve())).hexdigest()[:8]


def _bases() -> list[Path]:
    places = ["/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/tmp"]
    return [Path(place) / f"rankwise-{os.getuid()}" for place in dict.fromkeys(places)]


def _is_private(folder: Path) -> bool:
    """Whether the folder belongs to this user alone; a link made by another user does not."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _private_folders() -> Iterator[Path]:
    return (base for base in _bases() if _is_private(base))


def _make_private(base: Path) -> None:
    """Makes a base folder where it is not there yet. Raises OSError where it is not this user's alone."""
    with suppress(FileExistsError):
        base.mkdir(mode=0o700)
    if _is_private(base):
        return
    status = base.lstat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"user {status.st_uid}"
    kind = "a link" if base.is_symlink() else f"mode {stat.S_IMODE(status.st_mode):04o}"
    remedy = "chmod 700, or remove it" if status.st_uid == os.getuid() else f"{owner} or an administrator can remove it"
    raise PermissionError(
        errno.EACCES, f"belongs to {owner} ({kind}), so that others could read or plant files: {remedy}", str(base)
    )


def remove_dead(folder: Path) -> int:
    """Removes the files of dead ranks, and the folder where it is empty then; returns the number of dead ranks."""
    dead = [rank for rank in _ranks_in(folder) if not lives(folder, rank)]
    for rank in dead:
        remove_rank(folder / f"rank{rank}.stamps")
    remove_if_empty(folder)
    return len(dead)


def _ranks_in(folder: Path) -> set[int]:
    return {int(match[1]) for path in folder.glob("rank*") if (match := OF_RANK.fullmatch(path.name))}


def _locked(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def remove_rank(path: Path) -> None:
    for kind in (".json", ".json.new", ".stacks", ".unmeasured", ".stamps"):
        path.with_suffix(kind).unlink(missing_ok=True)
    remove_if_empty(path.parent)


def remove_if_empty(folder: Path) -> None:
    """Removes the folder once it has no rank's file: the last rank of a node does it. What stays goes by `clean`."""
    with suppress(OSError):
        remaining = [path for path in folder.iterdir() if path.name != BEGUN and not path.name.startswith(_TEMPORARY)]
        if not remaining:
            shutil.rmtree(folder)


# Removes shared memory of dead ranks from a node: by name, owner and age, and if no living process uses it.

SHARED_MEMORY = Path("/dev/shm")
KNOWN = (
    r"(vader|sm)_segment\..+",  # Open MPI 4, 5
    r"mpich_shar_tmp\w+",
    r"Intel_MPI_\w+",
    r"psm[23]?_shm\..+",  # Omni-Path's PSM
    r"ucx_shm_posix_\w+",
    r"nccl-\w+",
    r"cuda\.shm\..+",
    r"torch_\d+_\w+",  # torch.multiprocessing
    r"psm_[0-9a-f]{8}",  # multiprocessing.shared_memory
    r"sem\.(mp|loky)-[\w-]+",
    r"pymp-\w+",
    r"paddle_\d+_\w+",
    r"__KMP_REGISTERED_LIB_\d+_\d+",  # OpenMP of LLVM and Intel
)
"""Names of the segments of MPI, NCCL and the frameworks; only these are ever removed."""
_NAME = re.compile("|".join(f"(?:{pattern})" for pattern in KNOWN))


def remove_shared_memory(since_ns: int, folder: Path = SHARED_MEMORY) -> list[str]:
    """Removes the segments that known libraries of this user's dead processes left there since that time.

    Returns the names. A segment that a living process maps or has open stays. `since_ns` is a time of this node's file
    systems, Unix nanoseconds.
    """
    segments = [path for path in sorted(folder.iterdir()) if _may_go(path, since_ns)] if folder.is_dir() else []
    if not segments:
        return []
    in_use = set(_files_in_use())
    removed = []
    for path in segments:
        try:
            status = path.lstat()
            if (status.st_dev, status.st_ino) not in in_use:
                path.unlink()
                removed.append(path.name)
        except FileNotFoundError:  # another process was quicker
            continue
    return removed


def _may_go(path: Path, since_ns: int) -> bool:
    """Whether it is a file of this user's with such a name, made or changed since then."""
    if not _NAME.fullmatch(path.name):
        return False
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and _changed_ns(status) >= since_ns


def _changed_ns(status: os.stat_result) -> int:
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _files_in_use() -> Iterator[tuple[int, int]]:
    """(device, inode) of all files that processes of this user map or have open.

    Processes that the kernel hides, other users' and those with more rights, are not of this user's runs.
    """
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, _, _, device, inode, *_ = line.split(maxsplit=5)
                major, _, minor = device.partition(":")
                yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
            for name in os.listdir(process / "fd"):  # noqa: PTH208 - a file gone meanwhile must not end the walk
                try:
                    status = os.stat(process / "fd" / name)  # noqa: PTH116
                except OSError:
                    continue
                yield status.st_dev, status.st_ino
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended meanwhile, or is another's
            continue
