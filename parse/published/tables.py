"""Markdown tables of results: which column holds what, and a point for each cell with a speed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from parse.published.vocabulary import Case, batch_size, case, number, plain_text, precision, sized, system

_HEADING = re.compile(r"\s{0,8}([-*+]\s+)?(#{1,6})(?=\s|$)")
_FENCE = re.compile(r"\s*(?:[-*+]\s+)?(`{3,}|~{3,})")
_ROLES = (
    ("gpus_per_node", r"(?:num )?(?:gpus?|devices?)(?: num)? per (?:node|machine)|num gpus per node"),
    ("nodes", r"(?:nodes?|machines?|num nodes?|nodes? num(?:ber)?|节点数?|机器数)"),
    (
        "devices",
        r"(?:gpus?|devices?|cards?|num gpus?|num devices?|(?:gpus?|devices?) num(?:ber)?|训练卡数|gpu ?卡数|卡数)",
    ),
    ("batch_size", r"(?:batch size(?: per (?:device|gpu))?|bsz|bs)"),
    ("precision", r"(?:precision|精度类型|dtype)"),
    ("speedup", r"(?:speed ?up.*|加速比.*)"),
    ("time2train_s", r"time ?(?:2|to) ?train\W*(?:s|sec|seconds?|秒)?\W*"),
    ("accuracy", r"(?:准确率|精度|accuracy|acc|top-?1)\W*%?\W*"),
)
"""What a column holds, by its head in lower case with blanks for underscores."""
_SPEED = re.compile(
    r"(?:samples?|images?|imgs?|sequences?|sentences?|examples?)\s*/\s*s(?:ec(?:ond)?)?\b|throughput|吞吐|\bips\b"
)
_NO_SPEED = re.compile(r"latency|\bms\b|mem|flop|ratio|class|per gpu|size|num|tokens?\s*/", re.I)


MAX_HEADS = 100


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as it stands: `line` is that of its head, counted from 1; `headings` those above it, nearest first."""

    line: int
    headings: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A speed that a table prints for a case, or the word that stands in its place."""

    line: int
    case: Case
    speed: Decimal | None
    placeholder: str
    speedup: Decimal | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """The speeds of one setting in a table, by case, with what the table says of that setting; else None or empty.

    `named` says that the table has several systems side by side, of which `backend` is this column's.
    """

    line: int
    head: str
    headings: tuple[str, ...]
    cells: tuple[Cell, ...]
    batch_size: int | None
    precision: str
    backend: str
    named: bool


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of a table of times to train, as it is printed: None where it prints no number."""

    line: int
    devices: int
    time2train_s: float | None
    ips: float | None
    accuracy: float | None
    speedup: float | None


