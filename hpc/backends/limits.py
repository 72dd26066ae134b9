"""What FSDP2 and tensor parallelism cannot run, known before a framework is imported."""

from __future__ import annotations

from collections.abc import Mapping

from hpc.backends import BACKENDS
from hpc.backends.rank_groups import group_size, misfit
from hpc.model.options import OptionValue
from hpc.model.spec import RunSpec
from hpc.workloads import is_user_code
from hpc.workloads.gpt import decoder


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
    return misfit("shard_group", options["shard_group"], run, run.ranks)


def tp_refusal(run: RunSpec, options: Mapping[str, OptionValue]) -> str:
    """The reason why torch-tp cannot do the run with these options of its own, and what to do; else empty."""
    entry = BACKENDS["torch-tp"]
    if not is_user_code(run.workload) and run.workload not in entry.workloads:
        return (
            f"workload {run.workload} was requested; torch-tp splits layers as a workload's tensor_parallel_plan says, "
            f"and of the workloads here {', '.join(entry.workloads)} has one: take torch-ddp"
        )
    if run.reduction == "off":
        return (
            f"reduction was switched off; torch-tp has no no-sync run: {entry.no_sync_unsupported}. Leave out --no-sync"
        )
    if run.precision == "amp-fp16":
        return (
            "precision amp-fp16 was requested; torch-tp has no loss scale over parts of layers, whose ranks would have "
            "to agree on skipping a step: take bf16, or torch-ddp"
        )
    if reason := misfit("tensor_parallel", options["tensor_parallel"], run, run.ranks_per_node):
        return reason
    return "" if is_user_code(run.workload) else _indivisible(run, group_size_of(run, options))


def group_size_of(run: RunSpec, options: Mapping[str, OptionValue]) -> int:
    """The ranks that share every layer."""
    return group_size(options["tensor_parallel"], run, run.ranks_per_node)


def _indivisible(run: RunSpec, ranks: int) -> str:
    shape = decoder(run)
    counts = {
        "heads": shape.heads, "heads of keys and values": shape.kv_heads, "hidden features": shape.hidden,
        "tokens of the vocabulary": shape.vocabulary,
    }  # fmt: skip
    for name, count in counts.items():
        if count % ranks:
            return (
                f"{ranks} ranks would share every layer; the decoder has {count} {name}, which {ranks} does not "
                "divide: take tensor_parallel=N that divides them, or another size"
            )
    return ""
