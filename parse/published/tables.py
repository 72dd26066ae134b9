"""Reads Markdown tables of results: their rows, each with its case, and the roles of their columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from parse.published.durations import time_head
from parse.published.layout import upright
from parse.published.row_settings import Options, grows_with_devices, says_what
from parse.published.vocabulary import (
    OF_EACH,
    Case,
    Rate,
    case,
    devices_in,
    integer,
    is_speed,
    names_unit,
    number,
    other_rate,
    plain_text,
    precisions_in,
    ranks_in,
    rate,
    scaled_rate,
    sized,
    system,
    without_rate,
)

GLOBAL_BATCH = "global batch size"
"""The option of rows that have no batch size of each device."""
MAX_HEADS = 100
"""A table with more columns is no report."""
MAX_LINES_ABOVE = 15
"""At most this many lines above a table are taken for its text."""
_LONG_LINE = 20_000
_SEPARATORS = ",;"
"""What is between the columns of JUBE's other styles, `jube result -s csv` and `-s aligned`."""
_RATIO = re.compile(r"\d ?[x×%]$", re.I)

_HEADING = re.compile(r"\s{0,8}([-*+]\s+)?(#{1,6})(?=\s|$)")
_FENCE = re.compile(r"\s*(?:[-*+]\s+)?(`{3,}(?=[^`]*$)|~{3,})")
_ROLES = (
    ("gpus_per_node", r"(?:num )?(?:gpus?|devices?)(?: num)? ?(?:per|/) ?(?:node|machine|host)|num gpus per node"),
    (
        "nodes",
        r"(?:(?:num(?:ber of)?|#(?: of)?) ?)?(?:nodes?|machines?|hosts?|servers?)"
        r"(?: ?\(\d{1,4} (?:gpus?|devices?|cards?)(?: each| per node)?\))?|nodes? num(?:ber)?|节点数?|机器数",
    ),
    (
        "devices",
        r"(?:(?:num(?:ber of)?|no\.? of|#(?:-| of)?|total) ?)?(?:gpus?|devices?|cards?|tpus?|npus?|hpus?|chips)"
        r"|accelerators?|gpu\(s\)"
        r"|(?:gpus?|npus?|devices?) ?(?:nums?|number|count|个?数量?|수)|world ?size|训练卡数|gpu ?卡数|卡数",
    ),
    (
        "batch_size",
        r"(?:local |per[- ](?:device|gpu) )?batch(?:[ -]?size)?|batch(?:[ -]?size)? ?(?:per|/) ?(?:device|gpu|card)|bsz"
        r"|lbs|(?:local )?bs|(?:images|imgs|samples) ?(?:per|/) ?gpu|每gpu图片个数|单卡批量大小",
    ),
    ("accumulation", r"(?:grad(?:ient)? ?)?accum(?:ulation)?(?: steps?)?|ga|gas"),
    ("global_batch_tokens", r"(?:global|total) batch(?: size)? ?\(?(?:t|tokens)\)?"),
    (
        "global_batch_size",
        r"(?:(?:global|total|effective) (?:batch(?: size)?|bsz?)|gbs|batch(?: size)? \(?(?:global|total)\)?)",
    ),
    ("precision", r"(?:precision|精度类型|dtype)"),
    ("speedup", r"(?:speed ?up.*|加速比.*)"),
    ("time2train_s", r"time ?(?:2|to) ?train\W*(?:s|sec|seconds?|秒)?\W*"),
    ("accuracy", r"(?:准确率|精度|accuracy|acc|top-?1)\W*%?\W*"),
    ("steps", r"(?:(?:num(?:ber of)?|#|total|train(?:ing)?) ?)*(?:steps?|iterations?|iters?)"),
    ("epochs", r"(?:(?:num(?:ber of)?|#|total|train(?:ing)?) ?)*epochs?"),
    (
        "samples",
        r"(?:(?:num(?:ber of)?|#|total|train(?:ing)?) ?)*(?:samples|images|examples|sequences)|data ?set size",
    ),
    ("tokens", r"(?:(?:num(?:ber of)?|#|total|train(?:ing)?) ?)*tokens"),
)
"""The role of a column, by its head in lower case with spaces for underscores."""
OF_EACH_DEVICE = re.compile(r"(?:\bper|/)[ -]?(?:gpu|device|card|chip|worker)|local|\blbs\b|单卡|每gpu", re.I)
_PER_DEVICE = re.compile(rf"(?:/|\bper\b|\beach\b)[ -]?{OF_EACH}\b|/卡|单卡|\btgs\b")
_SPEED_OF_EACH = re.compile(rf"(?:throughput|speed|/ ?s(?:ec)?)\W{{1,3}}(?:per|/)[ -]?{OF_EACH}\b", re.I)
"""Text above a table whose speeds are of one device."""
_TOTAL = re.compile(r"\btotal|aggregate|overall|\ball\b|cluster", re.I)
_PER_NODE = re.compile(r"(?:/|\bper\b|\beach\b)[ -]?(?:node|host|machine|server)\b|单机")
_OF_EACH_NODE = re.compile(
    r"(?<![\d.,])(\d{1,4}) (?:gpus?|devices?|cards?) (?:in|on|per) (?:each |every |a )?(?:node|machine)\b"
    r"|\b[DH]GX[- ]?\w*(?: \w+)? \((\d{1,2})x |\b(?:nodes?|machines?) \((\d{1,4}) (?:gpus?|devices?|cards?)\b",
    re.I,
)
"""How many devices each node has: `8 GPUs per node`, `DGX A100 (8x A100 80GB)`, `Nodes (4 GPUs each)`."""
_NO_SPEED = re.compile(
    r"latency|\bms\b|mem|flop|ratio|class|size|num|speed[ -]?up|scaling|efficien|加速|tokens?\s*/(?!\s*s)|improve|gain"
    r"|increase|relative|normali[sz]ed|over baseline|reduction|bandwidth|\b[kmgt]i?b(?:ps|it)"
    r"|\bideal|theoretical|expected|projected|predicted|estimate|\btarget|\blinear|\bload|\bval(?:idation)?\b|\beval|\btest\b"
    r"|preprocess|compile|/ ?(?:\$|usd|w\b|watt|kw|mw|user|stream|request|core|thread|socket)"
    r"|\bper (?:\$|dollar|watt|joule|user|stream|request|core|thread|socket)",
    re.I,
)
_NOT_OF_SYSTEM = re.compile(
    r"version|\bver\b|commit|release|\btag\b|image|container|accuracy|\bacc\b|loss|script|link|config|epoch|time|support"
    r"|lite|branch|\blog\b|\bbleu\b|版本",
    re.I,
)
"""Words beside the name of a system that make a column one of something else than its speeds."""
_INFERENCE = re.compile(r"\binf(?:er\w*)?\b|latency|\bserving|\bttft\b|\btpot\b|\bdecod|prefill|推理|离线|在线", re.I)
_DEPLOYED = re.compile(r"tensorrt|\btrt\b|onnx|openvino|\bvllm|sglang|\bprompt|kirin|snapdragon|jetson|骁龙", re.I)
"""Words of inference that may stand in a text about training, too."""
_TRAINING = re.compile(r"\btrain|训练", re.I)
_OF_TRAINING = re.compile(
    r"\btraining\b|\btrain (?:speed|fps|throughput)|训练|epoch|\bamp\b|optimi[sz]er|\benv|\bagent|\bpolicy|reinforce",
    re.I,
)
"""Words of training, without those of what was trained before (`Pretrained models`, a column `pretrain`)."""
SPEEDS = ("speed", "speed of each", "speed of each node")
_STATISTIC = re.compile(r".*[ (\[](?:min|max|std|cnt|stdev|p\d\d)[)\]]?(?:\[.*)?")
"""Heads of statistics that are no speed (JUBE's `throughput_std`, `img/s (max)`)."""
_MODEL_NUMBERS = frozenset(
    {310, 710, 910, *(1000 * series + kind for series in range(1, 6) for kind in (50, 60, 70, 80, 90))}
)
"""What a column of devices holds where it names them (`2080`, Ascend's `910`), and counts none."""
_HARDWARE = re.compile(r"(?:hardware|system|platform|machine|instance|server|accelerator)s?(?: type)?", re.I)


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
        printed = self.first("devices")
        if devices is None and (printed_case := case(printed)) and "nodes" not in self.roles:
            return printed_case
        devices = devices or devices_in(printed) or ranks_in(printed)
        if "nodes" in self.roles and not nodes:
            return None
        return sized(nodes, each * (nodes or 1) if each else devices or 0)


