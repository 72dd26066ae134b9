"""What became of every run, with the evidence; the files that were not read, and what the page leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpc.model.spec import FIND_MAX
from hpc.system.text import plural
from parse.page.types import Block, Listing, Paragraph, Section, Table
from parse.report.summary import Summary, labels
from parse.result import Result, Run

MAX_ROWS = 300
"""Runs in the table; those that did not end ok come first."""


def outcomes_section(summary: Summary) -> Section:
    """A count of the outcomes, a row per run, and what was not read."""
    rows = [(not run.measured, row) for result, name in _named(summary) for run, row in _rows(result, name)]
    blocks: list[Block] = []
    if rows:
        counts = Counter(row[2] for _, row in rows)
        listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        blocks.append(Paragraph(text=f"{plural(len(rows), 'run')}: {listed}."))
        ordered = [row for _, row in sorted(rows, key=lambda pair: not pair[0])]
        left_out = f"; {MAX_ROWS} of {len(ordered)} runs" if len(ordered) > MAX_ROWS else ""
        blocks.append(
            Table(
                id="runs-table", caption=f"Runs, those that did not end ok first{left_out}", label_columns=3,
                heads=(
                    ("point", ""), ("run", ""), ("outcome", ""), ("attempts", ""), ("speed", "per s"), ("evidence", ""),
                ),
                rows=ordered[:MAX_ROWS], marked=frozenset(range(min(MAX_ROWS, sum(bad for bad, _ in rows)))),
            )
        )  # fmt: skip
    else:
        blocks.append(Paragraph(text="No run is here."))
    if summary.refusals:
        blocks.append(Listing(title="Files that were not read", lines=summary.refusals, warnings=True))
    return Section(id="outcomes", title="What became of the runs", blocks=blocks)


def _named(summary: Summary) -> Iterator[tuple[Result, str]]:
    yield from zip(summary.results, labels(summary.results), strict=True)
    for result in summary.diagnostics:
        yield result, f"{result.requested.case} ({result.run.diagnostic})"


def _rows(result: Result, name: str) -> Iterator[tuple[Run, list[str]]]:
    for run in result.runs:
        if result.published and not result.ok:
            continue  # a document's figure, no run of anybody's here
        attempt = run.attempt
        evidence = "" if attempt is None else attempt.problem or attempt.evidence
        yield (
            run,
            [
                name,
                str(run.requested.run.repeat or "?"),
                run.outcome_text,
                str(run.attempts),
                f"{run.measured.throughput:.2f}" if run.measured else "-",
                evidence or _source(result, run) or "-",
            ],
        )


def _source(result: Result, run: Run) -> str:
    """The document or the log that its speed is from; empty where it is from a trace."""
    log = run.log
    if result.published is not None:
        return f"printed in {result.published.document.name}{f', of {log.path.name}' if log else ''}"
    return "" if log is None else f"{log.path.name}: {log.window}"


def left_out_section(summary: Summary) -> Section | None:
    """What was measured, and is in the summary of the terminal only; None if nothing is."""
    lines = []
    if any(result.run.epochs or result.run.target_accuracy for result in summary.results):
        lines.append("times to train, which python -m parse.summarize prints")
    if any(result.run.diagnostic == FIND_MAX for result in summary.diagnostics):
        lines.append("tries of find-max, which python -m parse.summarize prints")
    if summary.nccl_tests:
        lines.append("bandwidths of nccl-tests, which python -m parse.summarize prints")
    return Section(id="left-out", title="Not on this page", blocks=[Listing(title="", lines=lines)]) if lines else None
