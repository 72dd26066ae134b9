"""What the marks of a step cost: `python -m benchmarks.bench_marks`. To be met: at most 2 µs per step and rank.

Blocks with and without marks alternate in one process; the cost is the difference. What a GPU's own event costs is not
in the second figure: its events are empty ones, so that it tells what is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from benchmarks.pairs import against_limit
from hpc.measure.timer import StepTimer, device_timer

BLOCKS, STEPS = 40, 5000
LIMIT_US = 2.0


class EmptyEvent:
    """An event that records nothing."""

    def record(self, stream: Any) -> None:
        """Nothing."""

    def query(self) -> bool:
        """Always there."""
        return True

    def synchronize(self) -> None:
        """Nothing."""

    def elapsed_time(self, end_event: Any) -> float:
        """Always a microsecond."""
        return 0.001


def _with(timer: StepTimer) -> None:
    timer.begin(0)
    for _ in range(STEPS):
        timer.batch_ready()
        timer.forward_end()
        timer.grads_ready()
        timer.reduced()
        timer.end()


def _without() -> None:
    for _ in range(STEPS):
        pass


def _taken_us(what: Callable[[], None]) -> float:
    begin_ns = perf_counter_ns()
    what()
    return (perf_counter_ns() - begin_ns) / 1e3 / STEPS


def main() -> None:
    """Prints one line per kind of timer."""
    kinds: dict[str, StepTimer] = {
        "host marks": StepTimer(STEPS),
        "device marks (mock events, no GPU)": device_timer("phases", STEPS, EmptyEvent, None),
    }
    for name, timer in kinds.items():
        run = partial(_with, timer)
        costs_us = [_taken_us(run) - _taken_us(_without) for _ in range(BLOCKS)]
        print(against_limit(f"{name}, per step", costs_us, LIMIT_US, "µs"))


if __name__ == "__main__":
    main()