@dataclass(frozen=True, kw_only=True)
class MarkdownTable:
    """A table: `line` is the line of its head, counted from 1; `headings` are those above it, nearest first, and
    `caption` is the line of text right above it, empty if that is none; `above` are all lines of text between it and
    what is above, nearest first."""

    line: int
    headings: tuple[str, ...]
    heads: tuple[str, ...]
    cells: tuple[tuple[int, tuple[str, ...]], ...]
    caption: str = ""
    above: tuple[str, ...] = ()

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The role of each column; empty for a column without one."""
        roles = [*map(_role, self.heads)]
        for at, role in enumerate(roles):
            cells = [row[at] for _, row in self.cells if at < len(row)]
            if role == "devices" and (not any(map(_counts_devices, cells)) or _names_models(cells)):
                roles[at] = ""  # of their names
            if role in SPEEDS and sum(bool(_RATIO.search(cell)) for cell in cells) * 2 > len(cells):
                roles[at] = ""
            of_speeds = sum(rate(cell) is not None and number(without_rate(cell)) is not None for cell in cells)
            if not role and of_speeds * 2 > len(cells):
                roles[at] = "speed"
        if not {"devices", "gpus_per_node", "nodes"} & {*roles} and (place := self._counting(roles)) is not None:
            roles[place] = "devices"
        if any(_SPEED_OF_EACH.search(text) for text in (self.caption, *self.headings[:1])):
            roles = ["speed of each" if role == "speed" and not _TOTAL.search(head) else role
                     for role, head in zip(roles, self.heads, strict=True)]  # fmt: skip
        if not {*SPEEDS, "time", "time2train_s"} & {*roles}:
            roles = self._with_unit_above(roles)
        return tuple(roles)

    def _with_unit_above(self, roles: list[str]) -> list[str]:
        """The roles of a table that counts devices, with columns of figures as speeds where the text right above it, or
        its heading, has a unit of speeds (`GPUs | ResNet-50 | VGG16` below `images/sec`)."""
        text = next((text.lower() for text in (self.caption, *self.headings[:1]) if names_unit(text)), "")
        kind = _role(text[:200]) if text else ""
        if kind not in SPEEDS or not {"devices", "gpus_per_node", "nodes"} & {*roles}:
            return roles
        figures = [all(number(cell) for cell in self._printed(at)) for at in range(len(self.heads))]
        return [
            kind if not role and is_figure and not says_what(head) and not _NO_SPEED.search(head) else role
            for role, head, is_figure in zip(roles, self.heads, figures, strict=True)
        ]

    def _counting(self, roles: Sequence[str]) -> int | None:
        """The column whose cells count devices below another head (`Hardware`, names like `8p-NPU`)."""
        for at, head in enumerate(self.heads):
            cells = [*self._printed(at)]
            if roles[at] or not cells:
                continue
            if all(map(ranks_in, cells)) or (_HARDWARE.fullmatch(head) and all(map(devices_in, cells))):
                return at
        return None

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

    @cached_property
    def rates(self) -> tuple[Rate | None, ...]:
        """The unit of each column: that of its head or cells, else of the text above; None where none has one."""
        above = (*self.above, *self.headings[:1])
        return tuple(
            scaled_rate(head) or next((its for cell in self._printed(at) if (its := rate(cell))), None)
            or next((its for text in above if (its := scaled_rate(re.sub(r"\b1,?000 ", "", text)))), None)
            for at, head in enumerate(self.heads)
        )  # fmt: skip

    def _printed(self, at: int) -> tuple[str, ...]:
        return tuple(row[at] for _, row in self.cells if at < len(row))

    @property
    def of_inference(self) -> bool:
        """Whether the text above it or its heading speaks of inference, else, where none speaks of training, its heads
        or further headings."""
        nearest, further = (self.caption, *self.headings[:1]), (*self.heads, *self.headings[1:])
        if any(_INFERENCE.search(text) for text in nearest):
            return True
        if any(_TRAINING.search(text) for text in (*nearest, *self.heads)):
            return False
        return any(_INFERENCE.search(text) or _DEPLOYED.search(text) for text in (*nearest, *further))

    @property
    def of_frames(self) -> bool:
        """Whether its speeds are frames/s of which nothing says that they are of training, on no two sizes."""
        texts = (*self.heads, *self.above, *self.headings)
        sizes = {row_case.devices for row in self.rows or () if (row_case := row.case)}
        counted = len(sizes) > 1 or {"epochs", "steps", "accumulation"} & {*self.roles}
        units = {its.unit for role, its in zip(self.roles, self.rates, strict=True) if role in SPEEDS and its}
        return units == {"frames"} and not counted and not any(_OF_TRAINING.search(text) for text in texts)

    @property
    def devices_above(self) -> int | None:
        """The devices that the text right above the table names, else its heading; None if they do not say."""
        return next((count for text in (self.caption, *self.headings[:1]) if (count := devices_in(text))), None)

    def _of_each_node(self) -> int | None:
        texts = (*self.heads, self.caption, *self.headings)
        match = next((match for text in texts if (match := _OF_EACH_NODE.search(text))), None)
        return int(match[1] or match[2] or match[3]) if match else None

    @cached_property
    def has_batch_of_all(self) -> bool:
        """Whether a column `batch size`, of no stated devices, is of all of them: it grows as they do."""
        if "batch_size" not in self.roles or OF_EACH_DEVICE.search(self.heads[self.roles.index("batch_size")]):
            return False
        rows = [(row, row_case) for row in self.rows or () if (row_case := row.case)]
        sizes = [integer(number(row.first("batch_size"))) for row, _ in rows]
        return grows_with_devices(sizes, [row_case.devices for _, row_case in rows])

    @cached_property
    def _is_strong(self) -> bool:
        """Whether there are fewer batch sizes of all devices than of each, on several sizes."""
        totals = [
            (self._batch_of_all(row, row_case), row_case.devices) for row in self.rows or () if (row_case := row.case)
        ]
        pairs = [(total, devices) for total, devices in totals if total]
        of_all, of_each = {total for total, _ in pairs}, {total / devices for total, devices in pairs}
        return len({devices for _, devices in pairs}) > 1 and len(of_all) < len(of_each)

    def _batch_of_all(self, row: TableRow, row_case: Case) -> int | None:
        size, total = (integer(number(row.first(name))) for name in ("batch_size", "global_batch_size"))
        if total or not size:
            return total
        each = size * (integer(number(row.first("accumulation"))) or 1)
        return size if self.has_batch_of_all else each * row_case.devices

    def batch_sizes(self, row: TableRow, row_case: Case) -> tuple[int | None, Options]:
        """The batch size of each device; that of all devices as an option if it is the same on every size, or no
        multiple of the devices."""
        if (total := self._batch_of_all(row, row_case)) is None:
            return None, ()
        if total % row_case.devices or self._is_strong:
            return None, ((GLOBAL_BATCH, str(total)),)
        return total // row_case.devices, ()

    @property
    def without_cases(self) -> str:
        """Why no row has a case."""
        if "nodes" in self.roles:
            return "by nodes, and neither a column nor a heading says how many devices a node has"
        if "case" in map(str.lower, self.heads):
            return "whose column of cases has none like 1n8g"
        return "but none of its columns says the case"


def tables(lines: Sequence[str]) -> Iterator[MarkdownTable]:
    """Yields the tables in GitHub's Markdown, with or without pipes at the ends of a row, and of `jube result`."""
    above: list[tuple[float, str]] = []
    fence = ""
    at = 0
    while at < len(lines):
        line = lines[at][:_LONG_LINE]
        if mark := _FENCE.match(line):
            closes = mark[1].startswith(fence) and mark[0].strip() == line.strip()
            fence = "" if fence and closes else fence or mark[1]
            at += 1
            continue
        if not fence and (heading := _HEADING.match(line)):
            # A heading in a list is one half level below the same heading outside of a list.
            depth = len(heading[2]) + (0.5 if heading[1] else 0)
            above = [heading_above for heading_above in above if heading_above[0] < depth] + [
                (depth, plain_text(line[heading.end() :]).rstrip("# "))
            ]
            at += 1
            continue
        if _heads_table(lines, at, padded=bool(fence)):
            begin, end = at + 2, at + 2
            while end < len(lines) and "|" in lines[end] and not _heads_table(lines, end):
                end += 1
            heads, cells = _cells(line), [_cells(lines[row]) for row in range(begin, end)]
        elif separator := _heads_columns(lines, at):
            begin, end = at + 1, at + 1
            heads, cells = _separated(line, separator), []
            while end < len(lines) and len(row := _separated(lines[end], separator)) == len(heads):
                cells.append(row)
                end += 1
        else:
            at += 1
            continue
        headings = tuple(text for _, text in reversed(above) if text)
        rows = tuple((row, texts) for row, texts in zip(range(begin + 1, end + 1), cells, strict=True) if any(texts))
        caption = _caption(lines, at)
        if len(heads) <= MAX_HEADS:
            heads, rows = upright(at + 1, heads, rows, (caption, *headings[:1]), _role)
        yield MarkdownTable(
            line=at + 1,
            headings=headings,
            heads=heads,
            cells=rows,
            caption=caption,
            above=_above(lines, at),
        )
        at = end


