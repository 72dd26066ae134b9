"""The measured loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpc.backends import Backend
from hpc.spec import MIN_WARMUP_STEPS, RunSpec
from hpc.timer import Marks


def train(
    backend: Backend, run: RunSpec, marks: Marks, samples: memoryview, synchronise: Callable[[], object]
) -> list[list[int]]:
    """Runs all steps; stores how many samples each took. Returns the measured blocks, [first step, one past the last].

    The clocks are synchronised before the first step, as many steps before the window as warm-up must have, and after
    it. From the second time on nothing but steps happens: no pause, no collection, no waiting for a device.
    """
    quiet_from = run.warmup_steps - MIN_WARMUP_STEPS

    synchronise()
    marks.begin(0)
    for step in range(quiet_from):
        samples[step] = backend.step(step, marks)
    marks.resolve()
    backend.settle()

    with garbage_collection_off():
        synchronise()
        marks.begin(quiet_from)
        for step in range(quiet_from, run.steps):
            samples[step] = backend.step(step, marks)
        marks.resolve()

    synchronise()
    return [[run.warmup_steps, run.steps]]


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
