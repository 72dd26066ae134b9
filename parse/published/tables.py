"""Reads Markdown tables of results: columns of speeds by case, and rows of times to train."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from hpc.model.spec import SAMPLES, TOKENS
from parse.logs.path_facts import PRECISIONS, model_name
from parse.logs.sizes import whole_number

# Words of published results: numbers, cases, batch sizes, precisions, models, systems.

LONG = 1000
"""The maximum of characters read of a cell, a heading or a sentence."""
EPOCH_LINES = 500
"""At most this many lines are searched for the time that epochs took."""

IMAGENET = 1_281_167
"""Images of ImageNet's training set; an epoch is one pass over them."""
_FIGURE = r"\d[\d,]*(?:\.\d+)?"
EPOCH_TIMES = (
    re.compile(rf"(?P<seconds>{_FIGURE})\s*秒[^。\n]*?(?P<epochs>\d+)\s*个\s*epoch", re.IGNORECASE),
    re.compile(rf"(?P<epochs>\d+) epochs? (?:in|took|take) (?P<seconds>{_FIGURE}) ?s", re.IGNORECASE),
)
"""Sentences that state how many seconds some epochs took."""

_BATCH = re.compile(
    r"(?:batch[ _-]?size(?:[ _-]?per[ _-]?(?:device|gpu))?|\b(?:max )?(?:bsz?|bz))\s*[=:]\s*(\d{1,6})(?![\d.])", re.I
)
_PRECISION = re.compile(rf"(?<![a-z0-9])({'|'.join(PRECISIONS)})(?![a-z0-9])|(mixed[ -]precision|混合精度)", re.I)
_MODEL = re.compile(
    r"(?<![a-z0-9])((?:res|i?resn|fresresn)(?:net)?[ -]?\d{2,3}|rn?(?:18|34|50|100|101|152)|bert|gpt)(?!\d)", re.I
)
_TASK = re.compile(r"arcface|insightface|partial[ _-]?fc|partailfc", re.I)
_SYSTEMS = (
    ("plsc", r"plsc"), ("paddle", r"paddle(?:paddle)?"), ("pytorch", r"pytorch"), ("tensorflow", r"tensorflow"),
    ("mxnet", r"mxnet"), ("oneflow", r"oneflow"), ("mindspore", r"mindspore"), ("megatron-lm", r"megatron[- ]?lm"),
)  # fmt: skip
"""Names of systems; a name that contains another comes before it."""
_NVIDIA = re.compile(r"(?<![a-z])ngc(?![a-z])|nvidia", re.I)
_NGC = frozenset({"pytorch", "tensorflow", "mxnet"})
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"<sup>.*?</sup>|<[^>]*>|\*\*|~~|`|\\(?=[|*_<])", re.I)
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,15})?")
_CASES = (
    (re.compile(r"(\d{1,4})n(\d{1,4})[gc]"), False),
    (re.compile(r"(\d{1,4})\s?(?:机|节点|nodes?)\s?(\d{1,5})\s?(?:卡|gpus?)"), True),
    (re.compile(r"()(\d{1,5})\s?(?:卡|gpus?)"), True),
)
"""Forms of a case, and whether the count is that of all nodes together."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A number of devices, and of nodes if the document prints it."""

    devices: int
    nodes: int | None

    @property
    def devices_per_node(self) -> int:
        """Devices of each node; all devices if `nodes` is None."""
        return self.devices // (self.nodes or 1)


def plain_text(markdown: str) -> str:
    """Returns the text without links, line breaks, footnotes and emphasis, with full-width signs as ASCII."""
    text = _MARKUP.sub(" ", _LINK.sub(r"\1", markdown[:LONG]))
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


def number(text: str) -> Decimal | None:
    """Returns the number that a cell holds (`148,720`, `26.50`, `1.9x`, `77%`); None if it holds any word."""
    match = _NUMBER.fullmatch(text.removesuffix("%").removesuffix("x").strip())
    return Decimal(match[0].replace(",", "")) if match else None


def integer(value: Decimal | None) -> int | None:
    """Returns the value as a count; None for a fraction, 0 or None."""
    return int(value) if value and value == int(value) else None


def stated_times(lines: Iterable[str]) -> Iterator[tuple[int, float]]:
    """Yields (epochs, seconds) where a line states how long epochs took; both are above 0."""
    texts = [line[:LONG] for line in lines if "epoch" in line[:LONG].lower()][:EPOCH_LINES]
    for match in (match for form in EPOCH_TIMES for text in texts for match in form.finditer(text)):
        epochs, figure = whole_number(match["epochs"], max_digits=6), match["seconds"]
        if epochs and len(figure) < 20 and (seconds := float(figure.replace(",", ""))):
            yield epochs, seconds


