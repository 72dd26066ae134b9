"""The points of a document: what its printed results and its tables say of the same point, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from parse.logs.path_facts import model_name
from parse.published.blocks import Block, PrintedPoint, PrintedRun, blocks
from parse.published.tables import Column, columns, tables
from parse.published.vocabulary import Case, model, plain_text, sized, system
from parse.stats import median

REPEATED = 3
"""Speeds that two columns share before one is taken to repeat the other."""
PRINTED_UNIT = 0.01
"""The last digit of a printed speed."""
MAX_COLUMNS = 500
OPENING_LINES = 3
"""So many lines at the beginning, its title among them, say what a document is about."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is said of points less their case; empty or None where nothing is. `apart` tells equal ones from another."""

    backend: str
    workload: str
    batch_size: int | None
    precision: str
    options: tuple[tuple[str, str], ...] = ()
    apart: str = ""


@dataclass(kw_only=True)
class Draft:
    """A point as it is put together: its runs, the packed logs beside them, printed figures by `median`, `average`,
    `speedup`, each with its line, and the words that stand where a speed should."""

    runs: list[PrintedRun] = field(default_factory=list)
    packed: list[PrintedRun] = field(default_factory=list)
    figures: list[tuple[str, Decimal, int]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    repeats: list[Decimal] = field(default_factory=list)

    @property
    def median(self) -> Decimal | None:
        """The first speed that is printed for it."""
        return next((value for what, value, _ in self.figures if what == "median"), None)


Points = dict[Case, Draft]


def drafts(lines: Sequence[str]) -> tuple[list[tuple[Setting, Points]], list[str]]:
    """The points of a document by their setting, and what of it could not be read, a line each."""
    opening = _opening(lines)
    printed, remarks = blocks(lines)
    said = list(remarks)
    found = [group for block in printed for group in _of_block(block, opening, said)]
    for table in tables(lines):
        if len(found) >= MAX_COLUMNS:
            said.append(
                f"line {table.line}: more than {MAX_COLUMNS} columns of speeds are no report; the rest is not read"
            )
            break
        there, remarks = columns(table)
        said += remarks
        for column in there:
            _add_column(column, opening, found)
    return _told_apart(found), said


def _opening(lines: Sequence[str]) -> tuple[str, ...]:
    there = (plain_text(line) for line in lines[:100])
    return tuple(line.lstrip("# ") for line in there if line)[:OPENING_LINES]


@dataclass(kw_only=True)
class _Group:
    """Points of a setting; `line` is where they are printed, `head` that of their column. A block's points have the
    names of logs behind them and are what tables repeat."""

    setting: Setting
    points: Points
    line: int
    head: str = ""
    printed: bool = False


def _of_block(block: Block, opening: Sequence[str], remarks: list[str]) -> Iterator[_Group]:
    groups: dict[Setting, _Group] = {}
    folders = {run.place.folder for run in block.runs}
    for run in block.runs:
        found = sized(run.place.nodes, run.place.devices or 0)
        if found is None or found.nodes is None:
            remarks.append(f"line {run.line}: the folders of {run.path} name no case like 1n8g; its speed is left out")
            continue
        setting = _setting_of(run, opening)
        if len(folders) > 1:
            setting = replace(setting, apart="/".join(run.place.folder))
        group = groups.setdefault(setting, _Group(setting=setting, points={}, line=block.line, printed=True))
        draft = group.points.setdefault(found, Draft())
        if run.place.packed:
            draft.packed.append(run)
        elif same := next((one for one in draft.runs if one.number == run.number), None):
            remarks.append(f"line {run.line}: {run.path} is run {run.number} again, as {same.path}; the first counts")
        else:
            draft.runs.append(run)
    for point in block.points:
        _add_point(point, block, groups, opening, remarks)
    yield from groups.values()


def _setting_of(run: PrintedRun, opening: Sequence[str]) -> Setting:
    folder = str(Path(run.path).parent)
    name = run.place.model
    texts = (name, folder, *opening)
    return Setting(
        backend=system((folder, *opening)),
        workload=_with_task(name, texts) if name else model(texts),
        batch_size=run.place.batch_size,
        precision=run.place.precision,
        options=tuple(sorted(run.place.options.items())),
    )


def _with_task(name: str, texts: Sequence[str]) -> str:
    return model(texts) if model((name,)) else name


def _add_point(
    point: PrintedPoint, block: Block, groups: dict[Setting, _Group], opening: Sequence[str], remarks: list[str]
) -> None:
    """Puts an entry of a printed result beside the runs that it is of."""
    name = model_name(point.model)
    own = _fitting(point, name, list(groups.values()))
    if len(own) > 1:
        kinds = ", ".join(sorted({group.setting.precision or "?" for group in own}))
        remarks.append(
            f"line {block.line}: one result is printed for the {point.model} runs of {len(own)} settings ({kinds}); "
            "it is kept with none of them"
        )
        return
    if not own:
        setting = Setting(
            backend=system(opening),
            workload=_with_task(name, (name, *opening)),
            batch_size=point.batch_size,
            precision="",
        )
        own = [groups.setdefault(setting, _Group(setting=setting, points={}, line=block.line, printed=True))]
    draft = own[0].points.setdefault(point.case, Draft())
    draft.figures += [(what, value, line) for what, (value, line) in point.figures.items()]


def _fitting(point: PrintedPoint, name: str, groups: Sequence[_Group]) -> list[_Group]:
    """The groups of that model and batch size; of several, those that have the case, and of these those whose runs have
    the printed median."""
    fitting = [
        group
        for group in groups
        if (point.batch_size is None or group.setting.batch_size in (None, point.batch_size))
        and group.setting.workload.endswith(name)
    ]
    there = [group for group in fitting if point.case in group.points]
    given = [group for group in there if _gives(group.points[point.case], point)]
    return (given if len(there) > 1 and given else there) or fitting


def _gives(draft: Draft, point: PrintedPoint) -> bool:
    """Whether the median of the runs is the printed one, but for rounding."""
    speeds = [run.speed for run in draft.runs]
    printed = point.figures.get("median")
    return bool(speeds and printed) and abs(median(speeds) - float(printed[0] if printed else 0)) < PRINTED_UNIT


def _add_column(column: Column, opening: Sequence[str], found: list[_Group]) -> None:
    """Puts a column to the figures that it repeats, else makes points of its own."""
    said = _setting(column, opening)
    group = next((group for group in found if _repeats(column, said, group)), None)
    if group is None:
        group = _Group(setting=said, points={}, line=column.line, head=column.head)
        found.append(group)
    own = group.setting
    group.setting = replace(
        own,
        workload=own.workload or said.workload,
        batch_size=own.batch_size or said.batch_size,
        precision=own.precision or said.precision,
    )
    cases = Counter(cell.case for cell in column.cells if cell.speed is not None)
    for cell in column.cells:
        draft = group.points.setdefault(_case_in(cell.case, group.points), Draft())
        if cell.speed is None:
            draft.words.append(cell.word)
        elif cases[cell.case] > 1:
            draft.repeats.append(cell.speed)
        else:
            draft.figures.append(("median", cell.speed, cell.line))
        if cell.speedup is not None:
            draft.figures.append(("speedup", cell.speedup, cell.line))


def _repeats(column: Column, said: Setting, group: _Group) -> bool:
    """Whether a column says nothing else than is known of these points, and has most speeds of a printed result, or all
    of another column."""
    own = group.setting
    pairs = [(column.batch_size, own.batch_size), (column.precision, own.precision)]
    if column.named or not group.printed:
        pairs.append((said.backend.removeprefix("ngc-"), own.backend.removeprefix("ngc-")))
    if not group.printed:
        pairs.append((said.workload, own.workload))
    if any(mine and its and mine != its for mine, its in pairs):
        return False
    speeds = {_case_in(cell.case, group.points): cell.speed for cell in column.cells if cell.speed is not None}
    known = {case: draft.median for case, draft in group.points.items() if draft.median is not None}
    same = sum(speeds[case] == known[case] for case in speeds.keys() & known.keys())
    if group.printed:
        return same * 2 > len(speeds.keys() & known.keys())
    return speeds == known and same >= REPEATED


def _case_in(case: Case, points: Mapping[Case, Draft]) -> Case:
    """The point's own case where a table leaves out its nodes."""
    if case.nodes is None:
        same = [one for one in points if one.devices == case.devices]
        if len(same) == 1:
            return same[0]
    return case


def _setting(column: Column, opening: Sequence[str]) -> Setting:
    whole = system(opening)
    backend = column.backend
    if not column.named and (not backend or whole == f"ngc-{backend}"):
        backend = whole
    return Setting(
        backend=backend,
        workload=model((column.head, *column.headings, *opening)),
        batch_size=column.batch_size,
        precision=column.precision,
    )


def _told_apart(found: Sequence[_Group]) -> list[tuple[Setting, Points]]:
    """The groups, those of equal settings with the place that they are printed at."""
    settings: dict[Setting, list[_Group]] = {}
    for group in found:
        settings.setdefault(group.setting, []).append(group)
    told = []
    for setting, groups in settings.items():
        for group in groups:
            apart = setting.apart if len(groups) == 1 else _where(group, groups)
            told.append((replace(setting, apart=apart), group.points))
    return told


def _where(group: _Group, groups: Sequence[_Group]) -> str:
    """The line of a group's head, and of several on one line the column's, with its number where heads are alike."""
    beside = [other for other in groups if other.line == group.line]
    alike = [other for other in beside if other.head == group.head]
    at = str(1 + next(at for at, other in enumerate(alike) if other is group)) if len(alike) > 1 else ""
    head = group.head if len(beside) > 1 else ""
    return " ".join(part for part in (f"line {group.line}", head, at, group.setting.apart) if part)
