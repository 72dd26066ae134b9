"""The six time stamps of a step, and the value of one that was not recorded."""

from __future__ import annotations

STAMPS = ("begin", "batch_ready", "forward_end", "grads_ready", "reduced", "end")
"""Their names, in order: t0 to t5 of the ledger (docs: measurement)."""
BEGIN, BATCH_READY, FORWARD_END, GRADS_READY, REDUCED, END = range(6)
ABSENT = -(2**63)
"""The stamp that was not taken: the least int64."""
MEETING_STAMPS = ("arrives", "waits", "ends")
"""Of a collective inside a step: a rank calls it, begins to wait for its result, and has it."""
INNER = ("forward_end", "grads_ready", "reduced")
"""Those that `--timing step` omits."""
DEVICE_PHASES = ("data", "compute", "reduction", "optimizer")
"""Of a step on a device: to its first forward, to its last gradient, to the end of the reduction, to its end."""
