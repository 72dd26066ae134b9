"""The output of nccl-tests (`all_reduce_perf` and its like): bus bandwidth by size. Evidence beside trainings, no log.

Format strings: github.com/NVIDIA/nccl-tests, src/common.cu and src/util.cu, 2.0 (2019) to 2.20; rccl-tests of
ROCm prints the same but for its versions. Columns are read by their names in the table's head, since versions differ
in them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpc.model.collective_plan import ALL_REDUCE, bus_factor
from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import LABELS

HEAD = re.compile(rb"\bnThread \d{1,6} nGpus \d{1,6} minBytes \d")
"""In the first line of every test."""
MAX_LINE = 1000
MATCHES = 0.02
"""Share by which the ratio of two printed bandwidths may miss an operation's factor."""

_HEAD = re.compile(r"#? *nThread \d{1,6} nGpus \d{1,6} minBytes \d")
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
_UNMARKED = re.compile(
    r"Rank +\d+ +(?:Group +\d+ +)?Pid +\d|size +count +type|Out of bounds values +:|Avg bus bandwidth +:"
)
"""Lines that lost their `#`, as quotations in threads do."""
_KEYS = ("size", "count", "type", "redop", "root")
_SIZES = re.compile(r"[0-9]{1,15} [0-9]{1,15}")
_CHECKS = ("#wrong", "error")
"""Columns that say whether results were checked; the older one has the largest error, not a count."""
_NOT_REDUCED = ("none", "")


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
    where the test did not come to its end. `wrong` counts wrong elements; None where they were not counted.
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

    @property
    def case(self) -> str:
        """`2n8g`; the number of devices where they are not known to share nodes evenly."""
        if self.devices is None:
            return "?"
        if not self.nodes or self.devices % self.nodes:
            return f"{self.devices} devices"
        return f"{self.nodes}n{self.devices // self.nodes}g"


@dataclass
class _Lines:
    """What the lines of one test have shown so far."""

    operation: str = ""
    tests_version: str = ""
    nccl: str = ""
    ranks: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    rows: list[SizeTimings] = field(default_factory=list)
    checked: bool = False
    out_of_bounds: int = 0
    average: float | None = None


@dataclass
class _Stream:
    """The lines of one process, or of all where none is labelled."""

    operation: str = ""
    tests_version: str = ""
    nccl: str = ""
    test: _Lines | None = None


def nccl_tests(text: str, file: str) -> tuple[NcclTest, ...]:
    """The tests that the text prints, in its order; empty where there are none.

    Launchers may label its lines. Raises LogError where several processes print tests of their own without labels.
    """
    everyones = _Stream()
    streams = {"": everyones}
    tests: list[_Lines] = []
    for whole in text.splitlines():
        line, rank = unlabelled(whole[:MAX_LINE])
        if _UNMARKED.match(line):
            line = f"# {line}"
        stream = streams.setdefault(rank, _Stream())
        if line.startswith("#") or "nThread " in line:
            if _HEAD.match(line):
                stream.test = _Lines(operation=stream.operation or everyones.operation)
                stream.test.tests_version, stream.test.nccl = stream.tests_version, stream.nccl
                stream.operation = everyones.operation = ""
                tests.append(stream.test)
            else:
                _read_comment(line, stream, file)
        elif stream.test and line[:1].isdigit():
            _read_row(line, stream.test, file)
        elif program := _PROGRAM.search(line):
            stream.operation = _operation(program["name"])
        elif stream.test and (version := _RCCL_TESTS.match(line)):
            stream.test.tests_version = version["tests"]
        elif stream.test and (version := _NCCL.search(line)):
            stream.test.nccl = stream.test.nccl or version["nccl"]
    return tuple(_test(test, file) for test in tests)


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


def _read_row(line: str, test: _Lines, file: str) -> None:
    """A line of the table; others that begin with a digit are none."""
    keys = [name for name in test.columns if name in _KEYS]
    measures = test.columns[len(keys) :]
    half = measures[: measures.index("time", 1)] if measures.count("time") > 1 else measures
    cells = line.split()
    if "redop" in keys[: len(cells)] and not cells[keys.index("redop")].isalpha():
        keys.remove("redop")  # older programs leave it empty where nothing is reduced
    values = dict(zip(keys, cells, strict=False))
    timings = cells[len(keys) :]
    if "time" not in half or len(timings) < len(half) or not _SIZES.fullmatch(f"{values['size']} {values['count']}"):
        return
    if test.average is not None:
        raise _mixed(file)
    cells_of_checks = [cell for name, cell in zip(measures, timings, strict=False) if name in _CHECKS]
    test.checked |= any(cell != "N/A" for cell in cells_of_checks)
    root = values.get("root", "-1")
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


def _test(test: _Lines, file: str) -> NcclTest:
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
