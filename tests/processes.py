"""Processes of this machine, from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process: the arguments of its command line, and its initial environment as NAME=VALUE."""

    pid: int
    words: tuple[str, ...]
    environ: frozenset[str]


def processes() -> Iterator[Process]:
    """All readable processes except this one; a zombie has only its pid."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            try:
                words, environ = (_split(entry / name) for name in ("cmdline", "environ"))
            except OSError:  # gone meanwhile, or somebody else's
                continue
            yield Process(pid=int(entry.name), words=tuple(words), environ=frozenset(environ))


def lives(pid: int) -> bool:
    """Whether the process runs; False for a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def signal_all(select: Callable[[], Iterable[Process]], number: signal.Signals) -> set[int]:
    """Sends the signal once to every process in `select()`, called until it returns no new one; returns the pids.

    A process may end, or start another one, between being listed and being signalled.
    """
    sent: set[int] = set()
    while new := {process.pid for process in select()} - sent:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        sent |= new
    return sent


def _split(path: Path) -> list[str]:
    text = path.read_bytes().decode(errors="surrogateescape").removesuffix("\0")
    return text.split("\0") if text else []
