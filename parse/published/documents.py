"""Results as documents publish them, as points like those of traces and logs; what was printed is kept beside them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.spec import PRECISIONS, RunSpec
from parse.attempt import Attempt, FromLog, Measured, RequestedRun
from parse.published.points import PublishedPoint, Setting, published_points
from parse.published.tables import Claim, claims, tables
from parse.published.vocabulary import EPOCH_TIMES, IMAGENET, Case, decimals
from parse.result import Claimed, Figure, Result, Run, of_runs, with_speedups

MAX_BYTES, MAX_LINES = 4 << 20, 50_000
"""Larger texts are logs or data."""
FORMAT = "published"
"""Stands where a log's family does, for runs that are known from a document only."""
TELLING = 500
"""So many lines, and so many characters of each, are searched for how long epochs took."""
SUFFIXES = frozenset({".md", ".markdown", ".txt", ".json"})
"""Documents in a folder; a file that is named itself may be called anything."""
NEVER_TOLD = (
    "ranks_per_node", "cpus_per_rank", "scaling", "warmup_steps", "measured_steps", "seed", "site", "data", "stamps",
    "block_steps", "reduction", "telemetry", "placement",
)  # fmt: skip
"""Fields of a run that no document tells in a way that could be compared."""

_OF_IMAGENET = re.compile(r"image-?net|ILSVRC|ISLVRC", re.I)
_SAME_SPEED = 1e-6


class DocumentError(ValueError):
    """A file is no document with results, or not to be read; the text says which file and why."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What documents publish. `refusals` name files that were not read, `remarks` what of the others was not."""

    results: tuple[Result, ...]
    remarks: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """The speed that a time to train gives, and how, beside the throughput that the same row claims."""

    claimed: float
    speed: float
    how: str


def published(paths: Sequence[Path]) -> Published:
    """Reads documents, and those in folders. Points of different documents are never the same point."""
    results: list[Result] = []
    remarks: list[str] = []
    files, refusals = _files(paths)
    names = Counter(path.name for path in files)
    for path in files:
        try:
            point_results, file_remarks = _results_of(path, path.name if names[path.name] == 1 else str(path))
        except DocumentError as error:
            refusals.append(str(error))
            continue
        results += point_results
        remarks += (f"{path}: {line}" for line in file_remarks)
    return Published(results=with_speedups(results), remarks=tuple(remarks), refusals=tuple(refusals))


def claims_of(paths: Sequence[Path]) -> dict[Path, tuple[Claim, ...]]:
    """The rows of tables with a time to train, by document. Raises DocumentError for one that cannot be read."""
    return {path: tuple(_claims(_lines(path))) for path in paths}


def _files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    files: dict[Path, Path] = {}
    refusals = []
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.suffix.lower() in SUFFIXES and file.is_file():
                    files.setdefault(file.resolve(), file)
        elif path.exists():
            files.setdefault(path.resolve(), path)
        else:
            refusals.append(f"{path}: no such file or folder")
    return list(files.values()), refusals