def tables(lines: Sequence[str]) -> Iterator[Table]:
    """The tables of a document in GitHub's form, with pipes at the ends of a row or without."""
    above: list[tuple[float, str]] = []
    fence = ""
    at = 0
    while at < len(lines):
        line = lines[at][:_LONG_LINE]
        if mark := _FENCE.match(line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and (heading := _HEADING.match(line)):
            # A heading in a list belongs under one of the same level outside of it.
            depth = len(heading[2]) + (0.5 if heading[1] else 0)
            above = [heading_above for heading_above in above if heading_above[0] < depth] + [
                (depth, plain_text(line[heading.end() :]).rstrip("# "))
            ]
        elif not fence and _heads_table(lines, at):
            end = at + 2
            while end < len(lines) and "|" in lines[end] and not _heads_table(lines, end):
                end += 1
            rows = tuple((row + 1, _cells(lines[row])) for row in range(at + 2, end))
            headings = tuple(text for _, text in reversed(above) if text)
            yield Table(line=at + 1, headings=headings, heads=_cells(line), rows=rows)
            at = end
            continue
        at += 1


_LONG_LINE = 20_000


def _heads_table(lines: Sequence[str], at: int) -> bool:
    if "|" not in lines[at] or at + 1 == len(lines):
        return False
    rule = lines[at + 1].rstrip()
    return len(rule) < _LONG_LINE and set(rule) <= set(" \t|:-") and "-" in rule and "|" in rule


def _cells(line: str) -> tuple[str, ...]:
    text = line[:_LONG_LINE].strip().removeprefix("|")
    text = text.removesuffix("|") if not text.endswith("\\|") else text
    return tuple(plain_text(cell) for cell in re.split(r"(?<!\\)\|", text))


def columns(table: Table) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns of speeds, and what of the table could not be read, a line each; nothing where it has no results."""
    if len(table.heads) > MAX_HEADS:
        return (), (f"line {table.line}: a table of {len(table.heads)} columns is no report; not read",)
    roles = [_role(head) for head in table.heads]
    places = _case_column(table, roles)
    speeds = [at for at, role in enumerate(roles) if role == "speed"]
    if not speeds:
        return (), ()
    if places is None:
        if not any(_SPEED.search(head.lower()) for head in table.heads):
            return (), ()
        return (), (f"line {table.line}: a table of speeds, but none of its columns says the case; not read",)
    remarks: list[str] = []
    settings: dict[tuple[int, int | None, str], list[Cell]] = {}
    for line, cells in table.rows:
        row = dict(zip(range(len(roles)), cells, strict=False))
        row_case = _case_of(row, roles, places)
        if row_case is None:
            remarks.append(f"line {line}: no case is to be read in {' | '.join(cells)}; the row is left out")
            continue
        size = number(row.get(roles.index("batch_size"), "")) if "batch_size" in roles else None
        kind = precision([row.get(roles.index("precision"), "")]) if "precision" in roles else ""
        for at in speeds:
            setting = at, int(size) if size and size == int(size) else None, kind
            settings.setdefault(setting, []).append(_cell(line, row_case, row, at, roles, len(speeds)))
    columns_of_table = [_column(table, setting, cells, len(speeds)) for setting, cells in settings.items()]
    return tuple(columns_of_table), tuple(remarks)


def _column(table: Table, setting: tuple[int, int | None, str], cells: Sequence[Cell], speeds: int) -> Column:
    at, size, kind = setting
    texts = (table.heads[at], *table.headings)
    return Column(
        line=table.line,
        head=table.heads[at],
        headings=table.headings,
        cells=tuple(cells),
        batch_size=size or batch_size(texts),
        precision=kind or precision(texts),
        backend=system(texts),
        named=speeds > 1 and bool(system(texts[:1])),
    )


def claims(table: Table) -> Iterator[Claim]:
    """The rows of a table that has a column of times to train."""
    roles = [_role(head) for head in table.heads]
    places = _case_column(table, roles)
    if "time2train_s" not in roles or places is None:
        return
    for line, cells in table.rows:
        row = dict(zip(range(len(roles)), cells, strict=False))
        if row_case := _case_of(row, roles, places):
            values = {role: number(row.get(at, "")) for at, role in enumerate(roles)}
            figures = {name: None if (value := values.get(name)) is None else float(value) for name in _CLAIMED}
            yield Claim(
                line=line,
                devices=row_case.devices,
                time2train_s=figures["time2train_s"],
                ips=figures["speed"],
                accuracy=figures["accuracy"],
                speedup=figures["speedup"],
            )


_CLAIMED = ("time2train_s", "speed", "accuracy", "speedup")


def _role(head: str) -> str:
    text = re.sub(r"[\s_]+", " ", head.lower()).strip()
    role = next((name for name, pattern in _ROLES if re.fullmatch(pattern, text)), "")
    if role:
        return role
    if _NO_SPEED.search(re.sub(r"bsz?\s*=\s*\w+|batch size|max", "", text)):
        return ""
    return "speed" if _SPEED.search(text) or system([text]) else ""


def _case_column(table: Table, roles: Sequence[str]) -> int | None:
    """The column whose cells name cases; -1 where columns of nodes and devices do; None where nothing does."""
    for at in range(len(roles)):
        cells = [row[at] for _, row in table.rows if at < len(row) and row[at]]
        if cells and all(case(cell) for cell in cells):
            return at
    return -1 if {"gpus_per_node", "devices"} & {*roles} else None


def _case_of(row: dict[int, str], roles: Sequence[str], places: int) -> Case | None:
    if places >= 0:
        return case(row.get(places, ""))
    numbers = {
        role: number(row.get(at, "")) for at, role in enumerate(roles) if role in ("nodes", "devices", "gpus_per_node")
    }
    counts = {role: int(value) for role, value in numbers.items() if value is not None and value == int(value)}
    nodes = counts.get("nodes")
    if "nodes" in roles and not nodes:
        return None
    if each := counts.get("gpus_per_node"):
        return sized(nodes, each * (nodes or 1))
    return sized(nodes, counts.get("devices", 0))


def _cell(line: int, row_case: Case, row: dict[int, str], at: int, roles: Sequence[str], speeds: int) -> Cell:
    text = row.get(at, "")
    speed = number(text)
    # A speedup beside several speeds, or beside a time to train, is not said to be of this speed.
    is_of_speed = "speedup" in roles and speeds == 1 and "time2train_s" not in roles
    return Cell(
        line=line,
        case=row_case,
        speed=speed if speed else None,
        placeholder="" if speed else text or "nothing",
        speedup=(number(row.get(roles.index("speedup"), "")) or None) if is_of_speed else None,
    )
