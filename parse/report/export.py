"""A summary for machines: CSV, JSON, the reference suite's JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpc.model.spec import SAMPLES
from hpc.system.sanitize import plain
from hpc.system.text import grouped
from parse.alarms.nodes import NodeAlarm, PerNode, missing_text, node_alarm_text, per_node
from parse.ledger.finding import Finding
from parse.ledger.network import Segments
from parse.ledger.telemetry import ConditionChange, TooFewSamples
from parse.ledger.types import Ledger, RunLedger, Standalone, WhatIf
from parse.ledger.verdict import CannotTell, Nobody, Straggler
from parse.logs.benchmarks import NO_BENCHMARKS, NcclTest, OsuTest
from parse.report.against import Against, PublishedBeside, own_devices
from parse.report.summary import (
    Summary,
    TableError,
    against_text,
    differences,
    labels,
    named_ledgers,
    no_speedup_text,
    of_logs,
    provenance,
    requested_values,
)
from parse.report.table import nccl_problems, osu_problems
from parse.report.trainings import trainings
from parse.runs.cost import JobKey, energy_cost, no_energy, node_hours_per_million, nodes_held, spent
from parse.runs.result import Result, Run
from parse.runs.summary_file import MACHINE, SCHEMA, SCHEMA_VERSION, identity
from parse.say.findings import words
from parse.say.notes import telemetry_text
from parse.say.paragraph import sentence
from parse.say.reasons import because_text, ledger_problems, merged_text, no_loss_text, problem_texts, unseen_text
from parse.text import csv_text, fields_of, json_value

SPEED_COLUMNS = ("median_speed", "average_speed", "interval_low", "interval_high", "wall_clock", "printed")
"""Columns of the CSV that hold a speed; in tokens/s it is in another, `median_speed_tokens`, as in other units."""
OF_LOGS = ("wall_clock", "printed", "stated", "mlperf_s")
"""The two speeds of a log, of which the result is the first where there is one; what one of MLPerf states, and its time
to train."""
DLPERF_NAMES = {"resnet50": "r50", "arcface_resnet50": "r50", "arcface_resnet100": "r100"}
"""The reference suite's names for workloads in its result JSON; others keep their own name."""

PROVENANCE = ("folder", "date", *MACHINE, "versions", "header")
CSV_COLUMNS = (
    "point_id", "case", "nodes", "ranks_per_node", "devices", "backend", "workload", "precision", "scaling",
    "batch_size_per_device", "global_batch_size", "runs_ok", "runs_requested", "median_speed", "average_speed",
    "interval_coverage", "cv", "speedup", "no_speedup", "scaling_efficiency", "base", "base_devices", "oversubscribed",
    "nodes_simulated",
    "alarms", "runs", "interval_low", "interval_high", "requested", "hosts", *PROVENANCE,
)  # fmt: skip
"""The columns that every CSV page has, also one without a point."""

AS_TEXT: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    Ledger: {
        "no_loss": no_loss_text,
        "merged": lambda ledger: merged_text(ledger.merged),
        "problems": ledger_problems,
    },
    RunLedger: {"problems": lambda run: problem_texts(run.problems)},
    Standalone: {"overlapped": lambda standalone: standalone.overlapped},
    Segments: {"share": lambda segments: segments.share},
    Straggler: {"unseen": lambda straggler: unseen_text(straggler.unseen) if straggler.unseen else ""},
    Nobody: {"kind": lambda nobody: nobody.kind},
    CannotTell: {"kind": lambda verdict: verdict.kind, "because": because_text},
    PerNode: {"missing": missing_text},
    NodeAlarm: {"text": node_alarm_text},
    NcclTest: {"case": lambda test: test.case, "problems": nccl_problems},
    OsuTest: {"case": lambda test: test.case, "problems": osu_problems},
}
"""Members of the JSON page that are made from several fields, or from an enum."""


