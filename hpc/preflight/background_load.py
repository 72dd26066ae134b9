"""Cores that processes of other jobs keep busy on this node."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc.system.groups import grouped
from hpc.system.sanitize import plain

LOOK_S = 0.25
NAMED = 3
"""The maximum of busy processes that are named."""

PROC = Path("/proc")
JOB_VARIABLES = ("SLURM_JOB_ID", "RANKWISE_JOB_ID")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's include/linux/sched.h
_JOB_OF_CGROUP = re.compile(r"/job_(\d+)(?:/|$)")
_HIDING = re.compile(r"hidepid=(?!0|off)\w+")


class Hidden(Exception):
    """The kernel hides other users' processes; the text names the setting."""


@dataclass(frozen=True)
class Process:
    """One process at one moment; `busy_ticks` is its CPU time so far."""

    pid: int
    parent: int
    name: str
    kernel: bool
    begun_ticks: int
    busy_ticks: int


def processes(proc: Path = PROC) -> dict[int, Process]:
    """All visible processes by number. Raises Hidden where processes of others are hidden."""
    mounts = (proc / "self/mounts").read_text(errors="replace") if (proc / "self/mounts").exists() else ""
    for line in mounts.splitlines():
        fields = line.split()
        if fields[1:3] == ["/proc", "proc"] and _HIDING.search(fields[3]) and os.geteuid() != 0:
            raise Hidden(f"the kernel hides processes of others ({fields[3]})")
    by_pid = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                process = _process(int(folder.name), (folder / "stat").read_text(errors="replace"))
            except (OSError, IndexError, ValueError):  # it has just ended
                continue
            by_pid[process.pid] = process
    return by_pid


def busy_others(
    before: Mapping[int, Process], after: Mapping[int, Process], lasted_s: float, ours: set[int]
) -> tuple[float, tuple[str, ...]]:
    """Cores that other processes used between two looks, and the busiest of these processes, in descending order."""
    cores: list[tuple[float, Process]] = []
    for pid, process in after.items():
        was = before.get(pid)
        if pid in ours or process.kernel or was is None or was.begun_ticks != process.begun_ticks:
            continue
        if process.busy_ticks > was.busy_ticks:
            cores.append(((process.busy_ticks - was.busy_ticks) / _TICKS_PER_S / lasted_s, process))
    cores.sort(key=lambda each: (-each[0], each[1].pid))
    named = tuple(f"{plain(process.name)} (pid {process.pid}) {busy:.2f}" for busy, process in cores[:NAMED])
    return sum((busy for busy, _ in cores), 0.0), named


def of_this_job(
    pids: Iterable[int], by_pid: Mapping[int, Process], proc: Path = PROC, me: int | None = None
) -> set[int]:
    """The processes of this job among `pids`: they carry its number, are in its cgroup, descend from this rank's
    launcher, or are its ancestors. `by_pid` has all processes."""
    me = os.getpid() if me is None else me
    launcher = by_pid[me].parent if me in by_pid else 0
    ours = _ancestors(me, by_pid) | (_descendants(launcher, by_pid) if launcher > 1 else set())
    jobs, group = _jobs_of(me, proc), _job_of_cgroup(me, proc)
    members = set()
    for pid in pids:
        of_group = bool(group) and _job_of_cgroup(pid, proc) == group
        if pid in ours or of_group or jobs & _jobs_of(pid, proc):
            members.add(pid)
    return members


def measure_load(look_s: float = LOOK_S) -> tuple[float, tuple[str, ...]]:
    """Cores that processes of others keep busy on this node, and the busiest of them. Raises Hidden, OSError."""
    begin = time.perf_counter()
    before = processes()
    time.sleep(look_s)
    after = processes()
    lasted_s = time.perf_counter() - begin
    busy = {pid: p for pid, p in after.items() if pid in before and p.busy_ticks > before[pid].busy_ticks}
    return busy_others(before, busy, lasted_s, of_this_job(busy, after))


def _process(pid: int, stat: str) -> Process:
    # The name in parentheses may hold anything, spaces and parentheses too.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        name=name,
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
        begun_ticks=int(fields[19]),
        busy_ticks=int(fields[11]) + int(fields[12]),
    )


def _ancestors(pid: int, by_pid: Mapping[int, Process]) -> set[int]:
    ancestors: set[int] = set()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        pid = by_pid[pid].parent if pid in by_pid else 0
    return ancestors


def _descendants(pid: int, by_pid: Mapping[int, Process]) -> set[int]:
    children = grouped((process.parent, process.pid) for process in by_pid.values())
    descendants, pending = set(), [pid]
    while pending:
        each = pending.pop()
        if each not in descendants:
            descendants.add(each)
            pending += children.get(each, [])
    return descendants


def _jobs_of(pid: int, proc: Path) -> set[str]:
    """NAME=NUMBER of the scheduler's variables that a process carries; empty where it is another user's."""
    try:
        variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return set()
    wanted = tuple(f"{name}=".encode() for name in JOB_VARIABLES)
    return {variable.decode(errors="replace") for variable in variables if variable.startswith(wanted)}


def _job_of_cgroup(pid: int, proc: Path) -> str:
    """The job of a process by Slurm's cgroups; empty where they name none."""
    try:
        match = _JOB_OF_CGROUP.search((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""
