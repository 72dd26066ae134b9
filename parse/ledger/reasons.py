"""Why there is no loss, no term, no straggler, and other enums of a ledger as text; the names of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from parse.ledger.types import CANNOT_TELL, Ledger, Merged, NoLoss, RunLedger, StampErrors, Verdict


def base_case(ledger: Ledger) -> str:
    """The case that its loss is against; empty where there is none."""
    return ledger.result.base.case if ledger.result.base else ""


def no_loss_text(ledger: Ledger) -> str:
    """Why there is no loss; empty where there is one."""
    match ledger.no_loss:
        case None:
            return ""
        case NoLoss.IS_BASE:
            return "it is the base"
        case NoLoss.NO_BASE:
            return "it is the only case of its setting"
        case NoLoss.BASE_NOT_OK:
            return f"no run of its base, {base_case(ledger)}, ended ok with a trace"


def merged_text(reasons: Sequence[Merged]) -> str:
    """Why terms are one: which time stamps are missing, or which collectives come before the gradients are complete."""
    return "; ".join(dict.fromkeys(reason for merged in reasons for reason in _merge_reasons(merged)))


def _merge_reasons(merged: Merged) -> Iterator[str]:
    for border, count, total in merged.missing:
        where = "any step" if count >= total else f"{count} of {total} (ranks × steps)"
        yield f"{border} was not recorded in {where}"
    if merged.not_reduced:
        yield "gradients are not reduced"
    if merged.early_collectives:
        yield f"ranks meet before their gradients are complete: {', '.join(merged.early_collectives)}"


def problem_texts(errors: StampErrors | None) -> list[str]:
    """Each kind of time stamps that cannot be right."""
    if errors is None:
        return []
    of = f"of {errors.total} (ranks × steps)"
    texts = {
        f"{errors.disordered} stamps {of} lie before one that must come before them": errors.disordered,
        f"{errors.gaps} steps {of} do not begin where the one before them ended": errors.gaps,
        f"in {errors.early} {of} the reduced gradients are there before the last rank has its own, by up to "
        f"{errors.early_ms:.3f} ms more than the clocks' bounds: the stamps or the clocks are wrong": errors.early,
    }
    return [text for text, count in texts.items() if count]


def ledger_problems(ledger: Ledger) -> list[str]:
    """The errors of the measurement, over all runs."""
    return [f"{run.run_id}: {problem}" for run in ledger.runs for problem in problem_texts(run.problems)]


def because_text(verdict: Verdict) -> str:
    """The basis of a verdict without a straggler; empty if there is one."""
    because = verdict.because
    return merged_text([because]) if isinstance(because, Merged) else because or ""


def verdict_text(verdict: Verdict) -> str:
    """`persistent`, `rotating`, `transient`, `none`, `cannot tell (clock)`."""
    because = because_text(verdict)
    return f"{verdict.kind} ({because})" if verdict.kind == CANNOT_TELL and because else verdict.kind


def node_names(ledger: Ledger) -> list[str]:
    """The names of its nodes; those that are only groups of ranks on one machine with their number."""
    names = [node.name for node in ledger.nodes]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}:{place}" for place, name in enumerate(names)]


def host_of(ledger: Ledger, rank: int) -> str:
    """The name of the node that a rank is on; empty where it is not known."""
    named = zip(node_names(ledger), ledger.nodes, strict=True)
    return next((name for name, node in named if rank in node.ranks), "")


def repeat_of(run: RunLedger) -> str:
    """The number of the repeat, from the run's id."""
    return run.run_id.rpartition("_r")[2]
