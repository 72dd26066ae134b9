"""What runs on this machine, as /proc tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


def _split(path: Path) -> list[str]:
    text = path.read_bytes().decode(errors="surrogateescape").removesuffix("\0")
    return text.split("\0") if text else []
