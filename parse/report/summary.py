"""The summary: paths read to judged results with their ledgers, the settings of their points, and what differs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.model.run_fields import UNKNOWN_CASE
from hpc.model.spec import COLLECTIVES, FIND_MAX, NO_SYNC, SAMPLES, SETTINGS, USUAL_NUMBERS
from hpc.model.trace import TraceError
from hpc.system.sanitize import arguments_without_secrets
from hpc.system.text import grouped
from parse import stats
from parse.alarms.table import judge
from parse.faults import fault
from parse.runs.attempt import facts_of
from parse.runs.load import load
from parse.runs.measurements import days
from parse.runs.result import NoSpeedup, Result, Run, against_base, results
from parse.runs.summary_file import MACHINE

if TYPE_CHECKING:
    from parse.command_options import Columns
    from parse.ledger.types import Ledger
    from parse.ledger.whole_time import WholeTime
    from parse.logs.benchmarks import Benchmarks
    from parse.report.against import Against
    from parse.runs.load_logs import HowToRead, Progress


ONE_DEVICE = "1n1g"
"""What a speedup is against where nothing else is named."""
SIZE = ("case", "nodes", "ranks_per_node", "devices")
"""Settings that the case implies."""

NO_TRAINING = {
    NO_SYNC: "a no-sync run is no training: its gradients are not reduced",
    COLLECTIVES: "collectives are no training",
    FIND_MAX: "a try of find-max is no measurement",
}
"""Why a run that explains others has no speedup, by its kind; it is no base either."""
NO_SPEEDUP = {
    NoSpeedup.NOT_OK: "no run ended ok",
    NoSpeedup.NO_BASE: "no other case with all else equal is here",
    NoSpeedup.UNKNOWN_DEVICES: (
        "neither the log nor its names say on how many devices: give --case 2n8g, or put it into a folder named like it"
    ),
    NoSpeedup.NO_SPEED: "no run has a speed: {reason}",
    NoSpeedup.BASE_NO_SPEED: "no run of {base} has a speed, which it is measured against; --base CASE chooses another",
    NoSpeedup.BASE_NOT_OK: "no run of {base} ended ok, which it is measured against; --base CASE chooses another",
}
OF_DOCUMENTS = {NoSpeedup.UNKNOWN_DEVICES: "the document does not say of how many devices these speeds are"}
"""Reasons that documents have in other words."""


class TableError(ValueError):
    """Points cannot be distinguished, or none is left; the text names them and how to choose."""


class WhereError(TableError):
    """No point has what --where names."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Judged results, sizes made small, remarks of reading and files not read.

    `diagnostics` explain results of training and are not among them. `ledgers` are of the results that have one, in
    their order, `times` the whole time of their runs, `against` the published figures beside the results; None if not
    requested.
    `benchmarks` are measured outside of any run.
    """

    results: tuple[Result, ...]
    diagnostics: tuple[Result, ...] = ()
    ledgers: tuple[Ledger, ...] | None = None
    times: tuple[WholeTime, ...] = ()
    reduced: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    against: Against | None = None
    benchmarks: Benchmarks | None = None

    @property
    def everything(self) -> tuple[Result, ...]:
        """All points, with those that explain others."""
        return (*self.results, *self.diagnostics)

    @property
    def empty(self) -> bool:
        """Whether nothing was read that could be shown."""
        return not (self.results or self.diagnostics or self.benchmarks)


def requested_values(result: Result) -> dict[str, str]:
    """All requested settings of the point, by the names of columns and `--where`, as tables and pages show them.

    Empty fields and unknown settings of a log are left out, and the folders above a person's own file.
    """
    values = identifying_values(result)
    return values | {"workload": result.run.workload_name} if "workload" in values else values


def identifying_values(result: Result) -> dict[str, str]:
    """The same with the whole path of a person's own file, by which points are distinguished."""
    run = result.run
    other: dict[str, Any] = {"case": result.requested.case, "on": "CPU" if run.gpus_per_node == 0 else "GPU"}
    other |= {
        "unit": "" if run.unit == SAMPLES else run.unit,
        "arguments": shlex.join(arguments_without_secrets(run.arguments)),
    }
    if result.requested.strong:
        other |= {"batch_size": run.global_batch_size, "scaling": "strong"}
    other |= {name: "" for name, usual in USUAL_NUMBERS.items() if getattr(run, name) == usual}
    other |= {} if run.devices else {"devices": UNKNOWN_CASE}
    requested = {name: other[name] if name in other else getattr(run, name) for name in SETTINGS}
    return {
        **{name: str(value) for name, value in requested.items() if value not in ("", None)},
        **measured_in(result),
        **{f"option.{name}": value for name, value in sorted(run.options.items())},
        **{f"env.{name}": value for name, value in sorted(run.env.items())},
        **{f"job.{name}": value for name, value in sorted(run.job_options.items())},
        **{
            name: str(value) if result.requested.partly else json.dumps(value)
            for name, value in sorted(result.requested.extra.items())
        },
    }


