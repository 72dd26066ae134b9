"""What single backends cannot run, known before a framework is imported: the table of backends names these."""

from __future__ import annotations

from collections.abc import Mapping

from hpc.model.options import OptionValue
from hpc.model.spec import RunSpec

NODE = "node"
DEFAULT_BACKEND = "torch-ddp"
"""What a sweep trains with where no backend is named, and what most refusals name instead."""


def one_rank_refusal(run: RunSpec, options: Mapping[str, OptionValue]) -> str:
    """The reason why a backend whose one rank drives all GPUs of a node cannot do the run; else empty."""
    if run.gpus_per_node == 0:
        return f"it splits a batch over the GPUs of a node, and the runs have none: take {DEFAULT_BACKEND}"
    if run.ranks > 1:
        return f"it is one rank that drives the GPUs of one node: take {DEFAULT_BACKEND} for several nodes"
    if options["compile"]:
        return "compile=on was requested; torch.compile does not go with DataParallel's threads"
    return ""


def multiworker_refusal(run: RunSpec, options: Mapping[str, OptionValue]) -> str:
    """The reason why TensorFlow's collectives cannot do the run; else empty."""
    if options["collective"] == "nccl" and run.gpus_per_node == 0:
        return "collective nccl was requested; it reduces on GPUs, and the runs have none: take auto or ring"
    return ""


def fsdp_refusal(run: RunSpec, options: Mapping[str, OptionValue]) -> str:
    """The reason why FSDP2 cannot do the run with these options of its own, and what to do; else empty."""
    if options["channels_last"]:
        instead = f"leave it out, or take {DEFAULT_BACKEND}"
        return f"channels_last=on was requested; FSDP2 shards contiguous parameters only: {instead}"
    if run.precision == "amp-fp16":
        return (
            f"precision amp-fp16 was requested; {run.backend} has no loss scale over shards, whose ranks would have to "
            f"agree on skipping a step: take bf16, or {DEFAULT_BACKEND}"
        )
    option, size = options["shard_group"], shard_group_size(run, options)
    if run.ranks % size:
        return (
            f"shard_group={option} was requested; {run.ranks} ranks make no whole groups of {size}: take a divisor of "
            f"{run.ranks}"
        )
    return ""


def shard_group_size(run: RunSpec, options: Mapping[str, OptionValue]) -> int:
    """The ranks that share one set of shards."""
    option = options["shard_group"]
    if option in ("all", NODE):
        return run.ranks if option == "all" else run.ranks_per_node
    return min(int(option), run.ranks)
