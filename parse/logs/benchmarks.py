"""The outputs of benchmarks among the logs: nccl-tests, osu_allreduce. Evidence beside trainings, no logs of steps.

Format strings: github.com/NVIDIA/nccl-tests, src/common.cu and src/util.cu, 2.0 (2019) to 2.20; rccl-tests of
ROCm prints the same but for its versions. Columns are read by their names in the table's head, since versions differ
in them. OSU Micro-Benchmarks 5 to 7.5 (c/util/osu_util_mpi.c, c/mpi/collective); their other tests are not read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from hpc.model.collective_plan import ALL_REDUCE, bus_factor
from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import ANSI, LABELS, pieces
from parse.logs.path_facts import PathFacts

NCCL_TESTS = re.compile(rb"nThread \d{1,6} nGpus \d{1,6} minBytes \d")
"""In the first line of every test."""
MAX_LINE = 1000
MATCHES = 0.02
"""Share by which the ratio of two printed bandwidths may miss an operation's factor."""

_NCCL_HEAD = re.compile(r"#? *nThread \d{1,6} nGpus \d{1,6} minBytes \d")
_RANK = re.compile(
    r"# +Rank +(?P<rank>\d{1,7}) +(?:Group +(?P<group>\d{1,7}) +)?Pid +\d+ +(?:on +(?P<host>\S+) +)?device +\d+ "
    r"\[[^]]{1,20}\] (?P<model>.{1,100})"
)
_PROGRAM = re.compile(
    r"\b(?P<name>all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|sendrecv|scatter|gather|hypercube)_perf"
    r"(?:_mpi)?\b"
)
_VERSION = re.compile(
    r"# nccl-tests version (?P<tests>\S{1,20})(?: \(\w{1,40}\))?(?: nccl-headers=\d+ nccl-library=(?P<nccl>\d{4,6}))?"
)
_RCCL_TESTS = re.compile(r"rccl-tests: Version (?P<tests>\S{1,40})")
_NCCL = re.compile(r"\b[NR]CCL version (?:: )?(?P<nccl>\d[\w.+-]{0,40})")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values +: (?P<count>\d{1,12})")
_AVERAGE = re.compile(r"# Avg bus bandwidth +: (?P<average>\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?)(?![\w.])")
_LOGGED = re.compile(r"(?<!\S)\S{1,200}:\d{1,9}:\d{1,9} \[\d{1,4}\] ")
"""A line of NCCL_DEBUG, where it begins: `node1:23920:24013 [7] NCCL INFO …`."""
_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d[ T][\d:.]{8,16}\] $")
"""Before it, of newer releases."""
_ROW = re.compile(r"\d{1,15} +\d{1,15} +[a-z]")
_CELLS = re.compile(r"(?:(?:-?\d[\d.e+-]*|N/A|inf|nan)(?: +|$))+")
_NOT_REDUCED = ("none", "")
_KEYS = ("size", "count", "type", "redop", "root")
_CHECKS = ("#wrong", "error")
"""Columns that say whether results were checked; the older one has the largest error, not a count."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of a call, algorithm and bus bandwidth in GB/s; `wrong` elements, None where they were not counted."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, kw_only=True)
class SizeTimings:
    """The timings of one size; None where the test does not have one of the two."""

    bytes: int
    dtype: str
    redop: str
    root: int | None
    out_of_place: Timing | None
    in_place: Timing | None

    @property
    def timing(self) -> Timing | None:
        """In place, as gradients are reduced, else out of place."""
        return self.in_place or self.out_of_place


@dataclass(frozen=True, kw_only=True)
class NcclTest:
    """One test, in the output `file`. `operation` is like `all-reduce`, empty if unknown.

    `devices` take part in each operation, on `nodes`; None where unknown. `groups` is how many operations run at once
    (NCCL_TESTS_SPLIT). `average` is the program's own mean bus bandwidth, over all sizes in and out of place; None
    where the test did not come to its end. `wrong` counts wrong elements; None where they were not counted. `lost` are
    the sizes whose rows other lines part, so that they cannot be put together.
    `cpu_time`: its times are those of the launches (-C), and give no bandwidth.
    """

    file: str
    operation: str
    devices: int | None
    nodes: int | None
    groups: int
    models: tuple[str, ...]
    tests_version: str
    nccl: str
    rows: tuple[SizeTimings, ...]
    average: float | None
    wrong: int | None
    cpu_time: bool
    lost: tuple[int, ...] = ()

    @property
    def case(self) -> str:
        """`2n8g`; the number of devices where they are not known to share nodes evenly."""
        if self.devices is None:
            return "?"
        if not self.nodes or self.devices % self.nodes:
            return f"{self.devices} devices"
        return f"{self.nodes}n{self.devices // self.nodes}g"


@dataclass
class _NcclLines:
    """What the lines of one test have shown so far."""

    operation: str = ""
    tests_version: str = ""
    nccl: str = ""
    ranks: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    rows: list[SizeTimings] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    checked: bool = False
    out_of_bounds: int = 0
    average: float | None = None


@dataclass
class _Stream:
    """The lines of one process, or of all where none is labelled. `row` is what has come of a row of the table: with
    NCCL_DEBUG=INFO lines of the library are printed into it."""

    operation: str = ""
    tests_version: str = ""
    nccl: str = ""
    test: _NcclLines | None = None
    row: str = ""


def nccl_tests(text: str, file: str) -> tuple[NcclTest, ...]:
    """The tests that the text prints, in its order; empty where there are none.

    Launchers may label its lines. Raises LogError where several processes print tests of their own without labels.
    """
    everyones = _Stream()
    streams = {"": everyones}
    tests: list[_NcclLines] = []
    for whole in text.splitlines():
        line, rank = unlabelled(whole[:MAX_LINE])
        stream = streams.setdefault(rank, _Stream())
        if stream.test:
            printed = _without_logged(line, stream.test)
            if stream.row and _CELLS.fullmatch(printed):
                stream.row += f" {printed}"
            elif printed.startswith("#") or _ROW.match(printed):
                _end_row(stream, file)
                stream.row = printed if printed[:1].isdigit() else ""
        if line.startswith("#") or "nThread " in line:
            if _NCCL_HEAD.match(line):
                stream.test = _NcclLines(operation=stream.operation or everyones.operation)
                stream.test.tests_version, stream.test.nccl = stream.tests_version, stream.nccl
                stream.operation = everyones.operation = ""
                tests.append(stream.test)
            else:
                _read_comment(line, stream, file)
        elif program := _PROGRAM.search(line):
            stream.operation = _operation(program["name"])
        elif stream.test and (version := _RCCL_TESTS.match(line)):
            stream.test.tests_version = version["tests"]
        elif stream.test and (version := _NCCL.search(line)):
            stream.test.nccl = stream.test.nccl or version["nccl"]
    for stream in streams.values():
        _end_row(stream, file)
    return tuple(_nccl_test(test, file) for test in tests)


def _without_logged(line: str, test: _NcclLines) -> str:
    """What is before a line of NCCL_DEBUG in it; a host's name, known by the test's head, may stand behind a number."""
    hosts = {host for _, host, _ in test.ranks.values() if host}
    places = [at for host in hosts if (at := line.find(f"{host}:")) >= 0]
    if not places and (match := _LOGGED.search(line)):
        places = [match.start()]
    return _STAMP.sub("", line[: min(places, default=len(line))]).rstrip()


def _end_row(stream: _Stream, file: str) -> None:
    """Reads the row that has come, if any; its size is lost where it is not whole."""
    if stream.row and stream.test and not _read_nccl_row(stream.row, stream.test, file):
        stream.test.lost.append(int(stream.row.split()[0]))
    stream.row = ""


def unlabelled(line: str) -> tuple[str, str]:
    """A line without a launcher's label, and the rank in that."""
    raw = line.encode()
    for form in LABELS:
        if match := form.match(raw):
            return raw[match.end() :].decode().strip(), match["rank"].decode()
    return line.strip(), ""


