"""Where in a training a tool may put its hooks; without a tool they do nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any


class Hooks:
    """One rank's. `folder` is the run's: what an adapter keeps there, its answer is made from."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def step(self, model: Any) -> AbstractContextManager[object]:
        """Around the passes and the update of one step. Its first batch comes before, logging and the like behind."""
        return nullcontext()

    def part(self, name: str) -> AbstractContextManager[object]:
        """Around `data`, `forward`, `backward` and `optimizer`, or a `collective` of the script's."""
        return nullcontext()

    def end_of_step(self) -> None:
        """After all of a step, and what comes before the next."""

    def end(self) -> None:
        """After the last step, on all ranks."""
