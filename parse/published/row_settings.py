"""What tells the rows of a table apart beside their case: columns of settings, and batch sizes of all devices."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

Options = tuple[tuple[str, str], ...]

_FIGURES = re.compile(
    r"accuracy|\bacc\b|loss|memory|\bmem\b|\bv?ram\b|mfu|hfu|flop|util|power|speed|throughput|efficien|scaling|ratio|time|latency"
    r"|cost|price|perplexity|\bppl\b|score|\bmap\b|\bauc\b|\bf1\b|bleu|top-?[15]|/s\b|per sec|\btps\b|\bips\b|bandwidth"
    r"|(?:/|\bper) ?(?:min(?:ute)?|hour|hr|day)\b"
    r"|overhead|improve|gain|delta|increase|δ|Δ|\bvs\b|variance|std|peak|加速比|准确率|精度$|显存|吞吐|耗时|时间"
)
"""Heads of what was measured, whatever is below them."""
_NOTES = re.compile(
    r"notes?|remarks?|comments?|logs?|links?|downloads?|scripts?|commands?|urls?|dates?|results?|status|w&b|wandb"
    r"|runs?|trials?|repeats?|seeds?|#|ids?|job ?ids?|jobs?|hosts?|node ?lists?|checkpoints?|weights|备注|日志|下载"
    r"|ckpts?"
)
"""Heads of columns that say nothing of how a row was run."""
_SETTINGS = re.compile(
    r"seq|context|length|hidden|layer|param|\b(?:tp|pp|dp|cp|ep|sp|vp|fsdp|hsdp|zero|mbs|gbs|lbs|mb|gas)\b|micro|accum"
    r"|resolution|image size|crop|parallel|version|size|degree|tensor|pipeline|stage|width|depth|heads?\b|experts?"
    r"|bits?"
)
"""Heads of settings, also where all values are numbers."""
_SCALED = re.compile(r"batch|accum|\bdp\b|data[- ]parallel|\b[gm]?bs\b")
"""Heads of settings that go with the number of devices."""
_PLAIN_FIGURE = re.compile(r"[~≈<>≤≥+-]?\s*\d[\d,.]*\s*(?:%|x|×|[a-zµ]{1,4}(?:/s)?)?|-+|—|n/?a|oom|tbd|", re.I)
_BEGINS_A_FIGURE = re.compile(r"[~≈<>≤≥+↓↑x×-]?\s*\d|[-—–/]*$|n/?a$|oom|tbd|todo", re.I)


def says_what(head: str) -> bool:
    """Whether a head is that of a measured figure, of a note or of a setting."""
    plain = re.sub(r"[\s_]+", " ", head.lower()).strip()
    return bool(_FIGURES.search(plain) or _NOTES.fullmatch(plain) or _SETTINGS.search(plain))


def row_options(
    heads: Sequence[str],
    roles: Sequence[str],
    rows: Sequence[Sequence[str]],
    cases: Sequence[Hashable] | None,
    devices: Sequence[int] = (),
    others: Sequence[Hashable] = (),
) -> list[Options]:
    """Returns for each row the values, by head, of the columns of settings that differ between rows. `cases` are equal
    for rows that would be runs of one point; without them no two rows are, which `others` may tell apart already.

    A column without a role is a setting if its head says so or if words are in it. Other columns of numbers are taken
    as settings only if rows of one case would otherwise be equal; without cases notes, too, and the number of the row.
    Batch sizes and the like that go with the `devices` of the rows are taken for one or for all of these.
    """
    texts: list[tuple[str, Sequence[str]]] = []
    numbers: list[tuple[str, Sequence[str]]] = []
    notes: list[tuple[str, Sequence[str]]] = []
    for at, head in enumerate(heads):
        plain = re.sub(r"[\s_]+", " ", head.lower()).strip()
        values: Sequence[str] = _filled_down([row[at] if at < len(row) else "" for row in rows])
        if roles[at] or len({*values}) < 2 or (_FIGURES.search(plain) and _are_figures(values)):
            continue
        if _NOTES.fullmatch(plain):
            notes.append((plain, values))
            continue
        words = _SETTINGS.search(plain) or not all(_PLAIN_FIGURE.fullmatch(value) for value in values)
        if _SCALED.search(plain):
            values = _by_devices(values, devices)
        (texts if words else numbers).append((plain or f"column {at + 1}", values))
    order = ("row", [str(row + 1) for row in range(len(rows))])
    further = [*numbers, *([*notes, order] if cases is None else [])]
    for stop in range(len(further) + 1):
        options = _options([*texts, *further[:stop]], len(rows))
        if len({*zip(cases or others or [None] * len(rows), options, strict=True)}) == len(rows):
            return options
    return _options(texts, len(rows)) if cases is not None else options


def _by_devices(values: Sequence[str], devices: Sequence[int]) -> Sequence[str]:
    """The values as they are; times the devices, or for each device, if there are fewer different ones then."""
    matches = [re.match(r"\d{1,9}(?![\d.])", value.replace(",", "")) for value in values]
    if not devices or not all(devices) or not all(matches):
        return values
    counts = [int(match[0]) for match in matches if match]
    of_all = [f"{count * number} of all devices" for count, number in zip(counts, devices, strict=True)]
    of_each = [f"{count / number:g} of each device" for count, number in zip(counts, devices, strict=True)]
    return min((values, of_all, of_each), key=lambda candidate: len({*candidate}))


def _are_figures(values: Sequence[str]) -> bool:
    """Whether at least half of the cells begin as figures do."""
    return 2 * sum(bool(_BEGINS_A_FIGURE.match(value)) for value in values) >= len(values)


def _options(columns: Sequence[tuple[str, Sequence[str]]], rows: int) -> list[Options]:
    return [tuple((name, values[row]) for name, values in columns if values[row]) for row in range(rows)]


def _filled_down(values: Sequence[str]) -> list[str]:
    """The values, an empty one with that above it: as merged cells of spreadsheets are printed."""
    filled: list[str] = []
    for value in values:
        filled.append(value or (filled[-1] if filled else ""))
    return filled


def grows_with_devices(batch_sizes: Sequence[int | None], devices: Sequence[int]) -> bool:
    """Whether batch sizes are in proportion to the devices of their rows, of which two sizes at least are there."""
    pairs = {(batch, count) for batch, count in zip(batch_sizes, devices, strict=True) if batch}
    ratios = {batch / count for batch, count in pairs}
    return len({count for _, count in pairs}) > 1 and len(ratios) == 1