def _above(lines: Sequence[str], at: int) -> tuple[str, ...]:
    """The lines of text above the table at that line, as far as another table, a heading or code."""
    texts: list[str] = []
    for line in reversed(lines[max(0, at - MAX_LINES_ABOVE) : at]):
        if "|" in line or _FENCE.match(line) or _HEADING.match(line):
            break
        texts.append(plain_text(line))
    return tuple(text for text in texts if text)


def _caption(lines: Sequence[str], at: int) -> str:
    """The line of text above the table at that line, across at most one empty line."""
    above = [line[:_LONG_LINE] for line in lines[max(0, at - 2) : at] if line.strip()]
    text = above[-1] if above and lines[at - 1 : at] else ""
    return "" if "|" in text or _FENCE.match(text) or _HEADING.match(text) else plain_text(text)


def _heads_table(lines: Sequence[str], at: int, *, padded: bool = False) -> bool:
    """Whether a line of heads and one of dashes are there; in JUBE's of older versions with `+` between the columns.

    `padded`: as a program prints them, all lines equally long.
    """
    if "|" not in lines[at] or at + 1 == len(lines):
        return False
    rule = lines[at + 1].rstrip()
    if padded and not len(rule) == len(lines[at].rstrip()) == len("".join(lines[at + 2 : at + 3]).rstrip()):
        return False
    return len(rule) < _LONG_LINE and set(rule) <= set(" \t|:-+") and "-" in rule and ("|" in rule or "+" in rule)


