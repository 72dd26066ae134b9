"""Columns of times in tables without speeds: work over time where a table has the work, else the times alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from hpc.model.spec import SAMPLES, TOKENS
from parse.published.columns import Cell, RowKey, SpeedColumn, rows_with_cases
from parse.published.durations import OF_EPOCH, Duration, TimeHead, duration, time_head
from parse.published.tables import MAX_HEADS, OF_EACH_DEVICE, MarkdownTable, TableRow
from parse.published.vocabulary import Case, batch_size, integer, number, precision, system
from parse.runs.result import EPOCHS, STEPS, TRAININGS, PrintedTime, TimeReading

_WEAK = re.compile(r"weak[ -]?scal|弱扩展", re.I)
_STRONG = re.compile(r"strong[ -]?scal|强扩展", re.I)
_TO_TARGET = re.compile(r"time ?(?:2|to) ?train|time to (?:target|accuracy|solution|converge)|to reach", re.I)
_NO_UNIT = "times without a unit: write (s), (min) or (h) into the head; not read"
_NO_BATCH = (
    "times of steps, and neither a batch size of each device nor one of all devices: whether a step is the same work "
    "on every size cannot be known; not read"
)
_NO_SCOPE = (
    "times of steps, and whether the batch size is of each device or of all cannot be known: write it into the head; "
    "not read"
)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What was done in a time, in which unit, and how that is known."""

    amount: Decimal
    unit: str
    reading: TimeReading


def time_columns(table: MarkdownTable) -> tuple[tuple[SpeedColumn, ...], tuple[str, ...]]:
    """Returns the columns of times of a table without speeds, and a remark for each part that is not readable."""
    heads = {at: head for at, text in enumerate(table.heads) if (head := _time_head(table, at, text))}
    if not heads or {"speed", "speed of each"} & {*table.roles} or len(table.heads) > MAX_HEADS:
        return (), ()
    if table.rows is None:
        reason = f"line {table.line}: a table of times, {table.without_cases}; not read"
        return (), (reason,) if "nodes" in table.roles else ()
    rows, remarks = rows_with_cases(table)
    columns: list[SpeedColumn] = []
    for at, head in heads.items():
        times = [duration(row.text(at), head.unit) for row, _, _ in rows]
        # A column that has hours, minutes and seconds has no hours and minutes alone.
        assumed = any(time and time.assumed for time in times) and not any(
            row.text(at).count(":") == 2 for row, _, _ in rows
        )
        if reason := _unreadable(table, at, head, rows):
            remarks.append(f"line {table.line}: {table.heads[at]}: {reason}")
            continue
        if assumed:
            remarks.append(
                f"line {table.line}: {table.heads[at]}: two parts without a unit are taken as minutes and seconds; "
                "as hours and minutes the speedups are the same"
            )
        works = [_work(table, head, row, case, timed=assumed) for row, case, _ in rows]
        settings: dict[tuple[str, RowKey], list[Cell]] = {}
        for (row, case, key), time, work in zip(rows, times, works, strict=True):
            cell = _cell(row, case, at, time, work, several=len(heads) > 1)
            settings.setdefault((work.unit, key), []).append(cell)
        columns += [_column(table, at, setting, cells, several=len(heads) > 1) for setting, cells in settings.items()]
    return tuple(columns), tuple(remarks)


def _time_head(table: MarkdownTable, at: int, text: str) -> TimeHead | None:
    if table.roles[at] == "time2train_s":
        return time_head(text)
    head = time_head(text) if table.roles[at] == "time" else None
    cells = [row[at] for _, row in table.cells if at < len(row)]
    if head and sum(bool(OF_EPOCH.search(cell)) for cell in cells) * 2 > len(cells):
        return replace(head, per=EPOCHS, count=1)
    if head and head.per == TRAININGS and "steps" in table.roles and not _TO_TARGET.search(text):
        return replace(head, per=STEPS, count=0)
    return head


