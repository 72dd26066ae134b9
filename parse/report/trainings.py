"""Whole trainings: time to train, throughput, accuracy and speedup, as AI-Rank has them, and where the time went."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hpc.model.outcome import Outcome
from hpc.model.spec import BATCH_SIZE, FIND_MAX
from hpc.model.trace import RankReport
from hpc.model.trace_file import open_trace
from hpc.model.training import TimeSpent, TrainingHistory, log_lines
from hpc.system.atomic import write_atomic
from hpc.system.text import grouped, plural
from parse.alarms.nodes import Drift, NodeAlarm, NodeSpeed, PerNode, drifts, per_node
from parse.logs.nccl_tests import NcclTest
from parse.published.airank_rules import FIELDS, INFORMATION
from parse.report.summary import Summary, TableError, differences, requested_values, telling
from parse.result import Result
from parse.text import (
    Head,
    Page,
    aligned,
    distinct,
    in_blocks,
    markdown_list,
    markdown_table,
    markdown_text,
    number,
    shortened,
    with_units,
    wrapped,
)

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
    none. `spent` is where the time of the run in the middle went. `problems` are what did not go as planned.
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
    spent: TimeSpent
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
        spent=middle(histories).spent,
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
        against = "" if base in (None, "1n1g") else f"against {base}"
        names = telling([row.settings for row in its])
        columns = [(name, against if name == "speedup" else unit) for name, unit in HEADS]
        yield [("case", ""), *((name, "") for name in names), *columns], _cells(its, names)


def _lines(rows: Sequence[TrainingRow]) -> list[str]:
    lines = []
    for row in rows:
        spent = row.spent
        parts = {
            "training": spent.training_s, "evaluation": spent.evaluation_s,
            "lost work, waiting and starts between attempts": spent.between_attempts_s,
            "checkpoints and the rest": spent.rest_s,
        }  # fmt: skip
        total = sum(parts.values())
        shares = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items() if value)
        folder = row.settings.get("folder")
        name = f"{row.case} {row.settings.get('backend', '')}{f' folder={folder}' if folder else ''}"
        lines.append(f"{name}: {total:.1f} s = {shares}")
        lines += [f"{name}: {problem}" for problem in row.problems]
        if row.no_speedup and row.case != "1n1g":
            lines.append(f"{name}: no speedup: {row.no_speedup}")
    return lines


def trainings_text(summary: Summary, page: Page) -> list[str]:
    """The table for a terminal; empty where nothing was trained to its end."""
    rows = trainings(summary.results)
    if not rows:
        return []
    tables = [
        aligned([*map(list, zip(*heads, strict=True)), *cells], label_columns=len(heads) - len(HEADS))
        for heads, cells in _tables(rows)
    ]
    lines = [line for table in tables for line in (*table, *[""] * (len(tables) > 1))]
    return [*wrapped([TITLE], page.width), *lines, *wrapped(_lines(rows), page.width)]


def trainings_markdown(summary: Summary) -> list[str]:
    """The same as Markdown."""
    rows = trainings(summary.results)
    if not rows:
        return []
    tables = [markdown_table(with_units(heads), cells) for heads, cells in _tables(rows)]
    return [markdown_text(TITLE), *tables, markdown_list(_lines(rows))]


# AI-Rank's files of whole trainings: a log per number of devices, and what the rules ask of the machine.

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


# The bus bandwidth that nccl-tests printed, by size and devices: tables, and what is wrong with a test.

UNIT = "GB/s"


def bandwidths_text(summary: Summary, page: Page) -> list[str]:
    """A table for each operation, a row per size and a column per test; empty where nothing was tested."""
    lines: list[str] = []
    for operation, tests in _by_operation(summary.nccl_tests).items():
        heads, rows = _table(tests)
        table = [[name for name, _ in heads], [unit for _, unit in heads], *rows]
        lines += [*([""] if lines else []), *wrapped([_operation_title(operation, tests), *_legend(tests)], page.width)]
        lines += in_blocks(table, 0, 1, page.table_width)
    return lines


def bandwidths_markdown(summary: Summary) -> list[str]:
    """The same as Markdown."""
    parts: list[str] = []
    for operation, tests in _by_operation(summary.nccl_tests).items():
        heads, rows = _table(tests)
        parts += [markdown_text(_operation_title(operation, tests)), markdown_list(_legend(tests))]
        parts += [markdown_table(with_units(heads), rows)]
    return parts


def problems(test: NcclTest) -> list[str]:
    """What is wrong with a test; wrong results first."""
    what = f"{test.operation or 'a collective'} of nccl-tests on {test.case}"
    texts = []
    if test.wrong:
        texts.append(f"{what}: {plural(test.wrong, 'wrong element')}: its results are wrong, whatever its bandwidth")
    if test.cpu_time:
        texts.append(f"{what}: its times are those of the launches (-C), which give no bandwidth")
    elif not test.rows:
        texts.append(f"{what}: it ended before its first size")
    if test.average is None:
        texts.append(f"{what}: it did not come to its end, sizes may be missing")
    if test.groups > 1:
        texts.append(f"{what}: {test.groups} groups of devices reduced at once, the bandwidth is that of one")
    return texts


def _by_operation(tests: Sequence[NcclTest]) -> dict[str, list[NcclTest]]:
    """The tests that have a bandwidth, by operation, on fewer devices first."""
    ordered = sorted(tests, key=lambda test: (test.devices or 0, test.nodes or 0))
    return grouped((test.operation, test) for test in ordered if test.rows)


def _operation_title(operation: str, tests: Sequence[NcclTest]) -> str:
    elsewhere = any(row.in_place is None and row.timing for test in tests for row in test.rows)
    place = "in place, where a test has that, else out of place" if elsewhere else "in place"
    return f"bus bandwidth of {operation or 'an unnamed collective'} by nccl-tests, {place}"


def _names(tests: Sequence[NcclTest]) -> list[str]:
    """The cases; of several tests of one case with a number."""
    return distinct((test.case for test in tests), "{} [{}]")


def _legend(tests: Sequence[NcclTest]) -> list[str]:
    """A line per test: its file, devices, NCCL, and the average over sizes that it prints."""
    lines = []
    for name, test in zip(_names(tests), tests, strict=True):
        facts = [test.file, *test.models]
        facts += [f"NCCL {test.nccl}"] if test.nccl else []
        facts += ["results not checked"] if test.wrong is None else []
        facts += [] if test.average is None else [f"average {test.average:g} {UNIT}"]
        lines.append(f"{name}: {', '.join(facts)}")
    return lines


def _table(tests: Sequence[NcclTest]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Heads as (name, unit), and a row per size; the mean of a size that a test has several times."""
    columns = [_busbw(test) for test in tests]
    sizes = sorted({size for column in columns for size in column})
    heads = [("size", "B"), *((name, UNIT) for name in _names(tests))]
    return heads, [
        [str(size), *(number(column[size]) if size in column else "" for column in columns)] for size in sizes
    ]


