"""Columns of speeds in tables, by setting and case, and rows of times to train."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hpc.model.spec import SAMPLES, TOKENS
from parse.published.row_settings import Options, row_options
from parse.published.tables import GLOBAL_BATCH, MAX_HEADS, MarkdownTable, TableRow, tables
from parse.published.vocabulary import (
    IMAGENET,
    SAMPLES_PER_SECOND,
    SPEED,
    TOKENS_PER_SECOND,
    Case,
    batch_size,
    number,
    precision,
    stated_times,
    system,
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
    """Returns the columns of speeds, and a remark for each part that is not readable."""
    if len(table.heads) > MAX_HEADS:
        return (), (f"line {table.line}: a table of {len(table.heads)} columns is no report; not read",)
    speeds = [at for at, role in enumerate(table.roles) if role == "speed"]
    speeds = speeds or [at for at, role in enumerate(table.roles) if role == "speed of each"]
    if not speeds:
        return (), ()
    if table.rows is None:
        if not any(SPEED.search(head.lower()) for head in table.heads):
            return (), ()
        return (), (f"line {table.line}: a table of speeds, {table.without_cases}; not read",)
    remarks = [
        f"line {table.line}: {table.heads[at]} is of one device: multiplied by their number"
        for at in speeds
        if table.roles[at] == "speed of each"
    ]
    rows, unreadable = rows_with_cases(table)
    remarks += unreadable
    settings: dict[tuple[int, RowKey], list[Cell]] = {}
    for row, row_case, key in rows:
        for at in speeds:
            settings.setdefault((at, key), []).append(_cell(row, row_case, at, len(speeds)))
    return tuple(_column(table, setting, cells, len(speeds)) for setting, cells in settings.items()), tuple(remarks)


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
    roles = ["case" if keys and at == keys[0][0].case_at else role for at, role in enumerate(table.roles)]
    options = row_options(
        table.heads, roles, [row.cells for row, _, _ in keys], [(row_case, *key) for _, row_case, key in keys]
    )
    with_options = [
        (row, row_case, (size, kind, (*of_all, *its)))
        for (row, row_case, (size, kind, of_all)), its in zip(keys, options, strict=True)
    ]
    return with_options, remarks


def _cell(row: TableRow, row_case: Case, at: int, speeds: int) -> Cell:
    text = row.text(at)
    speed = _speed(text)
    if speed is not None and row.roles[at] == "speed of each":
        speed *= row_case.devices
    # With several speeds in a row, or with a time to train, a speedup need not be that of this speed.
    is_of_speed = speeds == 1 and "time2train_s" not in row.roles
    speedup = (number(row.first("speedup")) or None) if is_of_speed else None
    placeholder = "" if speed else text or "nothing"
    return Cell(line=row.line, case=row_case, speed=speed or None, placeholder=placeholder, speedup=speedup)


def _speed(text: str) -> Decimal | None:
    """The speed in a cell (`148,720`, `1211 img/s`); None of a ratio, a share or a word."""
    plain = TOKENS_PER_SECOND.sub("", SAMPLES_PER_SECOND.sub("", text)).strip()
    return None if plain.lower().endswith(("x", "×", "%")) else number(plain)


def _column(table: MarkdownTable, setting: tuple[int, RowKey], cells: Sequence[Cell], speeds: int) -> SpeedColumn:
    at, (size, kind, options) = setting
    texts = (table.heads[at], *table.headings)
    batch = None if GLOBAL_BATCH in dict(options) else batch_size(texts)
    printed = [row[at] for _, row in table.cells if at < len(row)]
    return SpeedColumn(
        line=table.line, head=table.heads[at], headings=table.headings, cells=tuple(cells),
        batch_size=size or batch, precision=kind or precision(texts), backend=system(texts),
        named=speeds > 1 and bool(system(texts[:1])), unit=_unit([table.heads[at], *printed]), options=options,
    )  # fmt: skip


def _unit(texts: Sequence[str]) -> str:
    """What the speeds of a column count, by its head and cells."""
    return TOKENS if any(TOKENS_PER_SECOND.search(text) for text in texts) else SAMPLES


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
