"""Columns of speeds in tables, by setting and case, and rows of times to train."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hpc.model.spec import SAMPLES
from hpc.system.text import grouped
from parse.logs.formats.mllog import IMAGENET
from parse.published.row_settings import Options, row_options
from parse.published.tables import GLOBAL_BATCH, MAX_HEADS, SPEEDS, MarkdownTable, TableRow, tables
from parse.published.vocabulary import (
    Case,
    Rate,
    batch_size,
    device_name,
    is_speed,
    number,
    precision,
    stated_times,
    system,
    without_rate,
)
from parse.runs.result import PrintedTime

_OF_IMAGENET = re.compile(r"image-?net|ILSVRC|ISLVRC", re.I)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The speed that a table prints for a case, or that of a printed `time`, or the word in its place."""

    line: int
    case: Case
    speed: Decimal | None
    placeholder: str
    speedup: Decimal | None = None
    time: PrintedTime | None = None


@dataclass(frozen=True, kw_only=True)
class SpeedColumn:
    """The speeds of one setting in a table, by case; settings that the table does not print are None or empty.

    `unit` is what they count per second.

    `named`: the table has columns of several systems, and `backend` is the system of this one. `options` are what else
    tells its rows from others.
    """

    line: int
    head: str
    headings: tuple[str, ...]
    cells: tuple[Cell, ...]
    batch_size: int | None
    precision: str
    backend: str
    named: bool
    unit: str
    options: Options = ()


@dataclass(frozen=True)
class TrainingClaim:
    """A row of a table with times to train; a cell without a number is None."""

    line: int
    devices: int
    time2train_s: float | None
    speed: float | None
    accuracy: float | None
    speedup: float | None

    @property
    def empty(self) -> bool:
        """Whether the row prints no number."""
        return (self.time2train_s, self.speed, self.accuracy, self.speedup) == (None,) * 4


def columns(table: MarkdownTable) -> tuple[tuple[SpeedColumn, ...], tuple[str, ...]]:
    """Returns the columns of speeds, and a remark for each part that is not readable. A table that neither names cases
    nor counts devices has a point for each row."""
    if len(table.heads) > MAX_HEADS:
        return (), (f"line {table.line}: a table of {len(table.heads)} columns is no report; not read",)
    if table.of_inference:
        return (), (f"line {table.line}: a table of inference; not read",) if _names_speeds(table) else ()
    by_role = ([at for at, role in enumerate(table.roles) if role == each] for each in SPEEDS)
    speeds = next(filter(None, by_role), [])
    if not speeds:
        return (), tuple(
            f"line {table.line}: {head}: steps in a second; not read: write seconds per step, with the batch size"
            for head in table.heads
            if table.rows is not None and _STEPS.search(head) and "time" not in table.roles
        )
    if table.of_frames:
        text = "frames/s, and nothing says that they are of training: taken for inference; not read"
        return (), (f"line {table.line}: {text}",)
    if table.rows is None:
        return _without_cases(table, speeds)
    its = _OF_ONE[table.roles[speeds[0]]]
    remarks = [
        f"line {table.line}: {table.heads[at]} is of one {its}: multiplied by their number" for at in speeds if its
    ]
    rows, unreadable = rows_with_cases(table)
    remarks += unreadable
    settings: dict[tuple[int, RowKey], list[Cell]] = {}
    for row, row_case, key in rows:
        for at in speeds:
            settings.setdefault((at, key), []).append(_cell(table, row, row_case, at, len(speeds)))
    return tuple(_column(table, setting, cells, len(speeds)) for setting, cells in settings.items()), tuple(remarks)


_OF_ONE = {"speed": "", "speed of each": "device", "speed of each node": "node"}
_STEPS = re.compile(r"\b(?:it|iters?|iterations?|steps?|batch(?:es)?) ?(?:/|per) ?s(?:ec(?:ond)?)?\b", re.I)
_OF_ALL = re.compile(r"\btotal\b|aggregate|overall|cluster|system|\ball\b|global", re.I)


