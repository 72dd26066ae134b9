"""The operations of pipeline-parallel training as a trace holds them, and what replaying them returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class PipelineTraceError(Exception):
    """A file is no trace of pipeline operations, or of a schedule that cannot be replayed; the text says why."""


class Kind(StrEnum):
    """The kinds of operations, by their names in the file."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    PARAMS_GATHER = "params-all-gather"
    GC = "gc"
    LAYERNORM_REDUCE = "layernorm-grads-all-reduce"
    EMBEDDING_REDUCE = "embedding-grads-all-reduce"
    GRADS_SCATTER = "grads-reduce-scatter"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Operation:
    """What every data-parallel rank does in every step: the `number`-th operation of a kind on a pipeline stage."""

    stage: int
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of stage {self.stage}"


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineTrace:
    """Every operation of some steps. A worker is a stage of a data-parallel rank."""

    operations: tuple[Operation, ...]
    """Ordered by stage, kind and number."""
    steps: tuple[int, ...]
    dp_ranks: tuple[int, ...]
    ranks: Ints
    """The global rank of a worker [data-parallel rank, stage]."""
    start_s: Floats
    """Seconds [operation, step, data-parallel rank], on one clock within a step."""
    duration_s: Floats
    """Seconds, as `start_s`."""

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len(self.ranks[0])


class GroupedBy(StrEnum):
    """What the operations of a group have in common."""

    WORKER = "worker"
    STAGE = "stage"
    DP_RANK = "data-parallel rank"
    KIND = "kind"


@dataclass(frozen=True, kw_only=True)
class OperationGroup:
    """The operations of a worker, a stage, a data-parallel rank, or of kinds. What is None is not restricted."""

    by: GroupedBy
    dp_rank: int | None = None
    stage: int | None = None
    rank: int | None = None
    kinds: tuple[Kind, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GroupCost:
    """The mean step time with a group's operations changed, in seconds."""

    group: OperationGroup
    without_s: float
    """Replayed with the group's operations alone at their mean or median."""
    alone_s: float
    """Replayed with all operations at their mean or median but the group's."""
    pays_s: float
    """The replayed step less `without_s`."""
    share: float | None
    """`pays_s` over what all stragglers cost; None where these cost nothing to speak of."""


@dataclass(frozen=True)
class StepTime:
    """One step, in seconds."""

    step: int
    recorded_s: float
    replayed_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """What a trace says about stragglers; times are means over steps, in seconds."""

    operations: int
    """Of all workers and steps."""
    stages: int
    dp_ranks: int
    steps: tuple[StepTime, ...]
    recorded_s: float
    """From the first start to the last end."""
    replayed_s: float
    """The recorded operations without the gaps between them."""
    ideal_s: float
    """Without stragglers: every operation at the mean or median of its kind."""
    loss_s: float
    """`replayed_s` less `ideal_s`: what stragglers cost."""
    loss_margin_s: float | None
    """Half of the 95 % interval of `loss_s`, over steps; None for one step."""
    has_stragglers: bool
    """Whether the loss is 1 % of a step or more, and larger than its margin."""
    costs: tuple[GroupCost, ...]
    """The group that pays most first, of all groupings."""
    omitted: tuple[tuple[GroupedBy, int], ...]
    """The number of groups that were not replayed, where there are many."""
