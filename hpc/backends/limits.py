"""What FSDP2 cannot run, known before a framework is imported."""

from __future__ import annotations

from collections.abc import Mapping

from hpc.backends import BACKENDS
from hpc.model.options import OptionValue
from hpc.model.spec import RunSpec

NODE = "node"


def fsdp_refusal(run: RunSpec, options: Mapping[str, OptionValue]) -> str:
    """The reason why torch-fsdp cannot do the run with these options of its own, and what to do; else empty."""
    if run.reduction == "off":
        reason = BACKENDS["torch-fsdp"].no_sync_unsupported
        return f"reduction was switched off; torch-fsdp has no no-sync run: {reason}. Leave out --no-sync"
    if options["channels_last"]:
        return (
            "channels_last=on was requested; FSDP2 shards contiguous parameters only: leave it out, or take torch-ddp"
        )
    if run.precision == "amp-fp16":
        return (
            "precision amp-fp16 was requested; torch-fsdp has no loss scale over shards, whose ranks would have to "
            "agree on skipping a step: take bf16, or torch-ddp"
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
