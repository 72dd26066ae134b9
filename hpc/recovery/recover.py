"""Makes traces of the journals of ranks that could not write one themselves.

    rankwise sweep recover FOLDER
    rankwise sweep recover FOLDER --stem 2n8g_torch-ddp_….1

Folders <stem>.partial in a sweep's traces hold the stamps of an attempt's ranks, collected or as last copied; each
becomes <stem>.h5 and goes. Files that killed writers left half-written go, too. The job script and the sweep do this
themselves; by hand it is for what they did not live to do. An attempt that may still run is left alone, unless --stem
names it. docs/outcomes.md has the whole way.

Exit status 0: all that was there is a trace now, or was left alone, with a line each; 1: a trace could not be made, or
there is no such folder; 2: usage.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.files import (
    AttemptFiles,
    aside_of,
    name_of_removed,
    remove_stale_parts,
    set_aside,
)
from hpc.model.outcome import Outcome, RecordError, read_own_record, read_rank_notes
from hpc.model.spec import SCRIPT_STEPS, RunSpec, script_blocks
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Trace, TraceError, run_of
from hpc.model.trace_file import read_trace, write_trace
from hpc.model.verdict import cause
from hpc.recovery.collect import copied_of_running
from hpc.recovery.folders import BEAT, PARTIAL, JournalError
from hpc.recovery.journal import RankJournal, name_ranks, read_journals
from hpc.recovery.stacks import merge
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.text import grouped
from hpc.system.version import with_version

_GROUPS = 6
_OF_ATTEMPT = re.compile(rf".+\.\d+{re.escape(PARTIAL)}")
_ARTIFACT = re.compile(rf"\.?rank\d+\..+|.+{re.escape(BEAT)}|\.nfs.+")
"""Names of the files in such a folder: of ranks, also unfinished ones; beats; files that NFS keeps when removed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `rankwise sweep recover`; ends with 1 where a folder could not be made a trace."""
    arguments = make_parser().parse_args(argv)
    deny_world_writing()
    try:
        partials = _partials(arguments.folder, arguments.stem)
    except OSError as error:
        print(plain(f"{arguments.folder}: cannot be read: {error.strerror}"), file=sys.stderr)
        return 1
    failed = False
    for partial in partials:
        line, ok = _recovered(partial, "" if arguments.stem else _left_alone(partial))
        print(plain(line), file=sys.stdout if ok else sys.stderr)
        failed = failed or not ok
    stale, problem = _without_stale_parts(_traces(arguments.folder), arguments.stem)
    for line in stale:
        print(plain(line))
    if problem:
        print(plain(problem), file=sys.stderr)
    if not partials and not stale:
        print(plain(f"{arguments.folder}: nothing to recover"))
    return int(failed or bool(problem))


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(
        "rankwise sweep recover", usage="rankwise sweep recover FOLDER [options]", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a sweep's folder, or its traces/")
    parser.add_argument("--stem", help="only this attempt, <run id>.<attempt>, even where it may still run")
    return with_version(parser)


def _left_alone(partial: Path) -> str:
    """A line about an attempt that may still run; empty for others."""
    copied, stem = copied_of_running(partial), partial.name.removesuffix(PARTIAL)
    return f"{stem}: left alone, it may still run: {copied} (--stem {stem} recovers it anyhow)" if copied else ""


def tidy(traces: Path) -> list[str]:
    """Removes what is beside whole traces or was left half-written by dead processes; returns a line for each.

    What cannot be removed has a line, too. Attempts without a trace are left to `recover`.
    """
    lines = [
        _recovered(partial)[0]
        for partial in _partials(traces, None)
        if partial.with_name(f"{partial.name.removesuffix(PARTIAL)}.h5").exists() and not copied_of_running(partial)
    ]
    stale, problem = _without_stale_parts(traces)
    return [*lines, *stale, *([problem] if problem else [])]


def _recovered(partial: Path, left_alone: str = "") -> tuple[str, bool]:
    """The result of `recover`, or `left_alone`, as a line; False where it failed."""
    try:
        return left_alone or recover(partial), True
    except (JournalError, TraceError, RecordError, OSError) as error:
        return str(error), False


def _without_stale_parts(traces: Path, stem: str | None = None) -> tuple[list[str], str]:
    """A line for each part that was removed, and the error, if any."""
    try:
        return [f"{name}: removed; its writer was killed" for name in remove_stale_parts(traces, stem)], ""
    except OSError as error:
        return [], str(error)


def _partials(folder: Path, stem: str | None) -> list[Path]:
    """The `.partial` folders of a sweep's folder or of its traces: of all attempts, or of one."""
    traces = _traces(folder)
    pattern = re.compile(re.escape(f"{stem}{PARTIAL}")) if stem else _OF_ATTEMPT
    return [path for path in sorted(traces.iterdir()) if pattern.fullmatch(path.name) and path.is_dir()]