def _without_cases(table: MarkdownTable, speeds: Sequence[int]) -> tuple[tuple[SpeedColumn, ...], tuple[str, ...]]:
    """The columns of a table of one axis: a point for each row, on the devices that the text above the table names."""
    if not _names_speeds(table):
        return (), ()
    if "nodes" in table.roles or "case" in map(str.lower, table.heads):
        return (), (f"line {table.line}: a table of speeds, {table.without_cases}; not read",)
    if unknown := [at for at in speeds if table.rates[at] is None]:
        text = "neither its head nor the text above says what it counts; not read"
        return (), tuple(f"line {table.line}: {table.heads[at]}: {text}" for at in unknown)
    devices = table.devices_above or 0
    rows = [TableRow(line=line, cells=cells, roles=table.roles, case_at=-1) for line, cells in table.cells]
    rows = [row for row in rows if any(row.text(at) for at in speeds)]
    if not any(_speed(row.text(at)) for row in rows for at in speeds):
        first = next((row.text(at) for row in rows for at in speeds if row.text(at)), "")
        return (), (f"line {table.line}: {table.heads[speeds[0]]}: no cell is a figure ({first!r}); not read",) * bool(
            first
        )
    batches = [(precision([row.first("precision")]), _batch_options(row)) for row in rows]
    options = row_options(table.heads, table.roles, [row.cells for row in rows], None, others=batches)
    columns, remarks = [], []
    for at in speeds:
        of_each = table.roles[at] == "speed of each"
        # Of several devices a speed is that of all only if its head says so; then it is of unknown devices.
        known = devices if of_each or devices == 1 or _OF_ALL.search(table.heads[at]) else 0
        if of_each:
            text = f"multiplied by the {devices} that the text above names" if devices else "their number is not known"
            remarks.append(f"line {table.line}: {table.heads[at]} is of one device: {text}")
        elif devices > 1 and not known:
            text = f"whether it is of one or of all {devices} devices cannot be known"
            remarks.append(f"line {table.line}: {table.heads[at]}: {text}")
        case = Case(devices=known, nodes=1 if known == 1 else None)
        speed_of: Options = (("speed", "of one device"),) if of_each and not known else ()
        for row, (kind, batch), its in zip(rows, batches, options, strict=True):
            key = (None, kind, (*batch, *its, *speed_of))
            columns.append(_column(table, (at, key), [_cell(table, row, case, at, len(speeds))], len(speeds)))
    return tuple(columns), tuple(remarks)


_BATCHES = {
    "batch_size": "batch size", "global_batch_size": GLOBAL_BATCH,
    "global_batch_tokens": "global batch size in tokens", "accumulation": "accumulation",
}  # fmt: skip


def _batch_options(row: TableRow) -> Options:
    """Batch sizes as they are printed, of a row whose devices are not known."""
    return tuple((name, text) for role, name in _BATCHES.items() if (text := row.first(role)))


_TEXTS = {"batch_size": "batch size", "precision": "precision as printed"}
RowKey = tuple[int | None, str, Options]
"""Batch size of each device, precision and options of a row."""


def rows_with_cases(table: MarkdownTable) -> tuple[list[tuple[TableRow, Case, RowKey]], list[str]]:
    """Returns the rows that have a case, with what tells them apart beside it, and a remark for each other row."""
    remarks = [
        f"line {row.line}: no case is to be read in {' | '.join(row.cells)}; the row is left out"
        for row in table.rows or ()
        if row.case is None
    ]
    keys: list[tuple[TableRow, Case, RowKey]] = []
    for row in table.rows or ():
        if row.case is not None:
            size, of_all = table.batch_sizes(row, row.case)
            keys.append((row, row.case, (size, precision([row.first("precision")]), of_all)))
    # Batch sizes that are no numbers (`8k`), and accumulation without a batch size, are settings as others are.
    unread = _BATCHES.keys() if any(size is None and not of_all for _, _, (size, _, of_all) in keys) else {*()}
    roles = ["" if role in unread else role for role in table.roles]
    if keys and keys[0][0].case_at >= 0:
        roles[keys[0][0].case_at] = "case"
    options = row_options(
        table.heads, roles, [row.cells for row, _, _ in keys], [(row_case, *key) for _, row_case, key in keys],
        [row_case.devices for _, row_case, _ in keys],
    )  # fmt: skip
    at = keys[0][0].case_at if keys else -1
    names = [device_name(row.text(at) if at >= 0 else row.first("devices")) for row, _, _ in keys]
    devices: list[Options] = [(("device", name),) if name and len({*names}) > 1 else () for name in names]
    with_options = [
        (row, row_case, (size, kind, (*of_all, *its, *device)))
        for (row, row_case, (size, kind, of_all)), its, device in zip(keys, options, devices, strict=True)
    ]
    return _apart(with_options), remarks


def _apart(rows: list[tuple[TableRow, Case, RowKey]]) -> list[tuple[TableRow, Case, RowKey]]:
    """The rows, those that would be runs of one point told apart by the texts of columns that are read as numbers."""
    texts = [tuple((name, row.first(role)) for role, name in _TEXTS.items() if row.first(role)) for row, _, _ in rows]
    alike = grouped(((row_case, key), its) for (_, row_case, key), its in zip(rows, texts, strict=True))
    if all(len({*several}) == 1 for several in alike.values()):
        return rows
    return [
        (row, row_case, (size, kind, tuple(dict((*options, *its)).items())))
        for (row, row_case, (size, kind, options)), its in zip(rows, texts, strict=True)
    ]


