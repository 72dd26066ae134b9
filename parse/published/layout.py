"""Tables whose sizes stand in their heads, with a row for each size instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from parse.published.vocabulary import OF_EACH, case, device_name, devices_in, integer, names_unit, number, rate

TableHeads = tuple[str, ...]
TableRows = tuple[tuple[int, tuple[str, ...]], ...]

_COUNT_ALONE = re.compile(r"\d+ ?[x×*]? ?[a-z][\w-]*(?: \d+ ?gb)?|[a-z][\w-]* ?[x×*] ?\d+|\D{0,3}\d+ ?[卡机].*", re.I)
_EACH = re.compile(rf"(?:/|\bper\b|\beach\b)[ -]?{OF_EACH}\b|\btgs\b", re.I)


def upright(
    line: int, heads: TableHeads, rows: TableRows, texts: Sequence[str], role: Callable[[str], str]
) -> tuple[TableHeads, TableRows]:
    """The heads and rows of a table, with sizes in a column where they stand in the heads: `# of GPUs | 1 | 2 | 4`, or
    `Model | 1 GPU | 8 GPUs` where heads, cells or the `texts` above say that speeds are below."""
    if role(heads[0]) in ("devices", "nodes") and len({*heads[1:]}) == len(heads) - 1 > 1:
        if all(integer(number(head)) for head in heads[1:]):
            columns = zip(*(_filled(row, len(heads)) for _, row in rows), strict=True)
            names, *cells = [*columns] or [()]
            return (heads[0], *names), tuple((line, (head, *its)) for head, its in zip(heads[1:], cells, strict=True))
        return heads, rows
    sizes = {at: count for at, head in enumerate(heads) if (count := _size(head))}
    devices = {device_name(heads[at]) for at in sizes}
    roles = {role(head) for at, head in enumerate(heads) if at not in sizes}
    if len({*sizes.values()}) != len(sizes) or len(sizes) < 2 or len(devices) > 1 or {"devices", "nodes"} & roles:
        return heads, rows
    if not (
        value := _value_head(
            [heads[at] for at in sizes], [row[at] for _, row in rows for at in sizes if at < len(row)], texts
        )
    ):
        return heads, rows
    others = [at for at in range(len(heads)) if at not in sizes]
    speedups, largest = {at for at in others if role(heads[at]) == "speedup"}, max(sizes, key=lambda at: sizes[at])
    return (*(heads[at] for at in others), "GPUs", value), tuple(
        # A printed speedup is that of the largest size.
        (
            at_line,
            (*("" if other in speedups and at != largest else cells[other] for other in others), heads[at], cells[at]),
        )
        for at_line, row in rows
        for cells in [_filled(row, len(heads))]
        for at in sizes
    )


def _filled(row: tuple[str, ...], length: int) -> tuple[str, ...]:
    return (*row[:length], *("",) * (length - len(row)))


def _size(head: str) -> int:
    """The devices that a head counts, if it is about nothing else but perhaps speeds."""
    if not _COUNT_ALONE.fullmatch(head) and rate(head) is None:
        return 0
    its = case(head)
    return its.devices if its else devices_in(head) or 0


def _value_head(heads: Sequence[str], cells: Sequence[str], texts: Sequence[str]) -> str:
    """A head for the speeds; empty where nothing says that they are any."""
    if all(rate(head) for head in heads):
        return re.sub(r"\d+", "", heads[0]).strip()
    if sum(rate(cell) is not None for cell in cells) * 2 > len(cells):
        return "throughput"
    text = next((text for text in texts if names_unit(text)), "")
    return ("throughput per gpu" if _EACH.search(text) else "throughput") if text else ""
