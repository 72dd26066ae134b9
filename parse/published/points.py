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
class PublishedPoint:
    """A point as it is put together: its runs, the packed logs beside them, printed figures by `median`, `average`,
    `speedup`, each with its line, and the words that stand where a speed should."""

    runs: list[PrintedRun] = field(default_factory=list)
    packed: list[PrintedRun] = field(default_factory=list)
    figures: list[tuple[str, Decimal, int]] = field(default_factory=list)
    placeholders: list[str] = field(default_factory=list)
    repeats: list[Decimal] = field(default_factory=list)

    @property
    def median(self) -> Decimal | None:
        """The first speed that is printed for it."""
        return next((value for what, value, _ in self.figures if what == "median"), None)


Points = dict[Case, PublishedPoint]


def published_points(lines: Sequence[str]) -> tuple[list[tuple[Setting, Points]], list[str]]:
    """The points of a document by their setting, and what of it could not be read, a line each."""
    opening = _opening(lines)
    printed, remarks = blocks(lines)
    remarks_so_far = list(remarks)
    groups = [group for block in printed for group in _of_block(block, opening, remarks_so_far)]
    for table in tables(lines):
        if len(groups) >= MAX_COLUMNS:
            remarks_so_far.append(
                f"line {table.line}: more than {MAX_COLUMNS} columns of speeds are no report; the rest is not read"
            )
            break
        columns_read, remarks = columns(table)
        remarks_so_far += remarks
        for column in columns_read:
            _add_column(column, opening, groups)
    return _with_places(groups), remarks_so_far


def _opening(lines: Sequence[str]) -> tuple[str, ...]:
    texts = (plain_text(line) for line in lines[:100])
    return tuple(line.lstrip("# ") for line in texts if line)[:OPENING_LINES]


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
        run_case = sized(run.place.nodes, run.place.devices or 0)
        if run_case is None or run_case.nodes is None:
            remarks.append(f"line {run.line}: the folders of {run.path} name no case like 1n8g; its speed is left out")
            continue
        setting = _setting_of(run, opening)
        if len(folders) > 1:
            setting = replace(setting, apart="/".join(run.place.folder))
        group = groups.setdefault(setting, _Group(setting=setting, points={}, line=block.line, printed=True))
        published = group.points.setdefault(run_case, PublishedPoint())
        if run.place.packed:
            published.packed.append(run)
        elif same := next((known_run for known_run in published.runs if known_run.number == run.number), None):
            remarks.append(f"line {run.line}: {run.path} is run {run.number} again, as {same.path}; the first counts")
        else:
            published.runs.append(run)
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
    groups_of_point = _fitting(point, name, list(groups.values()))
    if len(groups_of_point) > 1:
        kinds = ", ".join(sorted({group.setting.precision or "?" for group in groups_of_point}))
        remarks.append(
            f"line {block.line}: one result is printed for the {point.model} runs of {len(groups_of_point)} settings "
            f"({kinds}); it is kept with none of them"
        )
        return
    if not groups_of_point:
        setting = Setting(
            backend=system(opening),
            workload=_with_task(name, (name, *opening)),
            batch_size=point.batch_size,
            precision="",
        )
        groups_of_point = [
            groups.setdefault(setting, _Group(setting=setting, points={}, line=block.line, printed=True))
        ]
    published = groups_of_point[0].points.setdefault(point.case, PublishedPoint())
    published.figures += [(what, value, line) for what, (value, line) in point.figures.items()]


def _fitting(point: PrintedPoint, name: str, groups: Sequence[_Group]) -> list[_Group]:
    """The groups of that model and batch size; of several, those that have the case, and of these those whose runs have
    the printed median."""
    fitting = [
        group
        for group in groups
        if (point.batch_size is None or group.setting.batch_size in (None, point.batch_size))
        and group.setting.workload.endswith(name)
    ]
    with_case = [group for group in fitting if point.case in group.points]
    given = [group for group in with_case if _gives(group.points[point.case], point)]
    return (given if len(with_case) > 1 and given else with_case) or fitting


