"""The outputs of the OSU Micro-Benchmarks: times and bandwidths by size.

What was measured differs from program to program, and is kept with every number: one direction, both together, half a
round trip, a whole one, a call of all ranks. None of it is a bus bandwidth.

Format strings: OSU Micro-Benchmarks 5 to 7.5 (c/util/osu_util_mpi.c, c/mpi/pt2pt, c/mpi/collective), whose MB are
10^6 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hpc.model.collective_plan import ALL_REDUCE
from parse.logs.nccl_tests import MAX_LINE, unlabelled

MARK = b"# OSU "
"""In every such output."""
GB = 1e9


class Measures(StrEnum):
    """What the numbers of a test are."""

    ONE_DIRECTION = "bandwidth of one direction"
    BOTH_DIRECTIONS = "bandwidth of both directions together"
    ALL_PAIRS = "bandwidth of all pairs together, one direction"
    ONE_WAY = "time of a message one way, half a round trip"
    CALL = "time of a call, mean over the ranks"

    @property
    def is_bandwidth(self) -> bool:
        return self in (Measures.ONE_DIRECTION, Measures.BOTH_DIRECTIONS, Measures.ALL_PAIRS)


class Refusal(StrEnum):
    """Why a row of a test is no number."""

    VALIDATION = "what arrived was wrong: its validation failed"
    INCOMPLETE = "the row is cut off"
    NO_NUMBER = "no number of a measurement is printed"
    ZERO = "0 is printed"


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """One size. `value` is in GB/s (of 10^9 bytes) or in µs, as the test measures.

    `min` and `max` of times are over calls, of collectives over ranks; None where they are not printed.
    """

    bytes: int
    value: float
    min: float | None = None
    max: float | None = None
    iterations: int | None = None


@dataclass(frozen=True, kw_only=True)
class RefusedRow:
    """A size without a number, and why."""

    bytes: int
    reason: Refusal


@dataclass(frozen=True, kw_only=True)
class NetworkTest:
    """One test in the output `file`. `program` is like `osu_bw`, `suite` what it belongs to.

    `operation` is that of a collective (`all-reduce`), else empty; `size_is` what its sizes count. `library` is MPI or
    NCCL, `buffers` are `device`, `host` or empty where not printed, `link` the datatype. `devices` and `nodes` are
    those in the path of a collective, else None. `checked`: what arrived was compared with what was sent.
    """

    file: str
    suite: str
    program: str
    measures: Measures
    operation: str = ""
    size_is: str = ""
    version: str = ""
    library: str = ""
    buffers: str = ""
    link: str = ""
    devices: int | None = None
    nodes: int | None = None
    rows: tuple[NetworkRow, ...] = ()
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

    suite: str
    program: str
    measures: Measures
    operation: str = ""
    size_is: str = ""
    version: str = ""
    library: str = ""
    buffers: str = ""
    link: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[NetworkRow] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    checked: bool = False


def network_tests(text: str, file: str, *, devices: int | None, nodes: int | None) -> tuple[NetworkTest, ...]:
    """The tests that the text prints, in its order; empty where there are none. Launchers may label its lines.

    `devices` and `nodes` are those in the path, where it says them: the outputs do not.
    """
    tests: list[_Test] = []
    streams: dict[str, _Test | None] = {}
    for whole in text.splitlines():
        line, rank = unlabelled(whole[:MAX_LINE])
        begun = _begun(line, streams.get(rank))
        if begun is not None:
            streams[rank] = begun
            tests.append(begun)
        elif line.startswith("# OSU "):
            streams[rank] = None
        elif test := streams.get(rank):
            _read_line(line, test)
    return tuple(
        NetworkTest(
            file=file, suite=test.suite, program=test.program, measures=test.measures, operation=test.operation,
            size_is=test.size_is, version=test.version, library=test.library, buffers=test.buffers,
            link=test.link, devices=devices if test.operation else None,
            nodes=nodes if test.operation else None, rows=tuple(test.rows),
            refused=tuple(test.refused), checked=test.checked,
        )
        for test in tests
        if test.columns
    )  # fmt: skip


def _begun(line: str, before: _Test | None) -> _Test | None:
    """The test that a line begins; None for other lines, and for tests that are not read."""
    if line.startswith("# OSU "):
        return _osu_test(line)
    if before and (before.rows or before.refused) and _OSU_DATATYPE.fullmatch(line):
        return _with_datatype(line, replace(before, rows=[], refused=[]))
    return None


def _with_datatype(line: str, test: _Test) -> _Test:
    """A test with its datatype, where the line says one; versions print it above or below the head of the table."""
    datatype = _OSU_DATATYPE.fullmatch(line)
    return replace(test, link=datatype["name"]) if datatype else test


def _read_line(line: str, test: _Test) -> None:
    if line[:1].isdigit():
        _read_osu_row(line.split(), test)
    elif line.startswith("# Size"):
        test.columns = re.split(r" {2,}", line.removeprefix("# "))
    elif buffers := _OSU_BUFFERS.match(line):
        kinds = {kind.lower() for kind in buffers.groups()}
        test.buffers = kinds.pop() if len(kinds) == 1 else "device and host"
    else:
        test.link = _with_datatype(line, test).link


def _is_float(cell: str) -> bool:
    """Whether it is written as a number, `nan` and `-inf` too."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str) -> float | None:
    """A finite number that is not below 0."""
    value = float(cell) if _is_float(cell) else math.nan
    return value if 0 <= value < math.inf else None