def _unreadable(
    table: MarkdownTable,
    at: int,
    head: TimeHead,
    rows: Sequence[tuple[TableRow, Case, RowKey]],
) -> str:
    """Why a column of times is not read; empty if it is."""
    if not head.unit and any(number(row.text(at)) for row, _, _ in rows):
        return _NO_UNIT
    if head.per != STEPS or _says(table, _WEAK) or _says(table, _STRONG):
        return ""
    batches = [_batch(table, row, case) for row, case, _ in rows]
    if any(batch is None for batch in batches):
        return _NO_BATCH
    return _NO_SCOPE if any(batch and batch[1] is None for batch in batches) else ""


def _says(table: MarkdownTable, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(text) for text in (table.caption, *table.headings[:1], *table.heads))


def _batch(table: MarkdownTable, row: TableRow, case: Case) -> tuple[int, TimeReading | None] | None:
    """The batch size of all devices and how it is known; without that if it may be of each; None without any."""
    if total := integer(number(row.first("global_batch_size"))):
        return total, TimeReading.GLOBAL_BATCH
    if "batch_size" in table.roles:
        size, text = integer(number(row.first("batch_size"))), table.heads[table.roles.index("batch_size")]
    else:
        text = next((text for text in (table.caption, *table.headings) if batch_size([text])), "")
        size = batch_size([text])
    if not size:
        return None
    if OF_EACH_DEVICE.search(text):
        return size * case.devices, TimeReading.LOCAL_BATCH
    if re.search(r"global|total", text, re.I):
        return size, TimeReading.GLOBAL_BATCH
    return size, TimeReading.GROWING_BATCH if table.has_batch_of_all else None


def _work(table: MarkdownTable, head: TimeHead, row: TableRow, case: Case, *, timed: bool) -> _Work:
    """What a row did in its time: samples or tokens where the table has them, and times are not `timed` alone."""
    batch = None if timed else _batch(table, row, case)
    steps = Decimal(head.count) or number(row.first("steps"))
    if head.per == STEPS and batch and batch[1] and steps:
        return _Work(amount=steps * batch[0], unit=SAMPLES, reading=batch[1])
    epochs = Decimal(head.count) if head.per == EPOCHS else number(row.first("epochs"))
    samples, tokens = number(row.first("samples")), number(row.first("tokens"))
    if head.per != STEPS and samples and epochs and not timed:
        return _Work(amount=samples * epochs, unit=SAMPLES, reading=TimeReading.STATED)
    if head.per == TRAININGS and tokens and not timed:
        return _Work(amount=tokens, unit=TOKENS, reading=TimeReading.STATED)
    amount, unit = steps or Decimal(1), head.per
    if head.per == TRAININGS and epochs and not _TO_TARGET.search(" ".join(table.heads)):
        amount, unit = epochs, EPOCHS
    if _says(table, _WEAK):
        return _Work(amount=amount * case.devices, unit=unit, reading=TimeReading.WEAK)
    reading = (
        TimeReading.STRONG if _says(table, _STRONG) else TimeReading.EPOCH if unit == EPOCHS else TimeReading.TRAINING
    )
    return _Work(amount=amount, unit=unit, reading=reading)


def _column(
    table: MarkdownTable, at: int, setting: tuple[str, RowKey], cells: Sequence[Cell], *, several: bool
) -> SpeedColumn:
    unit, (size, kind, options) = setting
    texts = (table.heads[at], *table.headings)
    return SpeedColumn(
        line=table.line, head=table.heads[at], headings=table.headings, cells=tuple(cells), batch_size=size,
        precision=kind or precision(texts), backend=system(texts), named=several and bool(system(texts[:1])),
        unit=unit, options=options,
    )  # fmt: skip


def _cell(row: TableRow, case: Case, at: int, time: Duration | None, work: _Work, *, several: bool) -> Cell:
    speedup = None if several else number(row.first("speedup")) or None
    if time is None:
        placeholder = row.text(at) or "nothing"
        return Cell(line=row.line, case=case, speed=None, placeholder=placeholder, speedup=speedup)
    printed = PrintedTime(
        seconds=float(time.seconds), unit_s=float(time.unit_s), work=float(work.amount), reading=work.reading
    )
    speed = work.amount / time.seconds
    return Cell(line=row.line, case=case, speed=speed, placeholder="", speedup=speedup, time=printed)
