"""Change points of a long steady run: at most a second for 100,000 steps. `python -m benchmarks.bench_change_points`.

A steady series is the worst case: no step can be dropped as the start of a segment.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

import numpy as np

from benchmarks.pairs import against_limit, compare
from parse.alarms.windows import MAX_BINS, change_points

STEPS, BLOCKS = 100_000, 15
TIME_LIMIT_S, RATIO_LIMIT = 1.0, 10.0
"""For 25 times as many steps; the square of that is 625."""


def main() -> None:
    """Prints one line for the time and one for how it grows."""
    step_s = np.random.default_rng(0).lognormal(0, 0.02, STEPS)
    taken_s = []
    for _ in range(BLOCKS):
        begin = perf_counter()
        assert change_points(step_s) == []
        taken_s.append(perf_counter() - begin)
    print(against_limit(f"change points of {STEPS:,} steady steps", taken_s, TIME_LIMIT_S, "s"))
    name = f"change points of {STEPS:,} steps / of {MAX_BINS:,}"
    long, short = partial(change_points, step_s), partial(change_points, step_s[:MAX_BINS])
    print(compare(name, long, short, limit=RATIO_LIMIT, blocks=BLOCKS))


if __name__ == "__main__":
    main()
