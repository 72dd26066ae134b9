"""Moves the files of an attempt's ranks on this node to the traces, and records attempts whose job is not known."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hpc.model.evidence import close_attempt, describe, look_at_trace
from hpc.model.files import BEGIN, TRACE, AttemptFiles, FolderReplaced, host_path, server_time_s
from hpc.model.outcome import BeginRecord, RecordAway, RecordError, is_damaged, read_begin_record, read_rank_notes
from hpc.recovery.folders import (
    BEGUN,
    LIVES_S,
    OF_RANK,
    PART,
    PARTIAL,
    WHOLE,
    attempt_folders,
    attempts_here,
    copied_just_now,
    kept_traces,
    living_ranks,
    remove_dead,
    traces_folder,
)
from hpc.system.atomic import sync_folder, write_durable
from hpc.system.regular_file import open_regular, read_text


def collect(traces: Path, stem: str) -> int:
    """Moves the files of an attempt's ranks on this node to the traces; returns the number of ranks with time stamps.

    The files are time stamps and stacks, moved to a `.partial` folder, and a trace or a note that could not be written
    before. They replace copies, and rank 0's own trace one that was recovered. Nodes may do this at once, and so may
    simulated nodes that share one folder. Raises OSError if the traces cannot be written, FolderReplaced if they are
    not the folder that existed when the attempt began; files that were not moved stay in place.
    """
    moved = 0
    for folder in attempt_folders(traces, stem):
        target = traces_folder(folder, traces, stem)
        for path in sorted(folder.iterdir(), key=lambda path: (path.suffix != ".json", path.name)):  # small ones first
            if path.name.startswith(f"{stem}."):  # a trace, a note
                target.require()
                target_path = traces / path.name
                if not target_path.exists() or (path.suffix == ".h5" and _holds_more(path, target_path)):
                    _move([path], [target_path])
                elif path.suffix == ".json":
                    path.unlink()  # the note that was there first counts
            elif path.suffix in (".stamps", ".stacks") and OF_RANK.fullmatch(path.name):
                partial = target.make(f"{stem}{PARTIAL}")
                together = [path.with_suffix(".json"), path] if path.suffix == ".stamps" else [path]
                if _move(together, [partial / each.name for each in together]) and path.suffix == ".stamps":
                    (partial / f"{path.stem}{WHOLE}").touch()
                    moved += 1
        remove_dead(folder)
    _forget_places(AttemptFiles.of_stem(traces, stem).local_copies)
    _remove_outdated_notes(AttemptFiles.of_stem(traces, stem))
    return moved


def bring_home(traces: Path) -> list[str]:
    """Moves to the traces what attempts had to leave on this node that are recorded, or whose job is not known;
    returns a line for each."""
    lines = []
    for path in kept_traces(traces):
        stem = path.stem
        files = AttemptFiles.of_stem(traces, stem)
        if not files.exit_record.exists() and (not _begin_problem(files) or living_ranks(traces, stem)):
            continue  # its job may run still; who records its end collects it
        try:
            collect(traces, stem)
        except OSError as error:
            lines.append(f"{stem}: its trace stays at {host_path(path)}: {traces} cannot be written ({error})")
        else:
            what = "stays there: another one is in the traces" if path.exists() else "has been brought to the traces"
            lines.append(f"{stem}: its trace, kept at {host_path(path)}, {what}")
    return lines


def _unidentified_attempts(traces: Path, logs: Path, run_id: str | None) -> Iterator[tuple[BeginRecord, str, str]]:
    """The attempts without an exit record whose begin record is unreadable or gone, so that their job is not known: of
    a traces folder, or of one run in it, by anything that is there: records, copies, traces that a job script logged in
    `logs`, and files on this node. Raises OSError where the folder cannot be read.

    Each with its name and, as far as its files show it, when it began; what is wrong with its begin record; and the
    reason to believe that it still runs, empty without one.
    """
    names = [path.name for path in traces.iterdir()]
    stems = {name.removesuffix(kind) for kind in (BEGIN, PARTIAL) for name in names if name.endswith(kind)}
    stems |= {stem for name in names if (stem := name.removesuffix(TRACE)) != name and (logs / f"{stem}.err").exists()}
    for stem in sorted({*stems, *attempts_here(traces)}):
        try:
            files = AttemptFiles.of_stem(traces, stem)
        except ValueError:  # another's file
            continue
        if run_id not in (None, files.run_id) or (stem not in stems and not _is_of(traces, stem)):
            continue
        is_recorded = os.path.lexists(files.exit_record) and not is_damaged(files.exit_record)
        if is_recorded or not (problem := _begin_problem(files)):
            continue
        on_node = [folder / BEGUN for folder in attempt_folders(traces, stem)]
        known_s = [path.lstat().st_mtime for path in (files.begin_record, *on_node, files.partial, files.trace)
                   if os.path.lexists(path)]  # fmt: skip
        begun_s = known_s[0] if known_s else time.time()
        begin = BeginRecord(run_id=files.run_id, attempt=files.attempt, job_id="", begin_unix_s=int(begun_s))
        yield begin, problem, _why_it_may_run(files, begun_s)


def close_unidentified(
    traces: Path, logs: Path, *, recover: Callable[[str], object], say: Callable[[str], None], run_id: str | None = None
) -> bool:  # fmt: skip
    """Records the ends of these attempts, by what else they left; False where one of them may still run.

    `recover` is called with each stem first, and makes a trace of what its ranks left. `say` gets a line for each.
    """
    ended = True
    for begin, problem, may_run in _unidentified_attempts(traces, logs, run_id):
        stem = begin.stem
        if may_run:
            ended = False
            say(f"{stem}: left alone, {problem}, and it may still run: {may_run}")
            continue
        recover(stem)
        try:
            here = attempt_folders(traces, stem)
            record = close_attempt(begin, logs, traces, None, here, remark=problem)
        except OSError as error:
            say(f"{stem}: {problem}, and its exit record cannot be written ({error})")
        else:
            say(f"{stem}: {problem}; recorded now from what else it left: {describe(record)}")
    return ended


def _is_of(traces: Path, stem: str) -> bool:
    """Whether the attempt's files on this node are of this very folder, not of another that was at its path before."""
    try:
        for folder in attempt_folders(traces, stem):
            traces_folder(folder, traces, stem).require()
    except FolderReplaced:
        return False
    return True


