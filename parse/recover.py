"""`python -m parse.recover TRACES`: makes traces of what dead ranks left, so that nobody forgets how far they came.

Folders `<stem>.partial` hold the journals of an attempt's ranks (hpc.journal); each becomes `<stem>.h5` and goes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpc.journal import PARTIAL, JournalError, RankJournal, read_journals
from hpc.outcome import RANK_NOTE, Outcome, RankNote, RecordError, read_rank_note
from hpc.stamps import ABSENT, STAMPS
from hpc.trace import Trace, TraceError, run_of
from hpc.trace_file import write_trace


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m parse.recover`; ends with 1 where a folder could not be made a trace."""
    parser = argparse.ArgumentParser(prog="python -m parse.recover", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", type=Path, metavar="TRACES", help="folder of the traces and records")
    parser.add_argument("--stem", help="only this attempt, <run_id>.<attempt>")
    asked = parser.parse_args(argv)
    wanted = f"{asked.stem}{PARTIAL}" if asked.stem else f"*{PARTIAL}"
    if not asked.traces.is_dir():
        print(f"{asked.traces}: no such folder", file=sys.stderr)
        return 1
    partials = [path for path in sorted(asked.traces.iterdir()) if path.is_dir() and path.match(wanted)]
    failed = False
    for partial in partials:
        try:
            print(recover(partial))
        except (JournalError, TraceError, RecordError) as error:
            print(error, file=sys.stderr)
            failed = True
    if not partials:
        print(f"{asked.traces}: nothing to recover")
    return int(failed)


def recover(partial: Path) -> str:
    """Writes the trace of a `.partial` folder beside it, then removes the folder; says what was found.

    Where no rank completed a step there is nothing to tell and no trace is written. Raises JournalError, TraceError
    or RecordError, and leaves the folder, where what is in it cannot be read or a trace is there already.
    """
    stem = partial.name.removesuffix(PARTIAL)
    journals = [journal for journal in read_journals(partial) if "run" in journal.facts]  # others died before training
    completed = [journal.steps_completed for journal in journals]
    if not any(completed):
        shutil.rmtree(partial)
        return f"{stem}: no rank completed a step, so there is no trace"
    trace = trace_of(journals, _notes(partial.parent, stem), partial)
    write_trace(partial.parent / f"{stem}.h5", trace)
    shutil.rmtree(partial)
    return f"{stem}: {trace.outcome}, {trace.evidence}"


def trace_of(journals: Sequence[RankJournal], notes: Sequence[RankNote], partial: Path) -> Trace:
    """The trace of an attempt that failed. A rank that left no journal is one that completed no step.

    Raises JournalError where the journals are not of one attempt.
    """
    first = journals[0].facts
    if any(
        journal.facts["run"] != first["run"] or journal.facts["attempt"] != first["attempt"] for journal in journals
    ):
        raise JournalError(f"{partial}: journals of different attempts")
    run, extra = run_of(first["run"])
    found = {int(journal.facts["rank"]): journal for journal in journals}
    stamps = np.full((run.ranks, run.steps, len(STAMPS)), ABSENT, np.int64)
    samples = np.zeros((run.ranks, run.steps), np.int32)
    steps_completed = np.zeros(run.ranks, np.int64)
    for rank, journal in found.items():
        done = steps_completed[rank] = journal.steps_completed
        stamps[rank] = np.array(journal.stamps, np.int64).reshape(run.steps, len(STAMPS))
        stamps[rank, done:] = ABSENT
        samples[rank, :done] = journal.samples[:done]
    cause = min(notes, key=lambda note: note.step, default=None)
    return Trace(
        run=run,
        run_extra=extra,
        run_id=str(first["run"].get("run_id", "")),
        point_id=str(first["run"].get("point_id", "")),
        attempt=int(first["attempt"]),
        outcome=Outcome.RANK_FAIL if cause is None else cause.outcome,
        evidence=_evidence(steps_completed, found, cause),
        recovered=True,
        stamps=stamps,
        samples=samples,
        losses=np.full((run.ranks, run.steps), np.nan),
        steps_completed=steps_completed,
        blocks=np.array(run.blocks, np.int64),
        ranks=[found[rank].facts["facts"] if rank in found else {"rank": rank} for rank in range(run.ranks)],
        environment={},
        **_clocks(found, run.ranks),
    )


def _clocks(found: Mapping[int, RankJournal], ranks: int) -> dict[str, Any]:
    """The synchronisation points that all ranks have; a rank without a journal has no stamps, so any points will do."""
    clocks = {rank: journal.facts["clock"] for rank, journal in found.items()}
    stand_in = {**next(iter(clocks.values())), "domain": "unknown"}
    everyone = [clocks.get(rank, stand_in) for rank in range(ranks)]
    points = min(len(clock["points"]) for clock in everyone)
    exits = min(len(clock["barrier_exits_ns"]) for clock in everyone)
    columns = [[point[:points] for point in zip(*clock["points"], strict=True)] or [()] * 3 for clock in everyone]
    return {
        "clock_local_ns": np.array([local for local, _, _ in columns], np.int64).reshape(ranks, points),
        "clock_offset_ns": np.array([offset for _, offset, _ in columns], np.float64).reshape(ranks, points),
        "clock_bound_ns": np.array([bound for _, _, bound in columns], np.float64).reshape(ranks, points),
        "clock_domains": [str(clock["domain"]) for clock in everyone],
        "barrier_exits_ns": np.array([clock["barrier_exits_ns"][:exits] for clock in everyone], np.int64),
    }


def _evidence(steps_completed: Any, found: Mapping[int, RankJournal], cause: RankNote | None) -> str:
    steps = f"{steps_completed.min()} to {steps_completed.max()}"
    text = f"ranks completed {steps} of {next(iter(found.values())).facts['steps']} steps"
    if missing := len(steps_completed) - len(found):
        text += f"; {missing} ranks left nothing"
    if cause is not None:
        text += f"; rank {cause.rank} on {cause.hostname} after step {cause.step}: {cause.exception}: {cause.message}"
    return text


def _notes(traces: Path, stem: str) -> list[RankNote]:
    named = [(RANK_NOTE.fullmatch(path.name), path) for path in sorted(traces.glob("*.json"))]
    return [read_rank_note(path) for match, path in named if match and f"{match['run_id']}.{match['attempt']}" == stem]


if __name__ == "__main__":
    sys.exit(main())
