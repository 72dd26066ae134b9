"""What the ledger of a large run costs: 1024 and 16,384 ranks × 1000 steps, each in a process of its own.

`python -m benchmarks.bench_ledger [FOLDER]`; 1.1 GB are written there and removed. To be met: 0.5 s and 0.5 GB for the
smaller, reading included; the larger in the memory of the smaller and in time that grows as its stamps do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import against_limit
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from tests.unit.simulated import draw_clocks, equal_ranks, simulate

NODES, RANKS_PER_NODE, MEASURED_STEPS, TIMES = 128, 8, 1000, 16
REPEATS = 15
TIME_LIMIT_S, MEMORY_LIMIT_MB, RATIO_LIMIT = 0.5, 500.0, 1.1


def main() -> None:
    """Prints one line per comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_ledger", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        _measure(Path(name))


def _measure(folder: Path) -> None:
    paths = [folder / "small.h5", folder / "large.h5"]
    trace = _trace()
    write_trace(paths[0], trace)
    write_trace(paths[1], _more_ranks(trace))
    del trace
    taken = [[_process(path) for path in paths] for _ in range(1 + REPEATS)][1:]  # the first brings the files to memory
    small, large = ([pair[which] for pair in taken] for which in (0, 1))
    size = f"{NODES * RANKS_PER_NODE} ranks × {MEASURED_STEPS} steps"
    print(against_limit(f"ledger of {size}", [process["seconds"] for process in small], TIME_LIMIT_S, "s"))
    print(
        against_limit(f"memory for {size}", [process["above_bytes"] / 1e6 for process in small], MEMORY_LIMIT_MB, "MB")
    )
    size = f"{TIMES} times as many ranks"
    print(
        against_limit(f"memory for {size}", [process["above_bytes"] / 1e6 for process in large], MEMORY_LIMIT_MB, "MB")
    )
    ratios = [big["seconds"] / little["seconds"] / TIMES for little, big in taken]
    print(against_limit(f"time per stamp for {size} / for the smaller", ratios, RATIO_LIMIT, ""))


def _process(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.ledger_process", str(path)]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return answer


def _trace() -> Trace:
    """Equal ranks on nodes with clocks of their own; one rank is late by 3 ms."""
    generator = np.random.default_rng(0)
    run = RunSpec(
        nodes=NODES, ranks_per_node=RANKS_PER_NODE, gpus_per_node=8, cpus_per_rank=8, backend="torch-ddp",
        workload="resnet50", batch_size=128, precision="fp32", scaling="weak", warmup_steps=20,
        measured_steps=MEASURED_STEPS, repeat=1, seed=0, site="bench", block_steps=500,
    )  # fmt: skip
    late = np.zeros((run.ranks, run.steps), bool)
    late[77] = True
    durations = equal_ranks(generator, run.ranks, run.steps, jitter="lognormal").longer("backward", late, 3_000_000)
    return simulate(run, durations, draw_clocks(generator, NODES), generator).trace


def _more_ranks(trace: Trace) -> Trace:
    """The same nodes again and again."""
    repeated: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name)] * TIMES)
        for name in (
            "stamps", "samples", "losses", "steps_completed", "clock_local_ns", "clock_offset_ns", "clock_bound_ns",
            "barrier_exits_ns",
        )
    }  # fmt: skip
    nodes = TIMES * trace.run.nodes
    names = [
        {**facts, "hostname": f"{facts['hostname']}-{time}", "node_rank": facts["node_rank"] + time * trace.run.nodes}
        for time in range(TIMES)
        for facts in trace.ranks
    ]
    return dataclasses.replace(
        trace, run=dataclasses.replace(trace.run, nodes=nodes), ranks=names, run_id="", point_id="",
        clock_domains=[name for _ in range(TIMES) for name in trace.clock_domains], **repeated,
    )  # fmt: skip


if __name__ == "__main__":
    main()
