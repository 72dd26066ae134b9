"""Step time per rank: a rank is named whose mean step is longer than the median rank's by 5 %.

It is what a script's own log shows. Where all ranks meet in each step, all take equally long.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median_low

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from benchmarks.straggler.adapters.common import Answer, finding, named, print_answer
from benchmarks.straggler.hooks import Hooks

WARMUP, MORE = 5, 1.05


class ToolHooks(Hooks):
    """Times each step, with all that comes before the next."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        self.ends: list[float] = []

    def end_of_step(self) -> None:
        self.ends.append(1e3 * time.perf_counter())

    def end(self) -> None:
        times = [end - begin for begin, end in pairwise(self.ends)]
        (self.folder / f"steps-{self.rank}.json").write_text(json.dumps(times))


def answer(folder: Path, ranks: int) -> Answer:
    times = [fmean(json.loads((folder / f"steps-{rank}.json").read_text())[WARMUP:]) for rank in range(ranks)]
    usual = median_low(times)
    return named(
        [finding([rank], None, ms - usual) for rank, ms in enumerate(times) if ms > MORE * usual],
        "mean step by rank, ms: " + ", ".join(f"{ms:.1f}" for ms in times),
    )


if __name__ == "__main__":
    print_answer("step time per rank", platform.python_version, answer)
