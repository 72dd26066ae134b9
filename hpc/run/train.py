"""The measured loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpc.backends import Backend
from hpc.measure.timer import StepTimer
from hpc.model.spec import MIN_WARMUP_STEPS, RunSpec


def train(
    backend: Backend, run: RunSpec, timer: StepTimer, samples: memoryview, synchronise: Callable[[], object]
) -> list[list[int]]:
    """Runs all steps; stores each one's sample count. Returns the measured blocks, [first step, one past the last].

    The clocks are synchronised before the first step, MIN_WARMUP_STEPS before each block, and after the last step.
    Between a synchronisation and the end of its block only steps run: no pause, no garbage collection, no wait for a
    device.
    """
    stop = run.warmup_steps - MIN_WARMUP_STEPS

    synchronise()
    timer.begin(0)
    for step in range(stop):
        samples[step] = backend.step(step, timer)
    timer.resolve()
    backend.release()

    with garbage_collection_off():
        for block in run.blocks:
            begin, stop = stop, block[1]
            synchronise()
            timer.begin(begin)
            for step in range(begin, stop):
                samples[step] = backend.step(step, timer)
            timer.resolve()
            if block[1] < run.steps:
                backend.release()  # after the last one, no code that a workload can make fail runs before the trace
            gc.collect()  # of this block alone, since all else is frozen: long runs do not grow

    synchronise()
    return run.blocks


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Python's collector pauses for up to half a second: it cleans up once, then rests; afterwards all is as it was."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
