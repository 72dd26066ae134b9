"""What there is to print: judged results, what their points ask for, what tells them apart."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parse.result import Result

SIZE = ("case", "nodes", "ranks_per_node", "devices")
"""What the case says of a point."""


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
    """Everything that the point asks for, by the names that columns and `--where` use; empty fields left out."""
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
        "stamps": run.stamps,
        "seed": run.seed,
        "site": run.site,
        "container": run.container,
        "code_digest": run.code_digest,
    }
    asked = {name: str(value) for name, value in asked.items() if value != ""}
    return {
        **asked,
        **{f"option.{name}": value for name, value in sorted(run.options.items())},
        **{f"env.{name}": value for name, value in sorted(run.env.items())},
        **{name: json.dumps(value) for name, value in sorted(result.asked.extra.items())},
    }


def choose(results: Sequence[Result], where: Mapping[str, Sequence[str]]) -> tuple[Result, ...]:
    """The results that have one of the wanted values of every name. Raises TableError on a name that none has."""
    names = {name for result in results for name in asked_of(result)}
    if unknown := sorted(set(where) - names):
        raise TableError(f"--where: no point has {', '.join(unknown)}; known here are {', '.join(sorted(names))}")
    return tuple(r for r in results if all(asked_of(r).get(name) in values for name, values in where.items()))


def plain(line: str) -> str:
    """The text with every character that could steer a terminal, or hide, as its escape."""
    return "".join(c if unicodedata.category(c)[0] != "C" else ascii(c)[1:-1] for c in line)


def varying(results: Sequence[Result]) -> list[str]:
    """What the points ask for differently, less what the case says already."""
    asked = [asked_of(result) for result in results]
    names = dict.fromkeys(name for each in asked for name in each)
    return [name for name in names if name not in SIZE and len({each.get(name) for each in asked}) > 1]


def differences(results: Sequence[Result]) -> dict[str, list[str]]:
    """What the points ask for differently, each with its values, `(none)` where a point does not ask for it."""
    asked = [asked_of(result) for result in results]
    return {name: list(dict.fromkeys(one.get(name, "(none)") for one in asked)) for name in varying(results)}
