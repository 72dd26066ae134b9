"""What the page of a large sweep costs: 100 runs of 512 ranks × 1000 steps, in a process of its own.

`python -m benchmarks.bench_report [FOLDER]`; 3.1 GB are written there and removed. To be met: 20 s from the start of
the command to the page, and a page of 10 MB at most.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.pairs import against_limit
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from tests.unit.simulated import draw_clocks, equal_ranks, simulate

NODES, RANKS_PER_NODE, MEASURED_STEPS, POINTS, RUNS = 64, 8, 1000, 10, 10
REPEATS = 5
TIME_LIMIT_S, SIZE_LIMIT_MB = 20.0, 10.0


def main() -> None:
    """Prints one line per comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_report", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        traces = Path(name) / "traces"
        traces.mkdir()
        for trace in make_traces():
            write_trace(traces / f"{trace.run_id}.1.h5", trace)
        _measure(traces, Path(name) / "report.html")


def _measure(traces: Path, page: Path) -> None:
    taken_s = []
    for _ in range(1 + REPEATS):  # the first brings the files to memory
        begin = perf_counter()
        subprocess.run([sys.executable, "-m", "parse.report", str(traces), "--out", str(page)], check=True)
        taken_s.append(perf_counter() - begin)
    what = f"page of {POINTS * RUNS} runs × {NODES * RANKS_PER_NODE} ranks × {MEASURED_STEPS} steps"
    print(against_limit(what, taken_s[1:], TIME_LIMIT_S, "s"))
    print(against_limit(f"size of the {what}", [page.stat().st_size / 1e6] * 2, SIZE_LIMIT_MB, "MB"))


def make_traces(points: int = POINTS, runs: int = RUNS, nodes: int = NODES) -> Iterator[Trace]:
    """The traces of so many runs of so many points; in each point one rank is late by 3 ms."""
    generator = np.random.default_rng(0)
    for number in range(points):
        run = RunSpec(
            nodes=nodes, ranks_per_node=RANKS_PER_NODE, gpus_per_node=8, cpus_per_rank=8, backend="torch-ddp",
            workload="resnet50", batch_size=32 * (1 + number), precision="fp32", scaling="weak", warmup_steps=20,
            measured_steps=MEASURED_STEPS, repeat=1, seed=0, site="bench",
        )  # fmt: skip
        late = np.zeros((run.ranks, run.steps), bool)
        late[7 * number] = True
        durations = equal_ranks(generator, run.ranks, run.steps, jitter="lognormal").longer("backward", late, 3_000_000)
        trace = simulate(run, durations, draw_clocks(generator, nodes), generator).trace
        for repeat in range(1, runs + 1):
            its_run = dataclasses.replace(run, repeat=repeat)
            yield dataclasses.replace(trace, run=its_run, run_id="", point_id="")


if __name__ == "__main__":
    main()
