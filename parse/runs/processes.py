"""A function over many traces, in several processes where that pays: each trace takes a core for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from contextvars import ContextVar
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpc.model.trace import TraceError

T = TypeVar("T")
R = TypeVar("R")
WORTH_BYTES = 300_000_000
"""Traces of less than that are read in this process: others take their time to begin."""
MAX_PROCESSES = 16
KILLED = "a process that read traces was killed: is there enough memory?"


class ProcessEnded(TraceError):
    """A process that read traces was ended from outside."""


def processes_for(paths: Iterable[Path]) -> int:
    """How many processes these traces are worth; 1 for this one alone."""
    size_bytes = 0
    for path in paths:
        with suppress(OSError):  # its reader says why it cannot be read
            size_bytes += path.stat().st_size
    return 1 if size_bytes < WORTH_BYTES else min(MAX_PROCESSES, len(os.sched_getaffinity(0)))


def each_in_processes(function: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[R]:
    """The function's result for each item, in their order. Items and results are copied between the processes.

    The processes begin before it returns: a fork must not meet the threads of a progress bar. Raises what the function
    raises, and ProcessEnded where a process is killed, as for lack of memory.
    """
    keep_freed_memory()
    if processes == 1 or len(items) < 2:
        return map(function, items)
    pool = ProcessPoolExecutor(
        min(processes, len(items)), mp_context=get_context("fork"), initializer=_begin, initargs=(function,)
    )
    try:
        return _results(pool, [pool.submit(_call, item) for item in items])
    except BrokenProcessPool:
        raise ProcessEnded(KILLED) from None


def keep_freed_memory() -> None:
    """Makes glibc keep the memory of a piece's arrays for the next piece, by freeing a large block that was never
    written (M_MMAP_THRESHOLD in mallopt(3)); pages given back and faulted in again cost a tenth of the time."""
    np.empty(31_000_000, np.uint8)


def _results(pool: ProcessPoolExecutor, futures: Sequence[Future[R]]) -> Iterator[R]:
    """The results one by one, when requested; what is not begun when the caller ends is not done."""
    try:
        for future in futures:
            yield future.result()
    except BrokenProcessPool:
        raise ProcessEnded(KILLED) from None
    finally:
        pool.shutdown(cancel_futures=True)


_FUNCTION: ContextVar[Callable[[Any], Any]] = ContextVar("function")
"""What this process, one of a pool, is for."""


def _begin(function: Callable[[Any], Any]) -> None:
    """Keeps the function, with all it holds, which came by the fork; leaves Ctrl-C to the parent."""
    _FUNCTION.set(function)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(item: Any) -> Any:
    return _FUNCTION.get()(item)
