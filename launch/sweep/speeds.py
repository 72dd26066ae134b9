"""What a run measured, from its trace by the formula of the summary; imports numpy only when a speed is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.spec import COLLECTIVES

if TYPE_CHECKING:
    from parse.attempt import Measured


def measured_in(trace_path: Path) -> Measured | None:
    """The numbers of a trace; None where it is no training, or cannot be read: the summary names the file and its
    defect."""
    from hpc.model.trace import TraceError
    from hpc.model.trace_file import read_trace
    from parse.attempt import measure

    try:
        trace = read_trace(trace_path)
        return None if trace.run.diagnostic == COLLECTIVES else measure(trace)
    except TraceError:
        return None