def _cell(table: MarkdownTable, row: TableRow, row_case: Case, at: int, speeds: int) -> Cell:
    text = row.text(at)
    speed = _speed(text)
    if speed is not None:
        # Of 95k below a head in thousands the k is the scale of the head.
        of_head = table.rates[at] or SAMPLES_A_SECOND
        speed *= 1 if _SCALED.search(without_rate(text).strip()) and of_head.factor > 1 else of_head.factor
        if row.roles[at] == "speed of each":
            speed *= row_case.devices or 1
        elif row.roles[at] == "speed of each node":
            speed = speed * row_case.nodes if row_case.nodes else None
    # With several speeds in a row, or with a time to train, a speedup need not be that of this speed.
    is_of_speed = speeds == 1 and "time2train_s" not in row.roles
    speedup = (number(row.first("speedup")) or None) if is_of_speed else None
    placeholder = "" if speed else text or "nothing"
    return Cell(line=row.line, case=row_case, speed=speed or None, placeholder=placeholder, speedup=speedup)


SAMPLES_A_SECOND = Rate(unit=SAMPLES, factor=1)
"""What speeds by case count if nothing says so."""
_SCALED = re.compile(r"\d ?[km]$", re.I)
_THOUSANDS = {"k": 1000, "m": 1_000_000}


def _speed(text: str) -> Decimal | None:
    """The speed in a cell (`148,720`, `1211 img/s`, `16.5k`, `89 (-14 %)`); None of a ratio, a share or a word."""
    plain = re.sub(r"\s*\([^()]*\)$|\s*(?:±|\+/?-)\s*[\d.,]+\s*%?$", "", without_rate(text).strip())
    plain = re.sub(r"/ ?(?:gpu|device|card|chip)$", "", plain, flags=re.I).strip().lower()
    if plain.endswith(("x", "×", "%")):
        return None
    value = number(plain.rstrip("km"))
    return value * _THOUSANDS[plain[-1]] if value is not None and plain[-1:] in _THOUSANDS else value


def _names_speeds(table: MarkdownTable) -> bool:
    return any(is_speed(head.lower()) for head in table.heads)


def _column(table: MarkdownTable, setting: tuple[int, RowKey], cells: Sequence[Cell], speeds: int) -> SpeedColumn:
    at, (size, kind, options) = setting
    texts = (table.heads[at], *table.headings)
    batch = None if GLOBAL_BATCH in dict(options) else batch_size(texts)
    return SpeedColumn(
        line=table.line, head=table.heads[at], headings=table.headings, cells=tuple(cells),
        batch_size=size or batch, precision=kind or precision(texts), backend=system(texts),
        named=speeds > 1 and bool(system(texts[:1])), unit=(table.rates[at] or SAMPLES_A_SECOND).unit, options=options,
    )  # fmt: skip


def claims(table: MarkdownTable) -> Iterator[TrainingClaim]:
    """Yields the rows of a table that has a column of times to train."""
    for row in (table.rows or ()) if "time2train_s" in table.roles else ():
        if row.case is not None:
            values = (row.numbers.get(role) for role in ("time2train_s", "speed", "accuracy", "speedup"))
            yield TrainingClaim(
                row.line, row.case.devices, *(None if value is None else float(value) for value in values)
            )


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """The speed in samples/s that stated epochs and seconds give, and the throughput claimed in the row at `line`."""

    line: int
    epochs: int
    seconds: float
    speed: float
    claimed: float


def wall_clocks(rows: Sequence[TrainingClaim], stated: Iterable[tuple[int, float]], samples: int) -> list[WallClock]:
    """Returns the wall clock of each row whose time to train is stated; `samples` are those of an epoch."""
    return [
        WallClock(line=row.line, epochs=epochs, seconds=seconds, speed=epochs * samples / seconds, claimed=row.speed)
        for epochs, seconds in stated
        for row in rows
        if row.speed and row.time2train_s == seconds
    ]


def imagenet_clocks(lines: Sequence[str]) -> list[WallClock]:
    """Returns the wall clocks of a document that names ImageNet."""
    if not any(_OF_IMAGENET.search(line) for line in lines):
        return []
    return wall_clocks([row for table in tables(lines) for row in claims(table)], stated_times(lines), IMAGENET)
