"""The memory of a rank with a sharded head against that with a replicated one: `python -m benchmarks.bench_head`.

ArcFace on real ranks, with many classes and with few: the difference of the peaks is what the head takes, with its
gradient and its momentum. To be met: sharded / replicated at most 1.1 / ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.memory import peak_bytes
from hpc.backends import load_backend, missing_modules
from hpc.model.spec import RunSpec
from hpc.workloads import load_factory
from launch.cluster.local import launcher, ranks_env

MANY = {"torch-ddp": 200_000, "paddle-fleet": 100_000}
"""Classes by backend; Paddle takes more than twice the memory for a replicated head."""
RANKS, FEW = (2, 4), 100
IN_A_RANK = "--in-a-rank"


def main() -> int:
    """Prints a line per backend and number of ranks."""
    for backend, classes in MANY.items():
        if missing := missing_modules(backend):
            print(f"{backend}: not measured: {'; '.join(missing)}")
            continue
        for ranks in RANKS:
            taken = {head: _of_head(backend, ranks, head) for head in ("sharded", "replicated")}
            ratio, limit = taken["sharded"] / taken["replicated"], 1.1 / ranks
            sizes = " / ".join(f"{taken[head] / 1e6:.0f} MB" for head in ("sharded", "replicated"))
            print(
                f"{backend}, {ranks} ranks, {classes} classes, memory of the head on a rank, sharded / replicated: "
                f"{sizes}, {ratio:.3f}; limit {limit:.3f}: {'met' if ratio <= limit else 'missed'}",
                flush=True,
            )
    return 0


def _of_head(backend: str, ranks: int, head: str) -> int:
    """Bytes of the rank that takes most."""
    many, few = (_peak_bytes(backend, ranks, head, classes) for classes in (MANY[backend], FEW))
    return many - few


def _peak_bytes(backend: str, ranks: int, head: str, classes: int) -> int:
    argv = [*launcher(), "-n", str(ranks), sys.executable, "-m", "benchmarks.bench_head"]
    env = {**os.environ, **ranks_env(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*argv, IN_A_RANK, backend, head, str(classes)], env=env, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def in_a_rank(name: str, head: str, classes: str) -> None:
    """Trains a few steps; rank 0 prints the largest peak of a rank's memory in bytes."""
    from mpi4py import MPI

    from hpc.measure.world import world_of

    comm = MPI.COMM_WORLD
    run = RunSpec(
        nodes=1, ranks_per_node=comm.size, gpus_per_node=0, cpus_per_rank=1, backend=name, workload="arcface",
        batch_size=2, precision="fp32", scaling="weak", warmup_steps=5, measured_steps=1, repeat=1, seed=0, site="here",
        options={"image_size": "16", "classes": classes, "head": head},
    )  # fmt: skip
    backend = load_backend(name)
    backend.join(run, world_of(comm), comm)
    backend.build(load_factory("arcface", name.partition("-")[0]))
    timer = backend.make_timer(run.steps)
    timer.begin(0)
    for step in range(run.steps):
        backend.step(step, timer)
    timer.resolve()
    peak = comm.allreduce(peak_bytes(), MPI.MAX)
    if comm.rank == 0:
        print(peak, flush=True)
    backend.leave()


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_A_RANK]:
        in_a_rank(*sys.argv[2:])
    else:
        raise SystemExit(main())
