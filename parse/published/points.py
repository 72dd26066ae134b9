"""Merges the printed results and the tables of a document into points."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.spec import SAMPLES
from hpc.system.regular_file import existing
from hpc.system.text import grouped, inflect
from parse.faults import fault
from parse.logs.formats.mllog import IMAGENET
from parse.logs.path_facts import model_name
from parse.published.blocks import ExtractorOutput, PrintedPoint, PrintedRun, extractor_outputs, figure
from parse.published.columns import SpeedColumn, WallClock, columns, imagenet_clocks
from parse.published.files import DocumentError, files_of, read_lines
from parse.published.row_settings import Options
from parse.published.tables import tables
from parse.published.times import time_columns
from parse.published.vocabulary import Case, model, plain_text, sized, system
from parse.runs.attempt import Attempt, FromLog, Measured, RequestedRun, RunFields
from parse.runs.result import Claimed, Figure, PrintedTime, Result, Run, of_runs, with_speedups
from parse.stats import median

REPEATED = 3
"""A column repeats another if all speeds, at least this many, are equal."""
PRINTED_UNIT = 0.01
"""The unit of the last digit of a printed speed."""
MAX_COLUMNS = 500
_OF_LINE = re.compile(r"line (?P<line>\d+): (?P<text>.*)", re.DOTALL)
OPENING_LINES = 3
"""The first lines of a document, its title among them, name its subject."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of points without their case; an unknown one is empty or None. `apart` separates equal settings."""

    backend: str
    workload: str
    batch_size: int | None
    precision: str
    options: tuple[tuple[str, str], ...] = ()
    unit: str = SAMPLES
    apart: str = ""


@dataclass(kw_only=True)
class PublishedPoint:
    """A point while it is merged: runs, logs of packed jobs, printed figures, words in the place of a speed, speeds
    of rows that repeat the case, and the time that its speed is of."""

    runs: list[PrintedRun] = field(default_factory=list)
    packed: list[PrintedRun] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    placeholders: list[str] = field(default_factory=list)
    repeats: list[Decimal] = field(default_factory=list)
    time: PrintedTime | None = None

    @property
    def median(self) -> float | None:
        """The first printed speed."""
        return next((figure.value for figure in self.figures if figure.what == "median"), None)


PointsByCase = defaultdict[Case, PublishedPoint]


def published_points(lines: Sequence[str]) -> tuple[list[tuple[Setting, PointsByCase]], list[str]]:
    """Returns the points of a document by setting, and a remark for each part that is not readable."""
    opening = _opening(lines)
    outputs, remarks = extractor_outputs(lines)
    remarks_so_far = list(remarks)
    groups = [group for output in outputs for group in _of_output(output, opening, remarks_so_far)]
    for column in _columns_in(lines, remarks_so_far):
        if len(groups) >= MAX_COLUMNS:
            remarks_so_far.append(
                f"line {column.line}: more than {MAX_COLUMNS} columns of speeds are no report; the rest is not read"
            )
            break
        _add_column(column, opening, groups)
    return _with_places(groups), _merged(remarks_so_far)


def _columns_in(lines: Sequence[str], remarks: list[str]) -> Iterator[SpeedColumn]:
    """The columns of all tables; adds a remark for each part that is not readable."""
    for table in tables(lines):
        columns_read, remarks_of_columns = columns(table)
        times_read, remarks_of_times = time_columns(table)
        remarks += (*remarks_of_columns, *remarks_of_times)
        yield from (*columns_read, *times_read)


def _merged(remarks: Sequence[str]) -> list[str]:
    """The remarks, those that say the same of several lines as one: `lines 5, 9: ...`."""
    matches = [(_OF_LINE.fullmatch(remark), remark) for remark in remarks]
    alike = grouped((match["text"] if match else remark, match and match["line"]) for match, remark in matches)
    return [
        f"{inflect(len(lines), 'line')} {', '.join(map(str, lines))}: {text}" if lines[0] else text
        for text, lines in alike.items()
    ]


def _opening(lines: Sequence[str]) -> tuple[str, ...]:
    texts = [text for line in lines[:100] if (text := plain_text(line))][:OPENING_LINES]
    return tuple(text.lstrip("# ") for text in texts if text.count("|") < 2)


