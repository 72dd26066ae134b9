"""A summary for people, as text or Markdown: returns strings, prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpc.model.spec import USUAL
from hpc.system.sanitize import plain
from hpc.system.text import grouped, plural
from parse.alarms.nodes import nodes_tables
from parse.alarms.scaling import nested_summary
from parse.report.costs import cost_blocks
from parse.report.notices import (
    CAUTION,
    NOTE,
    before_the_numbers,
    below_the_table,
    conclusion,
    merged,
    notice_lines,
    runs_ok,
)
from parse.report.summary import (
    ONE_DEVICE,
    Summary,
    against_text,
    by_base,
    by_unit,
    knowing,
    labels,
    of_logs,
    requested_values,
    shared,
    varying,
)
from parse.report.trainings import trainings_blocks
from parse.runs.result import Result
from parse.say.numbers import level
from parse.text import (
    Page,
    TableData,
    TextBlock,
    block_lines,
    cut,
    distinct,
    markdown_list,
    markdown_of,
    number,
    wrapped,
)

if TYPE_CHECKING:
    from parse.logs.benchmarks import Benchmarks, NcclTest, OsuTest
    from parse.report.against import Against


# The scaling table: a row for each point, in as many columns as there is room for.

LOG_SPEEDS = {"wall_clock": "wall clock", "printed": "printed"}
"""A log's two speeds, side by side; the median is of those that count."""
STATED, MLPERF_TIME = "stated", "MLPerf time"
"""What a log of MLPerf states of its rate, and its time to train, run_stop - run_start."""
OPTIONAL = (
    "average", "interval", "CV", "MFU", "step p50", "step p95", *LOG_SPEEDS.values(), STATED,
    MLPERF_TIME,
)  # fmt: skip
"""Columns that are left out where no row has anything in them."""
NODE_SHARE = 0.6
"""Share of a line that a node's name takes, at most."""
PUBLISHED_COLUMNS = ("published", "ratio", "published speedup")
FIRST_LEFT_OUT = (
    "nodes", "devices", "average", "step p95", "step p50", STATED, "printed", "wall clock", "CV", "MFU",
    "interval", "runs",
)  # fmt: skip
"""Columns that a narrow page leaves out, the least important first. The case implies nodes and devices."""


def of_tables(results: Sequence[Result]) -> list[list[Result]]:
    """The results of each table: of one unit, and with speedups against one base."""
    return [of_base for of_unit in by_unit(results) for of_base in by_base(of_unit)]


def points_tables(summary: Summary) -> list[TableData]:
    """A table for each unit and for each base that speedups are against."""
    differ = varying(summary.results)
    return [points_table(results, differ, summary.against) for results in of_tables(summary.results)]


def points_table(results: Sequence[Result], differ: Sequence[str], beside: Against | None = None) -> TableData:
    """A row per result, published figures `beside` its own. The settings that `differ`, in any of the tables, have
    columns."""
    (unit,) = {result.unit for result in results}
    heads = [("case", ""), ("nodes", ""), ("devices", ""), *((name, "") for name in differ)]
    heads += [("runs", "ok/total"), ("median", unit)]
    heads += [(name, unit) for name in LOG_SPEEDS.values()]
    intervals = [result.interval for result in results if result.interval]
    heads += [(STATED, unit), ("average", unit), ("interval", level(intervals))]
    base = next((text for result in results if (text := against_text(result))), "")
    heads += [("CV", "%"), ("speedup", base), ("efficiency", f"% {base}".strip()), ("MFU", "%")]
    heads += [("step p50", "ms"), ("step p95", "ms"), (MLPERF_TIME, "s")]
    rows = [_row(result, differ) for result in results]
    if beside is not None:
        stated = [its.base for each in results if (its := beside.beside(each)) and its.speedup is not None]
        bases = [*dict.fromkeys(stated or [ONE_DEVICE])]
        speed, ratio, speedup = PUBLISHED_COLUMNS
        heads += [(speed, "samples/s"), (ratio, ""), *((speedup, _against(each, base)) for each in bases)]
        rows = [[*row, *_published(beside, result, bases)] for row, result in zip(rows, results, strict=True)]
    empty = {name for at, (name, _) in enumerate(heads) if name in OPTIONAL and all(row[at] == "-" for row in rows)}
    shown = [at for at, (name, _) in enumerate(heads) if name not in empty]
    return TableData(
        heads=[heads[at] for at in shown], rows=[[row[at] for at in shown] for row in rows],
        settings=[place for place, at in enumerate(shown) if heads[at][0] in differ],
        dispensable=FIRST_LEFT_OUT,
    )  # fmt: skip


