"""Scripts that are measured as they are, the known delays in them, and what the ledger must say of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.truth.delays import DelayCase

DELAYS_MS = (5, 10, 20)
PLACES = ("dataset", "forward", "backward", "optimizer", "collective")
_PHASE = {"dataset": "data", "forward": "compute", "backward": "compute", "optimizer": "optimizer"}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A way to train with tests/observe_scripts/delayed.py; in which phase its delay before a collective lies, how many
    windows without a delay it has, and the rank from which its collectives send, None where all need all."""

    name: str
    arguments: tuple[str, ...]
    collective: str
    controls: int
    root: int | None = None
    ranks: int = 2
    delays_ms: tuple[int, ...] = DELAYS_MS

    def cases(self) -> list[DelayCase]:
        """In an order of chance, which is always the same: load that lasts must not meet one place."""
        of_ranks = (0, 1) if self.ranks == 2 else (2,)
        cases = [self._case(place, ms, rank) for place in PLACES for ms in self.delays_ms for rank in of_ranks]
        cases += [DelayCase(training=self.name)] * self.controls
        random.Random(self.name).shuffle(cases)
        return cases

    def _case(self, place: str, ms: int, rank: int) -> DelayCase:
        phase = {**_PHASE, "collective": self.collective}[place]
        return DelayCase(training=self.name, place=place, rank=rank, ms=ms, phase=phase)


TRAININGS: Sequence[Training] = (
    # Before the all-reduce of the loss, behind the update; of DDP's buffers, before the forward; of the last bucket, in
    # its hook; of an all-gather in the forward; of the first gradient's all-reduce; of the norm's, by which gradients
    # are clipped.
    Training(name="DDP", arguments=("--parallel", "ddp"), collective="optimizer", controls=15),
    Training(
        name="DDP, batch norm", arguments=("--parallel", "ddp", "--batch-norm"), collective="data", controls=10,
        root=0,
    ),
    Training(
        name="DDP, comm hook", arguments=("--parallel", "ddp", "--comm-hook"), collective="compute", controls=5,
        delays_ms=(10, 20),
    ),
    Training(
        name="DDP, unused parameters", arguments=("--parallel", "ddp", "--unused"), collective="optimizer", controls=5,
        delays_ms=(10, 20),
    ),
    Training(name="FSDP2", arguments=("--parallel", "fsdp2"), collective="compute", controls=15),
    Training(name="by hand", arguments=("--parallel", "by-hand"), collective="compute", controls=10),
    Training(
        name="FSDP2, clipping", arguments=("--parallel", "fsdp2", "--clip"), collective="optimizer", controls=10,
    ),
    Training(
        name="DDP, 2 × 2 ranks", arguments=("--parallel", "ddp", "--width", "128"), collective="optimizer", controls=5,
        ranks=4, delays_ms=(10, 20),
    ),
    Training(
        name="FSDP2, 2 × 2 ranks", arguments=("--parallel", "fsdp2", "--width", "128"), collective="compute",
        controls=5, ranks=4, delays_ms=(10, 20),
    ),
)  # fmt: skip
