"""The measured loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpc.backends import Backend
from hpc.measure.timer import Marks
from hpc.model.spec import MIN_WARMUP_STEPS, RunSpec


def train(
    backend: Backend, run: RunSpec, marks: Marks, samples: memoryview, synchronise: Callable[[], object]
) -> list[list[int]]:
    """Runs all steps; stores how many samples each took. Returns the measured blocks, [first step, one past the last].

    The clocks are synchronised before the first step, as many steps before each block as warm-up must have, and after
    the last. From there to the end of a block nothing but steps happens: no pause, no collection, no waiting for a
    device.
    """
    past = run.warmup_steps - MIN_WARMUP_STEPS

    synchronise()
    marks.begin(0)
    for step in range(past):
        samples[step] = backend.step(step, marks)
    marks.resolve()
    backend.settle()

    with garbage_collection_off():
        for block in run.blocks:
            begin, past = past, block[1]
            synchronise()
            marks.begin(begin)
            for step in range(begin, past):
                samples[step] = backend.step(step, marks)
            marks.resolve()
            if block[1] < run.steps:
                backend.settle()  # after the last one nothing that a workload can make fail stands before the trace
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