def _read_comment(line: str, stream: _Stream, file: str) -> None:
    if version := _VERSION.match(line):
        stream.tests_version, stream.nccl = version["tests"], _version_text(version["nccl"] or "")
    elif line.startswith("# Collective test starting:") and (program := _PROGRAM.search(line)):
        stream.operation = _operation(program["name"])
    elif (test := stream.test) is None:
        return
    elif rank := _RANK.match(line):
        if int(rank["rank"]) in test.ranks:
            raise _mixed(file)
        test.ranks[int(rank["rank"])] = (rank["group"] or "0", rank["host"] or "", rank["model"].strip())
    elif line[1:].split()[:3] == ["size", "count", "type"]:
        test.columns = line[1:].split()
    elif bounds := _OUT_OF_BOUNDS.match(line):
        test.out_of_bounds = int(bounds["count"])
    elif average := _AVERAGE.match(line):
        if test.average is not None:
            raise _mixed(file)
        test.average = float(average["average"])


def _read_nccl_row(line: str, test: _NcclLines, file: str) -> bool:
    """Whether it is a row of the table, which is read then."""
    keys = [name for name in test.columns if name in _KEYS]
    measures = test.columns[len(keys) :]
    half = measures[: measures.index("time", 1)] if measures.count("time") > 1 else measures
    cells = line.split()
    if "redop" in keys[: len(cells)] and not cells[keys.index("redop")].isalpha():
        keys.remove("redop")  # older programs leave it empty where nothing is reduced
    values = dict(zip(keys, cells, strict=False))
    timings = cells[len(keys) :]
    if "time" not in half:
        return True  # of launches, which are no rows
    root = values.get("root", "-1")
    if len(timings) < len(half) or not _CELLS.fullmatch(" ".join([root, *timings])):
        return False
    if test.average is not None:
        raise _mixed(file)
    cells_of_checks = [cell for name, cell in zip(measures, timings, strict=False) if name in _CHECKS]
    test.checked |= any(cell != "N/A" for cell in cells_of_checks)
    test.rows.append(
        SizeTimings(
            bytes=int(values["size"]),
            dtype=values["type"],
            redop=values.get("redop", ""),
            root=int(root) if root.isdecimal() else None,
            out_of_place=_timing(half, timings),
            in_place=_timing(half, timings[len(half) :]),
        )
    )
    return True


