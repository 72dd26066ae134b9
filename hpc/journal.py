"""A rank's stamps in memory-mapped node-local files, so that a rank that dies leaves the steps it completed.

`python -m hpc.journal collect --stem STEM --to TRACES` runs once per node after a failed attempt: it moves what the
ranks of that node left to the traces (stamps and stacks to `TRACES/STEM.partial/`), and removes their shared memory.
`python -m hpc.journal clean` removes what dead ranks left behind. docs/recovery.md tells the whole way.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import socket
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc.leftovers import remove_shared_memory
from hpc.outside import deny_world_writing
from hpc.stamps import ABSENT, STAMPS

SCHEMA, SCHEMA_VERSION = "rankwise-journal", 1
PARTIAL = ".partial"
ROW_BYTES = len(STAMPS) * 8
"""What the stamps of one step take in a journal: rows of all steps first, then an int64 of samples for each step."""
WHOLE = ".whole"
"""`rank<k>.whole` in a `.partial` folder says that the rank's journal was collected, and is no copy made before."""
BEAT = ".beat"
"""`<host name>.beat` beside copies is new after each look of the copier that could be written; it holds the seconds
between looks."""
FORGOTTEN_S = 7 * 86400.0
"""Journals of dead ranks that are older are removed by the next attempt on their node."""
_BEGUN = "begun"
_PASSING = "nccl."
"""What files of this node are called that nobody needs after the run."""
_OF_RANK = re.compile(r"rank(\d+)\.(?:json|json\.new|stamps|stacks)")


class JournalError(Exception):
    """A journal cannot be made or read; the text names the file and what is wrong with it."""


class Journal:
    """One rank's journal: `stamps` [steps × 6] and `samples` [steps] are int64 in a shared mapping of a file.

    What is stored there outlives the process, whatever ends it, without a system call per step. `samples` of a step
    is stored last: a step is complete where it is not ABSENT.
    """

    def __init__(self, traces: Path, stem: str, rank: int, steps: int) -> None:
        self.folder = attempt_folder(traces, stem)
        self._path = self.folder / f"rank{rank}.stamps"
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "rank": rank,
            "steps": steps,
            "byteorder": sys.byteorder,
        }
        self.note()  # stamps never lie there without a header
        size_bytes = journal_bytes(steps)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)  # held until this process ends: `clean` leaves the living alone
        self._file = file
        try:
            os.posix_fallocate(file, 0, size_bytes)  # a full /dev/shm is an error here, not a SIGBUS in a step
        except OSError as error:
            where = f"{self.folder} on {socket.gethostname()}"
            raise JournalError(f"no room for {size_bytes} bytes of stamps in {where}: {error.strerror}") from error
        everything = memoryview(mmap.mmap(file, size_bytes)).cast("q")
        everything[:] = array("q", [ABSENT]) * len(everything)
        self.stamps = everything[: steps * len(STAMPS)]
        self.samples = everything[steps * len(STAMPS) :]

    @property
    def steps_completed(self) -> int:
        """How many steps this rank has completed."""
        return completed_in(self.samples)

    def note(self, **facts: Any) -> None:
        """Keeps these facts (JSON values) beside the stamps; written aside and renamed, so never half."""
        self._facts |= facts
        path = self._path.with_suffix(".json")
        beside = path.with_suffix(".json.new")
        beside.write_text(json.dumps(self._facts))
        beside.replace(path)

    def remove(self) -> None:
        """Removes the files; the mapping stays usable."""
        _remove_rank(self._path)
        os.close(self._file)


