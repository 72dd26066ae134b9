"""Reads documents whose columns are named as results like those of traces and logs. The door of this folder is
`published`."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.run_fields import RunFields
from hpc.model.spec import DRAWN, SAMPLES, SCALINGS, SIMULATED, TOKENS, USUAL
from hpc.system.regular_file import existing, files_of, read_text
from hpc.system.text import grouped
from parse.command_options import KNOWN, PER_GPU, REQUESTED, RUNS, SIZES, Columns, normal, size_in_head
from parse.faults import fault
from parse.logs.path_facts import DEVICE
from parse.runs.attempt import Attempt, Measured, RequestedRun
from parse.runs.result import Claimed, Figure, Result, Run, of_runs, with_speedups
from parse.stats import Interval

MAX_LINE = 20_000
MAX_HEADS = 200
"""A table with more columns is no report."""
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"<[^>]*>|\*\*|~~|`|\\(?=[|*_<])")


class DocumentError(ValueError):
    """A file has no results or cannot be read; the text has the path and the reason."""


@dataclass(frozen=True, kw_only=True)
class DocumentTable:
    """A table: `line` is the line of its heads, counted from 1; each row has its line and as many cells as heads."""

    line: int
    heads: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


def read_tables(path: Path) -> list[DocumentTable]:
    """Returns the tables of a document. Raises DocumentError if it cannot be read, is too large or no text."""
    try:
        text = read_text(path, errors="replace")
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror or error})") from None
    if "\0" in text:
        raise DocumentError(f"{path}: not a text (it has zero bytes)")
    lines = text.splitlines()
    try:
        return [*(_of_csv(lines) if path.suffix.lower() == ".csv" else _of_markdown(lines))]
    except csv.Error as error:
        raise DocumentError(f"{path}: no CSV ({error})") from None


def _of_csv(lines: Sequence[str]) -> Iterator[DocumentTable]:
    """The table below the first line that is not empty; `;` or tabs may be between its columns."""
    begin = next((at for at, line in enumerate(lines) if line.strip()), len(lines))
    delimiter = max(",;\t", key=lines[begin].count) if begin < len(lines) else ","
    reader = csv.reader((line[:MAX_LINE] for line in lines[begin:]), delimiter=delimiter)
    if heads := tuple(next(reader, ())):
        rows = []
        for row in filter(any, reader):
            line = begin + reader.line_num
            if any(row[len(heads) :]):
                raise csv.Error(f"line {line}: {len(row)} cells below {len(heads)} heads: quote numbers with commas")
            rows.append((line, _filled(row, len(heads))))
        yield DocumentTable(line=begin + 1, heads=heads, rows=tuple(rows))


def _of_markdown(lines: Sequence[str]) -> Iterator[DocumentTable]:
    """The tables in GitHub's Markdown, with or without pipes at the ends of a row; `+` may be in the rule."""
    at = 0
    while at < len(lines):
        end = at + 1
        if _begins_table(lines, at):
            heads = _cells(lines[at])
            end = at + 2
            while end < len(lines) and "|" in lines[end] and not _begins_table(lines, end):
                end += 1
            rows = ((row + 1, _filled(_cells(lines[row]), len(heads))) for row in range(at + 2, end))
            yield DocumentTable(line=at + 1, heads=heads, rows=tuple(row for row in rows if any(row[1])))
        at = end


def _begins_table(lines: Sequence[str], at: int) -> bool:
    """Whether a line of heads and one of dashes are there."""
    rule = lines[at + 1].strip() if at + 1 < len(lines) else ""
    is_rule = "-" in rule and {"|", "+"} & {*rule} and {*rule} <= {*" \t|:-+"}
    return "|" in lines[at] and len(rule) < MAX_LINE and bool(is_rule)


def _cells(line: str) -> tuple[str, ...]:
    text = line[:MAX_LINE].strip().removeprefix("|")
    text = text.removesuffix("|") if not text.endswith("\\|") else text
    return tuple(map(plain_text, re.split(r"(?<!\\)\|", text)))


def _filled(cells: Sequence[str], count: int) -> tuple[str, ...]:
    return (*cells[:count], *("",) * (count - len(cells)))