def case(text: str) -> Case | None:
    """Returns the case of a cell: `1n8g`, `2机16卡`, `单机8卡`, `32卡`; None if it names none."""
    normalized = text.replace("单", "1").lower()
    for pattern, together in _CASES:
        if match := pattern.fullmatch(normalized):
            nodes, count = int(match[1]) if match[1] else None, int(match[2])
            return sized(nodes, count if together or nodes is None else nodes * count)
    return None


def sized(nodes: int | None, devices: int) -> Case | None:
    """Returns the case of `devices` in all; None if they are 0 or not a multiple of the nodes."""
    if devices < 1 or nodes == 0 or (nodes and devices % nodes):
        return None
    return Case(devices=devices, nodes=1 if devices == 1 else nodes)


def batch_size(texts: Iterable[str]) -> int | None:
    """Returns the batch size of the first text that has one: `batch_size = 128`, `bsz=96`."""
    match = next((match for text in texts if (match := _BATCH.search(text))), None)
    return (int(match[1]) or None) if match else None


def precision(texts: Iterable[str]) -> str:
    """Returns Rankwise's name for the precision in the first text that has one; empty if that text has several."""
    for text in texts:
        precisions = {PRECISIONS[name.lower()] if name else "amp-fp16" for name, _ in _PRECISION.findall(text)}
        if precisions:
            return precisions.pop() if len(precisions) == 1 else ""
    return ""


def model(texts: Iterable[str]) -> str:
    """Returns the model of the first text that has one; `arcface_` is before it if any text names face recognition."""
    texts = list(texts)
    match = next((match for text in texts if (match := _MODEL.search(text))), None)
    if match is None:
        return ""
    name = model_name(re.sub(r"[ -]", "", match[1]))
    return f"arcface_{name}" if any(_TASK.search(text) for text in texts) else name


def system(texts: Iterable[str]) -> str:
    """Returns the system of the first text that has one, `ngc-` before it for NVIDIA's examples; empty for several."""
    for text in texts:
        if names := _systems(text):
            (name, *others) = names
            if others:
                return ""
            return f"ngc-{name}" if name in _NGC and _NVIDIA.search(text) else name
    return ""


def _systems(text: str) -> list[str]:
    """Returns the systems in the text; a name inside a longer name does not count."""
    names = []
    for name, pattern in _SYSTEMS:
        text, count = re.subn(pattern, " ", text, flags=re.I)
        if count:
            names.append(name)
    return ["plsc"] if names == ["plsc", "paddle"] else names


MAX_HEADS = 100
"""A table with more columns is no report."""
_LONG_LINE = 20_000