def _traces(folder: Path) -> Path:
    return folder / "traces" if (folder / "traces").is_dir() else folder


def recover(partial: Path) -> str:
    """Writes the trace of a `.partial` folder beside it, removes the folder, and returns a line about it.

    No trace is written where no rank completed a step, or where there is a whole one. Job script and sweep may do this
    at once. Raises JournalError, TraceError or RecordError, and leaves the folder, where its content cannot be read or
    is not of ranks.
    """
    try:
        return _recover(partial)
    except (OSError, JournalError, TraceError):
        if partial.exists():
            raise
        return f"{partial.name.removesuffix(PARTIAL)}: another process has recovered it just now"


def _recover(partial: Path) -> str:
    stem = partial.name.removesuffix(PARTIAL)
    if unknown := sorted(
        path.name for path in partial.iterdir() if not _ARTIFACT.fullmatch(path.name) or path.is_dir()
    ):
        raise JournalError(f"{partial}: left alone, {unknown[0]} in it is nothing that ranks leave: move it away first")
    path = partial.with_name(f"{stem}.h5")
    broken: list[str] = []
    try:
        merge(partial)
    except OSError as error:
        broken.append(f"its ranks' stacks cannot be brought together ({error})")
    readable = read_journals(partial, broken)
    # A rank that died before training notes no run, and has no step.
    begun = [journal for journal in readable if "run" in journal.facts or journal.steps_completed]
    journals = _of_same_run(begun, partial, broken)
    if path.exists():
        _check_whole(path, journals)
        aside = _remove(partial, keep=bool(broken) and read_trace(path).recovered)
        return f"{stem}: its trace is whole; journals beside it: {aside or 'removed'}"
    if not any(journal.steps_completed for journal in journals):
        if broken:
            raise JournalError("; ".join(broken))
        _remove(partial)
        return f"{stem}: no rank completed a step, so there is no trace"
    damaged = [each.replace(str(partial), str(aside_of(partial))) for each in broken]  # where it is then
    trace = trace_of(journals, _known_outcome(partial.parent, stem), damaged)
    write_trace(path, trace)
    aside = _remove(partial, keep=bool(broken))
    return "; ".join(filter(None, (f"{stem}: {trace.outcome}, {trace.evidence}", aside)))


def _remove(partial: Path, *, keep: bool = False) -> str:
    """Removes the folder, after a rename since a helper may still write to it, and unfinished parts of the trace.

    With `keep` the folder is only renamed, and a text with its name is returned.
    """
    for begun in partial.parent.glob(f".{escape(partial.name.removesuffix(PARTIAL))}.h5.*.part"):
        begun.unlink(missing_ok=True)
    if keep:
        return f"kept as {set_aside(partial).name}"
    aside = name_of_removed(partial)
    partial.rename(aside)
    try:
        shutil.rmtree(aside)
    except OSError as error:
        print(f"{plain(str(aside))}: cannot be removed, remove it by hand ({error})", file=sys.stderr)
    return ""


def _of_same_run(journals: Sequence[RankJournal], partial: Path, broken: list[str]) -> list[RankJournal]:
    """The journals that describe the attempt of the folder's name, and the same run as most others.

    The reason for each excluded journal is added to `broken`. Raises JournalError where as many ranks describe one run
    as another.
    """
    described: dict[str, list[RankJournal]] = {}
    for journal in journals:
        try:
            described.setdefault(_described(journal, partial.name.removesuffix(PARTIAL)), []).append(journal)
        except (TraceError, JournalError) as error:
            broken.append(f"{partial / 'rank'}{journal.facts['rank']}.json: {error}")
    by_size = sorted(described.values(), key=len, reverse=True)
    if len(by_size) > 1 and len(by_size[0]) == len(by_size[1]):
        raise JournalError(f"{partial}: its journals describe different runs, and as many ranks one as the other")
    for others in by_size[1:]:
        broken += [f"{partial / 'rank'}{each.facts['rank']}.json: describes another run than most" for each in others]
    return by_size[0] if by_size else []