def comma_separated(summary: Summary) -> str:
    """One row per point, no number rounded; what is wrong with a point is in its last columns."""
    held = nodes_held(summary.everything)
    rows = [point_row(_as_json(result, held, summary.against)) for result in summary.results]
    return csv_of(rows) if rows else csv_text([CSV_COLUMNS])


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows with a column for every name that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text([columns, *([row.get(name, "") for name in columns] for row in rows)])


def as_json(summary: Summary) -> str:
    """Everything, with the runs behind each result."""
    return json.dumps(content_of(summary), indent=1, allow_nan=False) + "\n"


def content_of(summary: Summary) -> dict[str, Any]:
    """What the JSON page has."""
    every, held = summary.everything, nodes_held(summary.everything)
    tests = summary.benchmarks or NO_BENCHMARKS
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "results": [_as_json(result, held, summary.against) for result in summary.results],
        "diagnostics": [
            {"diagnostic": result.run.diagnostic, **_as_json(result, held)} for result in summary.diagnostics
        ],
        "cost": _json(spent(every)),
        "nodes": [_json(site) for site in per_node(summary.results)],
        "trainings": [_json(row) for row in trainings(summary.results)],
        "nccl_tests": _json(tests.nccl_tests),
        "network_tests": _json(tests.osu_tests),
        "reduced": list(summary.reduced),
        "remarks": list(summary.remarks),
        "refusals": list(summary.refusals),
    }
    if summary.against is not None:
        content["against"] = _recipe_as_json(summary.against, summary.results)
    if summary.ledgers is not None:
        content["ledgers"] = [_ledger_as_json(ledger, name) for name, ledger in named_ledgers(summary)]
        content["whole_times"] = [{"point_id": _point_id(time.result), **_json(time)} for time in summary.times]
    return content


def dlperf(summary: Summary) -> str:
    """The reference suite's result JSON: by workload and case, two decimals; `speedup` is that against one device, else
    null.

    Points without a speed are left out. Raises TableError where two points would have the same place, or where a speed
    is in tokens/s, as the format has samples/s only.
    """
    if others := [result for result in summary.results if result.run.unit != SAMPLES]:
        backends = ", ".join(sorted({result.run.backend for result in others}))
        units = " and ".join(sorted({result.unit for result in others}))
        raise TableError(
            f"the speeds of {backends} are in {units}, and this format has samples/s only; choose others, "
            "by --where backend=NAME"
        )
    places: dict[tuple[str, str], list[Result]] = {}
    for result in summary.results:
        if result.median_speed is not None:
            workload = result.run.workload_name or "unknown"
            places.setdefault((DLPERF_NAMES.get(workload, workload), result.requested.case), []).append(result)
    content: dict[str, dict[str, Any]] = {}
    for (name, case), results in places.items():
        if len(results) > 1:
            apart = differences(results)
            listed = "; ".join(f"{difference} {', '.join(values)}" for difference, values in apart.items())
            raise TableError(
                f"{len(results)} points would be {name} {case} in this format: {listed}; "
                f"choose one, for example by {_choice(results, list(apart))}"
            )
        content.setdefault(name, {})[case] = {
            "average_speed": _rounded(results[0].average_speed),
            "batch_size_per_device": results[0].run.local_batch_size,
            "median_speed": _rounded(results[0].median_speed),
            "speedup": None if against_text(results[0]) else _rounded(results[0].speedup),
        }
    if not content:
        raise TableError("no point has a run that ended ok, so there is no speed to write")
    return json.dumps(content, indent=4, sort_keys=True) + "\n"


def without_speedup(summary: Summary) -> list[str]:
    """Why points with a speedup have none in the reference suite's JSON, whose speedups are against one device."""
    bases = grouped((result.base_case, result) for result in summary.results if against_text(result))
    reason = "no speedup in this format, whose speedups are against 1n1g; here it is against"
    return [f"{', '.join(labels(results))}: {reason} {base}" for base, results in bases.items()]


