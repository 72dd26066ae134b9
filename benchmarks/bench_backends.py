"""Every backend against the plain example loop of its framework: `python -m benchmarks.bench_backends [BACKEND …]`.

ResNet-50, and ArcFace with a sharded head where the framework has it, on two real ranks of one core each; both loops by
turns in the same processes, on the same model. To be met by `--timing step`, which leaves the framework its own way: at
least 0.98 of the plain loop's images per second, so at most 1 / 0.98 of its time. What `--timing phases` costs stands
beside it; of ArcFace that is the recording of the head's collectives, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from benchmarks.memory import KEPT
from benchmarks.pairs import compare
from benchmarks.plain_loops import PLAIN
from hpc.backends import load_backend, missing_modules
from hpc.measure.meetings import meetings_of
from hpc.model.spec import RunSpec
from hpc.workloads import WORKLOADS, load_factory
from launch.scheduler.local import launcher, ranks_env

LIMIT = 1 / 0.98
RANKS, STEPS = 2, 4
BLOCKS = {"step": 100, "phases": 40}
"""More where the ratio is near the limit."""
IN_A_RANK = "--in-a-rank"
OPTIONS = {"resnet50": {"image_size": "32"}, "arcface": {"image_size": "32", "classes": "1000"}}


def main(names: list[str]) -> int:
    """Prints two lines per backend and workload, or why there are none."""
    for name in names or PLAIN:
        if missing := missing_modules(name):
            print(f"{name}: not measured: {'; '.join(missing)}")
            continue
        workloads = [each for each in OPTIONS if _framework(name) in WORKLOADS[each].factories]
        for workload, timing in product(workloads, ("step", "phases")):
            argv = [*launcher(), "-n", str(RANKS), sys.executable, "-m", "benchmarks.bench_backends"]
            env = {**os.environ, **ranks_env(), **KEPT, "OMP_NUM_THREADS": "1"}
            subprocess.run([*argv, IN_A_RANK, name, workload, timing], env=env, check=True)
    return 0


def _framework(backend: str) -> str:
    return backend.partition("-")[0]


def in_a_rank(name: str, workload: str, timing: str) -> None:
    """What every rank does: all run the same steps in the same order, rank 0 tells how long they took."""
    from mpi4py import MPI

    from hpc.measure.world import world_of

    comm = MPI.COMM_WORLD
    run = RunSpec(
        nodes=1, ranks_per_node=comm.size, gpus_per_node=0, cpus_per_rank=1, backend=name, workload=workload,
        batch_size=2, precision="fp32", scaling="weak", timing=timing, warmup_steps=5, measured_steps=STEPS, repeat=1,
        seed=0, site="here", options=OPTIONS[workload],
    )  # fmt: skip
    backend = load_backend(name)
    backend.join(run, world_of(comm), comm)
    backend.build(load_factory(run.workload, _framework(name)))
    timer = backend.make_timer(run.steps)
    plain_step = PLAIN[name](backend)
    trained = getattr(backend, "_workload", None)
    head = getattr(trained, "_head", None)
    if (meetings := meetings_of(trained)) is not None:
        timer.record_meetings(meetings)
    samples = memoryview(array("q", [0]) * run.steps)

    def ours(steps: int = STEPS) -> None:
        timer.begin(0)
        for step in range(steps):
            samples[step] = backend.step(step, timer)
        timer.resolve()

    def plain() -> None:
        timer.begin(0)  # gradient hooks of --timing phases are there in this loop too, and write into this row
        with _unmeasured(head):
            for step in range(STEPS):
                plain_step(step)

    ours(run.steps)
    backend.release()
    what = f"{name}, --timing {timing} / plain loop, {workload}, {comm.size} ranks"
    limit = LIMIT if timing == "step" else None
    comparison = compare(what, ours, plain, limit=limit, blocks=BLOCKS[timing], between=comm.Barrier)
    if comm.rank == 0:
        print(comparison, flush=True)
    backend.leave()


@contextmanager
def _unmeasured(head: Any) -> Iterator[None]:
    """A sharded head calls its collectives themselves, with nothing that records them."""
    if head is None:
        yield
        return
    measured = head._group
    head._group = measured._group
    try:
        yield
    finally:
        head._group = measured


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_A_RANK]:
        in_a_rank(*sys.argv[2:])
    else:
        raise SystemExit(main(sys.argv[1:]))
