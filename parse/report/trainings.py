"""Whole trainings: time to train, throughput, accuracy and speedup, as AI-Rank has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hpc.model.trace_file import open_trace
from hpc.model.training import FIELDS, INFORMATION, TrainingHistory, log_lines
from hpc.system.atomic import write_atomic
from hpc.system.text import grouped
from parse.report.summary import ONE_DEVICE, Summary, TableError, differences, requested_values, telling
from parse.runs.result import Result
from parse.text import Head, TableData, TextBlock, number

TITLE = "whole trainings: time to the target, from the first attempt's start, all included (medians over runs)"
HEADS = [
    ("target", "%"), ("reached", "runs"), ("time", "s"), ("epochs", ""), ("accuracy", "%"),
    ("throughput", "samples/s"), ("speedup", ""), ("attempts", ""),
]  # fmt: skip
"""Names and units of the columns behind the settings; what the speedup is against has the place of its unit."""


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """The whole trainings of one point; every number is the median over its runs.

    `reached` of `runs` trainings met the target (None without one), `time_to_train_s` is of those. `accuracy` is the
    best of a training in percent, `throughput` in samples/s over all of its time, `speedup` the time to train of the
    point of its `base`, a case with all else equal, divided by this one's; `no_speedup` is the reason where there is
    none. `problems` are what did not go as planned.
    """

    case: str
    settings: Mapping[str, str]
    target: float
    runs: int
    reached: int | None
    time_to_train_s: float | None
    epochs: float
    accuracy: float | None
    throughput: float | None
    speedup: float | None
    base: str | None
    no_speedup: str
    attempts: int
    problems: tuple[str, ...]


def trainings(results: Sequence[Result]) -> tuple[TrainingRow, ...]:
    """A row for each point of whole trainings that ended, in their order."""
    histories = {result.requested.point: histories_of(result) for result in results}
    times = {point: _time_to_train(of_point) for point, of_point in histories.items()}
    return tuple(_row(result, of_point, times) for result in results if (of_point := histories[result.requested.point]))


def histories_of(result: Result) -> list[TrainingHistory]:
    """Those of the runs that give the point its numbers."""
    attempts = (run.attempt for run in result.runs)
    return [attempt.history for attempt in attempts if attempt and attempt.counts and attempt.history is not None]


def middle(histories: Sequence[TrainingHistory]) -> TrainingHistory:
    """The training in the middle by time to train; of those that did not reach the target, by their whole time."""
    reached = [history for history in histories if history.time_to_train_s is not None]
    ordered = sorted(reached or histories, key=lambda history: history.time_to_train_s or history.seconds)
    return ordered[(len(ordered) - 1) // 2]


def _time_to_train(histories: Sequence[TrainingHistory]) -> float | None:
    times = [history.time_to_train_s for history in histories if history.time_to_train_s is not None]
    return median(times) if times else None


def _row(result: Result, histories: Sequence[TrainingHistory], times: Mapping[str, float | None]) -> TrainingRow:
    first, time_s = histories[0], times[result.requested.point]
    base = result.base
    base_s = times.get(base.point) if base else None
    speedup, no_speedup = None, ""
    if not first.target:
        no_speedup = "no target was set"
    elif time_s is None:
        no_speedup = "the target was not reached"
    elif base is None:
        no_speedup = "no training of another case with all else equal is here"
    elif base_s is None:
        no_speedup = f"no training of {base.case} with all else equal reached it"
    else:
        speedup = base_s / time_s
    best = [history.best for history in histories if history.best is not None]
    speeds = [history.throughput for history in histories if history.throughput is not None]
    return TrainingRow(
        case=result.requested.case,
        settings=requested_values(result),
        target=first.target,
        runs=len(histories),
        reached=sum(history.reached is not None for history in histories) if first.target else None,
        time_to_train_s=time_s,
        epochs=median(len(history.epochs) for history in histories),
        accuracy=median(best) if best else None,
        throughput=median(speeds) if speeds else None,
        speedup=speedup,
        base=base.case if base else None,
        no_speedup=no_speedup,
        attempts=sum(len(history.begun) for history in histories),
        problems=tuple(_problems(histories)),
    )


def _problems(histories: Sequence[TrainingHistory]) -> Iterator[str]:
    missed = [history for history in histories if history.target and history.reached is None]
    if missed:
        best = max((history.best or 0.0 for history in missed), default=0.0)
        yield (
            f"{len(missed)} of {len(histories)} trainings ended without {missed[0].target:g} % after "
            f"{missed[0].planned_epochs} epochs; the best was {best:.2f} %"
        )
    for error in [error for history in histories for error in history.checkpoint_errors][:3]:
        yield f"no checkpoint {error}"
    undecoded = [history for history in histories for epoch in history.epochs[-1:] if epoch.evaluated
                 and epoch.evaluated < history.evaluation_samples]  # fmt: skip
    if undecoded:
        last, of = undecoded[0].epochs[-1].evaluated, undecoded[0].evaluation_samples
        yield f"accuracy is over {last} of {of} held-out images; the others cannot be decoded"


def _cells(rows: Sequence[TrainingRow], names: Sequence[str]) -> list[list[str]]:
    return [
        [
            row.case, *(row.settings.get(name, "") for name in names), f"{row.target:g}" if row.target else "-",
            f"{'-' if row.reached is None else row.reached} of {row.runs}",
            *(number(value) for value in (row.time_to_train_s, row.epochs, row.accuracy, row.throughput, row.speedup)),
            str(row.attempts),
        ]
        for row in rows
    ]  # fmt: skip


def _tables(rows: Sequence[TrainingRow]) -> Iterator[tuple[list[Head], list[list[str]]]]:
    """Heads and cells; a table for each base, so that no column has speedups against two."""
    bases = [row.base for row in rows if row.speedup is not None] or [None]
    of_bases = grouped((bases[0] if row.speedup is None else row.base, row) for row in rows)
    for base, its in of_bases.items():
        against = "" if base in (None, ONE_DEVICE) else f"against {base}"
        names = telling([row.settings for row in its])
        columns = [(name, against if name == "speedup" else unit) for name, unit in HEADS]
        yield [("case", ""), *((name, "") for name in names), *columns], _cells(its, names)


def _lines(rows: Sequence[TrainingRow]) -> list[str]:
    lines = []
    for row in rows:
        folder = row.settings.get("folder")
        name = f"{row.case} {row.settings.get('backend', '')}{f' folder={folder}' if folder else ''}"
        lines += [f"{name}: {problem}" for problem in row.problems]
        if row.no_speedup and row.case != ONE_DEVICE:
            lines.append(f"{name}: no speedup: {row.no_speedup}")
    return lines


def trainings_blocks(summary: Summary) -> list[TextBlock]:
    """What is shown of trainings; empty where nothing was trained to its end."""
    rows = trainings(summary.results)
    if not rows:
        return []
    tables = [*_tables(rows)]
    blocks: list[TextBlock] = [TITLE]
    for heads, cells in tables:
        blocks += [TableData(heads=heads, rows=cells, label_columns=len(heads) - len(HEADS))]
        blocks += [""] if len(tables) > 1 else []
    return [*blocks, _lines(rows)]


# AI-Rank's files of whole trainings: a log per number of devices, and what the rules ask of the machine.

UNKNOWN = "unknown: to be filled in by the submitter"
"""What no trace knows, as the submitter or the storage."""


def write_airank(folder: Path, results: Sequence[Result]) -> list[str]:
    """Writes GPUxN.log of each case and system_information.json; returns a line for each file.

    The log is that of the training in the middle of a point's, by time to train. Raises TableError where nothing was
    trained to its end or two points would be the same file, OSError where a file cannot be written.
    """
    points = grouped((result.devices, result) for result in results if histories_of(result))
    if not points:
        raise TableError("no run here is a whole training that ended ok (rankwise sweep --epochs)")
    for devices, of_devices in points.items():
        if len(of_devices) > 1:
            apart = [f"--where {name}={'|'.join(sorted(its))}" for name, its in differences(of_devices).items()]
            raise TableError(f"{len(of_devices)} points have {devices} devices; choose one: {', '.join(apart)}")
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for devices, (result,) in sorted(points.items()):
        path = folder / f"GPUx{devices}.log"
        histories = histories_of(result)
        write_atomic(path, "".join(f"{line}\n" for line in log_lines(result.run, middle(histories))))
        lines.append(f"{path}: {result.requested.case}, the middle one of {len(histories)} by time to train")
    largest = points[max(points)][0]
    information = _information(largest)
    write_atomic(folder / INFORMATION, json.dumps(information, indent=1) + "\n")
    unknown = [name for name, value in information.items() if value == UNKNOWN]
    return [*lines, f"{folder / INFORMATION}: of {largest.requested.case}; to be filled in: {', '.join(unknown)}"]


def _information(result: Result) -> dict[str, Any]:
    """The fields of the rules, as far as the trace of a run of the point knows them."""
    trace = next(run.trace for run in result.runs if run.trace is not None)
    with open_trace(trace) as opened:
        reports, environment = opened.reports, opened.environment
    report = reports[0]
    device: Mapping[str, Any] = report.device or {}
    is_cpu, memory = device.get("kind") == "cpu", _gib(report.extra.get("memory_bytes"))
    shared = environment.get("software")
    software = report.software or (shared if isinstance(shared, Mapping) else {})
    known = {
        "accelerator_name": device.get("name") or device.get("kind"),
        "accelerator_memory_capacity": _gib(device.get("memory_bytes")) or (memory if is_cpu else None),
        "accelerators_per_node": result.devices // (result.run.nodes or 1),
        "number_of_nodes": result.run.nodes,
        "host_processor_name": report.cpu_model,
        "host_processor_core_count": report.cpus,
        "host_memory_capacity": memory,
        "operating_system": f"Linux {kernel}" if (kernel := report.extra.get("kernel")) else None,
        "software_stack": ", ".join(f"{name} {value}" for name, value in software.items() if value is not None),
        "hardware_type": "CPU" if is_cpu else "GPU",
    }
    return {name: known.get(name) or UNKNOWN for name in FIELDS}


def _gib(size_bytes: object) -> str | None:
    return f"{size_bytes / 2**30:.0f} GiB" if isinstance(size_bytes, int | float) and size_bytes else None