def _begin_problem(files: AttemptFiles) -> str:
    """Why the attempt's begin record does not tell its job; empty where it does, or may do so later."""
    path = files.begin_record
    try:
        begin = read_begin_record(path)
    except RecordAway:
        return ""
    except RecordError as error:
        return str(error) if os.path.lexists(path) else f"{path} is gone"
    return "" if begin.stem == files.stem else f"{path}: holds the record of {begin.stem}"


def _why_it_may_run(files: AttemptFiles, begun_s: float) -> str:
    if living_ranks(files.traces, files.stem):
        return f"ranks of it are alive on {socket.gethostname()}"
    if look_at_trace(files.trace).whole:
        return ""
    if files.partial.is_dir():
        return copied_of_running(files.partial)
    age_s = server_time_s(files.traces) - begun_s
    if attempt_folders(files.traces, files.stem) or age_s > LIVES_S:
        return ""
    return f"it began {max(0.0, age_s):.0f} s ago"


def copied_of_running(partial: Path) -> str:
    """The age of copies that were renewed just now, as text: the attempt may still run. Empty if it has ended, or has
    no such copies."""
    copies = [path for path in partial.glob("rank*.stamps") if not path.with_suffix(WHOLE).exists()]
    if not copies or AttemptFiles.of_stem(partial.parent, partial.name.removesuffix(PARTIAL)).exit_record.exists():
        return ""
    return copied_just_now(partial)


def _holds_more(local: Path, target: Path) -> bool:
    """Whether the trace on this node is rank 0's own, and the one in the traces was recovered from journals."""
    other = look_at_trace(target)
    return other.steps >= 0 and not other.whole and look_at_trace(local).whole


def _forget_places(path: Path) -> None:
    """Removes from the list of places those on this node that are gone, and the list where it is empty then."""
    with suppress(OSError):  # there is none, or it can be neither read nor written: it names a place too many
        lines = read_text(path, errors="replace").splitlines()
        here = f"kept: {host_path(Path('/'))}"
        remaining = [line for line in lines if not line.startswith(here) or Path(line[len(here) - 1 :]).exists()]
        if not remaining:
            path.unlink()
        elif remaining != lines:
            write_durable(path, "".join(f"{line}\n" for line in remaining))


def _remove_outdated_notes(files: AttemptFiles) -> None:
    """Removes the notes that name the place of a trace on a node, once the whole trace is in the traces."""
    with suppress(OSError):  # a note that stays names a place too many; what was collected is there all the same
        notes = [note for note in read_rank_notes(files, []) if note.local_copies]
        if notes and look_at_trace(files.trace).whole:
            for note in notes:
                files.rank_note(note.rank).unlink(missing_ok=True)


def _move(paths: Sequence[Path], targets: Sequence[Path]) -> bool:
    """Copies all of them, then removes them; False where another was quicker."""
    if not all(_copied(path, target) for path, target in zip(paths, targets, strict=True)):
        return False
    try:
        for path in paths:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _copied(path: Path, target: Path) -> bool:
    """Copies, flushes and renames, so that the name always has the whole file. False if there is nothing to copy."""
    beside = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}{PART}")
    try:
        with open_regular(path) as source, beside.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        beside.replace(target)
        sync_folder(target.parent)  # before the only other copy goes
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, FileNotFoundError) and not path.exists():
            return False
        raise
    return True