@dataclass(kw_only=True)
class _Group:
    """Points of one setting, their line in the document and the head of their column. `printed`: an extractor printed
    them, so that tables may repeat them."""

    setting: Setting
    line: int
    head: str = ""
    printed: bool = False
    points: PointsByCase = field(default_factory=lambda: defaultdict(PublishedPoint))


def _of_output(output: ExtractorOutput, opening: Sequence[str], remarks: list[str]) -> Iterator[_Group]:
    groups: dict[Setting, _Group] = {}
    folders = {run.place.folder for run in output.runs}
    for run in output.runs:
        run_case = sized(run.place.nodes, run.place.devices or 0)
        if run_case is None or run_case.nodes is None:
            remarks.append(f"line {run.line}: the folders of {run.path} name no case like 1n8g; its speed is left out")
            continue
        setting = _setting_of(run, opening)
        if len(folders) > 1:
            setting = replace(setting, apart="/".join(run.place.folder))
        group = groups.setdefault(setting, _Group(setting=setting, line=output.line, printed=True))
        published = group.points[run_case]
        if run.place.packed:
            published.packed.append(run)
        elif same := next((known_run for known_run in published.runs if known_run.number == run.number), None):
            remarks.append(f"line {run.line}: {run.path} is run {run.number} again, as {same.path}; the first counts")
        else:
            published.runs.append(run)
    for point in output.points:
        _add_point(point, output.line, groups, opening, remarks)
    yield from groups.values()


def _setting_of(run: PrintedRun, opening: Sequence[str]) -> Setting:
    name, folder = run.place.model, str(Path(run.path).parent)
    texts = (name, folder, *opening)
    return Setting(
        backend=system((folder, *opening)),
        workload=_with_task(name, texts) if name else model(texts),
        batch_size=run.place.batch_size,
        precision=run.place.precision,
        options=tuple(sorted(run.place.options.items())),
    )


def _with_task(name: str, texts: Sequence[str]) -> str:
    """Returns the model in the texts if `name` is a known model, else `name`."""
    return model(texts) if model((name,)) else name


