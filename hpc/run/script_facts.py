"""What a rank of a script states of itself in the trace, and says at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc.model.spec import RunSpec
from hpc.model.timestamps import GRADS_READY, STAMPS
from hpc.observe.device_times import CONTRADICTED
from hpc.observe.remarks import TOKENS_HINT
from hpc.run.script_groups import reduction_of, unseen_calls, unseen_in_graphs
from hpc.run.script_steps import (
    RankSteps,
    clock_contradiction,
    early_collectives,
    meets_unseen,
    outer_facts,
    pauses_of,
)


def script_facts(
    recorded: RankSteps, record: Mapping[str, Any], run: RunSpec, *, early: str, cpus_decided: bool
) -> dict[str, Any]:
    """Those of the script: `record` is torch's own of collectives, `early` says that a signal ended it, if one did."""
    observed = recorded.observed
    of_warmup = observed.early_remarks(run.warmup_steps)
    remarks = [
        text for text in observed.remarks if text not in of_warmup and not text.startswith((CONTRADICTED, TOKENS_HINT))
    ]
    return {
        "arguments": list(run.arguments), "absent": dict(observed.absent),
        "remarks": [*remarks, *filter(None, [early])],
        "warmup_remarks": list(of_warmup), "facts": dict(recorded.facts), "collective_record": record,
        "pauses": pauses_of(recorded.steps), "phases": pauses_of(recorded.steps, "phase"),
        **({"clock_contradiction": its} if (its := clock_contradiction(observed)) else {}),
        "cpus_decided": cpus_decided, **outer_facts(recorded.steps),
    }  # fmt: skip


def backend_facts(recorded: RankSteps, record: Mapping[str, Any], ranks: int, *, by_calls: bool) -> dict[str, Any]:
    """How the script reduces, as a backend states it; `by_calls`: its own calls do, and no wrapper."""
    facts, absent = recorded.facts, recorded.observed.absent
    window = recorded.steps[len(recorded.steps) // 2 :]
    unseen = unseen_calls(facts) + (unseen_in_graphs(facts, record, window) if by_calls else [])
    backend = {
        "absent_stamps": [name for name in STAMPS if name in absent],
        "reduces": facts.get("size", 1) > 1,
        "gradient_bytes": facts.get("gradient_bytes"),
        "meets_before_gradients": early_collectives(window) + unseen,
        "meetings_by_step": True,
        "reduction": reduction_of(facts, ranks) if by_calls else None,
        "compared_at_begin": meets_unseen(recorded) or None,
        # Where the moment of the gradients is known, so are the collectives before it.
        "unrecorded_collectives": unseen if recorded.steps and STAMPS[GRADS_READY] not in absent else None,
    }
    return {name: value for name, value in backend.items() if value is not None}


def said_remarks(recorded: RankSteps, run: RunSpec, early: str) -> list[str]:
    """The remarks that are printed, those of the warm-up as such."""
    of_warmup = recorded.observed.early_remarks(run.warmup_steps)
    remarks = [
        f"{remark}{', in the warm-up' if remark in of_warmup else ''}"
        for remark in recorded.observed.remarks
        if not (run.tokens_per_sample and remark.startswith(TOKENS_HINT))
    ]
    return [*remarks, *filter(None, [early])]