def _busbw(test: NcclTest) -> dict[int, float]:
    by_size = grouped((row.bytes, row.timing.busbw) for row in test.rows if row.timing is not None)
    return {size: sum(values) / len(values) for size, values in by_size.items()}


# Nodes and the course of jobs as text: tables, and the sentences of their alarms.

MISSING = "no node has two runs of one point: node and run variation cannot be separated; increase --repeats"
SLOWEST, FASTEST = 12, 4
"""Nodes shown of each end, where there are more than both together."""
NAMED = 5
"""Nodes that differ and are named, at most."""
NODE_HEADS = (("node", ""), ("runs", ""), ("apart", "%"))
NAME_SHARE = 0.6
"""Share of a line that a node's name takes, at most."""


def missing_text(site: PerNode) -> str:
    """The reason where there is no scatter, else nothing."""
    return MISSING if site.scatter is None else ""


def node_alarm_text(alarm: NodeAlarm) -> str:
    direction = "slower" if alarm.relative < 0 else "faster"
    return (
        f"{alarm.node} is {abs(alarm.relative):.1%} {direction} than the other nodes; "
        f"runs on one node leave {alarm.margin:.1%} open ({alarm.runs} runs on it, {alarm.other_runs} on others)"
    )


def drift_alarm_text(drift: Drift) -> str:
    """The alarm where the change is beyond the margin, else nothing."""
    if not drift.is_beyond:
        return ""
    return (
        f"job {drift.name}: speeds change by {drift.change:+.1%} (± {drift.margin:.1%}) from its first run to its "
        f"last, {drift.minutes:.1f} min later: what ran early and what ran late do not compare"
    )


