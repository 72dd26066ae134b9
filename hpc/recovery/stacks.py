"""Python stacks of every rank, written by the rank itself on a signal.

This works in a rank that hangs: the handler is C, needs neither the interpreter's lock nor memory, and writes to a file
of the node that was opened before anything could hang.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from hpc.recovery.folders import PARTIAL, in_attempt_folder
from hpc.recovery.journal import name_ranks, read_progress
from hpc.system.regular_file import open_regular, read_text
from hpc.system.sanitize import plain
from hpc.system.text import grouped

STACK_SIGNAL = signal.SIGUSR2
"""The signal that requests the stacks; srun and mpirun forward it to all ranks."""
STACKS = ".stacks"
_FILE = re.compile(r"rank(\d+)\.stacks")
_MAX_BYTES = 1 << 20
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Stacks:
    """Keeps `rank<k>.stacks` open in the attempt's folder on this node: SIGUSR2 writes the stacks there."""

    def __init__(self, traces: Path, stem: str, rank: int) -> None:
        content = f"the stacks of rank {rank}"
        descriptor = in_attempt_folder(
            traces, stem, content, lambda folder: _locked_file(folder / f"rank{rank}{STACKS}")
        )
        self._file = os.fdopen(descriptor, "w")  # open as long as a signal may come: as long as the process runs
        faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=True)

    def add(self, others: Callable[[], Iterable[str]]) -> None:
        """Has the signal add the stacks of other processes to this rank's, as soon as its interpreter goes on."""

        def signalled(_: int, __: object) -> None:
            for text in others():
                self._file.write(f"\nits script:\n{text}")
            self._file.flush()

        signal.pthread_sigmask(signal.SIG_BLOCK, {STACK_SIGNAL})  # it would be fatal between the two handlers
        faulthandler.unregister(STACK_SIGNAL)
        signal.signal(STACK_SIGNAL, signalled)
        faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=True, chain=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACK_SIGNAL})

    def catch_crashes(self) -> None:
        """Lets a fatal signal write stacks, too. Call it after MPI has started.

        Open MPI's own handlers show the C calls, and it sets none where it finds a handler. Installed after MPI, these
        handlers run first and pass the signal on to Open MPI's.
        """
        faulthandler.enable(file=self._file, all_threads=True)


def _locked_file(path: Path) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # held until this process ends, as a journal's is
    return descriptor


def merge(partial: Path) -> Path | None:
    """Brings the stacks in a `.partial` folder together as `<stem>.stacks.txt` beside it and removes them there.

    Ranks with the same stacks are one entry; those that completed the fewest steps come first, and of these the fewest
    ranks. None if no rank wrote any. A later call, with more ranks' stacks, adds to the file.
    """
    files = {int(match[1]): path for path in partial.glob(f"rank*{STACKS}") if (match := _FILE.fullmatch(path.name))}
    texts = {rank: _shown(path) for rank, path in files.items()}
    target = None
    if any(texts.values()):
        target = partial.with_name(f"{partial.name.removesuffix(PARTIAL)}{STACKS}.txt")
        earlier = read_text(target, errors="replace") + "\n" if target.exists() else ""
        beside = target.with_name(f".{target.name}.part")
        steps = {rank: progress.completed for rank, progress in read_progress(partial).items()}
        beside.write_text(earlier + merged(texts, steps))
        beside.replace(target)
    for path in files.values():
        path.unlink(missing_ok=True)
    return target


def merged(texts: Mapping[int, str], steps: Mapping[int, int]) -> str:
    """The stacks of all ranks as one text. `texts` has each rank's text, empty if it wrote none; `steps` each rank's
    number of completed steps, without ranks that left no journal."""
    ranks = sorted(texts.keys() | steps.keys())
    groups = grouped((_ADDRESS.sub("0x…", texts.get(rank, "")), rank) for rank in ranks)
    silent = groups.pop("", [])
    # Ranks with the majority stack are waiting; list the smallest groups first.
    behind_first = sorted(groups.items(), key=lambda group: (min(steps.get(r, 0) for r in group[1]), len(group[1])))
    parts = [f"{name_ranks(ranks)}, {_completed(ranks, steps)}:\n{text}" for text, ranks in behind_first]
    if silent:
        parts.append(f"{name_ranks(silent)}, {_completed(silent, steps)}: wrote no stack (stopped or dead)\n")
    return "\n".join(parts)


def _completed(ranks: Sequence[int], steps: Mapping[int, int]) -> str:
    known = [steps[rank] for rank in ranks if rank in steps]
    if not known:
        return "before the first step"
    low, high = min(known), max(known)
    return f"{low} steps completed" if low == high else f"{low} to {high} steps completed"


def _shown(path: Path) -> str:
    with open_regular(path) as file:
        text = file.read(_MAX_BYTES).decode(errors="replace")
    return "".join(f"{plain(line)}\n" for line in text.splitlines())


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, or blocks it to wait for it, as srun does."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    sets = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(each >> (number - 1) & 1 for each in sets)
