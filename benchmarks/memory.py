"""How a benchmark's processes keep their memory."""

KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28)}
"""Lets glibc keep freed memory: page faults take a third of a step otherwise, and vary by more than what is sought."""
