"""A ledger held against the truth of its runs; what differs is printed with everything needed to explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parse.ledger.types import Ledger
from parse.say.reasons import ledger_problems, no_loss_text
from tests.truth.cases import Expected
from tests.truth.exact import TERMS, Known, Ms
from tests.truth.verdicts import ALLOWED, ALLOWED_MS, Miss, describe, held_against

ROUNDING_MS = 1e-3
MERGED = {name: (name,) for name in TERMS} | {"compute+wait+communication": ("compute", "wait", "communication")}
"""What the names of a ledger's terms stand for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """A point: the means of its terms in the ledger, of the sleeps and of the background, ms [term] by `names`; the
    largest differences, over ranks and means, from these and from the exact stamps; the verdict; the misses."""

    names: tuple[str, ...]
    means: Ms
    slept: Ms
    beside: Ms
    from_slept_ms: float
    from_stamped_ms: float
    verdict: str
    misses: tuple[Miss, ...]


def background(runs: Sequence[Known]) -> Ms:
    """What a step of these runs takes beside its sleeps, ms [5]: the same on all ranks, as the median rank has it.

    Wait is what differs between ranks, so nothing of it is background; and none is negative: a sleep that shows up
    under another name than its own is no background.
    """
    beside = np.mean([known.stamped.per_rank - known.slept.per_rank for known in runs], axis=0)
    return np.where(np.array(TERMS) == "wait", 0.0, np.maximum(0.0, np.median(beside, axis=0)))


def compare(ledger: Ledger, runs: Sequence[Known], expected: Expected, *, measured: bool) -> Comparison:
    """The point's ledger against its runs; `measured`: against the sleeps too, not the exact stamps alone."""
    names = tuple(term.name for term in ledger.terms)
    misses = list(_wrong_names(names, expected))
    if misses:
        none = np.full(len(names), np.nan)
        return Comparison(
            names=names, means=none, slept=none, beside=none, from_slept_ms=np.nan, from_stamped_ms=np.nan,
            verdict=describe(ledger.verdict), misses=tuple(misses),
        )  # fmt: skip
    means = np.vstack([[place.terms for place in ledger.ranks], [[term.mean.value for term in ledger.terms]]])
    exact = _with_mean(_merged(np.mean([known.stamped.per_rank for known in runs], axis=0), names))
    slept = _with_mean(_merged(np.mean([known.slept.per_rank for known in runs], axis=0), names))
    beside = _merged(background(runs), names)
    truth = slept + beside
    bound_ms = max(known.open_ms for known in runs) + ROUNDING_MS
    from_stamped, from_slept = np.abs(means - exact), np.abs(means - truth)
    wrong = from_stamped > bound_ms
    missed = wrong | (measured & (from_slept > np.maximum(ALLOWED_MS, ALLOWED * truth)))
    for rank, term in np.argwhere(missed):
        who = "mean" if rank == len(means) - 1 else f"rank {rank}"
        misses.append(
            Miss(
                text=f"{who} {names[term]}: ledger {means[rank, term]:.3f}, sleeps {slept[rank, term]:.3f} and "
                f"{beside[term]:.3f} beside them, exact stamps {exact[rank, term]:.3f} ms, clocks leave "
                f"{bound_ms * 1e3:.1f} µs open{_where(runs, rank, names[term])}",
                machine=not wrong[rank, term],
            )
        )
    if abs(ledger.step.value - exact[-1].sum()) > bound_ms:
        misses.append(Miss(text=f"mean step: ledger {ledger.step.value:.4f}, exact stamps {exact[-1].sum():.4f} ms"))
    misses += [Miss(text=f"claims an error of the measurement: {problem}") for problem in ledger_problems(ledger)]
    misses += _verdicts(ledger, runs, expected, measured=measured)
    return Comparison(
        names=names, means=means[-1], slept=slept[-1], beside=beside, from_slept_ms=float(from_slept.max()),
        from_stamped_ms=float(from_stamped.max()), verdict=describe(ledger.verdict), misses=tuple(misses),
    )  # fmt: skip


def compare_loss(ledger: Ledger, runs: Sequence[Known], baseline: Sequence[Known]) -> Iterator[Miss]:
    """The losses of a point against those of the exact stamps."""
    names = tuple(term.name for term in ledger.terms)
    of_runs, of_baseline = (
        _merged(np.mean([known.stamped.terms.mean(axis=(0, 1)) for known in some], axis=0), names)
        for some in (runs, baseline)
    )
    bound_ms = max(known.open_ms for known in runs) + ROUNDING_MS
    for term, exact in zip(ledger.terms, of_runs - of_baseline, strict=True):
        if term.loss is None:
            yield Miss(text=f"loss in {term.name}: none is given ({no_loss_text(ledger)}); exact stamps {exact:.3f} ms")
        elif abs(term.loss.value - exact) > bound_ms:
            yield Miss(text=f"loss in {term.name}: ledger {term.loss.value:.4f}, exact stamps {exact:.4f} ms")


def _verdicts(ledger: Ledger, runs: Sequence[Known], expected: Expected, *, measured: bool) -> Iterator[Miss]:
    """That of the point and, where it has several, that of each run: what a run has met, the point has met."""
    all_machine = False
    if len(runs) > 1:
        of_runs = {known.run_id: known for known in runs}
        of_each_run = [
            Miss(text=f"{run.run_id}: {miss.text}", machine=miss.machine)
            for run in ledger.runs
            for miss in held_against(run.verdict, [of_runs[run.run_id]], expected, measured=measured)
        ]
        yield from of_each_run
        all_machine = bool(of_each_run) and all(miss.machine for miss in of_each_run)
    for miss in held_against(ledger.verdict, runs, expected, measured=measured):
        yield Miss(text=miss.text, machine=miss.machine or all_machine)


def _wrong_names(names: tuple[str, ...], expected: Expected) -> Iterator[Miss]:
    if (merged := names != TERMS) != expected.merged:
        should = "not be merged" if merged else "be merged, because ranks meet before their gradients are complete"
        yield Miss(text=f"terms {', '.join(names)} should {should}")
    elif unknown := [name for name in names if name not in MERGED]:
        yield Miss(text=f"terms {', '.join(unknown)} are unknown")


def _merged(terms: Ms, names: tuple[str, ...]) -> Ms:
    """The five terms, [..., 5], added up as these names say: [..., name]."""
    columns = [[TERMS.index(term) for term in MERGED[name]] for name in names]
    return np.stack([terms[..., of].sum(axis=-1) for of in columns], axis=-1)


def _with_mean(per_rank: Ms) -> Ms:
    return np.vstack([per_rank, per_rank.mean(axis=0)])


def _where(runs: Sequence[Known], rank: int, name: str) -> str:
    """How what lies beside the sleeps is spread over the steps: nearly all in a few, or in every one of them."""
    rows = slice(None) if rank == len(runs[0].stamped.terms) else slice(rank, rank + 1)
    differences = [_merged(known.stamped.terms - known.slept.terms, (name,))[rows, :, 0] for known in runs]
    beside = np.concatenate(differences).mean(axis=0)
    order = np.argsort(-np.abs(beside))[:3]
    largest = ", ".join(f"{runs[0].steps[at]}: {beside[at]:.1f}" for at in sorted(order))
    return f"; beside the sleeps in a step: median {np.median(beside):.3f} ms, most in {largest}"
