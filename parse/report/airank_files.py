"""AI-Rank's files of whole trainings: a log per number of devices, and what the rules ask of the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc.model.rank_report import RankReport
from hpc.model.trace_file import open_trace
from hpc.model.training_log import log_lines
from hpc.system.atomic import write_atomic
from hpc.system.groups import grouped
from parse.published.airank_rules import FIELDS, INFORMATION
from parse.report.summary import TableError, differences
from parse.report.trainings import histories_of, middle
from parse.result import Result

UNKNOWN = "unknown: to be filled in by the submitter"
"""What no trace knows, as the submitter or the storage."""


def write_airank(folder: Path, results: Sequence[Result]) -> list[str]:
    """Writes GPUxN.log of each case and system_information.json; returns a line for each file.

    The log is that of the training in the middle of a point's, by time to train. Raises TableError where nothing was
    trained to its end or two points would be the same file, OSError where a file cannot be written.
    """
    points = grouped((result.run.devices, result) for result in results if histories_of(result))
    if not points:
        raise TableError("no run here is a whole training that ended ok (hpc.sweep --epochs)")
    for devices, of_devices in points.items():
        if len(of_devices) > 1:
            raise TableError(f"{len(of_devices)} points have {devices} devices; choose one: {_apart(of_devices)}")
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


def _apart(results: Sequence[Result]) -> str:
    """The settings by which one of the points can be chosen."""
    return ", ".join(f"--where {name}={'|'.join(sorted(values))}" for name, values in differences(results).items())


def _information(result: Result) -> dict[str, Any]:
    """The fields of the rules, as far as the trace of a run of the point knows them."""
    trace = next(run.trace for run in result.runs if run.trace is not None)
    with open_trace(trace) as opened:
        reports, environment = opened.reports, opened.environment
    report = reports[0]
    device: Mapping[str, Any] = report.device or {}
    known = {
        "accelerator_name": device.get("name") or device.get("kind"),
        "accelerator_memory_capacity": _gib(device.get("memory_bytes")) or _of_cpus(device, report),
        "accelerators_per_node": result.run.devices // (result.run.nodes or 1),
        "number_of_nodes": result.run.nodes,
        "host_processor_name": report.cpu_model,
        "host_processor_core_count": report.cpus,
        "host_memory_capacity": _gib(report.extra.get("memory_bytes")),
        "operating_system": f"Linux {kernel}" if (kernel := report.extra.get("kernel")) else None,
        "software_stack": ", ".join(
            f"{name} {value}" for name, value in _software(report, environment).items() if value is not None
        ),
        "hardware_type": "CPU" if device.get("kind") == "cpu" else "GPU",
    }
    return {name: known.get(name) or UNKNOWN for name in FIELDS}


def _of_cpus(device: Mapping[str, Any], report: RankReport) -> str | None:
    return _gib(report.extra.get("memory_bytes")) if device.get("kind") == "cpu" else None


def _software(report: RankReport, environment: Mapping[str, Any]) -> Mapping[str, Any]:
    shared = environment.get("software")
    return report.software or (shared if isinstance(shared, Mapping) else {})


def _gib(size_bytes: object) -> str | None:
    return f"{size_bytes / 2**30:.0f} GiB" if isinstance(size_bytes, int | float) and size_bytes else None