def _add_point(
    point: PrintedPoint, line: int, groups: dict[Setting, _Group], opening: Sequence[str], remarks: list[str]
) -> None:
    """Adds an entry of a printed result to the group of its runs."""
    name = model_name(point.model)
    groups_of_point = _fitting(point, name, list(groups.values()))
    if len(groups_of_point) > 1:
        kinds = ", ".join(sorted({group.setting.precision or "?" for group in groups_of_point}))
        remarks.append(
            f"line {line}: one result is printed for the {point.model} runs of {len(groups_of_point)} settings "
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
        groups_of_point = [groups.setdefault(setting, _Group(setting=setting, line=line, printed=True))]
    groups_of_point[0].points[point.case].figures += point.figures


def _fitting(point: PrintedPoint, name: str, groups: Sequence[_Group]) -> list[_Group]:
    """Returns the groups of that model and batch size; if any have the case, only these; if several have it, only those
    whose runs have the printed median."""
    fitting = [
        group
        for group in groups
        if (point.batch_size is None or group.setting.batch_size in (None, point.batch_size))
        and group.setting.workload.endswith(name)
    ]
    with_case = [group for group in fitting if point.case in group.points]
    with_median = [group for group in with_case if _has_median_of(group.points[point.case], point)]
    return (with_median if len(with_case) > 1 and with_median else with_case) or fitting


def _has_median_of(published: PublishedPoint, point: PrintedPoint) -> bool:
    """Whether the median of the runs is the printed median within rounding."""
    speeds = [run.speed for run in published.runs]
    return bool(speeds) and point.median is not None and abs(median(speeds) - point.median.value) < PRINTED_UNIT


def _add_column(column: SpeedColumn, opening: Sequence[str], groups: list[_Group]) -> None:
    """Adds a column to the group that it repeats, else to a new group."""
    column_setting = _setting(column, opening)
    group = next((group for group in groups if _repeats(column, column_setting, group)), None)
    if group is None:
        group = _Group(setting=column_setting, line=column.line, head=column.head)
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
        published = group.points[_case_in(cell.case, group.points)]
        if cell.speed is None:
            published.placeholders.append(cell.placeholder)
        elif cases[cell.case] > 1:
            published.repeats.append(cell.speed)
            published.time = published.time or cell.time
        elif cell.time is not None:
            published.time = cell.time
        else:
            published.figures.append(figure("median", cell.speed, cell.line))
        if cell.speedup is not None:
            published.figures.append(figure("speedup", cell.speedup, cell.line))


def _repeats(column: SpeedColumn, column_setting: Setting, group: _Group) -> bool:
    """Whether a column contradicts no setting of a group and has most speeds of a printed result, or all speeds of
    another column."""
    known = group.setting
    pairs: list[tuple[str | int | Options | None, str | int | Options | None]] = [
        (column.batch_size, known.batch_size),
        (column.precision, known.precision),
        (column.unit, known.unit),
        (column.options, known.options),
    ]
    if column.named or not group.printed:
        pairs.append((column_setting.backend.removeprefix("ngc-"), known.backend.removeprefix("ngc-")))
    if not group.printed:
        pairs.append((column_setting.workload, known.workload))
    if any(value and known_value and value != known_value for value, known_value in pairs):
        return False
    speeds = {_case_in(cell.case, group.points): float(cell.speed) for cell in column.cells if cell.speed is not None}
    known_speeds = {case: published.median for case, published in group.points.items() if published.median is not None}
    same = sum(speeds[case] == known_speeds[case] for case in speeds.keys() & known_speeds.keys())
    if group.printed:
        return same * 2 > len(speeds.keys() & known_speeds.keys())
    return speeds == known_speeds and same >= REPEATED


def _case_in(case: Case, points: Mapping[Case, PublishedPoint]) -> Case:
    """Returns the one known case with as many devices if a table does not print nodes."""
    if case.nodes is None:
        same = [other for other in points if other.devices == case.devices]
        if len(same) == 1:
            return same[0]
    return case


def _setting(column: SpeedColumn, opening: Sequence[str]) -> Setting:
    whole = system(opening)
    backend = column.backend
    if not column.named and (not backend or whole == f"ngc-{backend}"):
        backend = whole
    return Setting(
        backend=backend,
        workload=model((column.head, *column.headings, *opening)),
        batch_size=column.batch_size,
        precision=column.precision,
        unit=column.unit,
        options=column.options,
    )


def _with_places(all_groups: Sequence[_Group]) -> list[tuple[Setting, PointsByCase]]:
    """Returns the groups; those of equal settings get the place where they are printed in `apart`."""
    settings = grouped((group.setting, group) for group in all_groups)
    return [
        (replace(setting, apart=setting.apart if len(groups) == 1 else _printed_at(group, groups)), group.points)
        for setting, groups in settings.items()
        for group in groups
    ]


def _printed_at(group: _Group, groups: Sequence[_Group]) -> str:
    """Returns the line of a group; with several groups on that line, also the column head, and its number if
    heads are equal."""
    on_line = [other for other in groups if other.line == group.line]
    alike = [other for other in on_line if other.head == group.head]
    at = str(1 + next(at for at, other in enumerate(alike) if other is group)) if len(alike) > 1 else ""
    head = group.head if len(on_line) > 1 else ""
    return " ".join(part for part in (f"line {group.line}", head, at, group.setting.apart) if part)


# Reads the results in documents as points like those of traces and logs, with the printed figures beside them.

FORMAT = "published"
"""The log format of runs that only a document prints."""
SUFFIXES = frozenset({".md", ".markdown", ".txt", ".json", ".csv"})
"""Suffixes of documents in a folder; a file named on the command line may have any."""

_SAME_SPEED = 1e-6


@dataclass(frozen=True, kw_only=True)
class Published:
    """Results of documents. `refusals` are the unread files with reasons; `remarks` are unread parts of the others."""

    results: tuple[Result, ...]
    remarks: tuple[str, ...]
    refusals: tuple[str, ...]


def published(paths: Sequence[Path]) -> Published:
    """Reads documents, and those in folders. Points of different documents stay separate points."""
    results: list[Result] = []
    remarks: list[str] = []
    paths, refusals = existing(paths)
    files = list(files_of(paths, lambda file: file.suffix.lower() in SUFFIXES))
    names = Counter(path.name for path in files)
    for path in files:
        try:
            point_results, file_remarks = _results_of(path, path.name if names[path.name] == 1 else str(path))
        except DocumentError as error:
            refusals.append(str(error))
            continue
        except Exception as error:  # noqa: BLE001 - the line says which
            refusals.append(fault(error, path))
            continue
        results += point_results
        remarks += (f"{path}: {line}" for line in file_remarks)
    return Published(results=with_speedups(results), remarks=tuple(remarks), refusals=tuple(refusals))


def _results_of(path: Path, name: str) -> tuple[list[Result], list[str]]:
    lines = read_lines(path)
    settings_read, remarks = published_points(lines)
    if not settings_read:
        reason = f"; {remarks[0]}" if remarks else ""
        raise DocumentError(f"{path}: no table of speeds or times by case and no printed result is in it{reason}")
    clocks = imagenet_clocks(lines)
    return [
        point_result(requested_run(setting, case, name), point, path, clocks)
        for setting, points in settings_read
        for case, point in points.items()
    ], remarks


def requested_run(setting: Setting, case: Case, document: str) -> RequestedRun:
    """Returns the first run of a point, with the fields that documents print in a comparable form."""
    run = RunFields(
        backend=setting.backend or "?",
        nodes=case.nodes,
        devices=(case.nodes or 1) * case.devices_per_node or None,
        gpus_per_node=case.devices_per_node if case.nodes else None,
        workload=setting.workload or None,
        batch_size=setting.batch_size or None,
        precision=setting.precision or None,
        options=dict(setting.options),
        unit=setting.unit,
    )
    extra = {"document": document, "printed_at": setting.apart}
    extra = {name: value for name, value in extra.items() if value}
    return RequestedRun(run=run, run_id=run.partial_id(extra), extra=extra)


def _as_run(requested: RequestedRun, repeat: int) -> RequestedRun:
    """Returns the run as that repeat."""
    run = replace(requested.run, repeat=repeat)
    return replace(requested, run=run, run_id=run.partial_id(requested.extra))


def point_result(requested: RequestedRun, point: PublishedPoint, path: Path, clocks: Sequence[WallClock]) -> Result:
    figures = Claimed(
        document=path, figures=tuple(point.figures), packed=tuple((run.name, run.speed) for run in point.packed),
        time=point.time,
    )  # fmt: skip
    speed = figures.median if figures.median is not None else figures.average
    if point.time is not None:
        speed = point.time.work / point.time.seconds
    clock = next((candidate for candidate in clocks if speed and abs(candidate.claimed - speed) < _SAME_SPEED), None)
    if clock:
        source = f"{clock.epochs} epochs of the {IMAGENET:,} images of ImageNet in {clock.seconds:,.0f} s"
        figures = replace(figures, wall_clock=clock.speed, wall_clock_from=source)
    if runs := list(_runs(requested, point)):
        return replace(of_runs(runs), published=figures)
    runs = []
    placeholder = " and ".join(dict.fromkeys(point.placeholders)) or ("only packed jobs" if point.packed else "")
    if speed is None and placeholder:
        unnumbered = replace(requested, run=replace(requested.run, is_numbered=False))
        runs = [Run(requested=unnumbered, attempt=None, attempts=0, placeholder=placeholder)]
    return Result(
        requested=requested, runs=tuple(runs), planned_runs=None, median_speed=speed, average_speed=figures.average,
        published=figures,
    )  # fmt: skip


def _runs(requested: RequestedRun, point: PublishedPoint) -> Iterator[Run]:
    """Yields the runs with printed speeds: from lines with their logs' names, or from rows of a table."""
    for run in point.runs:
        log = FromLog(
            path=Path(run.path), log_format=FORMAT, window="", wall_clock=None, printed=None, remarks=run.place.remarks
        )
        yield _run(_as_run(requested, run.number), run.speed, log)
    for repeat, speed in enumerate(point.repeats, 1 + max((run.number for run in point.runs), default=0)):
        yield _run(_as_run(requested, repeat), float(speed), None)


def _run(requested: RequestedRun, speed: float, log: FromLog | None) -> Run:
    measured = Measured(throughput=speed, mean_of_rates=None, step_s=np.empty(0), samples=0, clock_share=0.0)
    attempt = Attempt(
        run_id=requested.run_id, number=1, requested=requested, outcome=Outcome.OK, measured=measured, machine=None,
        log=log,
    )  # fmt: skip
    return Run(requested=requested, attempt=attempt, attempts=1, ok_attempts=(1,))