def _choice(results: Sequence[Result], names: Sequence[str]) -> str:
    """The options that choose one of these points on the command line: one with all of the names, or most of them."""
    requested = max(
        (
            [(name, requested_values(result)[name]) for name in names if name in requested_values(result)]
            for result in results
        ),
        key=len,
    )
    return " ".join(f"--where {shlex.quote(f'{name}={value}')}" for name, value in requested)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _as_json(result: Result, held: Mapping[JobKey, int], of: Against | None = None) -> dict[str, Any]:
    """All of a point; `held` are the nodes of the jobs that it may share."""
    run = result.run
    content = {
        "point_id": _point_id(result),
        "case": result.requested.case,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "devices": run.devices,
        "backend": run.backend,
        "workload": run.workload_name or None,
        "precision": run.precision,
        "scaling": "strong" if result.requested.strong else run.scaling,
        "batch_size_per_device": run.local_batch_size,
        "global_batch_size": run.global_batch_size,
        "runs_ok": len(result.ok),
        "runs_requested": result.planned_runs,
        "unit": result.unit,
        "median_speed": result.median_speed,
        "average_speed": result.average_speed,
        "interval": result.interval and [result.interval.low, result.interval.high],
        "interval_coverage": result.interval and result.interval.coverage,
        "cv": result.cv,
        "speedup": result.speedup,
        "no_speedup": no_speedup_text(result),
        "scaling_efficiency": result.scaling_efficiency,
        "base": result.base_case or None,
        "base_devices": result.base and result.base.devices,
        "step_time_ms": {f"p{percent}": value for percent, value in result.step_time_ms.items()},
        "meetings_ms": dict(result.meetings_ms),
        "oversubscribed": result.oversubscribed,
        "nodes_simulated": result.nodes_simulated,
        "folder": requested_values(result).get("folder"),
        **provenance(result.runs),
        "requested": requested_values(result),
        "identity": identity(result.requested),
        "alarms": _alarms_as_json(result),
        "runs": [_run_as_json(run_of_point) for run_of_point in result.runs],
    }
    if published := result.published:
        figures = {name: getattr(published, name) for name in ("median", "average", "speedup", "wall_clock")}
        content["published"] = {"document": str(published.document), **figures}
    if of is not None:
        content["against"] = _beside_as_json(result, of.beside(result))
    if result.mfu is not None or result.no_mfu:
        content |= {"mfu": result.mfu, "no_mfu": result.no_mfu}
    content["cost"] = {
        "node_hours_per_million": node_hours_per_million(result),
        "spent": spent([result], held),
        "energy": energy_cost(result),
        "no_energy": no_energy(result),
    }
    content |= {name: value for name in OF_LOGS if (value := of_logs(result, name)) is not None}
    return dict(_json(content))


def _alarms_as_json(result: Result) -> list[dict[str, Any]]:
    return [{"name": alarm.name, "text": alarm.text, "figures": alarm.figures} for alarm in result.alarms]


def _recipe_as_json(of: Against, results: Sequence[Result]) -> dict[str, Any]:
    """The recipe, the devices of both, and what only one of the two has."""
    recipe = of.recipe
    return {
        **{name: getattr(recipe, name) for name in ("name", "title", "document", "code", "devices")},
        "own_devices": own_devices(results),
        "unlike": list(recipe.unlike),
        "missing": {heading: list(cases) for heading, cases in of.missing.items()},
    }


def _beside_as_json(result: Result, beside: PublishedBeside | None) -> dict[str, Any] | None:
    """What was published of the point; none if nothing was."""
    if beside is None:
        return None
    figures = beside.published.published
    return {
        "table": beside.table.heading,
        "lines": sorted({figure.line for figure in figures.figures}) if figures else [],
        "median_speed": beside.speed,
        "average_speed": figures.average if figures else None,
        "speedup": beside.speedup,
        "prints_speedup": beside.prints_speedup,
        "base": beside.base or None,
        "ratio": beside.ratio(result),
        "differences": [{**_members(each), "text": each.text} for each in beside.differences],
        "alarms": _alarms_as_json(beside.published),
    }


