"""Reads the results in documents as points like those of traces and logs, with the printed figures beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc.model.outcome import Outcome
from hpc.system.regular_file import existing
from parse.attempt import Attempt, FromLog, Measured, RequestedRun
from parse.published.files import DocumentError, files_of, read_lines
from parse.published.points import PublishedPoint, Setting, published_points
from parse.published.tables import WallClock, imagenet_clocks
from parse.published.vocabulary import IMAGENET, Case
from parse.result import Claimed, Result, Run, of_runs, with_speedups
from parse.run_fields import RunFields

FORMAT = "published"
"""The log format of runs that only a document prints."""
SUFFIXES = frozenset({".md", ".markdown", ".txt", ".json"})
"""Suffixes of documents in a folder; a file named on the command line may have any."""

_SAME_SPEED = 1e-6


@dataclass(frozen=True, kw_only=True)
class Published:
    """Results of documents. `refusals` are the unread files with reasons; `remarks` are unread parts of the others."""

    results: tuple[Result, ...]
    remarks: tuple[str, ...]
    refusals: tuple[str, ...]


def published(paths: Sequence[Path]) -> Published:
    """Reads documents, and those in folders. Points of different documents stay separate points."""
    results: list[Result] = []
    remarks: list[str] = []
    paths, refusals = existing(paths)
    files = list(files_of(paths, lambda file: file.suffix.lower() in SUFFIXES))
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


def _results_of(path: Path, name: str) -> tuple[list[Result], list[str]]:
    lines = read_lines(path)
    settings_read, remarks = published_points(lines)
    if not settings_read:
        reason = f"; {remarks[0]}" if remarks else ""
        raise DocumentError(f"{path}: no table of speeds by case and no printed result is in it{reason}")
    clocks = imagenet_clocks(lines)
    return [
        point_result(requested_run(setting, case, name), point, path, clocks)
        for setting, points in settings_read
        for case, point in points.items()
    ], remarks


def requested_run(setting: Setting, case: Case, document: str) -> RequestedRun:
    """Returns the first run of a point, with the fields that documents print in a comparable form."""
    run = RunFields(
        backend=setting.backend or "?",
        nodes=case.nodes,
        devices=(case.nodes or 1) * case.devices_per_node,
        gpus_per_node=case.devices_per_node if case.nodes else None,
        workload=setting.workload or None,
        batch_size=setting.batch_size or None,
        precision=setting.precision or None,
        options=dict(setting.options),
    )
    extra = {"document": document, "printed_at": setting.apart}
    extra = {name: value for name, value in extra.items() if value}
    return RequestedRun(run=run, run_id=run.partial_id(extra), extra=extra)


def _as_run(requested: RequestedRun, repeat: int) -> RequestedRun:
    """Returns the run as that repeat."""
    run = replace(requested.run, repeat=repeat)
    return replace(requested, run=run, run_id=run.partial_id(requested.extra))


def point_result(requested: RequestedRun, point: PublishedPoint, path: Path, clocks: Sequence[WallClock]) -> Result:
    figures = Claimed(
        document=path, figures=tuple(point.figures), packed=tuple((run.name, run.speed) for run in point.packed)
    )
    speed = figures.median if figures.median is not None else figures.average
    clock = next((candidate for candidate in clocks if speed and abs(candidate.claimed - speed) < _SAME_SPEED), None)
    if clock:
        source = f"{clock.epochs} epochs of the {IMAGENET:,} images of ImageNet in {clock.seconds:,.0f} s"
        figures = replace(figures, wall_clock=clock.speed, wall_clock_from=source)
    if runs := list(_runs(requested, point)):
        return replace(of_runs(runs), published=figures)
    runs = []
    placeholder = " and ".join(dict.fromkeys(point.placeholders)) or ("only packed jobs" if point.packed else "")
    if speed is None and placeholder:
        unnumbered = replace(requested, run=replace(requested.run, is_numbered=False))
        runs = [Run(requested=unnumbered, attempt=None, attempts=0, placeholder=placeholder)]
    return Result(
        requested=requested, runs=tuple(runs), planned_runs=None, median_speed=speed, average_speed=figures.average,
        published=figures,
    )  # fmt: skip


def _runs(requested: RequestedRun, point: PublishedPoint) -> Iterator[Run]:
    """Yields the runs with printed speeds: from lines with their logs' names, or from rows of a table."""
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
        run_id=requested.run_id, number=1, requested=requested, outcome=Outcome.OK, measured=measured, machine=None,
        log=log,
    )  # fmt: skip
    return Run(requested=requested, attempt=attempt, attempts=1, ok_attempts=(1,))
