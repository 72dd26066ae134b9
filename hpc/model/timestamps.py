"""The six moments of a step, and the sign for one that was not recorded."""

from __future__ import annotations

STAMPS = ("begin", "batch_ready", "forward_end", "grads_ready", "reduced", "end")
"""Their names, in order: t0 to t5 of the ledger (docs: measurement)."""
BEGIN, BATCH_READY, FORWARD_END, GRADS_READY, REDUCED, END = range(6)
ABSENT = -(2**63)
"""The stamp that was not taken: the least int64."""
INNER = ("forward_end", "grads_ready", "reduced")
"""Those that `--timing step` leaves out."""