def _timing(names: Sequence[str], cells: Sequence[str]) -> Timing | None:
    """The timing in these cells; None where they are not there, or not applicable."""
    values = dict(zip(names, cells, strict=False))
    try:
        time_us, algbw, busbw = (float(values[name]) for name in ("time", "algbw", "busbw"))
        if not all(map(math.isfinite, (time_us, algbw, busbw))):
            return None
        wrong = values.get("#wrong", "N/A")
        return Timing(time_us=time_us, algbw=algbw, busbw=busbw, wrong=None if wrong == "N/A" else int(float(wrong)))
    except (KeyError, ValueError, OverflowError):
        return None


def _mixed(file: str) -> LogError:
    return LogError(
        f"{file}: several processes print tests of nccl-tests into it, and lines cannot be assigned to them: "
        "without MPI (make MPI=1) each process tests its own devices alone"
    )


def _operation(program: str) -> str:
    return {"alltoall": "all-to-all", "sendrecv": "send-receive"}.get(program, program.replace("_", "-"))


def _version_text(code: str) -> str:
    """`2.18.3` of NCCL's version number 21803."""
    number = int(code or 0)
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}" if number >= 10_000 else ""


def _nccl_test(test: _NcclLines, file: str) -> NcclTest:
    groups = Counter(group for group, _, _ in test.ranks.values())
    first = next(iter(test.ranks.values()), ("0", "", ""))[0]
    members = [(host, model) for group, host, model in test.ranks.values() if group == first]
    hosts = {host for host, _ in members}
    devices = len(members) or None
    counts = [
        timing.wrong for row in test.rows for timing in (row.out_of_place, row.in_place) if timing and timing.wrong
    ]
    return NcclTest(
        file=file,
        operation=test.operation or _by_figures(test.rows, devices),
        devices=devices,
        nodes=len(hosts) if hosts and "" not in hosts else None,
        groups=max(len(groups), 1),
        models=tuple(dict.fromkeys(model for _, model in members)),
        tests_version=test.tests_version,
        nccl=test.nccl,
        rows=tuple(test.rows),
        average=test.average,
        wrong=max(test.out_of_bounds, sum(counts)) if test.checked or test.out_of_bounds else None,
        cpu_time="cputime" in test.columns,
        lost=tuple(test.lost),
    )


def _by_figures(rows: Sequence[SizeTimings], devices: int | None) -> str:
    """`all-reduce` where the bandwidths have its ratio and only it has that; older programs do not print their name."""
    if not devices or devices < 2:
        return ""
    largest = max(rows, key=lambda row: row.bytes, default=None)
    timing = largest.timing if largest else None
    if (
        largest is None
        or timing is None
        or not timing.algbw
        or largest.redop in _NOT_REDUCED
        or largest.root is not None
    ):
        return ""
    expected = bus_factor(ALL_REDUCE, devices)
    return ALL_REDUCE if abs(timing.busbw / timing.algbw / expected - 1) < MATCHES else ""