_HEADING = re.compile(r"\s{0,8}([-*+]\s+)?(#{1,6})(?=\s|$)")
_FENCE = re.compile(r"\s*(?:[-*+]\s+)?(`{3,}|~{3,})")
_ROLES = (
    ("gpus_per_node", r"(?:num )?(?:gpus?|devices?)(?: num)? per (?:node|machine)|num gpus per node"),
    ("nodes", r"(?:nodes?|machines?|num nodes?|nodes? num(?:ber)?|节点数?|机器数)"),
    (
        "devices",
        r"(?:gpus?|devices?|cards?|num gpus?|num devices?|(?:gpus?|devices?) num(?:ber)?|训练卡数|gpu ?卡数|卡数)",
    ),
    ("batch_size", r"(?:batch size(?: ?(?:per|/) ?(?:device|gpu|card))?|bsz|bs)"),
    ("precision", r"(?:precision|精度类型|dtype)"),
    ("speedup", r"(?:speed ?up.*|加速比.*)"),
    ("time2train_s", r"time ?(?:2|to) ?train\W*(?:s|sec|seconds?|秒)?\W*"),
    ("accuracy", r"(?:准确率|精度|accuracy|acc|top-?1)\W*%?\W*"),
)
"""The role of a column, by its head in lower case with spaces for underscores."""
_PER_SECOND = r"\s*(?:/|\bper\b)\s*(?:s|secs?|seconds?)\b"
_TOKENS = re.compile(rf"tokens?{_PER_SECOND}|\btps\b", re.I)
_SAMPLES = re.compile(rf"(?:samples?|images?|imgs?|sequences?|sentences?|examples?){_PER_SECOND}|\bips\b", re.I)
_SPEED = re.compile(rf"{_SAMPLES.pattern}|{_TOKENS.pattern}|throughput|吞吐")
_PER_DEVICE = re.compile(r"(?:/|\bper\b) ?(?:gpu|device|card|chip)\b|/卡|单卡")
_OF_EACH_NODE = re.compile(
    r"(?<![\d.,])(\d{1,4}) (?:gpus?|devices?|cards?) (?:in|on|per) (?:each |every |a )?(?:node|machine)\b", re.I
)
_OF_IMAGENET = re.compile(r"image-?net|ILSVRC|ISLVRC", re.I)
_NO_SPEED = re.compile(
    r"latency|\bms\b|mem|flop|ratio|class|size|num|speed[ -]?up|scaling|efficien|加速|tokens?\s*/(?!\s*s)", re.I
)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a table with the roles of its columns; `case_at` is the column of cases, -1 if several columns count.

    `gpus_per_node` is what a heading above says of a table that counts nodes alone.
    """

    line: int
    cells: tuple[str, ...]
    roles: tuple[str, ...]
    case_at: int
    gpus_per_node: int | None = None

    def text(self, at: int) -> str:
        """The cell of a column; empty if the row is too short."""
        return self.cells[at] if at < len(self.cells) else ""

    def first(self, role: str) -> str:
        """The cell of the first column with that role; empty if there is none."""
        return self.text(self.roles.index(role)) if role in self.roles else ""

    @cached_property
    def numbers(self) -> dict[str, Decimal | None]:
        """The number of the last column with each role."""
        return {role: number(self.text(at)) for at, role in enumerate(self.roles)}

    @cached_property
    def case(self) -> Case | None:
        """The case that the row is about; None if it is not readable."""
        if self.case_at >= 0:
            return case(self.text(self.case_at))
        nodes, each, devices = (integer(self.numbers.get(role)) for role in ("nodes", "gpus_per_node", "devices"))
        each = each or self.gpus_per_node
        if "nodes" in self.roles and not nodes:
            return None
        return sized(nodes, each * (nodes or 1) if each else devices or 0)


@dataclass(frozen=True, kw_only=True)
class MarkdownTable:
    """A table: `line` is the line of its head, counted from 1; `headings` are those above it, nearest first."""

    line: int
    headings: tuple[str, ...]
    heads: tuple[str, ...]
    cells: tuple[tuple[int, tuple[str, ...]], ...]

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The role of each column; empty for a column without one."""
        return tuple(map(_role, self.heads))

    @cached_property
    def rows(self) -> tuple[TableRow, ...] | None:
        """The rows; None if no column names cases or counts devices."""
        at = self._case_column()
        if at is None:
            return None
        each = None if {"gpus_per_node", "devices"} & {*self.roles} else self._of_each_node()
        return tuple(
            TableRow(line=line, cells=cells, roles=self.roles, case_at=at, gpus_per_node=each)
            for line, cells in self.cells
        )

    def _case_column(self) -> int | None:
        for at, head in enumerate(self.heads):
            cells = [row[at] for _, row in self.cells if at < len(row) and row[at]]
            are_cases = any if head.lower() == "case" else all
            if cells and are_cases(case(cell) for cell in cells):
                return at
        counts = {"gpus_per_node", "devices"} & {*self.roles} or ("nodes" in self.roles and self._of_each_node())
        return -1 if counts else None

    def _of_each_node(self) -> int | None:
        match = next((match for text in self.headings if (match := _OF_EACH_NODE.search(text))), None)
        return int(match[1]) if match else None

    @property
    def without_cases(self) -> str:
        """Why no row has a case."""
        if "nodes" in self.roles:
            return "by nodes, and neither a column nor a heading says how many devices a node has"
        if "case" in map(str.lower, self.heads):
            return "whose column of cases has none like 1n8g"
        return "but none of its columns says the case"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The speed that a table prints for a case, or the word in its place."""

    line: int
    case: Case
    speed: Decimal | None
    placeholder: str
    speedup: Decimal | None = None


@dataclass(frozen=True, kw_only=True)
class SpeedColumn:
    """The speeds of one setting in a table, by case; settings that the table does not print are None or empty.

    `unit` is what they count per second.

    `named`: the table has columns of several systems, and `backend` is the system of this one.
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