def nodes_text(summary: Summary, page: Page) -> list[str]:
    """A table for each site whose nodes are distinguishable, and a line for the course of each job with nested runs."""
    lines: list[str] = []
    for site in per_node(summary.results):
        rows, left_out = _node_rows(site)
        short = shortened([node for node, *_ in rows], int(page.width * NAME_SHARE))
        rows = [[short[node], *cells] for node, *cells in rows]
        lines += [*([""] if lines else []), *wrapped([_site_title(site)], page.width)]
        lines += aligned([*zip(*NODE_HEADS, strict=True), *rows])
        lines += wrapped([left_out] if left_out else [], page.width)
    return lines + wrapped(_courses(summary), page.width)


def nodes_tables(summary: Summary) -> list[tuple[str, Sequence[Head], list[list[str]]]]:
    """Title, heads and rows for each site whose nodes are distinguishable."""
    tables: list[tuple[str, Sequence[Head], list[list[str]]]] = []
    for site in per_node(summary.results):
        rows, left_out = _node_rows(site)
        tables.append((f"{_site_title(site)}{f'; {left_out}' if left_out else ''}", NODE_HEADS, rows))
    return tables


def nodes_markdown(summary: Summary) -> list[str]:
    parts = []
    for site in per_node(summary.results):
        rows, left_out = _node_rows(site)
        parts += [markdown_text(_site_title(site))]
        parts += [markdown_table(with_units(NODE_HEADS), rows)]
        parts += [markdown_text(left_out)] if left_out else []
    return [*parts, markdown_list(_courses(summary))]


def nodes_alarms(summary: Summary) -> list[str]:
    """Alarms about nodes and about the course of jobs, a line each."""
    alarms = []
    for site in per_node(summary.results):
        alarms += [f"nodes of {site.name}: {node_alarm_text(alarm)}" for alarm in site.alarms[:NAMED]]
        if len(site.alarms) > NAMED:
            alarms.append(f"nodes of {site.name}: {len(site.alarms) - NAMED} more differ; --format json names them all")
    return [*alarms, *filter(None, map(drift_alarm_text, drifts(summary.results)))]


def _site_title(site: PerNode) -> str:
    scatter = missing_text(site) if site.scatter is None else f"runs on one node scatter by {site.scatter:.2%}"
    runs = f"one-node runs of {plural(site.points, 'point')}"
    return f"speed by node of {site.name}: {runs}, against the median node; {scatter}"


def _node_rows(site: PerNode) -> tuple[list[list[str]], str]:
    """A row for each node shown, and a line for those that are not."""
    shown: Sequence[NodeSpeed] = site.nodes
    omitted = shown[SLOWEST:-FASTEST] if len(shown) > SLOWEST + FASTEST else ()
    left_out = ""
    if omitted:
        left_out = f"and {len(omitted)} nodes between {omitted[0].relative:+.2%} and {omitted[-1].relative:+.2%}"
    rows = [[node.node, str(node.runs), f"{node.relative * 100:+.2f}"] for node in shown if node not in omitted]
    return rows, left_out


def _courses(summary: Summary) -> list[str]:
    nested = any(result.run.placement == "nested" for result in summary.results)
    return [
        f"job {drift.name}: {drift.runs} runs in {drift.minutes:.1f} min; from the first to the last, speeds change by "
        f"{drift.change:+.1%} (± {drift.margin:.1%})"
        for drift in drifts(summary.results)
        if nested and not drift.is_beyond
    ]


# The largest values that fit into the memory, from the tries of `hpc.sweep find-max`.