def _heads_columns(lines: Sequence[str], at: int) -> str:
    """What separates the columns of a table without dashes: a line of heads, counts of devices and speeds or times
    among them, and as many cells below, numbers where devices are counted; empty where none begins here."""
    for separator in _SEPARATORS:
        if at + 1 == len(lines) or separator not in lines[at] or separator not in lines[at + 1]:
            continue
        heads, cells = _separated(lines[at], separator), _separated(lines[at + 1], separator)
        if len(heads) != len(cells) or len(heads) > MAX_HEADS or any(map(number, heads)):
            continue
        roles = [_role(head) for head in heads]
        counts = [place for place, role in enumerate(roles) if role in ("nodes", "devices", "gpus_per_node")]
        if not counts or not {"speed", "speed of each", "time"} & {*roles}:
            continue
        if all(integer(number(cells[place])) for place in counts):
            return separator
    return ""


def _separated(line: str, separator: str) -> tuple[str, ...]:
    """The cells of a line, which may be quoted."""
    cells = next(csv.reader([line[:_LONG_LINE]], delimiter=separator, skipinitialspace=True), [])
    return tuple(plain_text(cell) for cell in cells)


def _cells(line: str) -> tuple[str, ...]:
    text = line[:_LONG_LINE].strip().removeprefix("|")
    text = text.removesuffix("|") if not text.endswith("\\|") else text
    return tuple(plain_text(cell) for cell in re.split(r"(?<!\\)\|", text))


