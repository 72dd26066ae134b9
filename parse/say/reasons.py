"""Why there is no loss, no term of its own, no straggler; what is wrong with a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.system.text import plural
from parse.ledger.types import Ledger, NoLoss, StampErrors
from parse.ledger.verdict import CannotTell, Merged, Unseen, Verdict
from parse.say.numbers import ms

ENDS = {
    "batch_ready": "the end of data", "forward_end": "the end of the forward", "grads_ready": "the end of the backward",
    "reduced": "the end of the reduction",
}  # fmt: skip
"""What time stamps inside a step show, for people."""


def no_loss_text(ledger: Ledger) -> str:
    """Why there is no loss; empty where there is one, and where none can be: at the base, and without another case."""
    match ledger.no_loss:
        case None | NoLoss.IS_BASE | NoLoss.NO_BASE:  # nothing that anybody could do, or not know
            return ""
        case NoLoss.BASE_NOT_OK:
            return f"no run of its base, {ledger.result.base_case}, ended ok with a trace"
        case NoLoss.NO_SAMPLES:
            return "how many samples its steps take is not known, and so whether the base's do as much"


def merged_text(reasons: Sequence[Merged]) -> str:
    """Why terms are one: which time stamps are missing, or which collectives come before the gradients are complete."""
    return "; ".join(dict.fromkeys(reason for merged in reasons for reason in _merge_reasons(merged)))


def _merge_reasons(merged: Merged) -> Iterator[str]:
    for border, count, total in merged.missing:
        where = "any step" if count >= total else f"{count} of {total} (ranks × steps)"
        yield f"{ENDS.get(border, border)} was not recorded in {where}"
    if (its := merged.unsplit) is not None:
        yield (
            f"{its.steps} of {plural(its.of_steps, 'step')} are in no term: they lack "
            f"{' or '.join(ENDS.get(each, each) for each in its.borders)}. They take {ms(its.mean)}, others "
            f"{ms(its.others)}"
        )
    if merged.not_reduced:
        yield "gradients are not reduced"
    if merged.ends_early:
        yield (
            f"a rank ends {plural(merged.ends_early, 'step')} before another begins them: ranks do not meet in each "
            "step, or steps end before their result is there (JAX)"
        )
    if merged.early_collectives:
        yield f"ranks meet before their gradients are complete: {', '.join(merged.early_collectives)}"


def problem_texts(errors: StampErrors | None) -> list[str]:
    """Each kind of time stamps that cannot be right."""
    if errors is None:
        return []
    of = f"of {errors.total} (ranks × steps)"
    texts = {
        f"{errors.disordered} stamps {of} are earlier than one that must precede them": errors.disordered,
        f"{errors.gaps} steps {of} do not begin where the one before them ended": errors.gaps,
        f"in {errors.early} {of} the reduced gradients are there before the last rank has its own, by up to "
        f"{errors.early_ms:.3f} ms more than the clocks' bounds: the stamps or the clocks are wrong": errors.early,
    }
    return [text for text, count in texts.items() if count]


def ledger_problems(ledger: Ledger) -> list[str]:
    """The errors of the measurement, over all runs."""
    return [f"{run.run_id}: {problem}" for run in ledger.runs for problem in problem_texts(run.problems)]


def because_text(verdict: Verdict) -> str:
    """Why it is not known who is waited for; empty where it is."""
    if not isinstance(verdict, CannotTell):
        return ""
    because = verdict.because
    if isinstance(because, Unseen):
        return unseen_text(because)
    return merged_text([because]) if isinstance(because, Merged) else because


def unseen_text(unseen: Unseen) -> str:
    """`ranks also meet in shared memory (/dev/shm/x), mpi4py, which no hook sees`."""
    if unseen.ways:
        return f"ranks also meet in {', '.join(unseen.ways)}, which no hook sees"
    return f"a rank sleeps {ms(unseen.asleep)} a step, and no hook sees why"


def verdict_text(verdict: Verdict) -> str:
    """`persistent`, `rotating`, `transient`, `none`, `cannot tell (clock)`."""
    because = because_text(verdict)
    return f"{verdict.kind} ({because})" if because else verdict.kind
