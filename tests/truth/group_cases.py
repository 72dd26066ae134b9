"""Scripts whose ranks meet in groups, the known delays in them, and what must be said of each."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.truth.delays import DelayCase

DELAYS_MS = (8, 16, 25)
PHASES = {
    "data": "data", "forward": "compute", "backward": "compute", "stage": "compute", "link": "compute",
    "tokens": "compute", "optimizer": "optimizer", "gather": "optimizer",
}  # fmt: skip
"""The phase in which a delay at a place lies."""
EVERYONE = "all ranks"

Mesh = tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class GroupTraining:
    """A shape of tests/observe_scripts/grouped.py or staged.py on so many ranks, the places of its delays, the ranks
    that have them in turn, and the windows in which nobody has. `mesh` has the sizes and names of its dimensions, the
    outermost first; ranks that differ in those of `roles` do not do the same. `everyone` is the dimension of a
    group of all."""

    name: str
    shape: str
    ranks: int
    places: tuple[str, ...]
    late: tuple[int, ...]
    controls: int
    script: str = "grouped.py"
    arguments: tuple[str, ...] = ()
    delays_ms: tuple[float, ...] = DELAYS_MS
    mesh: Mesh
    roles: tuple[str, ...] = ()
    everyone: str = EVERYONE

    def dimension_of(self, ranks: Sequence[int]) -> str:
        """Of a group, or of a message's (sender, receiver, tag): the dimensions along which its ranks differ."""
        if len(ranks) == self.ranks:
            return self.everyone
        first, second = (self._place_of(rank) for rank in ranks[:2])
        return ", ".join(name for at, (_, name) in enumerate(self.mesh) if first[at] != second[at])

    def peers_of(self, rank: int) -> list[int]:
        """Ranks that do the same as this one, itself among them."""
        return [other for other in range(self.ranks) if self._role_of(other) == self._role_of(rank)]

    def _role_of(self, rank: int) -> list[int]:
        place = self._place_of(rank)
        return [place[at] for at, (_, name) in enumerate(self.mesh) if name in self.roles]

    def _place_of(self, rank: int) -> tuple[int, ...]:
        place = []
        for size, _ in reversed(self.mesh):
            place.append(rank % size)
            rank //= size
        return tuple(reversed(place))

    def cases(self) -> list[DelayCase]:
        """In an order of chance, which is always the same: load that lasts must not meet one place."""
        delayed = [(place, ms) for place in self.places for ms in self.delays_ms]
        cases = [
            DelayCase(
                training=self.name, place=place, rank=self.late[number % len(self.late)], ms=ms, phase=PHASES[place],
            )
            for number, (place, ms) in enumerate(delayed)
        ]  # fmt: skip
        cases += [DelayCase(training=self.name)] * self.controls
        random.Random(self.name).shuffle(cases)
        return cases


IN_BLOCKS = ("forward", "backward", "optimizer")
STAGES_MS = (2.0, 4.0, 6.0)
"""A stage is late in each micro-batch, both ways."""


def _grouped(
    name: str, shape: str, mesh: Mesh, places: tuple[str, ...], late: tuple[int, ...], **more: Any
) -> GroupTraining:
    ranks = more.pop("ranks", 4)
    return GroupTraining(name=name, shape=shape, ranks=ranks, mesh=mesh, places=places, late=late, controls=10, **more)


def _staged(shape: str, mesh: Mesh, late: tuple[int, ...], **more: Any) -> GroupTraining:
    name = " × ".join(f"{dimension} {size}" for size, dimension in mesh)
    return GroupTraining(
        name=name, shape=shape, ranks=math.prod(size for size, _ in mesh), mesh=mesh, late=late, roles=("pp",),
        script="staged.py", **more,
    )  # fmt: skip


TRAININGS: Sequence[GroupTraining] = (
    _grouped(
        "pairs and DDP", "pairs", ((2, ""), (2, "groups of 2 neighbours")), ("data", *IN_BLOCKS), (3, 0), everyone="dp"
    ),
    _grouped("tp × DDP", "tp_ddp", ((2, "dp"), (2, "tp")), IN_BLOCKS, (1, 2)),
    _grouped("tp × FSDP2", "tp_fsdp", ((2, "dp"), (2, "tp")), IN_BLOCKS, (3, 0)),
    _grouped("HSDP", "hsdp", ((2, "dp_replicate"), (2, "dp_shard")), IN_BLOCKS, (2, 1)),
    _grouped("sharded optimizer", "shards", ((2, EVERYONE),), ("data", "forward", "optimizer"), (1, 0), ranks=2),
    _grouped("local SGD, H = 4", "local_sgd", ((2, "replica"), (2, "dp")), ("forward", "optimizer"), (3, 1)),
    _grouped("experts", "experts", ((2, "dp"), (2, "ep")), ("forward", "optimizer", "tokens"), (2, 1), roles=("ep",)),
    _grouped("experts of one group", "experts", ((2, "ep"),), ("tokens",), (1, 0), ranks=2, roles=("ep",)),
    _grouped("ring", "ring", ((4, "cp"),), ("forward", "backward", "link"), (1, 2)),
    _staged("2", ((2, "pp"),), (1, 0), places=("stage",), controls=8, delays_ms=STAGES_MS),
    _staged("4", ((4, "pp"),), (2, 0), places=("stage",), controls=8, delays_ms=STAGES_MS),
    _staged("2x2", ((2, "pp"), (2, "dp")), (1, 2), places=("stage", "optimizer"), controls=8, delays_ms=STAGES_MS),
    _staged(
        "2x2x2", ((2, "pp"), (2, "dp"), (2, "tp")), (5,), places=("stage", "optimizer"), controls=4, delays_ms=(8.0,)
    ),
)
