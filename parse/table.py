"""A summary as text, Markdown, CSV, JSON or the reference suite's JSON: returns strings, prints nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from parse.result import Result, Run

SCHEMA, SCHEMA_VERSION = "rankwise-summary", 1
DLPERF_NAMES = {"resnet50": "r50"}
"""What the reference suite calls a workload in its result JSON; others keep their own name."""
HEAD_WIDTH = 140
IN_THE_HEAD = ("oversubscribed", "nodes_simulated")


class TableError(ValueError):
    """Points cannot be told apart, or none is left; the text says which and how to choose."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Judged results, sizes made small, and what was said while reading: odd things and files not read."""

    results: tuple[Result, ...]
    reduced: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def asked_of(result: Result) -> dict[str, str]:
    """Everything that the point asks for, by the names that columns and `--where` use; empty values left out."""
    run = result.run
    asked: dict[str, Any] = {
        "case": run.case,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "devices": run.devices,
        "backend": run.backend,
        "workload": run.workload,
        "batch_size": run.batch_size,
        "precision": run.precision,
        "scaling": run.scaling,
        "on": "GPU" if run.gpus_per_node else "CPU",
        "cpus_per_rank": run.cpus_per_rank,
        "warmup_steps": run.warmup_steps,
        "measured_steps": run.measured_steps,
        "data": run.data,
        "seed": run.seed,
        "site": run.site,
        "container": run.container,
        "code_digest": run.code_digest,
        **{f"option.{name}": value for name, value in sorted(run.options.items())},
        **{f"env.{name}": value for name, value in sorted(run.env.items())},
        **{name: json.dumps(value) for name, value in sorted(result.asked.extra.items())},
    }
    return {name: str(value) for name, value in asked.items() if value != ""}


def choose(results: Sequence[Result], where: Mapping[str, Sequence[str]]) -> tuple[Result, ...]:
    """The results that have one of the wanted values of every name. Raises TableError on a name that none has."""
    names = {name for result in results for name in asked_of(result)}
    if unknown := sorted(set(where) - names):
        raise TableError(f"--where: no point has {', '.join(unknown)}; known here are {', '.join(sorted(names))}")
    return tuple(r for r in results if all(asked_of(r).get(name) in values for name, values in where.items()))


def text(summary: Summary) -> str:
    """For a terminal: what holds for all, the table, then what is wrong, a line each."""
    heads, rows = _cells(summary.results)
    head = [part for line in _head(summary) for part in wrap(line, HEAD_WIDTH, subsequent_indent="  ")]
    lines = [*head, "", *_aligned([*zip(*heads, strict=True), *rows]), ""]
    return "\n".join(plain(line).rstrip() for line in [*lines, *_below(summary)]).strip("\n") + "\n"


def markdown(summary: Summary) -> str:
    """The same as a Markdown table between two lists."""
    heads, rows = _cells(summary.results)
    head = [f"{name} ({unit})" if unit else name for name, unit in heads]
    table = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    lines = [f"| {' | '.join(_markdown(cell) for cell in row)} |" for row in table]
    lists = ["\n".join(f"* {_markdown(line)}" for line in part) for part in (_head(summary), _below(summary))]
    return "\n\n".join(part for part in (lists[0], "\n".join(lines), lists[1]) if part) + "\n"


def comma_separated(summary: Summary) -> str:
    """One row per point, every number as it is; what is wrong with a point stands in its last columns."""
    out = io.StringIO()
    rows = [_flat(_as_json(result)) for result in summary.results]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: plain(value) if isinstance(value, str) else value for name, value in row.items()})
    return out.getvalue()


def as_json(summary: Summary) -> str:
    """Everything, with the runs behind each result."""
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "results": [_as_json(result) for result in summary.results],
        "reduced": list(summary.reduced),
        "remarks": list(summary.remarks),
        "refusals": list(summary.refusals),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def dlperf(summary: Summary) -> str:
    """The reference suite's result JSON: by workload and case, two decimals; `speedup` is null where there is none.

    Points without a speed are left out. Raises TableError where two points would have the same place.
    """
    places: dict[tuple[str, str], list[Result]] = {}
    for result in summary.results:
        if result.median_speed is not None:
            name = DLPERF_NAMES.get(result.run.workload, result.run.workload)
            places.setdefault((name, result.run.case), []).append(result)
    content: dict[str, dict[str, Any]] = {}
    for (name, case), there in places.items():
        if len(there) > 1:
            raise TableError(
                f"{len(there)} points would be {name} {case} in this format: {_differences(there)}; "
                "choose with --where NAME=VALUE"
            )
        content.setdefault(name, {})[case] = {
            "average_speed": _rounded(there[0].average_speed),
            "batch_size_per_device": there[0].run.local_batch_size,
            "median_speed": _rounded(there[0].median_speed),
            "speedup": _rounded(there[0].speedup),
        }
    if not content:
        raise TableError("no point has a run that ended ok, so there is no speed to write")
    return json.dumps(content, indent=4, sort_keys=True) + "\n"


