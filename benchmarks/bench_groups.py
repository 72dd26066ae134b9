"""What the ledger of ranks in groups costs: 1024 ranks × 200 steps × 61 calls in four dimensions, in its own process.

`python -m benchmarks.bench_groups [FOLDER]`; 0.3 GB are written there and removed. To be met: 5 s and 1 GB, reading
included; where other work has the cores, the processor's time says more. Prints the size of the trace, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.pairs import against_limit
from hpc.model.trace_file import write_trace
from tests.unit.simulated import MS, draw_clocks
from tests.unit.simulated_graph import Delay, Mesh, Model, simulate_graph
from tests.unit.traces import make_run

MESH, NODES, STEPS = Mesh(pp=4, dp=32, tp=8, ep=8), 128, 200
REPEATS = 5
TIME_LIMIT_S, MEMORY_LIMIT_MB = 5.0, 1000.0


def main() -> None:
    """Prints one line per comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_groups", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        _measure(Path(name) / "trace.h5")


def _measure(path: Path) -> None:
    generator = np.random.default_rng(0)
    run = make_run(nodes=NODES, ranks_per_node=MESH.ranks // NODES, measured_steps=STEPS)
    late = Delay(ranks=(300,), phase="backward", ns=20 * MS)
    trace = simulate_graph(
        MESH, Model(micro_batches=6, layers=1), generator, run=run, clocks=draw_clocks(generator, NODES), delays=[late]
    ).trace
    write_trace(path, trace)
    assert trace.meetings is not None
    ranks, steps, calls = trace.meetings.shape[:3]
    del trace
    size = f"{ranks} ranks × {STEPS} steps × {calls} calls"
    print(f"trace of {size}: {path.stat().st_size / (ranks * steps):.0f} bytes per rank and step")
    command = [sys.executable, "-m", "benchmarks.ledger_process", str(path)]
    taken = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        for _ in range(1 + REPEATS)
    ][1:]  # the first brings the file to memory
    print(against_limit(f"ledger of {size}", [each["seconds"] for each in taken], TIME_LIMIT_S, "s"))
    print(against_limit(f"processor time for {size}", [each["processor_s"] for each in taken], TIME_LIMIT_S, "s"))
    print(against_limit(f"memory for {size}", [each["above_bytes"] / 1e6 for each in taken], MEMORY_LIMIT_MB, "MB"))


if __name__ == "__main__":
    main()