def _ledger_as_json(ledger: Ledger, name: str) -> dict[str, Any]:
    """All fields of a ledger, by the names of parse.ledger.types."""
    content = {
        "point_id": _point_id(ledger.result),
        "folder": requested_values(ledger.result).get("folder"),
        "case": ledger.result.requested.case,
        "base": ledger.result.base_case or None,
        "unit": "ms",
        "sentence": plain(sentence(ledger, name)),
        **_members(ledger),
    }
    content["findings"] = [_finding_as_json(finding, ledger) for finding in ledger.findings]
    return dict(_json(content))


def _finding_as_json(finding: Finding, ledger: Ledger) -> dict[str, Any]:
    """A finding with its kind and its sentences, as all pages have them."""
    its = words(finding, ledger)
    kind = re.sub(r"(?<!^)(?=[A-Z])", " ", type(finding.what).__name__).lower()
    return {
        "kind": kind, "costs": finding.costs, "sentences": [f"{plain(text)}." for text in its.sentences],
        "what": finding.what, "evidence": finding.evidence, "without": finding.without,
    }  # fmt: skip


ONLY_WHERE_KNOWN: Mapping[type, tuple[str, ...]] = {
    Ledger: ("host_bound", "dimensions", "roles"),
    Straggler: ("chain",),
    WhatIf: ("dimension",),
}
"""Members of the JSON page that most pages do not have: of devices' events, of ranks in several groups."""
LEFT_OUT: Mapping[type, tuple[str, ...]] = {Straggler: ("cells",)}
"""Fields that are no members: what a verdict's ranks, steps and runs say already."""


def _json(value: Any) -> Any:
    return json_value(value, _members)


def _members(record: Any) -> Any:
    """The fields of a dataclass but for results, and what is made of several; the text of a condition."""
    if isinstance(record, ConditionChange | TooFewSamples):
        return telemetry_text(record)
    fields = fields_of(record) | {name: text(record) for name, text in AS_TEXT.get(type(record), {}).items()}
    fields = {name: value for name, value in fields.items() if name not in LEFT_OUT.get(type(record), ())}
    absent = {name for name in ONLY_WHERE_KNOWN.get(type(record), ()) if not fields[name]}
    return {name: value for name, value in fields.items() if not isinstance(value, Result) and name not in absent}


def _point_id(result: Result) -> str:
    return result.requested.run_id.rpartition("_r")[0]


def _run_as_json(run: Run) -> dict[str, Any]:
    attempt, measured, record, log = run.attempt, run.measured, run.record, run.log
    content = {
        "run_id": run.run_id,
        "repeat": run.requested.run.repeat,
        "outcome": run.outcome_text,
        "attempts": run.attempts,
        "attempt": attempt and attempt.number,
        "evidence": attempt.evidence if attempt else "",
        "steps_completed": attempt and attempt.steps_completed,
        "throughput": measured and measured.throughput,
        "mean_of_rates": measured and measured.mean_of_rates,
        "pauses_s": list(measured.pauses_s) if measured else [],
        "trace": str(run.trace) if run.trace else None,
        "hosts": list(run.machine.hosts) if run.machine else [],
        "job_id": record and record.job_id,
        "begin_unix_s": attempt and attempt.begin_unix_s,
        **provenance([run]),
    }
    if attempt and log:
        content |= {"log": str(log.path), "family": log.log_format, "problem": attempt.problem}
        content |= {"window": log.window, "wall_clock": log.wall_clock, "printed": log.printed}
        content |= {name: getattr(log, name) for name in ("stated", "mlperf_s") if getattr(log, name) is not None}
        content |= {"steady_run": log.steady_run, "steady_window": log.steady_window}
        content |= {"remarks": list(log.remarks)}
    return content


def _cost_columns(cost: dict[str, Any]) -> dict[str, Any]:
    row = {"node_hours_per_million": cost["node_hours_per_million"], "spent_node_hours": cost["spent"]["node_hours"]}
    row |= {"joules_per_sample": cost["energy"] and cost["energy"]["joules"]}
    return {name: value for name, value in row.items() if value is not None}