# osu_allreduce of the OSU Micro-Benchmarks: the time of an all-reduce by size, no bus bandwidth.


OSU = b"# OSU "
"""In every output of the OSU Micro-Benchmarks."""
PROGRAM = "osu_allreduce"


class RowRefusal(StrEnum):
    """Why a row of a test is no number."""

    VALIDATION = "what arrived was wrong: its validation failed"
    INCOMPLETE = "the row is cut off"
    NO_NUMBER = "no time is printed"


@dataclass(frozen=True, kw_only=True)
class OsuRow:
    """One size: the time of a call in µs, `value` the mean over the ranks."""

    bytes: int
    value: float


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
class _OsuLines:
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
    tests: list[_OsuLines] = []
    streams: dict[str, _OsuLines | None] = {}
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
            _read_osu_row(line.split(), test)
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


def _begun(title: str) -> _OsuLines | None:
    """The test that a title begins; None for one that is no all-reduce."""
    match = _TITLE.fullmatch(title)
    if match is None:
        return None
    by_device = match["device"] or match["library"] != "MPI"
    return _OsuLines(
        version=match["version"] or "", library=match["library"], buffers="device" if by_device else "host"
    )  # fmt: skip


def _read_osu_row(cells: Sequence[str], test: _OsuLines) -> None:
    """A row: size and mean; what option -f prints behind them is not read."""
    if not test.columns or not cells[0].isdecimal() or len(cells[0]) > 15 or len(cells) < 2 or not _is_float(cells[1]):
        return
    size, value = int(cells[0]), _osu_time(cells[1])
    wants_check = "Validation" in test.columns
    test.checked |= wants_check
    if "Fail" in cells:
        test.refused.append(RefusedRow(bytes=size, reason=RowRefusal.VALIDATION))
    elif wants_check and "Pass" not in cells:
        test.refused.append(RefusedRow(bytes=size, reason=RowRefusal.INCOMPLETE))
    elif value is None:
        test.refused.append(RefusedRow(bytes=size, reason=RowRefusal.NO_NUMBER))
    else:
        test.rows.append(OsuRow(bytes=size, value=value))


def _is_float(cell: str) -> bool:
    """Whether it is written as a number, `nan` and `-inf` too."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _osu_time(cell: str) -> float | None:
    """A time above 0; None for another text."""
    value = float(cell) if _is_float(cell) else math.nan
    return value if 0 < value < math.inf else None


# Both, in a file.


MAX_BYTES = 1 << 24
"""More bytes of such an output are not read."""


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """What benchmarks measured, in the order of the files."""

    nccl_tests: tuple[NcclTest, ...] = ()
    osu_tests: tuple[OsuTest, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nccl_tests or self.osu_tests)

    @property
    def has_rows(self) -> bool:
        """Whether one of them has measured a size."""
        return any(test.rows for test in self.nccl_tests) or any(test.rows for test in self.osu_tests)


NO_BENCHMARKS = Benchmarks()
_INSPECTOR = b'"coll_perf"'
OF_INSPECTOR = "records of NCCL Inspector, no log of steps; rankwise collective-trace reads those of all ranks"


def benchmarks_in(path: Path, begin: bytes, place: PathFacts) -> Benchmarks | None:
    """Those of a file that begins so, whose `place` has its nodes and devices where the path has; None of other files.
    Raises LogError if it cannot be read, or has records of a profiler."""
    if _INSPECTOR in begin and begin.lstrip().startswith(b"{"):
        raise LogError(f"{path}: {OF_INSPECTOR}")
    of_nccl, of_osu = bool(NCCL_TESTS.search(begin)), OSU in begin
    if not (of_nccl or of_osu):
        return None
    parts: list[bytes] = []
    for buffer, size, offset in pieces(path):
        if offset >= MAX_BYTES:
            break
        parts.append(bytes(memoryview(buffer)[:size]))
    text, file = ANSI.sub(b"", b"".join(parts)).decode(errors="replace"), str(path)
    devices = place.devices or (place.nodes * place.gpus_per_node if place.nodes and place.gpus_per_node else None)
    return Benchmarks(
        nccl_tests=nccl_tests(text, file) if of_nccl else (),
        osu_tests=osu_tests(text, file, devices=devices, nodes=place.nodes) if of_osu else (),
    )