def attempt_folder(traces: Path, stem: str) -> Path:
    """This node's folder of an attempt, nobody else's to read, made where it is not there yet.

    Who makes it removes what ranks of other attempts left that are long dead and were never collected. Raises
    JournalError if no place on this node can be had for it.
    """
    folder = _private_folder() / _key(traces, stem)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        clean(FORGOTTEN_S)
    # Not touch: whoever comes later must not make it younger than what the first ranks have made.
    os.close(os.open(folder / _BEGUN, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    return folder


def journal_bytes(steps: int) -> int:
    """How long a journal's file of stamps is."""
    return steps * (ROW_BYTES + 8)


def collect(traces: Path, stem: str) -> int:
    """Moves what this node's ranks left of an attempt to the traces; returns how many ranks' stamps there were.

    That is stamps and stacks, to a `.partial` folder, and a trace or a note that could not be written before. What is
    moved takes the place of copies. Nodes may do this at once, and so may simulated nodes that share one folder. Raises
    OSError where the traces cannot be written; what was not moved stays where it is.
    """
    moved = 0
    for folder in attempt_folders(traces, stem):
        partial = traces / f"{stem}{PARTIAL}"
        for path in sorted(folder.iterdir()):
            if path.name.startswith(f"{stem}."):  # a trace, a note
                if not (traces / path.name).exists():
                    _move([path], [traces / path.name])
                elif path.suffix == ".json":
                    path.unlink()  # the note that was there first stands
            elif path.suffix in (".stamps", ".stacks") and _OF_RANK.fullmatch(path.name):
                partial.mkdir(parents=True, exist_ok=True)
                together = [path.with_suffix(".json"), path] if path.suffix == ".stamps" else [path]
                if _move(together, [partial / each.name for each in together]) and path.suffix == ".stamps":
                    (partial / f"{path.stem}{WHOLE}").touch()
                    moved += 1
        _remove_dead(folder)
    return moved


def attempt_folders(traces: Path, stem: str) -> list[Path]:
    """The folders of an attempt that are there on this node."""
    return [folder for base in _private_folders() if (folder := base / _key(traces, stem)).is_dir()]


def clean(older_s: float = 0.0) -> int:
    """Removes this user's journals whose ranks are dead, on this node; returns of how many ranks.

    Of attempts only that began at least so long ago. A trace that is kept there stays.
    """
    removed = 0
    for base in _private_folders():
        for folder in base.iterdir():
            if older_s == 0.0 or time.time() - _begun_s(folder) >= older_s:
                removed += _remove_dead(folder)
    return removed


def _begun_s(folder: Path) -> float:
    """When an attempt's first rank came, by this node's clock; now, for one that is making its folder."""
    try:
        return (folder / _BEGUN).stat().st_mtime
    except FileNotFoundError:
        return time.time()


def lives(folder: Path, rank: int) -> bool:
    """Whether the rank with files in this folder is there, or a child of it: it holds a lock on one of them."""
    return any(_locked(folder / f"rank{rank}.{kind}") for kind in ("stamps", "stacks"))


def kept_at(folder: Path) -> str:
    """Where a file or folder of this node is, as HOST:PATH."""
    return f"{socket.gethostname()}:{folder}"


def completed_in(samples: Sequence[int]) -> int:
    """How many steps these samples are of: a step is complete where they are not ABSENT."""
    return next((step for step, count in enumerate(samples) if count == ABSENT), len(samples))


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


def _private_folder() -> Path:
    """The first place of this node where this user can keep files to himself. Raises JournalError if there is none."""
    for base in _bases():
        try:
            base.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        if _is_private(base) and os.access(base, os.W_OK):
            return base
    raise JournalError(f"none of {', '.join(map(str, _bases()))} can be made a folder of mode 0700 of this user")


def _remove_dead(folder: Path) -> int:
    """Removes what dead ranks have in the folder, and the folder where that was all; returns of how many ranks."""
    ranks = {int(found[1]) for path in folder.glob("rank*") if (found := _OF_RANK.fullmatch(path.name))}
    dead = [rank for rank in ranks if not lives(folder, rank)]
    for rank in dead:
        _remove_rank(folder / f"rank{rank}.stamps")
    _remove_folder(folder)
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


def _move(paths: Sequence[Path], targets: Sequence[Path]) -> bool:
    """Copies all of them, then removes them; False where another was quicker."""
    if not all(_copied(path, target) for path, target in zip(paths, targets, strict=True)):
        return False
    try:
        for path in paths:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _copied(path: Path, target: Path) -> bool:
    """Copies, flushes, renames: whoever sees the name sees the whole file. False where there is nothing to copy."""
    beside = target.with_name(f"{target.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with path.open("rb") as source, beside.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        beside.replace(target)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, FileNotFoundError) and not path.exists():
            return False
        raise
    return True


def _remove_rank(path: Path) -> None:
    for kind in (".json", ".json.new", ".stacks", ".stamps"):
        path.with_suffix(kind).unlink(missing_ok=True)
    _remove_folder(path.parent)


def _remove_folder(folder: Path) -> None:
    """Removes the folder once nothing of a rank is in it: the last rank of a node does it."""
    try:
        left = [path for path in folder.iterdir() if path.name != _BEGUN and not path.name.startswith(_PASSING)]
        if not left:
            shutil.rmtree(folder)
    except OSError:
        return


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.journal`."""
    parser = argparse.ArgumentParser(prog="python -m hpc.journal", description="Journals of ranks that died.")
    actions = parser.add_subparsers(dest="action", required=True)
    collecting = actions.add_parser("collect", help="move this node's journals of an attempt to the traces")
    collecting.add_argument("--stem", required=True, help="<run_id>.<attempt>")
    collecting.add_argument("--to", required=True, type=Path, metavar="TRACES", help="the folder of the traces")
    actions.add_parser("clean", help="remove this node's journals whose ranks are dead")
    asked = parser.parse_args(argv)
    deny_world_writing()
    if asked.action == "clean":
        print(f"removed the journals of {clean()} dead ranks")
        return 0
    return _collect(asked.to, asked.stem)


def _collect(traces: Path, stem: str) -> int:
    """The command: says what was moved, what was removed, and where what could not be moved is kept."""
    since_ns = [(folder / _BEGUN).stat().st_mtime_ns for folder in attempt_folders(traces, stem)]
    failed = 0
    try:
        print(f"{stem}: collected the journals of {collect(traces, stem)} ranks")
    except OSError as error:
        print(f"{stem}: {traces} cannot be written ({error}): what the ranks left stays on this node", file=sys.stderr)
        kept = [f"kept: {kept_at(folder)}" for folder in attempt_folders(traces, stem)]
        print(*kept, sep="\n", file=sys.stderr)
        _note_kept(traces / f"{stem}.kept", kept)
        failed = 1
    else:
        for folder in attempt_folders(traces, stem):
            for path in folder.glob("*.h5"):
                print(f"{stem}: another trace of it is there; kept: {kept_at(path)}", file=sys.stderr)
    if since_ns and (removed := remove_shared_memory(min(since_ns))):
        print(f"{stem}: removed shared memory that dead ranks left on {socket.gethostname()}: {', '.join(removed)}")
    return failed


def _note_kept(path: Path, lines: Sequence[str]) -> None:
    """Adds the lines to the file, for the exit record, where a few bytes can be written after all."""
    with suppress(OSError):
        with path.open("a") as file:
            print(*lines, sep="\n", file=file)
        return
    with suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
