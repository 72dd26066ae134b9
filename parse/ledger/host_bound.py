"""How far a device waits for its host in a step of a script: by the hooks' events on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpc.model.trace import Trace

NOTABLE = 0.05
"""A smaller share of a step is not worth a line."""
_ADVICE = "CUDA graphs or torch.compile, fewer and larger kernels, no .item() in every step"


def host_bound(trace: Trace) -> str:
    """The rank whose host paces its device for the largest share of a step, and what helps; empty where none does."""
    shares = {
        rank: (its, its["paced"] / its["step_ms"])
        for rank, report in enumerate(trace.reports)
        if (its := _figures(report.extra.get("script")))
    }
    if not shares:
        return ""
    rank = max(shares, key=lambda each: shares[each][1])
    figures, share = shares[rank]
    if share < NOTABLE:
        return ""
    syncs = f"; the script waits for its device {figures['syncs']:.3g} times a step" if figures["syncs"] else ""
    compute = f"compute {figures['compute_ms']:.3g} ms, of it host-bound {figures['compute']:.3g} ms"
    return (
        f"the device waits for its host in {share:.0%} of a step of rank {rank}: {compute}, and "
        f"{figures['optimizer']:.3g} ms of the optimizer's ({_ADVICE}){syncs}; input that it waits for is data"
    )


def _figures(script: object) -> dict[str, float]:
    """What a rank's report has of it; empty where it has none, or what is not finite or below 0."""
    record = script.get("host_bound") if isinstance(script, Mapping) else None
    phases = record.get("ms") if isinstance(record, Mapping) else None
    if not isinstance(record, Mapping) or not isinstance(phases, Mapping):
        return {}
    values = {
        **{name: phases.get(name) for name in ("data", "compute", "reduction", "optimizer")},
        **{name: record.get(name) for name in ("step_ms", "compute_ms", "syncs")},
    }
    figures = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
    }
    if len(figures) < len(values) or not figures["step_ms"]:
        return {}
    # Data that the device idles for is in the ledger's data already, whoever fetches it.
    return {**figures, "paced": figures["compute"] + figures["reduction"] + figures["optimizer"]}
