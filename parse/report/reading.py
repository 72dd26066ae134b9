"""From paths to a summary with its ledgers: what every command that judges results reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.trace import TraceError
from parse.alarms.table import judge
from parse.faults import fault
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import Result, against_base, results

if TYPE_CHECKING:
    from parse.runs.load_logs import HowToRead, Progress
    from parse.tables.columns import Columns


def read_documents(paths: Sequence[Path], base: str = "", columns: Columns | None = None) -> Summary:
    """The judged results of documents with tables of those columns. Raises BaseError as `against_base`."""
    from parse.tables.points import published

    printed = published(paths, columns)
    return Summary(
        results=judge(against_base(printed.results, base)), remarks=printed.remarks, refusals=printed.refusals
    )


def read_summary(
    paths: Sequence[Path],
    kind: str = "auto",
    how: HowToRead | None = None,
    *,
    documents: Sequence[Path] = (),
    columns: Columns | None = None,
    base: str = "",
    verbose: bool = False,
    progress: Progress[Path] | None = None,
) -> tuple[Summary, int]:
    """The judged results of traces and logs, and of `documents` with tables of those columns beside them; and the
    number of logs among the files.

    `kind`, `how` and `verbose` are those of `load`, `base` is the case that speedups are measured against.
    Never raises because of a file's content, and BaseError where no point has that case.
    """
    loaded = load(paths, progress, kind, how, verbose=verbose)
    printed = Summary(results=())
    if documents:
        from parse.tables.points import published

        read = published(documents, columns)
        printed = Summary(results=read.results, remarks=read.remarks, refusals=read.refusals)
    judged = judge(against_base((*results(loaded), *printed.results), base))
    summary = Summary(
        results=tuple(result for result in judged if not result.run.diagnostic),
        diagnostics=tuple(result for result in judged if result.run.diagnostic),
        reduced=loaded.reduced,
        remarks=(*loaded.remarks, *printed.remarks),
        refusals=(*loaded.refusals, *printed.refusals),
        benchmarks=loaded.benchmarks,
    )
    return summary, loaded.logs


def read_ledgers(
    summary: Summary, chosen: Sequence[Result], *, what_if: bool = False, progress: Progress[Result] | None = None
) -> Summary:
    """The summary of the chosen points with their ledgers; their bases are read with them. With `what_if`, what changes
    would be worth."""
    from parse.ledger.point import ledgers
    from parse.ledger.whole_time import whole_times
    from parse.logs.benchmarks import NO_BENCHMARKS

    points = {result.requested.point for result in chosen}
    read = points | {result.base.point for result in chosen if result.base}
    of = [result for result in summary.results if result.requested.point in read]
    faults: list[str] = []
    every = ledgers(of, summary.diagnostics, progress, summary.benchmarks or NO_BENCHMARKS, faults)
    made = tuple(ledger for ledger in every if ledger.result.requested.point in points)
    times = whole_times(chosen, summary.everything, faults)
    summary = replace(summary, results=tuple(chosen), ledgers=made, times=times, refusals=(*summary.refusals, *faults))
    return add_what_ifs(summary, chosen) if what_if else summary


def add_what_ifs(summary: Summary, chosen: Sequence[Result]) -> Summary:
    """The summary whose ledgers of the chosen points have what changes would be worth: traces are read once more."""
    from parse.ledger.what_if import with_what_ifs

    made, faults = [], []
    for ledger in summary.ledgers or ():
        try:
            made.append(with_what_ifs(ledger) if any(ledger.result is each for each in chosen) else ledger)
        except TraceError:
            raise
        except Exception as error:  # noqa: BLE001 - the line says which
            made.append(ledger)
            faults.append(fault(error, f"what changes would be worth at {ledger.result.requested.run_id}"))
    return replace(summary, ledgers=tuple(made), refusals=(*summary.refusals, *faults))
