"""What torch's collectives are called in a trace, by the names of the methods of a process group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

BUFFERS = "broadcast of buffers"
"""DDP's, from rank 0 before a forward."""
MESSAGE, MESSAGES = "message", "messages"
"""What one rank sends to another; the dimension of those in a process group that has no name."""
REPLICAS, STAGES = "dp", "pp"
"""Where nobody named them, the dimensions of ranks between which DDP reduces, and of messages between the stages of a
pipeline."""
FROM_ANY = "message from any rank"
"""One that a rank waits for, as long as it is not known who sends it."""
NAMES = {
    "allreduce": "all-reduce", "allreduce_coalesced": "all-reduce", "allgather": "all-gather",
    "allgather_coalesced": "all-gather", "_allgather_base": "all-gather", "all_gather_single": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather", "all_gather_single_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter", "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "reduce_scatter_single_coalesced": "reduce-scatter", "broadcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "alltoall": "all-to-all", "alltoall_base": "all-to-all",
    "all_to_all_single": "all-to-all", "barrier": "barrier",
    "monitored_barrier": "barrier",
}  # fmt: skip
"""By the names that methods of a process group have in this torch or another."""
NEWER = {
    "_allgather_base": "all_gather_single", "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced", "alltoall_base": "all_to_all_single",
}  # fmt: skip
"""The later name of a process group's method by its first one: a torch has one or both."""


class BatchRole(StrEnum):
    """What the ranks of a group have in common: the same batch, of which each computes a part; nothing, as each reads
    its own; or it is not known."""

    MODEL = "model"
    DATA = "data"
    UNKNOWN = "unknown"
    NONE = ""


_OF_MODEL = {"tp", "pp", "cp", "sp", "mp", "tensor", "pipe", "pipeline", "stage", "stages", "context", "sequence",
             "seq", "ulysses", "ring", "model"}  # fmt: skip
_OF_DATA = {"dp", "ddp", "fsdp", "hsdp", "ep", "edp", "data", "replicate", "replica", "shard", "expert", "experts",
            "batch"}  # fmt: skip


def role_of(dimension: str) -> BatchRole:
    """By the words of its name; NONE where it has none of either kind, or of both (`dp_shard_cp`).

    Experts are spread over ranks that read batches of their own.
    """
    words = {*re.split(r"[^a-z]+", dimension.lower())}
    of_data, of_model = words & _OF_DATA, words & _OF_MODEL
    if of_data & {"ep", "expert", "experts"}:
        of_model -= {"model"}
    if of_data and of_model:
        return BatchRole.NONE
    return BatchRole.DATA if of_data else BatchRole.MODEL if of_model else BatchRole.NONE


FROM_ONE, TO_ONE = ("broadcast", "scatter"), ("reduce", "gather")


def waits_at_once(values: Sequence[object]) -> bool:
    """Whether the caller of a process group's method, with these arguments, waits for the result (`async_op=False`).

    Then all of it is the collective: on a CPU much of it can be in the call itself, whose thread takes the core.
    """
    return bool(values) and getattr(values[-1], "asyncOp", True) is False
