"""What launch.step costs per attempt, from a line of the job script to the record: `python -m benchmarks.bench_step`.

The launcher leaves an empty trace at once, so that the step is all there is. Beside it stand the starts
of two Pythons with the imports of watchdog and decision, which were two processes before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.pairs import compare
from hpc.model.spec import RunSpec
from launch.jobs.script import Folders, render_local

RUNS, LIMIT = 10, 1.0
RUN = RunSpec(
    nodes=1, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=4,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="bench",
)  # fmt: skip
LEAVES_A_TRACE = """#!/bin/bash
while [ $# -gt 0 ]; do case "$1" in *.json) run=${1##*/};; --traces) t=$2;; --attempt) a=$2;; esac; shift; done
touch "$t/${run%.json}.$a.h5"
"""


def attempts() -> None:
    """A job script of RUNS runs, each of which gets its record."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folders = Folders.under(folder)
        folders.logs.mkdir(parents=True)
        folders.traces.mkdir()
        launcher, script = folder / "launcher", folder / "job.sh"
        launcher.write_text(LEAVES_A_TRACE)
        launcher.chmod(0o755)
        script.write_text(render_local([replace(RUN, repeat=n + 1) for n in range(RUNS)], [str(launcher)], folders))
        subprocess.run(["bash", str(script)], check=True, stdout=subprocess.DEVNULL)
        assert len(list(folders.traces.glob("*.exit.json"))) == RUNS


def pythons() -> None:
    """As many times two Pythons."""
    for _ in range(RUNS):
        for module in ("launch.step.watch", "hpc.model.evidence"):
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


def main() -> None:
    """Prints the ratio of both."""
    print(
        compare(
            f"{RUNS} attempts by launch.step / {RUNS} times two Pythons",
            attempts,
            pythons,
            limit=LIMIT,
            blocks=10,
        )
    )


if __name__ == "__main__":
    main()