FORMATS: Mapping[str, Callable[[Summary], str]] = {
    "table": text,
    "markdown": markdown,
    "csv": comma_separated,
    "json": as_json,
    "dlperf": dlperf,
}


def warnings(summary: Summary) -> list[str]:
    """All that the text says beside its table, for formats that have no place for it."""
    return [plain(line) for line in [*_judgement(summary), *_below(summary)]]


def plain(line: str) -> str:
    """The text with every character that could steer a terminal, or hide, as its escape."""
    return "".join(c if unicodedata.category(c)[0] != "C" else ascii(c)[1:-1] for c in line)


def _markdown(cell: str) -> str:
    return re.sub(r"([\\|<`*]|(?<=\])\()", r"\\\1", plain(cell))


def _varying(results: Sequence[Result]) -> list[str]:
    """What the points ask for differently, less what the case says already."""
    asked = [asked_of(result) for result in results]
    names = dict.fromkeys(name for each in asked for name in each)
    said = {"case", "nodes", "ranks_per_node", "devices"}
    return [name for name in names if name not in said and len({each.get(name) for each in asked}) > 1]


def _differences(results: Sequence[Result]) -> str:
    asked = [asked_of(result) for result in results]
    each = [(name, dict.fromkeys(one.get(name, "(none)") for one in asked)) for name in _varying(results)]
    return "; ".join(f"{name} {', '.join(values)}" for name, values in each)


def _head(summary: Summary) -> list[str]:
    if not summary.results:
        return _judgement(summary)
    varying = {"case", "nodes", "ranks_per_node", "devices", *_varying(summary.results)}
    asked = {name: value for name, value in asked_of(summary.results[0]).items() if name not in varying}
    env = [f"{name.removeprefix('env.')}={value}" for name, value in asked.items() if name.startswith("env.")]
    constant = [f"{name} {value}" for name, value in asked.items() if not name.startswith("env.")]
    lines = [*_judgement(summary), ", ".join(constant)]
    return [*lines, f"environment set: {', '.join(env)}"] if env else lines


def _judgement(summary: Summary) -> list[str]:
    """What must be known before any number is read."""
    lines = []
    for flag in IN_THE_HEAD:
        cases: dict[str, list[str]] = {}
        for result in summary.results:
            for alarm in result.alarms:
                if alarm.name == flag:
                    cases.setdefault(alarm.text, []).append(result.run.case)
        lines += [f"{', '.join(dict.fromkeys(which))}: {said}" for said, which in cases.items()]
    if summary.reduced:
        lines.append(f"sizes made small because the target has no GPU: {'; '.join(summary.reduced)}")
    return lines


def _below(summary: Summary) -> list[str]:
    """What is wrong, a line each: alarms, runs that did not end ok, absent speedups, remarks, files not read."""
    varying = _varying(summary.results)
    lines: list[str] = []
    without: dict[str, list[str]] = {}
    for result in summary.results:
        asked = asked_of(result)
        label = " ".join([result.run.case, *(f"{name}={asked[name]}" for name in varying if name in asked)])
        lines += [f"{label}: {alarm.text}" for alarm in result.alarms if alarm.name not in IN_THE_HEAD]
        lines += [f"{label}: {line}" for line in _not_ok(result)]
        if result.no_speedup and result.median_speed is not None:
            without.setdefault(result.no_speedup, []).append(label)
    lines += [f"{', '.join(labels)}: no speedup: {reason}" for reason, labels in without.items()]
    return [*lines, *summary.remarks, *(f"not read: {refusal}" for refusal in summary.refusals)]


def _not_ok(result: Result) -> Iterator[str]:
    """The runs that did not end ok, by what became of them, with the evidence of the first."""
    words: dict[str, list[Run]] = {}
    for run in result.runs:
        if not run.measured:
            words.setdefault(run.word, []).append(run)
    for word, runs in words.items():
        repeats = ", ".join(str(run.asked.run.repeat) for run in runs)
        evidence = next((run.attempt.evidence for run in runs if run.attempt and run.attempt.evidence), "")
        yield f"run {repeats}: {word}{f' ({evidence})' if evidence else ''}"