def _row(result: Result, differ: Sequence[str]) -> list[str]:
    requested, interval = requested_values(result), result.interval
    return [
        *(requested.get(name, "-") for name in ("case", "nodes", "devices", *differ)),
        runs_ok(result),
        number(result.median_speed),
        *(number(of_logs(result, name)) for name in LOG_SPEEDS),
        number(of_logs(result, "stated")),
        number(result.average_speed),
        f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "-",
        number(result.cv, 100),
        number(result.speedup),
        number(result.scaling_efficiency, 100, decimals=1),
        number(result.mfu, 100, decimals=1),
        number(result.step_time_ms.get(50), decimals=result.step_decimals),
        number(result.step_time_ms.get(95), decimals=result.step_decimals),
        number(of_logs(result, "mlperf_s")),
    ]


def _against(base: str, beside: str) -> str:
    """What the head of a published speedup says; `beside` is what that of the measured one says."""
    return "" if base == ONE_DEVICE and not beside else f"against {base}" if base else "base not stated"


def _published(of: Against, result: Result, bases: Sequence[str]) -> list[str]:
    """The published speed, the ratio, in brackets where settings differ, and the published speedup, by its base."""
    beside = of.beside(result)
    if beside is None:
        return ["-"] * (2 + len(bases))
    ratio = number(beside.ratio(result), decimals=3)
    bracketed = f"({ratio})" if beside.differences and beside.ratio(result) is not None else ratio
    speedups = [number(beside.speedup if beside.base == base else None) for base in bases]
    return [number(beside.speed), bracketed, *speedups]


def text(summary: Summary, page: Page | None = None) -> str:
    """For a terminal: conclusion, shared settings, a row per point, warnings, and the ledgers if
    requested; no line is wider than the page, except tables of a `wide` one."""
    page = page or Page()
    before, below = before_the_numbers(summary), below_the_table(summary)
    is_shown = page.verbose or not summary.results
    first, first_cut = notice_lines([each for each in before if is_shown or each.weight is CAUTION], page)
    last, last_cut = notice_lines([each for each in below if is_shown or each.weight is CAUTION], page)
    notes = sum(each.weight is NOTE for each in merged([*before, *below]))
    settings = _shared_lines(summary, _hidden_env(summary.results))
    # The brief table of where the time goes has the speeds, too.
    is_below = summary.against is None and not page.wide and has_every_speed(summary, page)
    tables = [] if is_below else [table.lines(page) for table in points_tables(summary)]
    beside = [block_lines(shown, page) for shown in _beside_points(summary, page)]
    settings = wrapped(settings, page.width) if page.verbose else [cut(line, page.width) for line in settings]
    if is_below:
        first, settings, last = [*first, *last], [], []
    blocks = [
        [*wrapped(conclusion(summary, [*before, *below], page.width), page.width), *first],
        settings, *tables, wrapped(_against_lines(summary), page.width), *beside, last,
    ]  # fmt: skip
    if summary.ledgers is not None:
        from parse.report.ledger import ledger_text

        blocks += [ledger_text(summary, page)]
    if not page.verbose and summary.results:
        blocks += [wrapped([_more(summary, notes, first_cut + last_cut)], page.width)]
    lines = [line for block in blocks if block for line in (*block, "")]
    return "\n".join(plain(line).rstrip() for line in lines).strip("\n") + "\n"


def has_every_speed(summary: Summary, page: Page) -> bool:
    """Whether the table of the ledgers, as this page has it, shows the speed of every point."""
    return not page.verbose and len(summary.ledgers or ()) == len(summary.results) > 0


def _more(summary: Summary, notes: int, shortened: int) -> str:
    """What --verbose adds."""
    parts = ["settings", "columns"]
    parts += [plural(notes, "note")] if notes else []
    parts += [f"{plural(shortened, 'warning')} in full"] if shortened else []
    parts += ["intervals", "ranks", "times of runs"] if summary.ledgers else []
    return f"--verbose adds {', '.join(parts)}"


def markdown(summary: Summary) -> str:
    """The results as Markdown tables and lists, with every warning in full length."""
    first = [*(notice.line for notice in before_the_numbers(summary)), *_shared_lines(summary)]
    parts = [markdown_list(first)]
    parts += [table.markdown() for table in points_tables(summary)]
    parts += [markdown_list(_against_lines(summary))]
    parts += [markdown_of(shown).strip() for shown in _beside_points(summary)]
    parts += [markdown_list(notice.line for notice in below_the_table(summary))]
    if summary.ledgers is not None:
        from parse.report.ledger import ledger_markdown

        parts += ledger_markdown(summary)
    return "\n\n".join(part for part in parts if part) + "\n"


def _beside_points(summary: Summary, page: Page | None = None) -> list[list[TextBlock]]:
    """What is shown of trainings, nodes, costs and bandwidths; each empty where there is none."""
    return [
        trainings_blocks(summary),
        _nodes_blocks(summary, page),
        cost_blocks(summary),
        benchmarks_blocks(summary.benchmarks) if summary.benchmarks else [],
    ]


