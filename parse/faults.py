"""The net around each run and each file: a fault of this program loses one of them, and says so."""

from __future__ import annotations

import os
from collections.abc import Iterable

NOT_ANALYSED = "not analysed: "
TRACEBACK = "RANKWISE_TRACEBACK"
"""The variable that takes the net away, so that the traceback shows where the fault is."""
MAX_REASON = 300


def fault(error: Exception, name: object) -> str:
    """The line on a run or a file in whose analysis nobody foresaw this error. Raises the error itself where TRACEBACK
    is set, and for a missing package, which the command explains."""
    if os.environ.get(TRACEBACK) or isinstance(error, ImportError):
        raise error
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON]}"
    return f"{NOT_ANALYSED}{name}: {reason} (a fault of this program; {TRACEBACK}=1 shows where)"


def unread(refusal: str) -> str:
    """The line on a file that is in no number."""
    return refusal if refusal.startswith(NOT_ANALYSED) else f"not read: {refusal}"


def has_fault(refusals: Iterable[str]) -> bool:
    """Whether a fault of this program is among the lines, so that the command has not done all that was requested."""
    return any(refusal.startswith(NOT_ANALYSED) for refusal in refusals)
