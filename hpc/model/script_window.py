"""Which steps of a script are measured: those behind the warm-up, in blocks that no pause interrupts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hpc.model.spec import MIN_WARMUP_STEPS


def script_blocks(warmup_steps: int, steps: int, paused: Iterable[int]) -> list[list[int]]:
    """The measured blocks, [first step, one past the last], of the first `steps` steps.

    `paused` are the steps before which the script did something else on any rank. As between the blocks of any run,
    MIN_WARMUP_STEPS unmeasured steps follow such a pause.
    """
    blocks, first = [], warmup_steps
    for border in [*sorted({step for step in paused if step < steps}), steps]:
        if border > first:
            blocks.append([first, border])
        if border < steps:
            first = max(first, border + MIN_WARMUP_STEPS)
    return blocks


def without_last(blocks: Iterable[Sequence[int]], steps: Collection[int]) -> list[list[int]]:
    """The blocks without those of their last steps that are in `steps`."""
    shorter = [[first, stop - (stop - 1 in steps)] for first, stop in blocks]
    return [[first, stop] for first, stop in shorter if stop > first]
