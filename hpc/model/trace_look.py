"""Looks whether an attempt has a whole trace, on a file system that may fail, lag, or be away for a moment."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc.system.regular_file import open_regular
from hpc.system.sanitize import plain

LOOK_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Between looks at a trace that should be there."""
_PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN})


@dataclass(frozen=True, kw_only=True)
class TraceLook:
    """The result of a look at an attempt's trace.

    `whole`: rank 0 wrote it itself. `steps` is the largest number that a rank completed by it, -1 where nothing is
    known. `unreadable` is the reason why it could not be looked at, else empty.
    """

    whole: bool = False
    steps: int = -1
    unreadable: str = ""


def look_at_trace(
    path: Path, *, expected: bool = False, trusted: bool = False, sleep: Callable[[float], None] = time.sleep
) -> TraceLook:
    """Looks at a trace; repeats the look if the file system does not answer, since one failed look proves no absence.

    `expected`: the trace's writer ended well, but NFS may report for a while that the name does not exist.
    `trusted`: the trace is known to be rank 0's own and is not opened as HDF5.
    """
    look = TraceLook()
    for pause_s in (0.0, *(LOOK_PAUSES_S if expected else ())):
        sleep(pause_s)
        try:
            return _look_once(path, trusted)
        except FileNotFoundError:
            look = TraceLook()
            _renew(path.parent)
        except OSError as error:
            look = TraceLook(unreadable=f"{path}: {error.strerror or error}")
    with suppress(OSError):  # the folder was renewed since
        return _look_once(path, trusted)
    return look


def _look_once(path: Path, trusted: bool) -> TraceLook:
    with open_regular(path) as file:
        file.read(1)
    if trusted:
        return TraceLook(whole=True)
    from hpc.model.trace import TraceError
    from hpc.model.trace_file import open_trace

    try:
        with open_trace(path) as trace:
            return TraceLook(whole=not trace.recovered, steps=int(max(trace.steps_completed, default=-1)))
    except TraceError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            raise cause from None
        print(f"rankwise: {plain(str(error))}", file=sys.stderr)
        return TraceLook()


def _renew(folder: Path) -> None:
    """Changes the folder, so that an NFS client forgets which names it believes to be absent."""
    beside = folder / f".look.{os.uname().nodename}.{os.getpid()}"
    with suppress(OSError):
        beside.touch()
        beside.unlink()
