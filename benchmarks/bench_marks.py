"""What the marks of a step cost: `python -m benchmarks.bench_marks`. To be met: at most 2 µs per step and rank.

Blocks with and without marks alternate in one process; the cost is the difference. What a GPU's own event costs is not
in the second figure: its events are empty ones, so that it tells what is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from hpc.timer import DeviceMarks, HostMarks, Marks
from parse.stats import median_interval

BLOCKS, STEPS = 40, 5000
LIMIT_US = 2.0


class _EmptyEvent:
    """An event that records nothing."""

    def record(self, stream: Any) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""

    def elapsed_time(self, end_event: Any) -> float:
        """Always a microsecond."""
        return 0.001


def _with(marks: Marks) -> None:
    marks.begin(0)
    for _ in range(STEPS):
        marks.batch_ready()
        marks.forward_end()
        marks.grads_ready()
        marks.reduced()
        marks.end()


def _without() -> None:
    for _ in range(STEPS):
        pass


def _taken_us(what: Callable[[], None]) -> float:
    begin_ns = perf_counter_ns()
    what()
    return (perf_counter_ns() - begin_ns) / 1e3 / STEPS


def main() -> None:
    """Prints one line per kind of marks."""
    kinds = {
        "host marks": HostMarks(STEPS),
        "device marks (mock events, no GPU)": DeviceMarks(STEPS, _EmptyEvent, None),
    }
    for name, marks in kinds.items():
        costs_us = [_taken_us(lambda m=marks: _with(m)) - _taken_us(_without) for _ in range(BLOCKS)]  # type: ignore[misc]  # mypy cannot infer a lambda's default
        interval = median_interval(costs_us)
        assert interval is not None
        verdict = "met" if interval.high <= LIMIT_US else "missed" if interval.low > LIMIT_US else "not resolved"
        print(
            f"{name}: {sorted(costs_us)[BLOCKS // 2]:.2f} µs per step [{interval.low:.2f}, {interval.high:.2f}] "
            f"{interval.coverage:.1%}; limit {LIMIT_US:g} µs: {verdict}"
        )


if __name__ == "__main__":
    main()