# OSU Micro-Benchmarks.

OSU = "OSU Micro-Benchmarks"
_OSU_TITLE = re.compile(
    r"# OSU (?P<library>MPI|NCCL|RCCL|XCCL)(?:-(?P<device>CUDA|ROCM|OPENACC|CXL|MANAGED|CUDA MANAGED))? "
    r"(?P<title>.{1,60}?) Test(?: v(?P<version>\d[\w.]{0,20}))?"
)
_OSU_BUFFERS = re.compile(r"# Send Buffer on (\w+) \([DHM]\) and Receive Buffer on (\w+) \([DHM]\)")
_OSU_DATATYPE = re.compile(r"# Datatype: (?P<name>\w{1,40})\.")
_BUFFER, _SHARE, _EACH = "bytes of the buffer", "bytes of a rank's share", "bytes from each rank to each other one"
_OSU_TESTS = {
    "Bandwidth": ("osu_bw", Measures.ONE_DIRECTION, "", ""),
    "Bi-Directional Bandwidth": ("osu_bibw", Measures.BOTH_DIRECTIONS, "", ""),
    "Multiple Bandwidth / Message Rate": ("osu_mbw_mr", Measures.ALL_PAIRS, "", ""),
    "Latency": ("osu_latency", Measures.ONE_WAY, "", ""),
    "Multi Latency": ("osu_multi_lat", Measures.ONE_WAY, "", ""),
    "Multi-threaded Latency": ("osu_latency_mt", Measures.ONE_WAY, "", ""),
    "Multi-process Latency": ("osu_latency_mp", Measures.ONE_WAY, "", ""),
    "Allreduce Latency": ("osu_allreduce", Measures.CALL, ALL_REDUCE, _BUFFER),
    "Reduce Latency": ("osu_reduce", Measures.CALL, "reduce", _BUFFER),
    "Broadcast Latency": ("osu_bcast", Measures.CALL, "broadcast", _BUFFER),
    "Reduce_scatter Latency": ("osu_reduce_scatter", Measures.CALL, "reduce-scatter", _BUFFER),
    "Allgather Latency": ("osu_allgather", Measures.CALL, "all-gather", _SHARE),
    "Gather Latency": ("osu_gather", Measures.CALL, "gather", _SHARE),
    "Scatter Latency": ("osu_scatter", Measures.CALL, "scatter", _SHARE),
    "All-to-All Personalized Exchange Latency": ("osu_alltoall", Measures.CALL, "all-to-all", _EACH),
}  # fmt: skip
"""By title: the program, what it measures, the collective, what its sizes count."""
_MB = 1e6


def _osu_test(line: str) -> _Test | None:
    """The test that the line begins; None for one that is not read."""
    title = _OSU_TITLE.fullmatch(line)
    known = title and _OSU_TESTS.get(title["title"])
    if not title or not known:
        return None
    program, measures, operation, size_is = known
    by_device = bool(title["device"]) or title["library"] != "MPI"
    return _Test(
        suite=OSU, program=program, measures=measures, operation=operation, size_is=size_is,
        version=title["version"] or "", library=title["library"],
        buffers="host" if not by_device else "device" if operation else "",
    )  # fmt: skip


def _read_osu_row(cells: Sequence[str], test: _Test) -> None:
    """A row: its value is second; minimum, maximum and iterations (-f) are printed by collectives alone, though
    others have them in their heads, too."""
    if not test.columns or not cells[0].isdecimal() or len(cells[0]) > 15:
        return
    size, value = int(cells[0]), _number(cells[1]) if len(cells) > 1 else None
    wants_check = "Validation" in test.columns
    passed = "Pass" in cells
    if value is None and not (len(cells) > 1 and _is_float(cells[1])):
        return
    if "Fail" in cells:
        test.refused.append(RefusedRow(bytes=size, reason=Refusal.VALIDATION))
    elif wants_check and not passed:
        test.refused.append(RefusedRow(bytes=size, reason=Refusal.INCOMPLETE))
    elif value is None:
        test.refused.append(RefusedRow(bytes=size, reason=Refusal.NO_NUMBER))
    elif value == 0:
        test.refused.append(RefusedRow(bytes=size, reason=Refusal.ZERO))
    else:
        named = dict(zip(test.columns, cells, strict=True)) if len(cells) == len(test.columns) else {}
        iterations = named.get("Iterations", "")
        test.rows.append(
            NetworkRow(
                bytes=size,
                value=value * _MB / GB if test.measures.is_bandwidth else value,
                min=_number(named.get("Min Latency(us)", "")),
                max=_number(named.get("Max Latency(us)", "")),
                iterations=int(iterations) if iterations.isdecimal() else None,
            )
        )
    test.checked |= wants_check