def _role(head: str) -> str:
    text = re.sub(r"[\s_]+", " ", head.lower()).strip()
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", head).lower().strip()  # GlobalBatchSize
    role = next((name for name, pattern in _ROLES if re.fullmatch(pattern, text) or re.fullmatch(pattern, apart)), "")
    if not role and time_head(text):
        return "time"
    if role == "speedup" and precisions_in(text) > 1:  # from one precision to another
        return ""
    if role:
        return role
    without = without_rate(re.sub(r"bsz?\s*=\s*\w+|batch size|max", "", text))
    excluded = _STATISTIC.fullmatch(text) or _NO_SPEED.search(without) or _INFERENCE.search(text)
    if excluded or other_rate(text):
        return ""
    for role, pattern in (("speed of each", _PER_DEVICE), ("speed of each node", _PER_NODE)):
        if pattern.search(text):
            return role if is_speed(text) else ""
    return "speed" if is_speed(text) or (system([text]) and not _NOT_OF_SYSTEM.search(text)) else ""


def _counts_devices(cell: str) -> bool:
    return bool(integer(number(cell)) or devices_in(cell) or ranks_in(cell) or case(cell))


def _names_models(cells: Sequence[str]) -> bool:
    """Whether all cells are numbers of models of devices."""
    counts = [integer(number(cell)) for cell in cells]
    return all(count in _MODEL_NUMBERS for count in counts)
