"""The JSON page of `rankwise summarize`, read again as the runs that it is of: speeds and facts, no steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.outcome import Outcome, read_object
from hpc.model.run_fields import RunFields
from hpc.model.spec import DRAWN, SIMULATED
from hpc.model.trace import TraceError
from hpc.model.typed import read_fields
from parse.runs.attempt import COMMIT, Attempt, FromLog, Machine, Measured, RequestedRun

SCHEMA, SCHEMA_VERSION = "rankwise-summary", 5
READ_VERSIONS = (2, 3, 4, 5)
"""Earlier versions have other members, of which none makes a run."""
MAX_SUMMARY_BYTES = 1 << 28
MAX_WHOLE = 1 << 36
"""No second since 1970, repeat or attempt of ours is that large."""
MACHINE = {"device": "device", "driver": "driver", "cpu": "cpu", "transport": "transport", "commit": COMMIT}
"""Facts about the machine, with members of their own in the JSON page; the others are versions."""
FIELDS = tuple(each.name for each in dataclasses.fields(RunFields))


def identity(requested: RequestedRun) -> dict[str, Any]:
    """What makes a point the same in another measurement: the known fields of its runs, and those beside them. Of a
    person's own file its folders are not handed on; the digest of its code is."""
    stated = {name: getattr(requested.run, name) for name in FIELDS}
    stated["workload"] = requested.run.workload_name or None
    known = {name: value for name, value in stated.items() if value is not None and value != ()}
    known = {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}
    beside = {"extra": dict(requested.extra), "target_env": dict(requested.target_env), "strong": requested.strong}
    return {"run": {**known, "repeat": 1}, **beside}


def read_summary_file(path: Path) -> tuple[list[Attempt], list[RequestedRun]]:
    """The attempts that a JSON page is of, and the runs that its plan requested. Raises TraceError where it is none, of
    another version, or of figures of a document."""
    page = read_object(path, MAX_SUMMARY_BYTES, "a summary of ours")
    if page.get("schema") != SCHEMA or page.get("schema_version") not in READ_VERSIONS:
        versions = " or ".join(map(str, READ_VERSIONS))
        raise TraceError(f"{path}: no summary of schema {versions}, which rankwise summarize --format json writes")
    attempts: list[Attempt] = []
    requested: list[RequestedRun] = []
    try:
        for result in (*page["results"], *page["diagnostics"]):
            if "published" in result:
                raise ValueError("figures of a document: name the document itself")
            if "identity" not in result:
                raise ValueError("written by an older version, without `identity`: write it again from its traces")
            for run, attempt in _runs(result):
                attempts += [attempt] if attempt else []
                requested += [run] if result["runs_requested"] is not None else []
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TraceError(f"{path}: a summary that cannot be read: {reason}") from None
    return attempts, requested


def _runs(result: Mapping[str, Any]) -> Iterator[tuple[RequestedRun, Attempt | None]]:
    known, extra, env, strong = (result["identity"][name] for name in ("run", "extra", "target_env", "strong"))
    fields, env = _checked(known), {str(name): str(value) for name, value in env.items()}
    for run in result["runs"]:
        of_run = dataclasses.replace(fields, repeat=_number(run["repeat"], int))
        run_id = str(run["run_id"])
        requested = RequestedRun(run=of_run, run_id=run_id, extra=dict(extra), target_env=env, strong=bool(strong))
        yield requested, _attempt(requested, run, result) if run["attempts"] else None


def _checked(known: Mapping[str, Any]) -> RunFields:
    """The fields, each of its type. Raises ValueError for others, and where nobody made the run."""
    if known.get("backend") == SIMULATED:
        raise ValueError(DRAWN)
    fields = RunFields(**read_fields(RunFields, known))
    for name in ("nodes", "devices"):
        if (count := getattr(fields, name)) is not None and count < 1:
            raise ValueError(f"{name} of a run is {count}")
    return fields


def _attempt(requested: RequestedRun, run: Mapping[str, Any], result: Mapping[str, Any]) -> Attempt:
    speed, names = run["throughput"], {str(each): each for each in Outcome}
    measured = None if speed is None else Measured(
        throughput=_number(speed, float), mean_of_rates=_or_none(run["mean_of_rates"]), step_s=np.empty(0), samples=0,
        clock_share=0.0, pauses_s=tuple(_number(each, float) for each in run["pauses_s"]),
    )  # fmt: skip
    facts = {fact: tuple(map(str, run[name])) for name, fact in MACHINE.items() if run[name]}
    facts |= {name: tuple(map(str, values)) for group in ("versions", "header") for name, values in run[group].items()}
    log = None if "log" not in run else FromLog(
        path=Path(run["log"]), log_format=str(run["family"]), window=str(run["window"]),
        wall_clock=_or_none(run["wall_clock"]), printed=_or_none(run["printed"]),
    )  # fmt: skip
    return Attempt(
        run_id=requested.run_id, number=_number(run["attempt"], int), requested=requested,
        outcome=Outcome.OK if measured else names.get(str(run["outcome"])), evidence=str(run["evidence"]),
        measured=measured, log=log, problem=str(run.get("problem", "")),
        machine=Machine(
            ranks=requested.run.ranks or requested.run.devices or 1, facts=facts, hosts=tuple(map(str, run["hosts"])),
            oversubscribed=str(result["oversubscribed"]), nodes_simulated=str(result["nodes_simulated"]),
        ),
        begin_unix_s=_or_none(run["begin_unix_s"], int),
        summarized=Path(run["trace"]) if run["trace"] else None,
    )  # fmt: skip


def _or_none(value: Any, kind: type[int | float] = float) -> Any:
    return None if value is None else _number(value, kind)


def _number(value: Any, kind: type[int | float]) -> Any:
    """A number of this kind. Raises ValueError for others, and for whole numbers that are no time or count."""
    if isinstance(value, bool) or not isinstance(value, int | kind) or (kind is int and not 0 <= value < MAX_WHOLE):
        raise ValueError(f"{value!r:.40} is no number of it")
    return kind(value)
