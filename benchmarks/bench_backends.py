"""Every backend against the plain example loop of its framework: `python -m benchmarks.bench_backends [BACKEND …]`.

ResNet-50 on two real ranks of one core each, both loops by turns in the same processes, on the same model. To be met by
`--timing step`, which leaves the framework its own way: at least 0.98 of the plain loop's images per second, so at most
1 / 0.98 of its time. What `--timing phases` costs stands beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array

from benchmarks.memory import KEPT
from benchmarks.pairs import compare
from benchmarks.plain_loops import PLAIN
from hpc.backends import load_backend, missing_modules
from hpc.model.spec import RunSpec
from hpc.workloads import load_factory
from launch.cluster.local import launcher, ranks_env

LIMIT = 1 / 0.98
RANKS, STEPS = 2, 4
BLOCKS = {"step": 100, "phases": 40}
"""More where a limit is to be told from a ratio that is near it."""
IN_A_RANK = "--in-a-rank"


def main(names: list[str]) -> int:
    """Prints two lines per backend, or why there are none."""
    for name in names or PLAIN:
        if missing := missing_modules(name):
            print(f"{name}: not measured: {'; '.join(missing)}")
            continue
        for timing in ("step", "phases"):
            argv = [*launcher(), "-n", str(RANKS), sys.executable, "-m", "benchmarks.bench_backends"]
            env = {**os.environ, **ranks_env(), **KEPT, "OMP_NUM_THREADS": "1"}
            subprocess.run([*argv, IN_A_RANK, name, timing], env=env, check=True)
    return 0


def in_a_rank(name: str, timing: str) -> None:
    """What every rank does: all run the same steps in the same order, rank 0 tells how long they took."""
    from mpi4py import MPI

    from hpc.measure.world import world_from_mpi

    comm = MPI.COMM_WORLD
    run = RunSpec(
        nodes=1, ranks_per_node=comm.size, gpus_per_node=0, cpus_per_rank=1, backend=name, workload="resnet50",
        batch_size=2, precision="fp32", scaling="weak", timing=timing, warmup_steps=5, measured_steps=STEPS, repeat=1,
        seed=0, site="here", options={"image_size": "32"},
    )  # fmt: skip
    backend = load_backend(name)
    backend.join(run, world_from_mpi(comm), comm)
    framework = name.partition("-")[0]
    backend.build(load_factory(run.workload, framework))
    timer = backend.make_timer(run.steps)
    plain_step = PLAIN[name](backend)
    samples = memoryview(array("q", [0]) * run.steps)

    def ours(steps: int = STEPS) -> None:
        timer.begin(0)
        for step in range(steps):
            samples[step] = backend.step(step, timer)
        timer.resolve()

    def plain() -> None:
        timer.begin(0)  # gradient hooks of --timing phases are there in this loop too, and write into this row
        for step in range(STEPS):
            plain_step(step)

    ours(run.steps)
    backend.release()
    what = f"{name}, --timing {timing} / plain loop, ResNet-50, {comm.size} ranks"
    limit = LIMIT if timing == "step" else None
    comparison = compare(what, ours, plain, limit=limit, blocks=BLOCKS[timing], between=comm.Barrier)
    if comm.rank == 0:
        print(comparison, flush=True)
    backend.leave()


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_A_RANK]:
        in_a_rank(*sys.argv[2:])
    else:
        raise SystemExit(main(sys.argv[1:]))