def tables(lines: Sequence[str]) -> Iterator[MarkdownTable]:
    """Yields the tables in GitHub's Markdown, with or without pipes at the ends of a row."""
    above: list[tuple[float, str]] = []
    fence = ""
    at = 0
    while at < len(lines):
        line = lines[at][:_LONG_LINE]
        if mark := _FENCE.match(line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and (heading := _HEADING.match(line)):
            # A heading in a list is one half level below the same heading outside of a list.
            depth = len(heading[2]) + (0.5 if heading[1] else 0)
            above = [heading_above for heading_above in above if heading_above[0] < depth] + [
                (depth, plain_text(line[heading.end() :]).rstrip("# "))
            ]
        elif not fence and _heads_table(lines, at):
            end = at + 2
            while end < len(lines) and "|" in lines[end] and not _heads_table(lines, end):
                end += 1
            cells = tuple((row + 1, _cells(lines[row])) for row in range(at + 2, end))
            headings = tuple(text for _, text in reversed(above) if text)
            yield MarkdownTable(line=at + 1, headings=headings, heads=_cells(line), cells=cells)
            at = end
            continue
        at += 1


def _heads_table(lines: Sequence[str], at: int) -> bool:
    if "|" not in lines[at] or at + 1 == len(lines):
        return False
    rule = lines[at + 1].rstrip()
    return len(rule) < _LONG_LINE and set(rule) <= set(" \t|:-") and "-" in rule and "|" in rule


def _cells(line: str) -> tuple[str, ...]:
    text = line[:_LONG_LINE].strip().removeprefix("|")
    text = text.removesuffix("|") if not text.endswith("\\|") else text
    return tuple(plain_text(cell) for cell in re.split(r"(?<!\\)\|", text))


def columns(table: MarkdownTable) -> tuple[tuple[SpeedColumn, ...], tuple[str, ...]]:
    """Returns the columns of speeds, and a remark for each part that is not readable."""
    if len(table.heads) > MAX_HEADS:
        return (), (f"line {table.line}: a table of {len(table.heads)} columns is no report; not read",)
    speeds = [at for at, role in enumerate(table.roles) if role == "speed"]
    speeds = speeds or [at for at, role in enumerate(table.roles) if role == "speed of each"]
    if not speeds:
        return (), ()
    if table.rows is None:
        if not any(_SPEED.search(head.lower()) for head in table.heads):
            return (), ()
        return (), (f"line {table.line}: a table of speeds, {table.without_cases}; not read",)
    remarks = [
        f"line {table.line}: {table.heads[at]} is of one device: multiplied by their number"
        for at in speeds
        if table.roles[at] == "speed of each"
    ]
    settings: dict[tuple[int, int | None, str], list[Cell]] = {}
    for row in table.rows:
        if row.case is None:
            remarks.append(f"line {row.line}: no case is to be read in {' | '.join(row.cells)}; the row is left out")
            continue
        size, kind = integer(number(row.first("batch_size"))), precision([row.first("precision")])
        for at in speeds:
            settings.setdefault((at, size, kind), []).append(_cell(row, row.case, at, len(speeds)))
    return tuple(_column(table, setting, cells, len(speeds)) for setting, cells in settings.items()), tuple(remarks)


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
    plain = _TOKENS.sub("", _SAMPLES.sub("", text)).strip()
    return None if plain.lower().endswith(("x", "×", "%")) else number(plain)


def _column(
    table: MarkdownTable, setting: tuple[int, int | None, str], cells: Sequence[Cell], speeds: int
) -> SpeedColumn:
    at, size, kind = setting
    texts = (table.heads[at], *table.headings)
    printed = [row[at] for _, row in table.cells if at < len(row)]
    return SpeedColumn(
        line=table.line, head=table.heads[at], headings=table.headings, cells=tuple(cells),
        batch_size=size or batch_size(texts), precision=kind or precision(texts), backend=system(texts),
        named=speeds > 1 and bool(system(texts[:1])), unit=_unit([table.heads[at], *printed]),
    )  # fmt: skip


def _unit(texts: Sequence[str]) -> str:
    """What the speeds of a column count, by its head and cells."""
    return TOKENS if any(_TOKENS.search(text) for text in texts) else SAMPLES


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


def _role(head: str) -> str:
    text = re.sub(r"[\s_]+", " ", head.lower()).strip()
    role = next((name for name, pattern in _ROLES if re.fullmatch(pattern, text)), "")
    if role == "speedup" and len(_PRECISION.findall(text)) > 1:  # from one precision to another
        return ""
    if role:
        return role
    if _NO_SPEED.search(re.sub(r"bsz?\s*=\s*\w+|batch size|max", "", text)):
        return ""
    if _PER_DEVICE.search(text):
        return "speed of each" if _SPEED.search(text) else ""
    return "speed" if _SPEED.search(text) or system([text]) else ""