LARGEST_TITLE = "largest values that fit into the memory (hpc.sweep find-max)"
LARGEST_HEADS = [("fits", ""), ("does not", ""), ("tries", "")]
OPTION = "option."


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The tries of one point. `fits` is the largest value that ended ok, `too_large` the smallest that ended with oom;
    None where there is none. `others` counts the tries that ended otherwise, by outcome."""

    case: str
    sought: str
    settings: dict[str, str]
    fits: int | None
    too_large: int | None
    tries: int
    others: dict[str, int]

    @property
    def problem(self) -> str:
        """Why the row is not to be trusted; empty where nothing speaks against it."""
        others = ", ".join(f"{count} {outcome}" for outcome, count in self.others.items())
        if self.fits is not None and self.too_large is not None and self.fits > self.too_large:
            return (
                f"{self.too_large} does not fit and {self.fits} does: what fits is not only a matter of {self.sought}"
            )
        return f"tries that are no answer: {others}" if others else ""


def largest(diagnostics: Sequence[Result]) -> tuple[Largest, ...]:
    """A row for each point that was searched, in their order."""
    tries = [result for result in diagnostics if result.run.diagnostic == FIND_MAX]
    return tuple(map(_largest, grouped((_without_value(result), result) for result in tries).values()))


def _without_value(result: Result) -> str:
    """Equal for the tries of one point."""
    run, sought = result.run, result.run.search
    options = {name: value for name, value in run.options.items() if name != sought}
    size = 1 if sought == BATCH_SIZE else run.batch_size
    return dataclasses.replace(run, options=options, batch_size=size, repeat=1).key(result.requested.distinction)


def _value(result: Result) -> int:
    run = result.run
    return (run.batch_size or 0) if run.search == BATCH_SIZE else int(run.options[str(run.search)])


def _largest(tries: Sequence[Result]) -> Largest:
    ended = [(_value(result), run.outcome_text) for result in tries for run in result.runs]
    first = tries[0]
    sought = str(first.run.search)
    value_name = "batch_size" if sought == BATCH_SIZE else f"{OPTION}{sought}"
    return Largest(
        case=first.requested.case,
        sought=sought,
        settings={name: value for name, value in requested_values(first).items() if name not in (value_name, "search")},
        fits=max((value for value, outcome in ended if outcome == Outcome.OK), default=None),
        too_large=min((value for value, outcome in ended if outcome == Outcome.OOM), default=None),
        tries=len(ended),
        others=dict(Counter(outcome for _, outcome in ended if outcome not in (Outcome.OK, Outcome.OOM))),
    )


def _largest_rows(searches: Sequence[Largest]) -> list[list[str]]:
    names = telling([row.settings for row in searches])
    return [
        [
            row.case, row.sought, *(row.settings.get(name, "") for name in names),
            *("-" if value is None else str(value) for value in (row.fits, row.too_large)), str(row.tries),
        ]
        for row in searches
    ]  # fmt: skip


def _largest_shared(searches: Sequence[Largest]) -> list[str]:
    """A line of what else decides how much fits and is the same for all; none where the points differ in all of it."""
    names = [
        name
        for name in dict.fromkeys(name for row in searches for name in row.settings)
        if name in ("batch_size", "precision", "on") or name.startswith(OPTION)
    ]
    values = {name: {row.settings.get(name, "") for row in searches} for name in names}
    same = [f"{name} {value.pop()}" for name, value in values.items() if len(value) == 1]
    return [", ".join(same)] if same else []


def _largest_heads(searches: Sequence[Largest]) -> list[tuple[str, str]]:
    return [
        ("case", ""),
        ("of", ""),
        *((name, "") for name in telling([row.settings for row in searches])),
        *LARGEST_HEADS,
    ]


def _largest_problems(searches: Sequence[Largest]) -> list[str]:
    folders = [row.settings.get("folder") for row in searches]
    return [
        f"{row.case}, {row.sought}{f', {folder}' if folder else ''}: {row.problem}"
        for row, folder in zip(searches, folders, strict=True)
        if row.problem
    ]


def largest_text(summary: Summary, page: Page) -> list[str]:
    """The table for a terminal; empty where nothing was sought."""
    searches = largest(summary.diagnostics)
    if not searches:
        return []
    heads = _largest_heads(searches)
    rows = aligned(
        [[name for name, _ in heads], *_largest_rows(searches)], label_columns=len(heads) - len(LARGEST_HEADS)
    )
    return [
        *wrapped([LARGEST_TITLE, *_largest_shared(searches)], page.width),
        *rows,
        *wrapped(_largest_problems(searches), page.width),
    ]


def largest_markdown(summary: Summary) -> list[str]:
    searches = largest(summary.diagnostics)
    if not searches:
        return []
    table = markdown_table(with_units(_largest_heads(searches)), _largest_rows(searches))
    return [
        *map(markdown_text, [LARGEST_TITLE, *_largest_shared(searches)]),
        table,
        markdown_list(_largest_problems(searches)),
    ]