def _nodes_blocks(summary: Summary, page: Page | None) -> list[TextBlock]:
    """A table for each site whose nodes are distinguishable; names fit the page where there is one."""
    blocks: list[TextBlock] = []
    for table, left_out in nodes_tables(summary.results):
        blocks += ["", table.shortened(0, int(page.width * NODE_SHARE)) if page else table, *left_out]
    return blocks[1:]


def _exported(name: str, summary: Summary) -> str:
    """The summary in a format of parse.report.export, which is imported only for these."""
    from parse.report import export

    formats = {"csv": export.comma_separated, "json": export.as_json, "dlperf": export.dlperf}
    return formats[name](summary)


FORMATS: Mapping[str, Callable[[Summary], str]] = {
    "table": text,
    "markdown": markdown,
    **{name: partial(_exported, name) for name in ("csv", "json", "dlperf")},
}


FIRST_SETTINGS = ("backend", "workload", "batch_size", "precision")


def _shared_lines(summary: Summary, omitted: frozenset[str] = frozenset()) -> list[str]:
    """The settings that all points share, without the names in `omitted`."""
    if not summary.results:
        return []
    requested = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    if nested := nested_summary(summary.results):
        requested.pop("placement", None)
    if omitted and "site" in requested:
        requested["site"] += f" (sets {plural(len(omitted), 'environment variable')})"
    known = grouped((knowing(summary.results, name), name) for name in requested if name not in omitted)
    lines = [nested] if nested else []
    known = {(): known.pop((), []), **known}  # those of all points first, also where there is none
    for of, names in known.items():
        env = [f"{name.removeprefix('env.')}={requested[name]}" for name in names if name.startswith("env.")]
        # Of a line that is cut the options of the workload are not, which change what is measured.
        ordered = sorted(names, key=lambda name: (name not in FIRST_SETTINGS, not name.startswith("option.")))
        constant = [f"{name} {requested[name]}" for name in ordered if not name.startswith("env.")]
        whose = f"known of {', '.join(of)} only: " if of else ""
        lines += [f"{whose}{', '.join(constant)}"] if constant or not of else []
        lines += [f"{whose}environment set: {', '.join(env)}"] if env else []
    return lines


def _hidden_env(results: Sequence[Result]) -> frozenset[str]:
    """Names, as in requested_values, of the environment variables that the target sets for every point."""
    values = [(result.run.env, result.requested.target_env) for result in results if not result.requested.partly]
    names = {name for env, _ in values for name in env}
    return frozenset(
        f"env.{name}"
        for name in names
        if all(name in target and env.get(name) == target[name] for env, target in values)
    )


def _against_lines(summary: Summary) -> list[str]:
    """What the published figures are and how far they are comparable, if any were requested."""
    if summary.against is None:
        return []
    from parse.report.against import against_lines

    return list(against_lines(summary.against, summary.results, labels(summary.results)))


# What benchmarks measured, as text: nccl-tests, osu_allreduce; a table for each kind.


def benchmarks_blocks(benchmarks: Benchmarks) -> list[TextBlock]:
    """All tables, those of a kind together, with an empty line between them; empty where there is no benchmark."""
    parts = (*_nccl_blocks(benchmarks.nccl_tests), *_osu_blocks(benchmarks.osu_tests))
    return [block for part in parts for block in ("", *part)][1:]


def _table(names: Sequence[str], unit: str, columns: Sequence[Mapping[int, float]]) -> TableData:
    """A row per size, and a column per test."""
    sizes = sorted({size for column in columns for size in column})
    return TableData(
        heads=[("size", "B"), *((name, unit) for name in names)],
        rows=[[str(size), *(number(column[size]) if size in column else "" for column in columns)] for size in sizes],
        label_columns=0,
        keys=1,
    )


def problems(benchmarks: Benchmarks) -> Iterator[tuple[str, str]]:
    """The file and what is wrong, for each problem."""
    for test in benchmarks.nccl_tests:
        yield from ((test.file, text) for text in nccl_problems(test))
    for measured in benchmarks.osu_tests:
        yield from ((measured.file, text) for text in osu_problems(measured))


# Bandwidths that nccl-tests measured.

UNIT = "GB/s"


def _nccl_blocks(all_tests: Sequence[NcclTest]) -> Iterator[list[TextBlock]]:
    """A title, a line per test, and a table for each operation; of tests that have a bandwidth, on fewer devices
    first. The mean of a size that a test has several times."""
    ordered = sorted(all_tests, key=lambda test: (test.devices or 0, test.nodes or 0))
    for operation, tests in grouped((test.operation, test) for test in ordered if test.rows).items():
        names = distinct((test.case for test in tests), "{} [{}]")
        legend = [f"{name}: {_nccl_facts(test)}" for name, test in zip(names, tests, strict=True)]
        yield [_operation_title(operation, tests), legend, _table(names, UNIT, [*map(_busbw, tests)])]


