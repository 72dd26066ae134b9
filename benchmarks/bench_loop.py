"""The measured loop against a bare loop of the same model: `python -m benchmarks.bench_loop`, one rank, one core.

To be met: at least 0.99 of the bare loop's speed, so at most 1 / 0.99 of its time.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable

from benchmarks.memory import KEPT
from benchmarks.pairs import compare
from hpc.backends.torch_ddp import TorchDDP
from hpc.model.spec import RunSpec
from hpc.workloads import load_factory

LIMIT = 1 / 0.99


def _joined(run: RunSpec) -> TorchDDP:
    from mpi4py import MPI

    from hpc.measure.world import world_of

    backend = TorchDDP()
    backend.join(run, world_of(MPI.COMM_WORLD), MPI.COMM_WORLD)
    return backend


def _run(workload: str, batch_size: int, steps: int, options: dict[str, str]) -> RunSpec:
    return RunSpec(
        nodes=1,
        ranks_per_node=1,
        gpus_per_node=0,
        cpus_per_rank=1,
        backend="torch-ddp",
        workload=workload,
        batch_size=batch_size,
        precision="fp32",
        scaling="weak",
        warmup_steps=5,
        measured_steps=steps - 5,
        repeat=1,
        seed=0,
        site="here",
        options=options,
    )


def _loops(run: RunSpec, backend: TorchDDP) -> tuple[Callable[[], None], Callable[[], None]]:
    """The measured loop, and the loop that somebody would write who wants nothing but to train.

    Both train the very same model in the same memory: two models of one shape differ by more than what is looked for.
    The hook that marks when the gradients are ready is there during the measured loop only.
    """
    backend.build(load_factory(run.workload, "torch"))
    timer = backend.make_timer(run.steps)
    samples = memoryview(array("q", [0]) * run.steps)
    workload, model, optimizer = backend._workload, backend._model, backend._optimizer

    def steps() -> None:
        timer.begin(0)
        for step in range(run.steps):
            samples[step] = backend.step(step, timer)
        timer.resolve()

    steps()
    for hook in backend._hooks:
        hook.remove()
    [last] = backend._seen_last

    def measured() -> None:
        hook = backend._parameters[last].register_post_accumulate_grad_hook(backend._make_hook(last))
        steps()
        hook.remove()

    def bare() -> None:
        for step in range(run.steps):
            loss = workload.loss(model, workload.batch(step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return measured, bare


def main() -> None:
    """Prints one line per workload."""
    cases = {
        "mlp, batch 128": (_run("mlp", 128, 50, {}), 300),
        "resnet50, 32 pixels, batch 2": (_run("resnet50", 2, 6, {"image_size": "32"}), 60),
    }
    for name, (run, blocks) in cases.items():
        backend = _joined(run)
        print(compare(f"measured loop / bare loop, {name}", *_loops(run, backend), limit=LIMIT, blocks=blocks))
        backend.leave()


if __name__ == "__main__":
    if not KEPT.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.bench_loop"], {**os.environ, **KEPT})
    main()