def _cells(results: Sequence[Result]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Heads as (name, unit), and a row of texts per result."""
    varying = _varying(results)
    heads = [("case", ""), ("nodes", ""), ("devices", ""), *((name, "") for name in varying)]
    heads += [("runs", "ok/asked"), ("median", "samples/s"), ("average", "samples/s"), ("interval", "samples/s")]
    heads += [("coverage", "%"), ("CV", "%"), ("speedup", ""), ("efficiency", "%")]
    heads += [("step p50", "ms"), ("step p95", "ms")]
    rows = []
    for result in results:
        asked, interval = asked_of(result), result.interval
        row = [asked[name] for name in ("case", "nodes", "devices")]
        row += [asked.get(name, "-") for name in varying]
        row += [
            f"{len(result.ok)}/{'?' if result.asked_runs is None else result.asked_runs}",
            _number(result.median_speed),
            _number(result.average_speed),
            f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "-",
            _number(interval.coverage if interval else None, 100),
            _number(result.cv, 100),
            _number(result.speedup),
            _number(result.scaling_efficiency, 100, decimals=1),
            _number(result.step_time_ms.get(50)),
            _number(result.step_time_ms.get(95)),
        ]
        rows.append(row)
    return heads, rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width; the first to the left, numbers and all others to the right."""
    safe = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*safe, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in safe
    ]


def _number(value: float | None, factor: float = 1, decimals: int = 2) -> str:
    return "-" if value is None else f"{value * factor:.{decimals}f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _as_json(result: Result) -> dict[str, Any]:
    run = result.run
    content = {
        "point_id": result.asked.run_id.rpartition("_r")[0],
        "case": run.case,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "devices": run.devices,
        "backend": run.backend,
        "workload": run.workload,
        "precision": run.precision,
        "scaling": run.scaling,
        "batch_size_per_device": run.local_batch_size,
        "global_batch_size": run.global_batch_size,
        "runs_ok": len(result.ok),
        "runs_asked": result.asked_runs,
        "median_speed": result.median_speed,
        "average_speed": result.average_speed,
        "interval": result.interval and [result.interval.low, result.interval.high],
        "interval_coverage": result.interval and result.interval.coverage,
        "cv": result.cv,
        "speedup": result.speedup,
        "no_speedup": result.no_speedup,
        "scaling_efficiency": result.scaling_efficiency,
        "step_time_ms": {f"p{percent}": value for percent, value in result.step_time_ms.items()},
        "oversubscribed": result.oversubscribed,
        "nodes_simulated": result.nodes_simulated,
        "asked": asked_of(result),
        "alarms": [{"name": alarm.name, "text": alarm.text} for alarm in result.alarms],
        "runs": [_run_as_json(one) for one in result.runs],
    }
    return {name: _significant(value) for name, value in content.items()}


def _significant(value: Any) -> Any:
    """Numbers to nine digits, wherever they are: more than any clock here knows."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: _significant(one) for name, one in value.items()}
    return [_significant(one) for one in value] if isinstance(value, list) else value


def _run_as_json(run: Run) -> dict[str, Any]:
    attempt, measured = run.attempt, run.measured
    return {
        "run_id": run.asked.run_id,
        "repeat": run.asked.run.repeat,
        "outcome": run.word,
        "attempts": run.attempts,
        "attempt": attempt and attempt.number,
        "evidence": attempt.evidence if attempt else "",
        "steps_completed": attempt and attempt.steps_completed,
        "throughput": measured and measured.throughput,
        "mean_of_rates": measured and measured.mean_of_rates,
        "trace": str(attempt.trace) if attempt and attempt.trace else None,
    }


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    """A row of a table: lists of things as text."""
    row = {name: value for name, value in result.items() if name not in ("interval", "step_time_ms", "asked")}
    row["interval_low"], row["interval_high"] = result["interval"] or ("", "")
    row |= {f"step_time_ms_{name}": value for name, value in result["step_time_ms"].items()}
    row["asked"] = "; ".join(f"{name}={value}" for name, value in result["asked"].items())
    row["runs"] = "; ".join(f"{run['repeat']} {run['outcome']}" for run in result["runs"])
    row["alarms"] = "; ".join(alarm["text"] for alarm in result["alarms"])
    return row