def plain_text(markdown: str) -> str:
    """Returns the text without links, emphasis and tags, with full-width signs as ASCII."""
    text = _MARKUP.sub(" ", _LINK.sub(r"\1", markdown))
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


# From tables to results.


SUFFIXES = frozenset({".md", ".markdown", ".txt", ".csv"})
"""Suffixes of documents in a folder; a file named on the command line may have any."""
MAX_WORD = 80
"""At most so much is shown of a cell without a number."""
MAX_SHOWN = 8
"""At most this many tables are named where none has the columns."""
NAME_COLUMNS = "name its columns: --columns 'gpus=COLUMN,speed=COLUMN'"
MAX_COUNT = 1_000_000_000
_SIZE_SETTINGS = ("case", "nodes", "ranks_per_node", "gpus_per_node", "devices", "folder", "date")
"""Settings of our tables in which the points of one series differ."""
_FIELDS = ("backend", "workload", "precision", "batch_size")
_TEXTS = ("data", *USUAL, "site")
_COUNTS = ("cpus_per_rank", "warmup_steps", "measured_steps", "seed")
"""Settings that are fields of a run; others are options."""
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,20})?(?:[eE][+-]?\d{1,2})?")
_DIGITS = re.compile(r"\d{1,9}")
_CASES = (
    re.compile(r"(?P<nodes>\d{1,5})n(?P<each>\d{1,4})[gc]"),
    re.compile(r"(?P<nodes>\d{1,4})机(?P<all>\d{1,5})卡"),
    re.compile(rf"(?:{DEVICE} ?[*x] ?)?n(?P<nodes>\d{{1,4}})c(?P<all>\d{{1,5}})"),
    re.compile(r"(?P<all>\d{1,6}) ?(?:g|卡|devices)"),
    re.compile(rf"(?P<all>\d{{1,6}}) ?(?:x ?)?{DEVICE}(?:[ -](?:\d{{2,3}} ?gb?|sxm\d?|pcie))*"),
    re.compile(
        r"(?:(?P<all>\d{1,6})(?: ?gpus?)? ?)?(?P<open>\()?(?P<nodes>\d{1,5}) ?[x×] ?(?P<each>\d{1,4})(?(open)\))"
    ),
)
"""Forms of a size: `2n8g`, `2机16卡`, `N2C16`, `16g`, `32卡`, `8x A100`, `16 (2x8)`."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Results of documents. `refusals` are the unread files with reasons; `remarks` are unread rows of the others."""

    results: tuple[Result, ...]
    remarks: tuple[str, ...]
    refusals: tuple[str, ...]


def published(paths: Sequence[Path], columns: Columns | None = None) -> Published:
    """Reads documents, and those in folders: the tables that have all of the columns, without them those of known
    columns. Points of different documents stay separate points."""
    results: list[Result] = []
    remarks: list[str] = []
    paths, refusals = existing(paths)
    files = list(files_of(paths, lambda file: file.suffix.lower() in SUFFIXES))
    for path in files:
        is_unique = sum(other.name == path.name for other in files) == 1
        try:
            points, unread_rows = _points(path, path.name if is_unique else str(path), columns)
        except DocumentError as error:
            refusals.append(str(error))
            continue
        except Exception as error:  # noqa: BLE001 - the line says which
            refusals.append(fault(error, path))
            continue
        results += points
        remarks += (f"{path}: {line}" for line in unread_rows)
    return Published(results=with_speedups(results), remarks=tuple(remarks), refusals=tuple(refusals))