def _described(journal: RankJournal, stem: str) -> str:
    """The run that a journal's header describes, as text. Raises TraceError or JournalError where it is impossible."""
    facts = journal.facts
    if not isinstance(facts.get("run"), dict):
        raise JournalError("describes no run")
    run, _ = run_of(facts["run"])
    if f"{facts['run'].get('run_id')}.{facts.get('attempt')}" != stem:
        raise JournalError(f"describes {facts['run'].get('run_id')!r:.99}, attempt {facts.get('attempt')!r:.20}")
    if facts["steps"] != run.steps or not facts["rank"] < run.ranks:
        raise JournalError(f"rank {facts['rank']} with {facts['steps']} steps is not of {run.ranks} with {run.steps}")
    try:
        clock = facts["clock"]
        points = [(int(local), float(offset), float(bound)) for local, offset, bound in clock["points"]]
        exits = [int(moment) for moment in clock["barrier_exits_ns"]]
        whole = isinstance(facts["facts"], dict) and isinstance(clock["domain"], str)
        unix = [(int(offset), int(bound)) for offset, bound in clock["unix_offsets_ns"]]
        whole &= len(unix) == len(points)
        np.array([*(local for local, _, _ in points), *exits, *(value for pair in unix for value in pair)], np.int64)
    except (KeyError, TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise JournalError("its facts or its clock are damaged")
    return json.dumps([facts["run"], facts["attempt"]], sort_keys=True)


def _check_whole(path: Path, journals: Sequence[RankJournal]) -> None:
    """Raises TraceError where the trace cannot be read, or was recovered before ranks' last steps came."""
    try:
        trace = read_trace(path)
    except TraceError as error:
        raise TraceError(f"{error}; move it away, and recover again: stamps of its ranks are there") from None
    if trace.recovered and any(
        journal.steps_completed > trace.steps_completed[int(journal.facts["rank"])] for journal in journals
    ):
        raise TraceError(f"{path}: recovered before more of it came; move it away, and recover again")


def recent_trace(partial: Path, journals: Sequence[RankJournal]) -> Trace:
    """The trace of the steps that a running attempt made lately, from the journals of all its ranks (`read_window`): it
    has these steps alone, counted from 0. Raises JournalError where a rank's is missing, or tells of no run yet."""
    broken: list[str] = []
    its = _of_same_run(journals, partial, broken)
    if broken:
        raise JournalError(broken[0])
    if not its:
        raise JournalError(f"{partial}: no rank's journal is here")
    if missing := sorted({*range(run_of(its[0].facts["run"])[0].ranks)} - {int(each.facts["rank"]) for each in its}):
        raise JournalError(f"{partial}: nothing is here of {name_ranks(missing)}")
    return trace_of(its, (Outcome.OK, ""), steps=len(its[0].samples))


def trace_of(
    journals: Sequence[RankJournal], known: tuple[Outcome | None, str], broken: Sequence[str] = (), *,
    steps: int | None = None,
) -> Trace:  # fmt: skip
    """The trace of an attempt that failed. A rank without a journal counts as one that completed no step.

    `known` is the recorded outcome, if any, and its reason; `broken` names journals that could not be read. Without a
    recorded outcome it is `rank_fail` if all journals were collected from living nodes, else `lost`. `steps` are those
    of journals that have a part of the steps.
    """
    first = journals[0].facts
    run, extra = run_of(first["run"])
    by_rank = {int(journal.facts["rank"]): journal for journal in journals}
    if steps is None:  # a run has as many as were requested of it; a script as many as it made
        steps = run.steps if not run.is_script else max(journal.steps_completed for journal in journals)
    stamps = np.full((run.ranks, steps, len(STAMPS)), ABSENT, np.int64)
    samples = np.zeros((run.ranks, steps), np.int32)
    steps_completed = np.zeros(run.ranks, np.int64)
    for rank, journal in by_rank.items():
        done = steps_completed[rank] = journal.steps_completed
        stamps[rank, :done] = np.array(journal.stamps[: done * len(STAMPS)], np.int64).reshape(done, len(STAMPS))
        samples[rank, :done] = journal.samples[:done]
    outcome, reason = known
    return Trace(
        run=run,
        run_extra=extra,
        run_id=str(first["run"].get("run_id", "")),
        point_id=str(first["run"].get("point_id", "")),
        attempt=int(first["attempt"]),
        outcome=outcome or (Outcome.RANK_FAIL if all(journal.whole for journal in journals) else Outcome.LOST),
        evidence="; ".join(filter(None, (_progress_text(run, by_rank), reason, *broken))),
        recovered=True,
        stamps=stamps,
        samples=samples,
        losses=np.full((run.ranks, steps), np.nan),
        steps_completed=steps_completed,
        blocks=np.array(_blocks(run, steps, journals), np.int64).reshape(-1, 2),
        ranks=[by_rank[rank].facts["facts"] if rank in by_rank else {"rank": rank} for rank in range(run.ranks)],
        environment={},
        **_clocks(by_rank, run.ranks),
    )


def _blocks(run: RunSpec, steps: int, journals: Sequence[RankJournal]) -> list[list[int]]:
    """The measured blocks of so many steps, counted from the first one of the journals."""
    begin = journals[0].first
    blocks = run.blocks
    if run.is_script:
        facts = [journal.facts["facts"].get("script") for journal in journals]
        pauses = [pause for of_rank in facts if isinstance(of_rank, dict) for pause in of_rank.get("pauses", ())]
        blocks = script_blocks(run.warmup_steps, begin + steps, {int(pause["step"]) for pause in pauses})
    within = [[max(first - begin, 1), min(stop - begin, steps)] for first, stop in blocks]
    return [[first, stop] for first, stop in within if first < stop]


def _clocks(by_rank: Mapping[int, RankJournal], ranks: int) -> dict[str, Any]:
    """The synchronisation points that all ranks have. A rank without a journal has no stamps; it gets any points."""
    clocks = {rank: journal.facts["clock"] for rank, journal in by_rank.items()}
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
        **_unix_offsets(everyone, points),
    }