def point_row(result: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the JSON page as a row of a table: lists of things as text."""
    apart = (
        "interval",
        "step_time_ms",
        "meetings_ms",
        "requested",
        "identity",
        "published",
        "against",
        "cost",
        *PROVENANCE,
    )
    row = {name: value for name, value in result.items() if name not in apart}
    row["interval_low"], row["interval_high"] = result["interval"] or ("", "")
    row |= {f"step_time_ms_{name}": value for name, value in result["step_time_ms"].items()}
    row |= {f"meeting_ms_{name}": value for name, value in result["meetings_ms"].items()}
    row |= _cost_columns(result["cost"])
    row |= {f"published_{name}": value for name, value in result.get("published", {}).items()}
    if beside := result.get("against"):
        row |= {
            f"against_{name}": beside[name] for name in ("median_speed", "average_speed", "speedup", "base", "ratio")
        }
        row["against_differences"] = "; ".join(each["text"] for each in beside["differences"])
        row["against_alarms"] = "; ".join(alarm["text"] for alarm in beside["alarms"])
    row["requested"] = "; ".join(f"{name}={value}" for name, value in result["requested"].items())
    row["runs"] = "; ".join(f"{run['repeat']} {run['outcome']}" for run in result["runs"])
    row["hosts"] = "; ".join(f"{run['repeat']} {' '.join(run['hosts'])}" for run in result["runs"] if run["hosts"])
    row["alarms"] = "; ".join(alarm["text"] for alarm in result["alarms"])
    row |= {"folder": result["folder"], **_provenance_row(result)}
    unit = result["unit"].removesuffix("/s")
    if unit != SAMPLES:
        row = {f"{name}_{unit}" if name in SPEED_COLUMNS else name: value for name, value in row.items()}
    return row


def _provenance_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """What measured a point or a run, and when."""
    row = {"date": record["date"], **{name: "; ".join(record[name]) for name in MACHINE}}
    for group in ("versions", "header"):  # one text: a column of 2.10 alone would be read as the number 2.1
        row[group] = "; ".join(f"{name} {value}" for name, values in record[group].items() for value in values)
    return row


def run_rows(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The runs of a point of the JSON page as rows."""
    for run in result["runs"]:
        lists = {name: "; ".join(map(str, run[name])) for name in ("pauses_s", "hosts", "remarks") if name in run}
        point = {name: result[name] for name in ("point_id", "case", "folder", "unit")}
        yield {**point, **run, **lists, **_provenance_row(run)}


def term_rows(ledger: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The terms of a ledger of the JSON page as rows, the step last; ms per step."""
    step = {"name": "step", "mean": ledger["step"], "loss": ledger["loss"], "baseline": None, "share": None}
    for term in (*ledger["terms"], step):
        loss = term["loss"] or dict.fromkeys(("value", "low", "high"))
        yield {
            **{name: ledger[name] for name in ("point_id", "case", "folder", "base")}, "term": term["name"],
            "mean": term["mean"]["value"], "mean_low": term["mean"]["low"], "mean_high": term["mean"]["high"],
            "baseline": term["baseline"],
            "loss": loss["value"], "loss_low": loss["low"], "loss_high": loss["high"], "share": term["share"],
        }  # fmt: skip


def finding_rows(ledger: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The findings of a ledger of the JSON page as rows, what costs most first."""
    for finding in ledger["findings"]:
        without = finding["without"] or {}
        yield {
            **{name: ledger[name] for name in ("point_id", "case", "folder")}, "kind": finding["kind"],
            "costs": finding["costs"], "sentences": " ".join(finding["sentences"]),
            "speed_without": without.get("speed"),
        }  # fmt: skip


TABLES: Mapping[str, Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]] = {
    "points": lambda result: [point_row(result)], "runs": run_rows, "terms": term_rows, "findings": finding_rows,
}  # fmt: skip
"""By name, the rows of a table that a point of the JSON page, or for the last two its ledger, has."""


def rows_of(table: str, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table of these points or ledgers."""
    return [row for record in records for row in TABLES[table](record)]
