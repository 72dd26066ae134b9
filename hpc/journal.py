"""A rank's stamps in memory-mapped node-local files, so that a rank that dies leaves the steps it completed.

`python -m hpc.journal collect --stem STEM --to TRACES` runs once per node after a failed attempt and moves what the
ranks of that node left to `TRACES/STEM.partial/`; `python -m hpc.journal clean` removes what dead ranks left behind.
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
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.stamps import ABSENT, STAMPS

SCHEMA, SCHEMA_VERSION = "rankwise-journal", 1
PARTIAL = ".partial"
_STAMPS_FILE = re.compile(r"rank(\d+)\.stamps")


class JournalError(Exception):
    """A journal cannot be made or read; the text names the file and what is wrong with it."""


class Journal:
    """One rank's journal: `stamps` [steps × 6] and `samples` [steps] are int64 in a shared mapping of a file.

    What is stored there outlives the process, whatever ends it, without a system call per step. `samples` of a step
    is stored last: a step is complete where it is not ABSENT.
    """

    def __init__(self, traces: Path, stem: str, rank: int, steps: int) -> None:
        self.folder = _private_folder() / _key(traces, stem)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._path = self.folder / f"rank{rank}.stamps"
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "rank": rank,
            "steps": steps,
            "byteorder": sys.byteorder,
        }
        self.note()  # stamps never lie there without a header
        size_bytes = steps * (len(STAMPS) + 1) * 8
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)  # held until this process ends: `clean` leaves the living alone
        self._file = file
        os.posix_fallocate(file, 0, size_bytes)  # a full /dev/shm is an error here, not a SIGBUS in a step
        everything = memoryview(mmap.mmap(file, size_bytes)).cast("q")
        everything[:] = array("q", [ABSENT]) * len(everything)
        self.stamps = everything[: steps * len(STAMPS)]
        self.samples = everything[steps * len(STAMPS) :]

    @property
    def steps_completed(self) -> int:
        """How many steps this rank has completed."""
        return _completed(self.samples)

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


@dataclass(frozen=True, kw_only=True)
class RankJournal:
    """What one rank left: its facts, `stamps` [steps × 6] and `samples` [steps], ABSENT where it did not come to."""

    facts: dict[str, Any]
    stamps: array[int]
    samples: array[int]

    @property
    def steps_completed(self) -> int:
        """How many steps this rank completed, from the first on."""
        return _completed(self.samples)


def read_journals(partial: Path) -> list[RankJournal]:
    """The journals in a `.partial` folder, by rank. Raises JournalError on a broken one."""
    found = [_read(path) for path in partial.glob("rank*.stamps")]
    return sorted(found, key=lambda journal: int(journal.facts["rank"]))


def collect(traces: Path, stem: str) -> int:
    """Moves this node's journals of an attempt to `<traces>/<stem>.partial/`; returns how many ranks' there were.

    Nodes may do this at once, and so may simulated nodes that share one folder.
    """
    moved = 0
    for folder in (base / _key(traces, stem) for base in _private_folders()):
        for path in sorted(folder.glob("rank*.stamps")):
            target = traces / f"{stem}{PARTIAL}"
            target.mkdir(parents=True, exist_ok=True)
            moved += _move(path.with_suffix(".json"), target) and _move(path, target)
        _remove_folder(folder)
    return moved


def clean() -> int:
    """Removes this user's journals whose ranks are dead, on this node; returns how many."""
    removed = 0
    for base in _private_folders():
        for folder in base.iterdir():
            for path in folder.glob("rank*.stamps"):
                if not _alive(path):
                    _remove_rank(path)
                    removed += 1
            _remove_folder(folder)
    return removed


def _read(path: Path) -> RankJournal:
    try:
        facts = json.loads(path.with_suffix(".json").read_text())
        numbers = array("q", path.read_bytes())
    except (OSError, ValueError) as error:
        raise JournalError(f"{path}: cannot be read ({error})") from None
    if facts.get("schema") != SCHEMA or facts.get("schema_version") != SCHEMA_VERSION:
        raise JournalError(f"{path}: {facts.get('schema')} {facts.get('schema_version')} is no journal known here")
    if facts["byteorder"] != sys.byteorder:
        numbers.byteswap()
    steps = int(facts["steps"])
    if len(numbers) != steps * (len(STAMPS) + 1):
        raise JournalError(f"{path}: {len(numbers)} numbers do not make {steps} steps")
    at = steps * len(STAMPS)
    return RankJournal(facts=facts, stamps=numbers[:at], samples=numbers[at:])


def _completed(samples: Sequence[int]) -> int:
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


def _alive(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _move(path: Path, target: Path) -> bool:
    """Copies, renames, removes: whoever sees the name sees the whole file. False where another was quicker."""
    beside = target / f"{path.name}.{os.uname().nodename}.{os.getpid()}"
    try:
        shutil.copyfile(path, beside)
        beside.replace(target / path.name)
        path.unlink()
    except FileNotFoundError:
        beside.unlink(missing_ok=True)
        return False
    return True


def _remove_rank(path: Path) -> None:
    path.with_suffix(".json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    _remove_folder(path.parent)


def _remove_folder(folder: Path) -> None:
    """Removes the folder once it is empty: the last rank of a node does it."""
    try:
        folder.rmdir()
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
    if asked.action == "clean":
        print(f"removed the journals of {clean()} dead ranks")
    else:
        print(f"{asked.stem}: collected the journals of {collect(asked.to, asked.stem)} ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