def _unix_offsets(clocks: Sequence[Mapping[str, Any]], points: int) -> dict[str, Any]:
    """Those of as many synchronisation points."""
    pairs = np.array([clock["unix_offsets_ns"][:points] for clock in clocks], np.int64).reshape(len(clocks), points, 2)
    return {"unix_offset_ns": pairs[:, :, 0].copy(), "unix_bound_ns": pairs[:, :, 1].copy()}


def _progress_text(run: RunSpec, by_rank: Mapping[int, RankJournal]) -> str:
    """The completed steps of the ranks, the ranks without a journal, and the ranks with only a copy."""
    groups = grouped((by_rank[rank].steps_completed if rank in by_rank else 0, rank) for rank in range(run.ranks))
    planned = "" if run.is_script and run.steps == SCRIPT_STEPS else f" of {run.steps}"
    text = f"recovered: ranks completed {min(groups)} to {max(groups)}{planned} steps"
    if 1 < len(groups) <= _GROUPS:
        text += f" ({'; '.join(f'{steps}: {name_ranks(ranks)}' for steps, ranks in sorted(groups.items()))})"
    if missing := [rank for rank in range(run.ranks) if rank not in by_rank]:
        text += f"; nothing is left of {name_ranks(missing)}"
    if copies := [rank for rank, journal in sorted(by_rank.items()) if not journal.whole]:
        text += f"; of {name_ranks(copies)} there is what was copied last, later steps, if any, are lost"
    return text


def _known_outcome(traces: Path, stem: str) -> tuple[Outcome | None, str]:
    """The outcome of the attempt, from its exit record, else from the note that names the cause; and a text with that
    note and the errors of unreadable records."""
    files, unread = AttemptFiles.of_stem(traces, stem), list[RecordError]()
    first = cause(read_rank_notes(files, unread))
    sentences = [str(error) for error in unread]
    if first is not None:
        sentences.insert(0, f"{first.origin}: {first.message}")
    outcome = None if first is None else first.outcome
    record = files.exit_record
    if record.exists():
        try:
            outcome = read_own_record(record).outcome
        except RecordError as error:
            sentences.append(str(error))
    return outcome, "; ".join(sentences)
