"""Places the helper on a core that no rank of its node uses, if there is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hpc.system.text import read_ranges

_CPUS = Path("/sys/devices/system/cpu")
LOWEST_PRIORITY = 19


def spare_core(usable: set[int], of_ranks: set[int], siblings: Callable[[int], set[int]]) -> int | None:
    """The core for the helper: the last that no rank uses, if it can be one whose hardware threads no rank uses either.

    The last, because interrupts and daemons keep to the first ones. None where every core is a rank's.
    """
    spare = usable - of_ranks
    quiet = {core for core in spare if not siblings(core) & of_ranks}
    return max(quiet or spare, default=None)


def stand_aside(of_ranks: set[int]) -> str:
    """Moves this process to a core without ranks; returns a description of its new place.

    Its priority is always the lowest: without confinement the core may belong to another job.
    """
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))  # the kernel leaves what this job may use
        core = spare_core(os.sched_getaffinity(0), of_ranks, thread_siblings)
        if core is not None:
            os.sched_setaffinity(0, {core})
    except OSError as error:
        return f"where its rank runs, at the lowest priority: it may not choose a core ({error.strerror})"
    if core is not None:
        shared = " (a hardware thread of a core that ranks use)" if thread_siblings(core) & of_ranks else ""
        return f"on core {core}, which no rank uses{shared}"
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        return f"on the ranks' cores, there is no other; at the lowest priority, but not idle ({error.strerror})"
    return "on the ranks' cores, there is no other; runs where they leave a core idle"


def thread_siblings(core: int, cpus: Path = _CPUS) -> set[int]:
    """The hardware threads of the same physical core, including this one; only this one if the list is absent."""
    try:
        return set(read_ranges((cpus / f"cpu{core}/topology/thread_siblings_list").read_text()))
    except (OSError, ValueError):
        return {core}
