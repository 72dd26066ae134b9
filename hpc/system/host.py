"""This machine as a process sees it: the monotonic clock, when processes began by it, the loopback interface."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

_START_TICKS = 19
"""The place of a process's start behind its name in /proc/PID/stat (proc_pid_stat(5), field 22)."""


def clock_domain(proc: Path = Path("/proc")) -> str:
    """The name of the clock that this process reads: boot of the kernel and time namespace; equal names, same clock.

    If the system does not expose them, every process counts as having its own clock.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"
    namespace = proc / "self/ns/time"
    # Kernels before 5.6 have no time namespaces, so all processes share the only one.
    return f"{boot}/{namespace.readlink() if namespace.is_symlink() else 'time'}"


def began_ns(pid: int | str = "self", proc: Path = Path("/proc")) -> int | None:
    """When a process of this machine began, by CLOCK_MONOTONIC, to a tick (10 ms); None where that cannot be read."""
    try:
        ticks = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[_START_TICKS])
    except (OSError, ValueError, IndexError):
        return None
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return time.perf_counter_ns() - age_ns


# The address by which processes of one host meet.

LOOPBACK, LOOPBACK_6 = "127.0.0.1", "::1"
_ANY_PORT = 9


def loopback_address() -> str:
    """The address of this host's loopback interface: IPv6's where it has none of IPv4; empty where it has neither."""
    for family, address in ((socket.AF_INET, LOOPBACK), (socket.AF_INET6, LOOPBACK_6)):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
            sock.connect((address, _ANY_PORT))  # sends nothing, and fails where the interface is down
            return address
    return ""


def no_loopback() -> str:
    """What is missing, and what to do, where `loopback_address` gives none."""
    return (
        f"{socket.gethostname()} has no loopback interface, by which processes of one machine meet: neither {LOOPBACK} "
        f"nor {LOOPBACK_6} can be reached; `ip link set lo up`, as root, brings it up"
    )
