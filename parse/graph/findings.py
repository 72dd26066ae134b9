"""What a graph of steps shows beside who is late: chains of waits, uneven stages and experts, bubbles, slow links.

All times are milliseconds per step, means over the steps and runs of a point.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ChainLink:
    """Ranks that wait for a straggler: the first link for itself, each further one for ranks of the link before.

    They meet those in a `dimension` (`tp`, `pp`, …, or the pattern of the ranks; empty: not known) and each wait
    `waits` less, in the mean of `ranks`, where the straggler takes no longer than its peers.
    """

    ranks: tuple[int, ...]
    dimension: str
    waits: float


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """One stage of a pipeline, counted from 0: its `ranks` in all replicas, what they compute, in their mean, and its
    `layers`, 0: not known."""

    stage: int
    ranks: tuple[int, ...]
    work: float
    layers: int = 0


@dataclass(frozen=True, kw_only=True)
class StageImbalance:
    """Stages that do not take equally long: `slowest` is the place in `stages` of the longest.

    `microbatches` are those of a step, 0: not known. `mean` is the work of all stages in the mean, `runs_at` that by
    the work of the slowest, 0 to 1. `costs` is what a step would be shorter if all took the mean, by replay.
    """

    stages: tuple[StageWork, ...]
    slowest: int
    microbatches: int
    mean: float
    runs_at: float
    costs: float

    @property
    def layer_moves(self) -> bool:
        """Whether the slowest stage would still be that without one of its layers, which another has; so it is taken
        to be where layers are not known."""
        slowest = self.stages[self.slowest]
        layer = slowest.work / slowest.layers if slowest.layers else 0.0
        return min(stage.work for stage in self.stages) + layer < slowest.work


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """What ranks wait for messages of a pipeline, in the mean of its ranks; `of_schedule` is what they would if all
    stages took equally long, by replay."""

    waits: float
    of_schedule: float


@dataclass(frozen=True, kw_only=True)
class UnevenExperts:
    """The ranks of one position among experts whose `work` behind all-to-alls is most beyond the mean of all positions.

    `bytes` are those that one of the all-to-alls brings them a step, `mean_bytes` those of all positions in the mean; 0
    where sizes show no more for these. `costs` is what a step would be shorter if all took the mean, by replay.
    """

    ranks: tuple[int, ...]
    work: float
    mean: float
    bytes: float
    mean_bytes: float
    costs: float


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """Messages from one rank to another that take longer than the other pairs' `usual` one, each `takes`; `messages` of
    a step. So many `further` links are slow, too. `costs` is what a step would be shorter if all these links took the
    usual time, by replay."""

    sender: int
    receiver: int
    dimension: str
    takes: float
    usual: float
    messages: float
    further: int
    costs: float
