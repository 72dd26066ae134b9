"""A node's helper process beside a loop of steps: how long it runs, where, and work of a known length for the loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np


def ran_s(process: int) -> float:
    """How long all threads of a process have been on a core so far."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def pin(process: int, cores: set[int]) -> None:
    """Moves all threads of a process to these cores."""
    for task in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def work_of(seconds: float) -> Callable[[], None]:
    """Products of matrices that stay in the core's cache, for so long a call."""
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((96, 96), np.float32) for _ in range(2))
    out = np.empty_like(left)

    def products(count: int) -> None:
        for _ in range(count):
            np.matmul(left, right, out=out)

    products(1000)
    taken_s = []
    for _ in range(20):
        begin = perf_counter()
        products(200)
        taken_s.append((perf_counter() - begin) / 200)
    return partial(products, max(1, round(seconds / min(taken_s))))