def nccl_problems(test: NcclTest) -> list[str]:
    """What is wrong with a test; wrong results first."""
    what = f"{test.operation or 'a collective'} of nccl-tests on {test.case}"
    texts = []
    if test.wrong:
        texts.append(f"{what}: {plural(test.wrong, 'wrong element')}: its results are wrong, whatever its bandwidth")
    if test.cpu_time:
        texts.append(f"{what}: its times are those of the launches (-C), which give no bandwidth")
    elif not (test.rows or test.lost):
        texts.append(f"{what}: it ended before its first size")
    if test.lost:
        texts.append(f"{what}: other lines are in the rows of {plural(len(test.lost), 'size')}, which are not read")
    if test.average is None:
        texts.append(f"{what}: it did not come to its end, sizes may be missing")
    if test.groups > 1:
        texts.append(f"{what}: {test.groups} groups of devices reduced at once, the bandwidth is that of one")
    return texts


def _operation_title(operation: str, tests: Sequence[NcclTest]) -> str:
    elsewhere = any(row.in_place is None and row.timing for test in tests for row in test.rows)
    place = "in place, where a test has that, else out of place" if elsewhere else "in place"
    return f"bus bandwidth of {operation or 'an unnamed collective'} by nccl-tests, {place}"


def _nccl_facts(test: NcclTest) -> str:
    """Its file, devices, NCCL, and the average over sizes that it prints."""
    library = "RCCL" if any(model.startswith("AMD ") for model in test.models) else "NCCL"
    facts = [test.file, *test.models, *([f"{library} {test.nccl}"] if test.nccl else [])]
    facts += ["results not checked"] if test.wrong is None else []
    facts += ["bus bandwidth is 0 on one device, by definition"] if test.devices == 1 else []
    facts += [] if test.average is None else [f"average {test.average:g} {UNIT}"]
    return ", ".join(facts)


def _busbw(test: NcclTest) -> dict[int, float]:
    by_size = grouped((row.bytes, row.timing.busbw) for row in test.rows if row.timing is not None)
    return {size: sum(values) / len(values) for size, values in by_size.items()}


# Times that osu_allreduce measured.


def osu_problems(test: OsuTest) -> list[str]:
    """What is wrong with a test."""
    from parse.logs.benchmarks import PROGRAM, RowRefusal  # a test has been read: most logs have none

    refused = grouped((row.reason, row.bytes) for row in test.refused)
    texts = [f"{PROGRAM}: {_sizes(refused[reason])}: {reason}; no number" for reason in RowRefusal if reason in refused]
    if not test.rows and not test.refused:
        texts.append(f"{PROGRAM}: it ended before its first size")
    repeated = [size for size, values in _times(test).items() if len(values) > 1]
    if repeated:
        texts.append(f"{PROGRAM}: {_sizes(repeated)} in several rows, the slowest is shown")
    return texts


def _osu_blocks(all_tests: Sequence[OsuTest]) -> Iterator[list[TextBlock]]:
    """A title, a line per test, and a table; none where nothing was tested."""
    if tests := [test for test in all_tests if test.rows]:
        names = [name.strip() or "[1]" for name in distinct((test.case for test in tests), "{} [{}]")]
        columns = [{size: max(values) for size, values in _times(test).items()} for test in tests]
        title = "osu_allreduce (sizes are bytes of the buffer): time of a call, mean over the ranks"
        about = (f"{name}: {_about(test)}" for name, test in zip(names, tests, strict=True))
        yield [title, *about, _table(names, "us", columns)]


def _about(test: OsuTest) -> str:
    """The file of a test, and what it was measured with."""
    facts = [test.file, f"OSU Micro-Benchmarks {test.version}".strip(), test.library, test.datatype]
    facts += [f"{test.buffers} buffers"]
    facts += ["what arrived was not checked (its option -c)"] if not test.checked else []
    return ", ".join(filter(None, facts))


def _times(test: OsuTest) -> dict[int, list[float]]:
    return grouped((row.bytes, row.value) for row in test.rows)


def _sizes(sizes: Sequence[int]) -> str:
    """`4 bytes`, `3 sizes from 4 to 16 bytes`."""
    distinct_sizes = sorted({*sizes})
    if len(distinct_sizes) > 1:
        return f"{len(distinct_sizes)} sizes from {distinct_sizes[0]} to {distinct_sizes[-1]} bytes"
    return f"{sizes[0]} bytes"
