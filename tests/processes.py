"""What runs on this machine, as /proc tells it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process: the words of its command line, and its environment as it was started, as NAME=VALUE."""

    pid: int
    words: tuple[str, ...]
    environ: frozenset[str]


def processes() -> Iterator[Process]:
    """All that may be looked at, this one left out; of one that has ended nothing but its number is known."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            try:
                words, environ = (_split(entry / name) for name in ("cmdline", "environ"))
            except OSError:  # gone meanwhile, or somebody else's
                continue
            yield Process(pid=int(entry.name), words=tuple(words), environ=frozenset(environ))


def lives(pid: int) -> bool:
    """Whether the process runs: one that has ended, or that only its parent has not waited for, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def signal_all(found: Callable[[], Iterable[Process]], number: signal.Signals) -> set[int]:
    """Sends the signal once to every process in `found()`, called again until it returns no new one; their numbers.

    A process may end between being listed and the signal, and may start another one meanwhile.
    """
    sent: set[int] = set()
    while new := {process.pid for process in found()} - sent:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        sent |= new
    return sent


def _split(path: Path) -> list[str]:
    text = path.read_bytes().decode(errors="surrogateescape").removesuffix("\0")
    return text.split("\0") if text else []