def _lines(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(content) > MAX_BYTES:
        raise DocumentError(f"{path}: more than {MAX_BYTES >> 20} MiB, too large for a document")
    if b"\0" in content:
        raise DocumentError(f"{path}: not a text (it has zero bytes)")
    lines = content.decode(errors="replace").splitlines()
    if len(lines) > MAX_LINES:
        raise DocumentError(f"{path}: {len(lines)} lines, more than the {MAX_LINES} of a document")
    return lines


def _results_of(path: Path, name: str) -> tuple[list[Result], list[str]]:
    lines = _lines(path)
    settings_read, remarks = published_points(lines)
    if not settings_read:
        reason = f"; {remarks[0]}" if remarks else ""
        raise DocumentError(f"{path}: no table of speeds by case and no printed result is in it{reason}")
    clocks = list(_clocks(lines))
    return [
        _result(_requested(setting, case, name), point, path, clocks)
        for setting, points in settings_read
        for case, point in points.items()
    ], remarks


def _requested(setting: Setting, case: Case, document: str) -> RequestedRun:
    known = {
        "workload": setting.workload,
        "precision": setting.precision,
        "batch_size": setting.batch_size,
        "nodes": case.nodes,
    }
    run = RunSpec(
        nodes=case.nodes or 1,
        ranks_per_node=case.devices_per_node,
        gpus_per_node=case.devices_per_node,
        cpus_per_rank=1,
        backend=setting.backend or "?",
        workload=setting.workload or "?",
        batch_size=setting.batch_size or 1,
        precision=setting.precision or PRECISIONS[0],
        scaling="weak",
        warmup_steps=20,
        measured_steps=100,
        repeat=1,
        seed=0,
        site="",
        data="?",
        options=dict(setting.options),
    )
    extra = {"document": document, "printed_at": setting.apart}
    return RequestedRun(
        run=run,
        run_id="",
        extra={name: value for name, value in extra.items() if value},
        unknown=(*(name for name, value in known.items() if not value), *NEVER_TOLD),
    )


def _as_run(requested: RequestedRun, repeat: int) -> RequestedRun:
    """The same as that repeat, with an id of what is known alone."""
    run, unknown = replace(requested.run, repeat=repeat), requested.unknown
    named = {"workload": run.workload, "batch_size": f"b{run.batch_size}", "precision": run.precision}
    parts = (requested.case, run.backend, *(part for name, part in named.items() if name not in unknown))
    digest = hashlib.sha256(requested.point.encode()).hexdigest()[:10]
    return replace(requested, run=run, run_id=f"{'_'.join(parts)}_{digest}_r{repeat}")


def _result(requested: RequestedRun, point: PublishedPoint, path: Path, clocks: Sequence[_Clock]) -> Result:
    claimed = Claimed(
        document=path,
        figures=tuple(
            Figure(what=what, value=float(value), decimals=decimals(value), line=line)
            for what, value, line in point.figures
        ),
        packed=tuple((run.name, run.speed) for run in point.packed),
    )
    speed = claimed.median if claimed.median is not None else claimed.average
    clock = next((candidate for candidate in clocks if speed and abs(candidate.claimed - speed) < _SAME_SPEED), None)
    if clock:
        claimed = replace(claimed, wall_clock=clock.speed, wall_clock_from=clock.how)
    runs = list(_runs(requested, point))
    if runs:
        return replace(of_runs(runs), published=claimed)
    placeholders = dict.fromkeys(point.placeholders) if speed is None else {}
    placeholder = " and ".join(placeholders) or ("only packed jobs" if point.packed and speed is None else "")
    requested = _as_run(requested, 1)
    return Result(
        requested=requested,
        runs=(
            Run(
                requested=replace(requested, unknown=(*requested.unknown, "repeat")),
                attempt=None,
                attempts=0,
                placeholder=placeholder,
            ),
        )
        if placeholder
        else (),
        planned_runs=None,
        median_speed=speed,
        average_speed=claimed.average,
        published=claimed,
    )


def _runs(requested: RequestedRun, point: PublishedPoint) -> Iterator[Run]:
    """Those whose speeds are printed: with the names of their logs, or as rows of a table."""
    for run in point.runs:
        log = FromLog(
            path=Path(run.path), log_format=FORMAT, window="", wall_clock=None, printed=None, remarks=run.place.remarks
        )
        yield _run(_as_run(requested, run.number), run.speed, log)
    for repeat, speed in enumerate(point.repeats, 1 + max((run.number for run in point.runs), default=0)):
        yield _run(_as_run(requested, repeat), float(speed), None)


def _run(requested: RequestedRun, speed: float, log: FromLog | None) -> Run:
    measured = Measured(throughput=speed, mean_of_rates=None, step_s=np.empty(0), samples=0, clock_share=0.0)
    attempt = Attempt(
        run_id=requested.run_id,
        number=1,
        requested=requested,
        outcome=Outcome.OK,
        measured=measured,
        machine=None,
        log=log,
    )
    return Run(requested=requested, attempt=attempt, attempts=1, ok_attempts=(1,))


def _claims(lines: Sequence[str]) -> Iterator[Claim]:
    for table in tables(lines):
        yield from claims(table)


def _clocks(lines: Sequence[str]) -> Iterator[_Clock]:
    """Where the text says how many epochs of ImageNet took as long as a row's time to train."""
    rows = [row for row in _claims(lines) if row.time2train_s and row.ips]
    if not rows or not any(_OF_IMAGENET.search(line) for line in lines):
        return
    telling = [line[:TELLING] for line in lines if "epoch" in line[:TELLING]][:TELLING]
    for form in EPOCH_TIMES:
        for match in (match for line in telling for match in form.finditer(line)):
            seconds, epochs = float(match["seconds"].replace(",", "")), int(match["epochs"][:6])
            for row in rows:
                if row.ips and row.time2train_s == seconds and epochs:
                    how = f"{epochs} epochs of the {IMAGENET:,} images of ImageNet in {seconds:,.0f} s"
                    yield _Clock(claimed=row.ips, speed=epochs * IMAGENET / seconds, how=how)