def measured_in(result: Result) -> dict[str, str]:
    """The folder and the days of the point's measurement, by the names of columns; empty where there is only one."""
    measurement = result.requested.measurement
    values = {} if measurement is None else {"folder": measurement.folder, "date": measurement.date}
    return {name: value for name, value in values.items() if value}


def no_speedup_text(result: Result) -> str:
    """Why the point has no speedup, in words; empty if it has one."""
    words = " and ".join(map(repr, result.placeholders))
    match result.no_speedup:
        case NoSpeedup.NO_TRAINING:
            return NO_TRAINING[result.run.diagnostic]
        case NoSpeedup.PLACEHOLDER:
            return f"its document prints {words} for {result.requested.case}"
        case NoSpeedup.BASE_PLACEHOLDER:
            return f"its document prints {words} for {result.base_case}"
        case None:
            return ""
        case NoSpeedup.NO_BASE if "folder" in requested_values(result):
            return f"{NO_SPEEDUP[NoSpeedup.NO_BASE]}; logs of other folders are other measurements"
        case reason:
            texts = NO_SPEEDUP | OF_DOCUMENTS if result.published else NO_SPEEDUP
            return texts[reason].format(base=result.base_case, reason="; ".join(result.without_speed))


def against_text(result: Result) -> str:
    """`against 1n8g`, what the head of its speedup says; empty for a base of one device, which is the usual one, and
    where there is no speedup."""
    return "" if result.speedup is None else _against(result)


def _against(result: Result) -> str:
    return "" if result.base is None or result.base.devices == 1 else f"against {result.base.case}"


def by_base(results: Sequence[Result]) -> list[list[Result]]:
    """The results by what their speedups are against, so that no column has two of these; those without a speedup are
    with their setting, else with the first."""
    bases = dict.fromkeys(against_text(result) for result in results if result.speedup is not None)
    first = next(iter(bases), "")
    of_bases = grouped((text if (text := _against(each)) in bases else first, each) for each in results)
    return list(of_bases.values())


def names_of_points(summary: Summary) -> dict[str, str]:
    """The name that each point has in the scaling table."""
    return dict(zip((result.requested.point for result in summary.results), labels(summary.results), strict=True))


def named_ledgers(summary: Summary) -> list[tuple[str, Ledger]]:
    """The ledgers, each with the name that its point has in the scaling table."""
    names = names_of_points(summary)
    return [(names[ledger.result.requested.point], ledger) for ledger in summary.ledgers or ()]


def of_logs(result: Result, speed: str) -> float | None:
    """The median over its ok runs of a log's `wall_clock` or `printed` speed; None where no log of it has one."""
    speeds = [value for run in result.ok if run.log and (value := getattr(run.log, speed)) is not None]
    return stats.median(speeds) if speeds else None


def choose(results: Sequence[Result], where: Mapping[str, Sequence[str]]) -> tuple[Result, ...]:
    """The results that have one of the wanted values of every name. Raises WhereError on a name that none has."""
    if "stamps" in where:
        raise WhereError("--where: stamps is now timing: phases (was fine), step (was coarse)")
    names = {name for result in results for name in requested_values(result)}
    if unknown := sorted(set(where) - names):
        raise WhereError(f"--where: no point has {', '.join(unknown)}; known here are {', '.join(sorted(names))}")
    chosen = []
    for result in results:
        known = requested_values(result), identifying_values(result)
        if all(any(its.get(name) in values for its in known) for name, values in where.items()):
            chosen.append(result)
    return tuple(chosen)


