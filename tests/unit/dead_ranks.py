"""What ranks leave that died, and the trace made of it."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.recovery.folders import WHOLE
from hpc.recovery.journal import SCHEMA, SCHEMA_VERSION
from hpc.recovery.recover import main

RUN = RunSpec(
    nodes=1, ranks_per_node=3, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=4,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=2, repeat=1, seed=0, site="here",
)  # fmt: skip


STEM = f"{RUN.run_id}.1"


def leave(
    traces: Path, rank: int, completed: int, points: int, run: RunSpec = RUN, whole: bool = True, **facts: Any
) -> None:
    """What a rank leaves that died after so many steps and synchronisations, collected or as it was copied."""
    partial = traces / f"{run.run_id}.1.partial"
    partial.mkdir(exist_ok=True)
    begun = completed * len(STAMPS) + 2  # it died in its next step
    stamps = array("q", [*range(begun), *[ABSENT] * (run.steps * len(STAMPS) - begun)])
    samples = array("q", [4] * completed + [ABSENT] * (run.steps - completed))
    (partial / f"rank{rank}.stamps").write_bytes(stamps.tobytes() + samples.tobytes())
    clock = {
        "domain": "a clock",
        "points": [[10 * i, 0.5, 0.0] for i in range(points)],
        "barrier_exits_ns": list(range(2 * points)),
        "unix_offsets_ns": [[10**18 + i, i] for i in range(points)],
    }
    usual = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "steps": run.steps,
        "byteorder": "little",
    }
    header = {**usual, "run": run.to_json(), "attempt": 1, "facts": {"rank": rank, "hostname": "n1"}, "clock": clock}
    (partial / f"rank{rank}.json").write_text(json.dumps(header | facts))
    if whole:
        (partial / f"rank{rank}{WHOLE}").touch()


def recovered(folder: Path) -> Trace:
    assert main([str(folder)]) == 0
    return read_trace(folder / f"{STEM}.h5")
