"""The stacks of a script that hangs: a handler in C writes them when the rank's process requests them by signal.

The signal is one without other use, system calls that it interrupts go on, and it comes only to a run that makes no
step. It is sent only where this handler waits for it and its file is still open: a process that has replaced itself
would die of it, and in a script that closes all files another one has the number of this.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

STACK_SIGNAL = signal.SIGRTMAX - 2
SUFFIX = ".stacks"
_POLL_S = 0.05
_MAX_CHARACTERS = 1 << 18


def register(folder: Path) -> None:
    """Has this process write the stacks of its threads to a file in `folder`, unless it handles the signal otherwise.

    Raises OSError where there is no room.
    """
    pid = os.getpid()
    if _handles(pid):
        return
    new = folder / f"{pid}{SUFFIX}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    new.rename(folder / f"{pid}.{descriptor}{SUFFIX}")
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)


def stacks_of(folder: Path, patience_s: float) -> list[str]:
    """The stacks of every process of a script that can write them, after `patience_s` at most. Raises OSError."""
    begins = {path: path.stat().st_size for path in sorted(folder.glob(f"*{SUFFIX}"))}
    begins = {path: begin for path, begin in begins.items() if _request(path)}
    limit, sizes = time.monotonic() + patience_s, dict(begins)
    while begins and time.monotonic() < limit:
        time.sleep(_POLL_S)
        before, sizes = sizes, {path: path.stat().st_size for path in begins}
        if sizes == before and all(sizes[path] > begin for path, begin in begins.items()):
            break
    texts = [path.read_bytes()[begin:].decode(errors="replace") for path, begin in begins.items()]
    return [text[:_MAX_CHARACTERS] for text in texts if text]


def _request(path: Path) -> bool:
    """Signals the process of this file if its handler and its file are there; whether it did."""
    pid, descriptor = path.name.split(".")[:2]
    with suppress(OSError):  # it has ended
        if _handles(int(pid)) and Path(f"/proc/{pid}/fd/{descriptor}").samefile(path):
            os.kill(int(pid), STACK_SIGNAL)
            return True
    return False


def _handles(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> STACK_SIGNAL - 1 & 1)
