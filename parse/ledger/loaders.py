"""What a script's loaders took of its steps: of the time before the forward, and in later fetches of the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpc.model.options import AFTER_UPDATE, LATER_FETCHES, LOADER
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Ints, Trace
from hpc.model.trace_file import open_trace
from parse import stats
from parse.ledger.arrivals import StepSkews
from parse.ledger.types import Ledger
from parse.ledger.verdict import Straggler
from parse.term_kinds import BORDERS, CAUSES, COMPUTE, DATA, OPTIMIZER, TERMS

_DATA, _COMPUTE = CAUSES.index(DATA.cause), CAUSES.index(COMPUTE.cause)


def has_figure(trace: Trace, name: str = LOADER) -> bool:
    """Whether this figure of LOADER_FIGURES is recorded of every measured step: else what the script's loaders took of
    the time before its forward."""
    if trace.input is None or name not in trace.input_names:
        return False
    at = list(trace.input_names).index(name)
    return all(
        (np.asarray(trace.input[:, first:stop])[..., at] != ABSENT).all() for first, stop in trace.blocks.tolist()
    )


def loaders_ns(trace: Trace, first: int, stop: int) -> Ints:
    """That of steps `first` to `stop` − 1, ns [rank, step]; 0 where it is not recorded."""
    return _figure(trace, LOADER, first, stop)


def later_fetches_ns(trace: Trace, first: int, stop: int) -> Ints:
    """What loaders took behind the first forward of these steps, ns [rank, step]: with accumulation, say. 0 where it is
    not recorded."""
    return _figure(trace, LATER_FETCHES, first, stop)


def _figure(trace: Trace, name: str, first: int, stop: int) -> Ints:
    if trace.input is None or name not in trace.input_names:
        return np.zeros((len(trace.stamps), stop - first), np.int64)
    figures: Ints = np.asarray(trace.input[:, first:stop], np.int64)[:, :, list(trace.input_names).index(name)]
    return np.where(figures == ABSENT, 0, figures)


def move_to_data(terms_ns: Ints, later_ns: Ints, borders: frozenset[str]) -> None:
    """Has the later fetches [rank, step] in the data of the five terms [rank, step, 5]; they still add up to the step.

    They are taken from compute, or where its end is not known from the term that has it. Where the end of data is not
    known that is one term with it.
    """
    if DATA.ends_at in borders and later_ns.any():
        first = TERMS.index(COMPUTE.name)
        compute = next((at for at, border in enumerate(BORDERS) if at >= first and border in borders), len(BORDERS))
        terms_ns[..., TERMS.index(DATA.name)] += later_ns
        terms_ns[..., compute] -= later_ns


def with_later_data(skews: StepSkews, later_ns: Ints) -> StepSkews:
    """What made ranks late, with later fetches [rank, step] in data and not in compute.

    Where ranks meet several times in a step, at which of the meetings a fetch made a rank late is not recorded: what
    its fetches took beyond the median rank's counts as far as it is late by its compute.
    """
    if not later_ns.any():
        return skews
    beyond = later_ns - np.median(later_ns, axis=0).astype(np.int64)

    def parts(ranks: Ints | slice, steps: Ints | slice) -> Sequence[Ints]:
        its = list(skews.parts(ranks, steps))
        moved = later_ns[ranks, steps]
        if skews.several:
            moved = np.clip(beyond[ranks, steps], 0, np.maximum(its[_COMPUTE], 0))
        its[_DATA], its[_COMPUTE] = its[_DATA] + moved, its[_COMPUTE] - moved
        return its

    return replace(skews, parts=parts)


# What of a straggler's data its loaders took, and what of its update came after the optimizer's call: the rest is the
# script's own code.


def with_script(ledger: Ledger, straggler: Straggler) -> Straggler:
    """A straggler of a script with that; reads the traces again where its data or its update is late.

    Raises TraceError.
    """
    if ledger.result.run.backend != SCRIPT:
        return straggler
    loader = after = None
    if straggler.cause.get(DATA.cause, 0.0) > 0:
        loader = _longer_ms(ledger, straggler, LOADER, LATER_FETCHES)
    if straggler.cause.get(OPTIMIZER.cause, 0.0) > 0:
        after = _longer_ms(ledger, straggler, AFTER_UPDATE, before=1)
    return replace(straggler, loader=loader, after_update=after)


def _longer_ms(ledger: Ledger, verdict: Straggler, *names: str, before: int = 0) -> float | None:
    """By how much longer these figures together are in the cells of a verdict, or as many steps `before` them, than on
    the median of the other ranks; None where the first of them is not recorded of all steps."""
    by_id = {run.run_id: run for run in ledger.result.for_ledger}
    runs = [by_id[run.run_id] for run in ledger.runs if run.run_id in by_id]
    cells: list[float] = []
    for number, run in enumerate(runs):
        its_cells = [(ranks, steps) for ranks, steps in verdict.cells_of_run(number) if steps != ()]
        if run.trace is None or not its_cells:
            continue
        with open_trace(run.trace) as trace:
            if not has_figure(trace, names[0]):
                return None
            for first, stop in trace.blocks.tolist():
                taken = np.sum([_figure(trace, name, first, stop - before) for name in names], axis=0)
                for ranks, steps in its_cells:
                    at = range(first, stop) if steps is None else steps
                    its = [each - first - before for each in at if first + before <= each < stop]
                    others = np.median(np.delete(taken, ranks, axis=0), axis=0)
                    cells += (taken[list(ranks)] - others)[:, its].ravel().tolist()
    return stats.mean(cells) / 1e6 if cells else None
