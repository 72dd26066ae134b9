"""The account of one trace in a process of its own, held to one core: `python -m benchmarks.ledger_process TRACE`.

Prints as JSON the seconds from opening the file to the verdict and the speed without the straggler, imports apart, and
by how many bytes the peak of memory lies above the same process before.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.memory import peak_bytes
from hpc.model.trace_file import load_hdf5, open_trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.types import Change
from parse.ledger.verdict import Straggler
from parse.ledger.verdicts import verdict
from parse.ledger.what_if import replayed_speeds
from parse.term_kinds import TERMS


def main() -> None:
    """Reads the trace, and says who is waited for and what would be without."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    load_hdf5()
    before_bytes = peak_bytes()
    begin, began = perf_counter(), process_time()
    with open_trace(Path(sys.argv[1])) as trace:
        result = verdict(step_breakdown(trace))
    if isinstance(result, Straggler):
        with open_trace(Path(sys.argv[1])) as trace:
            replayed_speeds(trace, {*TERMS}, (ReplayCase(change=Change.STRAGGLER),), [result.cells_of_run(0)])
    taken_s, processor_s = perf_counter() - begin, process_time() - began
    above_bytes = peak_bytes() - before_bytes
    json.dump(
        {
            "seconds": taken_s, "processor_s": processor_s, "above_bytes": above_bytes, "verdict": result.kind,
            "ranks": result.ranks,
        },
        sys.stdout,
    )  # fmt: skip


if __name__ == "__main__":
    main()