def _gives(published: PublishedPoint, point: PrintedPoint) -> bool:
    """Whether the median of the runs is the printed one, but for rounding."""
    speeds = [run.speed for run in published.runs]
    printed = point.figures.get("median")
    return bool(speeds and printed) and abs(median(speeds) - float(printed[0] if printed else 0)) < PRINTED_UNIT


def _add_column(column: Column, opening: Sequence[str], groups: list[_Group]) -> None:
    """Puts a column to the figures that it repeats, else makes points of its own."""
    column_setting = _setting(column, opening)
    group = next((group for group in groups if _repeats(column, column_setting, group)), None)
    if group is None:
        group = _Group(setting=column_setting, points={}, line=column.line, head=column.head)
        groups.append(group)
    group_setting = group.setting
    group.setting = replace(
        group_setting,
        workload=group_setting.workload or column_setting.workload,
        batch_size=group_setting.batch_size or column_setting.batch_size,
        precision=group_setting.precision or column_setting.precision,
    )
    cases = Counter(cell.case for cell in column.cells if cell.speed is not None)
    for cell in column.cells:
        published = group.points.setdefault(_case_in(cell.case, group.points), PublishedPoint())
        if cell.speed is None:
            published.placeholders.append(cell.placeholder)
        elif cases[cell.case] > 1:
            published.repeats.append(cell.speed)
        else:
            published.figures.append(("median", cell.speed, cell.line))
        if cell.speedup is not None:
            published.figures.append(("speedup", cell.speedup, cell.line))


def _repeats(column: Column, column_setting: Setting, group: _Group) -> bool:
    """Whether a column says nothing else than is known of these points, and has most speeds of a printed result, or all
    of another column."""
    known = group.setting
    pairs = [(column.batch_size, known.batch_size), (column.precision, known.precision)]
    if column.named or not group.printed:
        pairs.append((column_setting.backend.removeprefix("ngc-"), known.backend.removeprefix("ngc-")))
    if not group.printed:
        pairs.append((column_setting.workload, known.workload))
    if any(mine and its and mine != its for mine, its in pairs):
        return False
    speeds = {_case_in(cell.case, group.points): cell.speed for cell in column.cells if cell.speed is not None}
    known_speeds = {case: published.median for case, published in group.points.items() if published.median is not None}
    same = sum(speeds[case] == known_speeds[case] for case in speeds.keys() & known_speeds.keys())
    if group.printed:
        return same * 2 > len(speeds.keys() & known_speeds.keys())
    return speeds == known_speeds and same >= REPEATED


def _case_in(case: Case, points: Mapping[Case, PublishedPoint]) -> Case:
    """The point's own case where a table leaves out its nodes."""
    if case.nodes is None:
        same = [other for other in points if other.devices == case.devices]
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


def _with_places(all_groups: Sequence[_Group]) -> list[tuple[Setting, Points]]:
    """The groups, those of equal settings with the place that they are printed at."""
    settings: dict[Setting, list[_Group]] = {}
    for group in all_groups:
        settings.setdefault(group.setting, []).append(group)
    settings_and_points = []
    for setting, groups in settings.items():
        for group in groups:
            apart = setting.apart if len(groups) == 1 else _where(group, groups)
            settings_and_points.append((replace(setting, apart=apart), group.points))
    return settings_and_points


def _where(group: _Group, groups: Sequence[_Group]) -> str:
    """The line of a group's head, and of several on one line the column's, with its number where heads are alike."""
    beside = [other for other in groups if other.line == group.line]
    alike = [other for other in beside if other.head == group.head]
    at = str(1 + next(at for at, other in enumerate(alike) if other is group)) if len(alike) > 1 else ""
    head = group.head if len(beside) > 1 else ""
    return " ".join(part for part in (f"line {group.line}", head, at, group.setting.apart) if part)