def _points(path: Path, name: str, columns: Columns | None) -> tuple[list[Result], list[str]]:
    """The points of a document, and a remark for each row without a size. Raises DocumentError without a point."""
    tables = [table for table in read_tables(path) if len(table.heads) <= MAX_HEADS]
    candidates = KNOWN if columns is None else columns.each
    fitting = [
        (table, fits) for table in tables if (fits := [each for each in candidates if not each.missing(table.heads)])
    ]
    if not fitting:
        raise DocumentError(f"{path}: {_without_columns(tables, columns)}")
    named = [each for table, fits in fitting for each in _by_unit(table, fits)]
    for table, its in named:
        heads = [*map(normal, table.heads)]
        if twice := next((head for head in its.all if heads.count(normal(head)) > 1), None):
            raise DocumentError(f"{path}: line {table.line} has the column {twice!r} twice: rename one")
    points: list[Result] = []
    remarks: list[str] = []
    for table, its in named:
        place = f"line {table.line}" if len(fitting) > 1 else ""
        rows = [
            (requested_run(fields, {"document": name, "printed_at": place}), row)
            for row, fields in _fields(table, its, remarks)
        ]
        by_point = grouped((requested.point, (requested, row)) for requested, row in rows)
        points += [_point(path, its, of_point[0][0], [row for _, row in of_point]) for of_point in by_point.values()]
    if not points:
        raise DocumentError(f"{path}: no row of its tables has a size: {'; '.join(remarks[:3]) or 'they have no rows'}")
    return points, remarks


def _by_unit(table: DocumentTable, fitting: Sequence[Columns]) -> Iterator[tuple[DocumentTable, Columns]]:
    """The table with the columns that fit it; of several, as of our CSV with samples/s and tokens/s, each with the rows
    that have a speed in its column. Rows without a speed are of the first."""
    heads = [*map(normal, table.heads)]
    places = [heads.index(normal(columns.heads[columns.speed])) for columns in fitting]
    for at, columns in enumerate(fitting):
        rows = (
            row
            for row in table.rows
            if row[1][places[at]].strip() or (at == 0 and not any(row[1][its].strip() for its in places))
        )
        its = replace(table, rows=tuple(rows))
        if at == 0 or its.rows:
            yield its, columns


