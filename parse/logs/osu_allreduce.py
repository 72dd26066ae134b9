"""The output of osu_allreduce of the OSU Micro-Benchmarks: the time of an all-reduce by size, no bus bandwidth.

Format strings: OSU Micro-Benchmarks 5 to 7.5 (c/util/osu_util_mpi.c, c/mpi/collective). Their other tests are not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from parse.logs.nccl_tests import MAX_LINE, unlabelled

MARK = b"# OSU "
"""In every output of the OSU Micro-Benchmarks."""
PROGRAM = "osu_allreduce"


class RowRefusal(StrEnum):
    """Why a row of a test is no number."""

    VALIDATION = "what arrived was wrong: its validation failed"
    INCOMPLETE = "the row is cut off"
    NO_NUMBER = "no time is printed"


@dataclass(frozen=True, kw_only=True)
class OsuRow:
    """One size: the time of a call in µs, `value` the mean over the ranks; what is not printed is None."""

    bytes: int
    value: float
    min: float | None = None
    max: float | None = None
    iterations: int | None = None


@dataclass(frozen=True, kw_only=True)
class RefusedRow:
    """A size without a number, and why."""

    bytes: int
    reason: RowRefusal


@dataclass(frozen=True, kw_only=True)
class OsuTest:
    """One test in the output `file`; `library` is MPI or NCCL, `buffers` are `device` or `host`.

    `devices` and `nodes` are those in the path, which alone says them. `checked`: what arrived was compared with what
    was sent.
    """

    file: str
    version: str = ""
    library: str = ""
    buffers: str = ""
    datatype: str = ""
    devices: int | None = None
    nodes: int | None = None
    rows: tuple[OsuRow, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    checked: bool = False

    @property
    def case(self) -> str:
        """`2n8g` where the path says it, else nothing."""
        if self.devices and self.nodes and self.devices % self.nodes == 0:
            return f"{self.nodes}n{self.devices // self.nodes}g"
        return ""


@dataclass
class _Test:
    """A test while its lines are read."""

    version: str
    library: str
    buffers: str
    datatype: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[OsuRow] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    checked: bool = False


_TITLE = re.compile(
    r"# OSU (?P<library>MPI|NCCL|RCCL|XCCL)(?P<device>-[A-Z ]{2,20})? Allreduce Latency Test"
    r"(?: v(?P<version>\d[\w.]{0,20}))?"
)
_DATATYPE = re.compile(r"# Datatype: (?P<name>\w{1,40})\.")


def osu_tests(text: str, file: str, *, devices: int | None, nodes: int | None) -> tuple[OsuTest, ...]:
    """The tests of all-reduce that the text prints, in its order. Launchers may label its lines.

    `devices` and `nodes` are those in the path, where it says them: the outputs do not.
    """
    tests: list[_Test] = []
    streams: dict[str, _Test | None] = {}
    for whole in text.splitlines():
        line, rank = unlabelled(whole[:MAX_LINE])
        test = streams.get(rank)
        datatype = _DATATYPE.fullmatch(line)
        if line.startswith("# OSU "):
            streams[rank] = _begun(line)
        elif test and datatype and (test.rows or test.refused):
            streams[rank] = replace(test, datatype=datatype["name"], rows=[], refused=[])
        elif test and datatype:
            test.datatype = datatype["name"]
        elif test and line.startswith("# Size"):
            test.columns = re.split(r" {2,}", line.removeprefix("# "))
        elif test and line[:1].isdigit():
            _read_row(line.split(), test)
        if (begun := streams.get(rank)) and begun is not test:
            tests.append(begun)
    return tuple(
        OsuTest(
            file=file, version=test.version, library=test.library, buffers=test.buffers, datatype=test.datatype,
            devices=devices, nodes=nodes, rows=tuple(test.rows), refused=tuple(test.refused), checked=test.checked,
        )
        for test in tests
        if test.columns
    )  # fmt: skip


def _begun(title: str) -> _Test | None:
    """The test that a title begins; None for one that is no all-reduce."""
    match = _TITLE.fullmatch(title)
    if match is None:
        return None
    by_device = match["device"] or match["library"] != "MPI"
    return _Test(
        version=match["version"] or "", library=match["library"], buffers="device" if by_device else "host"
    )  # fmt: skip


def _read_row(cells: Sequence[str], test: _Test) -> None:
    """A row: size and mean; minimum, maximum and iterations with option -f."""
    if not test.columns or not cells[0].isdecimal() or len(cells[0]) > 15 or len(cells) < 2 or not _is_float(cells[1]):
        return
    size, value = int(cells[0]), _time(cells[1])
    wants_check = "Validation" in test.columns
    test.checked |= wants_check
    if "Fail" in cells:
        test.refused.append(RefusedRow(bytes=size, reason=RowRefusal.VALIDATION))
    elif wants_check and "Pass" not in cells:
        test.refused.append(RefusedRow(bytes=size, reason=RowRefusal.INCOMPLETE))
    elif value is None:
        test.refused.append(RefusedRow(bytes=size, reason=RowRefusal.NO_NUMBER))
    else:
        named = dict(zip(test.columns, cells, strict=True)) if len(cells) == len(test.columns) else {}
        iterations = named.get("Iterations", "")
        test.rows.append(
            OsuRow(
                bytes=size,
                value=value,
                min=_time(named.get("Min Latency(us)", "")),
                max=_time(named.get("Max Latency(us)", "")),
                iterations=int(iterations) if iterations.isdecimal() else None,
            )
        )


def _is_float(cell: str) -> bool:
    """Whether it is written as a number, `nan` and `-inf` too."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _time(cell: str) -> float | None:
    """A time above 0; None for another text."""
    value = float(cell) if _is_float(cell) else math.nan
    return value if 0 < value < math.inf else None