def varying(results: Sequence[Result]) -> list[str]:
    """The settings in which the points differ, as far as known, without those that the case implies."""
    return [name for name, values in _values(results).items() if name not in SIZE and len({*values}) > 1]


def telling(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Backend and workload, and the names in which these requested values differ, without those that the case
    implies."""
    names = dict.fromkeys(name for values in settings for name in values if name not in SIZE)
    return [name for name in names if name in ("backend", "workload") or len({each.get(name) for each in settings}) > 1]


def naming(results: Sequence[Result]) -> list[str]:
    """Those of `varying` that names are made of: a measurement is named by its folder alone."""
    names = varying(results)
    return [name for name in names if name != "date" or "folder" not in names]


def shared(results: Sequence[Result]) -> dict[str, str]:
    """The settings that all points share, as far as known, without those that the case implies."""
    alike = {name: {*values} for name, values in _values(results).items() if name not in SIZE}
    return {name: value for name, values in alike.items() if len(values) == 1 and (value := values.pop()) is not None}


def by_unit(results: Sequence[Result]) -> list[list[Result]]:
    """The results by the unit of their speeds; there is one list where all have the same."""
    units = grouped((result.unit, result) for result in results)
    return [units[unit] for unit in sorted(units)]


def knowing(results: Sequence[Result], name: str) -> tuple[str, ...]:
    """The backends of the points whose setting of that name is known, documents in place of unknown ones; empty if it
    is known for all points."""
    values = [(result, requested_values(result)) for result in results]
    known = [its for result, its in values if not result.requested.partly or name in its]
    return (
        ()
        if len(known) == len(results)
        else tuple(dict.fromkeys(its.get("backend") or its.get("document", "") for its in known))
    )


def labels(results: Sequence[Result]) -> list[str]:
    """A name for each point: its case and the settings that differ; for logs without those that their systems imply."""
    differ = naming(results)
    settings = [requested_values(result) for result in results]
    if "backend" in differ and any(result.requested.partly for result in results):
        values = grouped(((name, point.get("backend")), point.get(name)) for point in settings for name in differ)
        implied = {name for name in differ if all(len({*met}) == 1 for (of, _), met in values.items() if of == name)}
        differ = [name for name in differ if name == "backend" or name not in implied]
    return [named(values_of_point, ("case",), differ) for values_of_point in settings]


def named(values: Mapping[str, str], bare: Sequence[str], names: Sequence[str]) -> str:
    """`2n8g seed=3`: the values of `bare`, and those of `names` behind their names, where it has them."""
    return " ".join(
        [*(values[name] for name in bare if name in values)]
        + [f"{name}={values[name]}" for name in names if name in values]
    )


def setting_name(values: Mapping[str, str], names: Sequence[str]) -> str:
    """`torch-ddp resnet50 seed=3`: its backend and workload, and the values of `names`; the document where it has none
    of them."""
    return named(values, ("backend", "workload"), names) or values.get("document", "")


def differences(results: Sequence[Result]) -> dict[str, list[str]]:
    """The settings that differ between points, each with its values, `(none)` for a point without it."""
    settings = [requested_values(result) for result in results]
    return {
        name: list(dict.fromkeys(values_of_point.get(name, "(none)") for values_of_point in settings))
        for name in varying(results)
    }


def _values(results: Sequence[Result]) -> dict[str, list[str | None]]:
    """The value of that name for every point where it is known; None for a point without such a setting."""
    settings = [(requested_values(result), result.requested.partly) for result in results]
    names = dict.fromkeys(name for each, _ in settings for name in each)
    return {name: [each.get(name) for each, partly in settings if name in each or not partly] for name in names}


# What measured the runs of a summary, and when: device, driver, commit, versions, days.


def provenance(runs: Sequence[Run]) -> dict[str, Any]:
    """The members of the JSON page: all values of the runs, sorted. `versions` are those that traces have, `header` the
    further facts of logs; `date` is None where nothing records it."""
    traces, logs = (
        facts_of(run.machine for run in runs if run.machine and bool(run.log) is of_logs) for of_logs in (False, True)
    )
    return {
        "date": days(run.attempt.begin_unix_s for run in runs if run.attempt) or None,
        **{name: sorted({*traces.get(fact, ()), *logs.get(fact, ())}) for name, fact in MACHINE.items()},
        "versions": _others(traces),
        "header": _others(logs),
    }


def _others(facts: dict[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(values) for name, values in sorted(facts.items()) if name not in MACHINE.values()}


# From paths to a summary with its ledgers: what every command that judges results reads.


def read_documents(paths: Sequence[Path], base: str = "", columns: Columns | None = None) -> Summary:
    """The judged results of documents with tables of those columns. Raises BaseError as `against_base`."""
    from parse.tables import published

    printed = published(paths, columns)
    return Summary(
        results=judge(against_base(printed.results, base)), remarks=printed.remarks, refusals=printed.refusals
    )


def read_summary(
    paths: Sequence[Path],
    kind: str = "auto",
    how: HowToRead | None = None,
    *,
    documents: Sequence[Path] = (),
    columns: Columns | None = None,
    base: str = "",
    verbose: bool = False,
    progress: Progress[Path] | None = None,
) -> tuple[Summary, int]:
    """The judged results of traces and logs, and of `documents` with tables of those columns beside them; and the
    number of logs among the files.

    `kind`, `how` and `verbose` are those of `load`, `base` is the case that speedups are measured against.
    Never raises because of a file's content, and BaseError where no point has that case.
    """
    loaded = load(paths, progress, kind, how, verbose=verbose)
    printed = Summary(results=())
    if documents:
        from parse.tables import published

        read = published(documents, columns)
        printed = Summary(results=read.results, remarks=read.remarks, refusals=read.refusals)
    judged = judge(against_base((*results(loaded), *printed.results), base))
    summary = Summary(
        results=tuple(result for result in judged if not result.run.diagnostic),
        diagnostics=tuple(result for result in judged if result.run.diagnostic),
        reduced=loaded.reduced,
        remarks=(*loaded.remarks, *printed.remarks),
        refusals=(*loaded.refusals, *printed.refusals),
        benchmarks=loaded.benchmarks,
    )
    return summary, loaded.logs


def read_ledgers(
    summary: Summary, chosen: Sequence[Result], *, what_if: bool = False, progress: Progress[Result] | None = None
) -> Summary:
    """The summary of the chosen points with their ledgers; their bases are read with them. With `what_if`, what changes
    would be worth."""
    from parse.ledger.point import ledgers
    from parse.ledger.whole_time import whole_times
    from parse.logs.benchmarks import NO_BENCHMARKS

    points = {result.requested.point for result in chosen}
    read = points | {result.base.point for result in chosen if result.base}
    of = [result for result in summary.results if result.requested.point in read]
    faults: list[str] = []
    every = ledgers(of, summary.diagnostics, progress, summary.benchmarks or NO_BENCHMARKS, faults)
    made = tuple(ledger for ledger in every if ledger.result.requested.point in points)
    times = whole_times(chosen, summary.everything, faults)
    summary = replace(summary, results=tuple(chosen), ledgers=made, times=times, refusals=(*summary.refusals, *faults))
    return add_what_ifs(summary, chosen) if what_if else summary


def add_what_ifs(summary: Summary, chosen: Sequence[Result]) -> Summary:
    """The summary whose ledgers of the chosen points have what changes would be worth: traces are read once more."""
    from parse.ledger.what_if import with_what_ifs

    made, faults = [], []
    for ledger in summary.ledgers or ():
        try:
            made.append(with_what_ifs(ledger) if any(ledger.result is each for each in chosen) else ledger)
        except TraceError:
            raise
        except Exception as error:  # noqa: BLE001 - the line says which
            made.append(ledger)
            faults.append(fault(error, f"what changes would be worth at {ledger.result.requested.run_id}"))
    return replace(summary, ledgers=tuple(made), refusals=(*summary.refusals, *faults))
