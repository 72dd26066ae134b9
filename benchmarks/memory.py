"""How a benchmark's processes keep their memory, and how much they took. Imports nothing: it would be counted."""

KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28)}
"""Lets glibc keep freed memory: page faults take a third of a step otherwise, and vary by more than what is sought."""


def peak_bytes() -> int:
    """The peak of this process's memory (proc(5), VmHWM)."""
    with open("/proc/self/status") as status:  # noqa: PTH123  # pathlib would be imported, and counted
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
