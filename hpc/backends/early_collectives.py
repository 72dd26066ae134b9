"""Where ranks meet before their own gradients are complete: waiting there looks like compute, and a twin is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpc.backends import InvalidRun
from hpc.model.spec import RunSpec


def of_layers(run: RunSpec, layers: Iterable[object]) -> list[str]:
    """The reason, if one of a model's layers is batch norm over all ranks, by whatever framework's name for it."""
    kinds = {kind.__name__ for layer in layers for kind in type(layer).__mro__}
    synchronised = any("SyncBatchNorm" in name for name in kinds)
    return ["synchronised batch norm"] if synchronised and run.ranks > 1 else []


def check_twin(run: RunSpec, meetings: Sequence[str]) -> None:
    """Raises InvalidRun for a twin whose ranks meet although nothing is reduced."""
    if run.reduction == "off" and meetings:
        raise InvalidRun(
            f"reduction was switched off, so that every rank is seen by itself, and the ranks meet all the same "
            f"({'; '.join(meetings)}): this workload has no twin"
        )
