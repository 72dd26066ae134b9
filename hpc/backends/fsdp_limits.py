"""What torch-fsdp does not run, known before a framework is imported."""

from __future__ import annotations

from collections.abc import Mapping

from hpc.backends import BACKENDS
from hpc.backends.rank_groups import misfit
from hpc.model.options import OptionValue
from hpc.model.spec import RunSpec


def why_not(run: RunSpec, options: Mapping[str, OptionValue]) -> str:
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
