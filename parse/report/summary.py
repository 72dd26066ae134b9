"""What there is to print: judged results, what their points ask for, what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parse import stats
from parse.ledger.types import Ledger
from parse.result import Result

SIZE = ("case", "nodes", "ranks_per_node", "devices")
"""What the case says of a point."""
USUAL = {"timing": "phases", "reduction": "on", "telemetry": "on", "placement": "separate"}
"""The rule, which needs no saying to a person; what departs from it does."""


class TableError(ValueError):
    """Points cannot be told apart, or none is left; the text says which and how to choose."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Judged results, sizes made small, and what was said while reading: odd things and files not read.

    `probes` are no results of training but explain them (RunSpec.diagnostic). `ledgers` are of the results that have
    one, in their order; None where nobody asked for them.
    """

    results: tuple[Result, ...]
    probes: tuple[Result, ...] = ()
    ledgers: tuple[Ledger, ...] | None = None
    reduced: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def requested_values(result: Result) -> dict[str, str]:
    """Everything that the point asks for, by the names that columns and `--where` use.

    Empty fields are left out, and what nobody knows of a log.
    """
    run = result.run
    requested: dict[str, Any] = {
        "case": result.requested.case,
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
        "timing": run.timing,
        "block_steps": run.block_steps or "",
        "reduction": run.reduction,
        "telemetry": run.telemetry,
        "placement": run.placement,
        "seed": run.seed,
        "site": run.site,
        "container": run.container,
        "code_digest": run.code_digest,
    }
    unknown, extra = result.requested.unknown, result.requested.extra
    requested = {name: str(value) for name, value in requested.items() if value != "" and name not in unknown}
    return {
        **requested,
        **{f"option.{name}": value for name, value in sorted(run.options.items())},
        **{f"env.{name}": value for name, value in sorted(run.env.items())},
        **{name: str(value) if result.requested.partly else json.dumps(value) for name, value in sorted(extra.items())},
    }


def named_ledgers(summary: Summary) -> list[tuple[str, Ledger]]:
    """The ledgers, each with the name that its point has in the scaling table."""
    names = dict(zip((result.requested.point for result in summary.results), labels(summary.results), strict=True))
    return [(names[ledger.result.requested.point], ledger) for ledger in summary.ledgers or ()]


def of_logs(result: Result, speed: str) -> float | None:
    """The median over its ok runs of a log's `wall_clock` or `printed` speed; None where no log of it has one."""
    logs = [run.attempt.log for run in result.ok if run.attempt and run.attempt.log]
    speeds = [value for log in logs if (value := getattr(log, speed)) is not None]
    return stats.median(speeds) if speeds else None


def choose(results: Sequence[Result], where: Mapping[str, Sequence[str]]) -> tuple[Result, ...]:
    """The results that have one of the wanted values of every name. Raises TableError on a name that none has."""
    names = {name for result in results for name in requested_values(result)}
    if "stamps" in where:
        raise TableError("--where: stamps is now timing: phases (was fine), step (was coarse)")
    if unknown := sorted(set(where) - names):
        raise TableError(f"--where: no point has {', '.join(unknown)}; known here are {', '.join(sorted(names))}")
    return tuple(r for r in results if all(requested_values(r).get(name) in values for name, values in where.items()))


def varying(results: Sequence[Result]) -> list[str]:
    """What the points ask for differently, as far as that is known, less what the case says already."""
    return [name for name, values in _values(results).items() if name not in SIZE and len({*values}) > 1]


def shared(results: Sequence[Result]) -> dict[str, str]:
    """What all points ask for alike, as far as that is known; what the case says is never in it."""
    alike = {name: {*values} for name, values in _values(results).items() if name not in SIZE}
    return {name: value for name, values in alike.items() if len(values) == 1 and (value := values.pop()) is not None}


def knowing(results: Sequence[Result], name: str) -> tuple[str, ...]:
    """The backends of the points of which it is known what they ask for by that name; empty where it is of all."""
    known = [result for result in results if not result.requested.partly or name in requested_values(result)]
    return () if len(known) == len(results) else tuple(dict.fromkeys(result.run.backend for result in known))


def labels(results: Sequence[Result]) -> list[str]:
    """A name for each point, by its case and what is asked differently; of logs without what their systems imply."""
    differ = varying(results)
    settings = [requested_values(result) for result in results]
    if "backend" in differ and any(result.requested.partly for result in results):
        values: dict[tuple[str, str], set[str | None]] = {}
        for values_of_point in settings:
            for name in differ:
                values.setdefault((name, values_of_point["backend"]), set()).add(values_of_point.get(name))
        implied = {name for name in differ if all(len(met) == 1 for (of, _), met in values.items() if of == name)}
        differ = [name for name in differ if name == "backend" or name not in implied]
    return [
        " ".join(
            [
                values_of_point["case"],
                *(f"{name}={values_of_point[name]}" for name in differ if name in values_of_point),
            ]
        )
        for values_of_point in settings
    ]


def differences(results: Sequence[Result]) -> dict[str, list[str]]:
    """What the points ask for differently, each with its values, `(none)` where a point does not ask for it."""
    settings = [requested_values(result) for result in results]
    return {
        name: list(dict.fromkeys(values_of_point.get(name, "(none)") for values_of_point in settings))
        for name in varying(results)
    }


def _values(results: Sequence[Result]) -> dict[str, list[str | None]]:
    """By name the value of every point of which it is known; None where it asks for nothing by that name."""
    settings = [(requested_values(result), result.requested.partly) for result in results]
    names = dict.fromkeys(name for each, _ in settings for name in each)
    return {name: [each.get(name) for each, partly in settings if name in each or not partly] for name in names}
