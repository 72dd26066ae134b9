"""One log read in a process of its own, held to one core: `python -m benchmarks.log_process batches|window LOG FAMILY`.

Prints as JSON the seconds that reading took, imports apart, the number of step lines, and by how many bytes the peak of
memory lies above an interpreter that has imported numpy.
"""

import numpy as np  # isort: skip  # first of all: from here on memory counts

from benchmarks.memory import peak_bytes  # isort: skip

BEFORE_BYTES = peak_bytes()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from time import perf_counter  # noqa: E402

from parse.logs.engine.reader import batches  # noqa: E402
from parse.logs.formats import format_named  # noqa: E402
from parse.logs.window import Protocol, read_log  # noqa: E402


def main() -> None:
    """Reads the log as the arguments say."""
    how, path, log_format = sys.argv[1], Path(sys.argv[2]), format_named(sys.argv[3])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    begin = perf_counter()
    if how == "batches":
        lines = sum(np.isfinite(batch.steps.offset).sum() for batch in batches(path, log_format))
    else:
        lines = read_log(path, log_format, Protocol()).step_lines
    taken_s = perf_counter() - begin
    json.dump({"seconds": taken_s, "lines": int(lines), "above_bytes": peak_bytes() - BEFORE_BYTES}, sys.stdout)


if __name__ == "__main__":
    main()
