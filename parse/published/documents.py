"""Reads the results in documents as points like those of traces and logs, with the printed figures beside them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.spec import PRECISIONS, RunSpec
from parse.attempt import Attempt, FromLog, Measured, RequestedRun
from parse.published.files import DocumentError, files_of, read_lines
from parse.published.points import PublishedPoint, Setting, published_points
from parse.published.tables import WallClock, imagenet_clocks
from parse.published.vocabulary import IMAGENET, Case
from parse.result import Claimed, Result, Run, of_runs, with_speedups

FORMAT = "published"
"""The log format of runs that only a document prints."""
SUFFIXES = frozenset({".md", ".markdown", ".txt", ".json"})
"""Suffixes of documents in a folder; a file named on the command line may have any."""
NEVER_PRINTED = (
    "ranks_per_node", "cpus_per_rank", "scaling", "warmup_steps", "measured_steps", "seed", "site", "data", "timing",
    "block_steps", "reduction", "telemetry", "placement",
)  # fmt: skip
"""Fields of a run that no document prints in a comparable form."""

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
    refusals = [f"{path}: no such file or folder" for path in paths if not path.exists()]
    existing = (path for path in paths if path.exists())
    files = list(files_of(existing, lambda file: file.suffix.lower() in SUFFIXES))
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
        _result(_requested(setting, case, name), point, path, clocks)
        for setting, points in settings_read
        for case, point in points.items()
    ], remarks


def _requested(setting: Setting, case: Case, document: str) -> RequestedRun:
    run = RunSpec(
        nodes=case.nodes or 1, ranks_per_node=case.devices_per_node, gpus_per_node=case.devices_per_node,
        cpus_per_rank=1, backend=setting.backend or "?", workload=setting.workload or "?",
        batch_size=setting.batch_size or 1, precision=setting.precision or PRECISIONS[0], scaling="weak",
        warmup_steps=20, measured_steps=100, repeat=1, seed=0, site="", data="?", options=dict(setting.options),
    )  # fmt: skip
    extra = {"document": document, "printed_at": setting.apart}
    known = {name: getattr(setting, name) for name in ("workload", "precision", "batch_size")} | {"nodes": case.nodes}
    return RequestedRun(
        run=run,
        run_id="",
        extra={name: value for name, value in extra.items() if value},
        unknown=(*(name for name, value in known.items() if not value), *NEVER_PRINTED),
    )


def _as_run(requested: RequestedRun, repeat: int) -> RequestedRun:
    """Returns the run as that repeat, with an id of its known settings."""
    run, unknown = replace(requested.run, repeat=repeat), requested.unknown
    named = {"workload": run.workload, "batch_size": f"b{run.batch_size}", "precision": run.precision}
    parts = (requested.case, run.backend, *(part for name, part in named.items() if name not in unknown))
    digest = hashlib.sha256(requested.point.encode()).hexdigest()[:10]
    return replace(requested, run=run, run_id=f"{'_'.join(parts)}_{digest}_r{repeat}")


def _result(requested: RequestedRun, point: PublishedPoint, path: Path, clocks: Sequence[WallClock]) -> Result:
    claimed = Claimed(
        document=path, figures=tuple(point.figures), packed=tuple((run.name, run.speed) for run in point.packed)
    )
    speed = claimed.median if claimed.median is not None else claimed.average
    clock = next((candidate for candidate in clocks if speed and abs(candidate.claimed - speed) < _SAME_SPEED), None)
    if clock:
        source = f"{clock.epochs} epochs of the {IMAGENET:,} images of ImageNet in {clock.seconds:,.0f} s"
        claimed = replace(claimed, wall_clock=clock.speed, wall_clock_from=source)
    if runs := list(_runs(requested, point)):
        return replace(of_runs(runs), published=claimed)
    requested = _as_run(requested, 1)
    runs = []
    placeholder = " and ".join(dict.fromkeys(point.placeholders)) or ("only packed jobs" if point.packed else "")
    if speed is None and placeholder:
        unknown_repeat = replace(requested, unknown=(*requested.unknown, "repeat"))
        runs = [Run(requested=unknown_repeat, attempt=None, attempts=0, placeholder=placeholder)]
    return Result(
        requested=requested, runs=tuple(runs), planned_runs=None, median_speed=speed, average_speed=claimed.average,
        published=claimed,
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