def _without_columns(tables: Sequence[DocumentTable], columns: Columns | None) -> str:
    """Why no table is read: what was asked for, what there is, what to do."""
    if not tables:
        return "no table is in it (Markdown, or a file NAME.csv)"
    shown = [f"line {table.line}: {' | '.join(table.heads)}" for table in tables[:MAX_SHOWN]]
    more = f"; and {len(tables) - MAX_SHOWN} more" if len(tables) > MAX_SHOWN else ""
    heads = f"{'; '.join(shown)}{more}"
    if columns is None:
        return f"no table in it is one of ours: {NAME_COLUMNS}; its tables have the columns {heads}"
    missing = min((columns.missing(table.heads) for table in tables), key=len)
    return f"no table in it has the column {' and '.join(map(repr, missing))} beside the others; there are {heads}"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row: its cells by quantity, its settings by name, and its size."""

    line: int
    cells: Mapping[str, str]
    settings: Mapping[str, str]
    nodes: int | None
    devices: int

    def count(self, quantity: str) -> int | None:
        """A whole number above 0; None for another cell."""
        return _count(self.cells.get(quantity, ""))


def _fields(table: DocumentTable, columns: Columns, remarks: list[str]) -> Iterator[tuple[_Row, RunFields]]:
    """The rows that have a size, with the fields of their runs; a remark for each other row."""
    rows = [row for line, cells in table.rows if (row := _row(table, columns, line, cells, remarks))]
    totals = {row.cells.get("global_batch_size") for row in rows}
    is_strong = "scaling" not in columns.heads and len(totals) == 1 and len({row.devices for row in rows}) > 1
    for row in rows:
        total, each = row.count("global_batch_size"), row.count("batch_size")
        settings = dict(row.settings)
        known: dict[str, Any] = {name: settings.pop(name) for name in _TEXTS if name in settings}
        known |= {name: int(settings.pop(name)) for name in _COUNTS if _DIGITS.fullmatch(settings.get(name, ""))}
        gpus_per_node = 0 if settings.pop("on", "") == "CPU" else row.devices // row.nodes if row.nodes else None
        named = {name: settings.pop(name) for name in _FIELDS if name in settings}
        named |= {name: row.cells[name] for name in _FIELDS if row.cells.get(name)}
        if named.get("backend") == SIMULATED:
            remarks.append(f"line {row.line}: {DRAWN}")
            continue
        batch, scaling = each or _count(named.pop("batch_size", "")), row.cells.get("scaling", "").lower()
        if (printed := row.cells.get("batch_size", "")) and not each:
            remarks.append(f"line {row.line}: batch_size {printed[:MAX_WORD]!r} is no whole number: not used")
        if scaling not in ("", *SCALINGS):
            remarks.append(
                f"line {row.line}: scaling is {scaling[:MAX_WORD]!r}, neither weak nor strong: it is not used"
            )
            scaling = ""
        if total and (is_strong or scaling == "strong"):
            batch, scaling = total, "strong"
        elif total and not batch and total % row.devices == 0:
            batch = total // row.devices
        yield row, RunFields(
            backend=named.get("backend", ""), nodes=row.nodes, devices=row.devices,
            gpus_per_node=gpus_per_node, workload=named.get("workload") or None,
            batch_size=batch, scaling=scaling or None, precision=named.get("precision") or None,
            options={name.removeprefix("option."): text for name, text in settings.items() if text},
            unit=TOKENS if columns.in_tokens else SAMPLES, **known,
        )  # fmt: skip


def _row(table: DocumentTable, columns: Columns, line: int, cells: Sequence[str], remarks: list[str]) -> _Row | None:
    by_head = {normal(head): cell.strip() for head, cell in zip(table.heads, cells, strict=True)}
    by_quantity = {name: by_head[normal(head)] for name, head in columns.heads.items()}
    if not by_quantity.keys() & SIZES.keys():
        by_quantity["gpus"] = size_in_head(columns.heads[columns.speed])
    nodes, devices = _size(by_quantity)
    if not devices or (nodes and devices % nodes):
        sizes = {name: by_quantity[name][:MAX_WORD] for name in SIZES if name in by_quantity}
        remarks.append(f"line {line}: {sizes} is no size: the row is left out")
        return None
    settings = _settings(table.heads, columns, by_head) | ({"column": columns.column} if columns.column else {})
    return _Row(line=line, cells=by_quantity, settings=settings, nodes=nodes, devices=devices)


def _size(cells: Mapping[str, str]) -> tuple[int | None, int]:
    """Nodes and all GPUs; None and 0 where they are not printed, or contradict one another."""
    text = cells.get("case", cells.get("gpus", "")).lower()
    if match := next((match for form in _CASES if (match := form.fullmatch(text))), None):
        parts = match.groupdict()
        nodes = int(parts["nodes"]) if parts.get("nodes") else None
        product = int(parts["each"]) * (nodes or 1) if parts.get("each") else None
        devices = int(parts["all"]) if parts.get("all") else product or 0
        if product not in (None, devices) or _count(cells.get("gpus", "")) not in (None, devices):
            return None, 0
        if product and "case" not in cells:
            nodes = _count(cells.get("nodes", ""))  # of `2x8` GPUs either may be the nodes
        return 1 if devices == 1 else nodes, devices
    printed, devices_printed = _count(cells.get("nodes", "")), _count(cells.get("gpus", ""))
    if each := _count(cells.get("gpus_per_node", "")):
        nodes = printed if "nodes" in cells else (devices_printed or each) // each
        devices = each * (nodes or 0)
        return (nodes, devices) if devices_printed in (None, devices) else (None, 0)
    if "nodes" in cells and not printed and cells["nodes"]:
        return None, 0
    return 1 if devices_printed == 1 else printed, devices_printed or 0


def _settings(heads: Sequence[str], columns: Columns, by_head: Mapping[str, str]) -> dict[str, str]:
    """The settings of a row by name: of our own tables those of the column `requested`, or of the columns before the
    runs; else the named ones."""
    if columns.settings == (REQUESTED,):
        parts = (part.partition("=") for part in by_head[REQUESTED].split("; "))
        return {name: value for name, _, value in parts if name not in (*_SIZE_SETTINGS, *columns.heads)}
    if columns.settings == (RUNS,):
        before = heads[: [*map(normal, heads)].index(RUNS)]
        return {name: by_head[normal(name)] for name in before if name not in _SIZE_SETTINGS}
    return {name: by_head[normal(name)] for name in columns.settings}


def _point(path: Path, columns: Columns, requested: RequestedRun, rows: Sequence[_Row]) -> Result:
    """The point of the rows of one size and setting: of several speeds each is a run."""
    figures: list[Figure] = []
    speeds: list[Decimal] = []
    placeholders: list[str] = []
    for row in rows:
        text = row.cells[columns.speed]
        speed = _number(text)
        if speed:
            speeds.append(speed * (row.devices if columns.speed.endswith(PER_GPU) else 1))
            figures += [figure("median", speeds[-1], row.line)] if len(rows) == 1 else []
        else:
            placeholders.append(text[:MAX_WORD] or "nothing")
        if speedup := _number(row.cells.get("speedup", "").rstrip("xX×").rstrip()):
            figures.append(figure("speedup", speedup, row.line))
    runs = enumerate(map(float, speeds), 1) if len(rows) > 1 else ()
    interval = _interval(rows[0], columns) if len(rows) == 1 and speeds else None
    claimed = Claimed(document=path, figures=tuple(figures))
    return published_result(requested, claimed, [*runs], interval, placeholders)


def requested_run(fields: RunFields, extra: Mapping[str, Any]) -> RequestedRun:
    """The first run of a point; empty fields of `extra` are left out."""
    known = {name: value for name, value in extra.items() if value}
    return RequestedRun(run=fields, run_id=fields.partial_id(known), extra=known)


def published_result(
    requested: RequestedRun, claimed: Claimed, speeds: Sequence[tuple[int, float]] = (),
    interval: Interval | None = None, placeholders: Sequence[str] = (),
) -> Result:  # fmt: skip
    """The result of a point, still without speedup: over its single runs, the `speeds` by their numbers, else of the
    one speed that is printed, with its interval; `placeholders` are the words in the place of a speed."""
    if speeds:
        return replace(of_runs([_run(requested, number, speed) for number, speed in speeds]), published=claimed)
    speed = claimed.median if claimed.median is not None else claimed.average
    placeholder = " and ".join(dict.fromkeys(placeholders)) or ("only packed jobs" if claimed.packed else "")
    runs: tuple[Run, ...] = ()
    if speed is None and placeholder:
        unnumbered = replace(requested, run=replace(requested.run, is_numbered=False))
        runs = (Run(requested=unnumbered, attempt=None, placeholder=placeholder),)
    return Result(
        requested=requested, runs=runs, planned_runs=None, median_speed=speed, average_speed=claimed.average,
        published=claimed, interval=interval,
    )  # fmt: skip


def _run(requested: RequestedRun, number: int, speed: float) -> Run:
    fields = replace(requested.run, repeat=number)
    run = replace(requested, run=fields, run_id=fields.partial_id(requested.extra))
    measured = Measured(throughput=speed, mean_of_rates=None, step_s=np.empty(0), samples=0, clock_share=0.0)
    attempt = Attempt(run_id=run.run_id, number=1, requested=run, outcome=Outcome.OK, measured=measured, machine=None)
    return Run(requested=run, attempt=attempt, every=(attempt,))


def _interval(row: _Row, columns: Columns) -> Interval | None:
    """The printed interval of the row's speed, of all devices; None where it is not whole."""
    names = ("interval_low", "interval_high", "interval_coverage")
    low, high, coverage = (_number(row.cells.get(name, "")) for name in names)
    if low is None or high is None or coverage is None or not (low <= high and coverage <= 1):
        return None
    scale = row.devices if columns.speed.endswith(PER_GPU) else 1
    return Interval(low=float(low) * scale, high=float(high) * scale, coverage=float(coverage))


def figure(what: str, value: Decimal, line: int) -> Figure:
    """Returns the figure with the number of digits that the document prints."""
    return Figure(what=what, value=float(value), decimals=max(0, -int(value.as_tuple().exponent)), line=line)


def _number(text: str) -> Decimal | None:
    """Returns the number that a cell holds (`148,720`, `26.50`); None for 0 and if it holds anything else."""
    match = _NUMBER.fullmatch(text)
    return (Decimal(match[0].replace(",", "")) or None) if match else None


def _count(text: str) -> int | None:
    """Returns the cell as a count; None for a fraction, 0 or a text."""
    value = _number(text)
    return int(value) if value is not None and value == int(value) and value < MAX_COUNT else None
