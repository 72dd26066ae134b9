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
    """One stage of a pipeline, counted from 0: its `ranks` in all replicas, and the median of their own work."""

    stage: int
    ranks: tuple[int, ...]
    work: float


@dataclass(frozen=True, kw_only=True)
class StageImbalance:
    """Stages that do not take equally long: `slowest` is the place in `stages` of the longest.

    `microbatches` are those of a step, 0: not known. `others` is the mean work of the others, `runs_at` that by the
    work of the slowest, 0 to 1. `costs` is what a step would be shorter if all took the mean of all stages.
    """

    stages: tuple[StageWork, ...]
    slowest: int
    microbatches: int
    others: float
    runs_at: float
    costs: float


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """What ranks wait for messages of a pipeline, in the mean of its ranks; `of_schedule` is what they would if all
    stages took equally long and no rank longer than its peers, which the order of the micro-batches makes alone."""

    waits: float
    of_schedule: float


@dataclass(frozen=True, kw_only=True)
class UnevenExperts:
    """The position in groups of experts whose ranks take `times` the mean of all positions, between all-to-alls.

    `by` is `tokens` where sizes of the all-to-alls show it, else `time`. `costs` is what a step would be shorter if all
    took the mean.
    """

    ranks: tuple[int, ...]
    times: float
    by: str
    costs: float


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """Messages from one rank to another that take longer than the other pairs' `usual` one, each `takes`; `messages` of
    a step. `costs` is what a step would be shorter if they took the usual time."""

    sender: int
    receiver: int
    dimension: str
    takes: float
    usual: float
    messages: float
    costs: float


@dataclass(frozen=True, kw_only=True)
class GraphFindings:
    """The findings of a point whose ranks have several groups; None: there is nothing to say."""

    stages: StageImbalance | None = None
    bubble: Bubble | None = None
    experts: UnevenExperts | None = None
    slow_link: SlowLink | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.stages, self.bubble, self.experts, self.slow_link))
