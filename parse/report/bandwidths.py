"""The bus bandwidth that nccl-tests printed, by size and devices: tables, and what is wrong with a test."""

from __future__ import annotations

from collections.abc import Sequence

from hpc.system.text import grouped, plural
from parse.logs.nccl_tests import NcclTest
from parse.report.summary import Summary
from parse.text import (
    TableData,
    TextBlock,
    distinct,
    number,
)

UNIT = "GB/s"


def bandwidths_blocks(summary: Summary) -> list[TextBlock]:
    """A table for each operation, a row per size and a column per test; empty where nothing was tested."""
    blocks: list[TextBlock] = []
    for operation, tests in _by_operation(summary.nccl_tests).items():
        heads, rows = _table(tests)
        blocks += [""] if blocks else []
        blocks += [_title(operation, tests), _legend(tests)]
        blocks += [TableData(heads=heads, rows=rows, label_columns=0, keys=1)]
    return blocks


def problems(test: NcclTest) -> list[str]:
    """What is wrong with a test; wrong results first."""
    what = f"{test.operation or 'a collective'} of nccl-tests on {test.case}"
    texts = []
    if test.wrong:
        texts.append(f"{what}: {plural(test.wrong, 'wrong element')}: its results are wrong, whatever its bandwidth")
    if test.cpu_time:
        texts.append(f"{what}: its times are those of the launches (-C), which give no bandwidth")
    elif not test.rows:
        texts.append(f"{what}: it ended before its first size")
    if test.average is None:
        texts.append(f"{what}: it did not come to its end, sizes may be missing")
    if test.groups > 1:
        texts.append(f"{what}: {test.groups} groups of devices reduced at once, the bandwidth is that of one")
    return texts


def _by_operation(tests: Sequence[NcclTest]) -> dict[str, list[NcclTest]]:
    """The tests that have a bandwidth, by operation, on fewer devices first."""
    ordered = sorted(tests, key=lambda test: (test.devices or 0, test.nodes or 0))
    return grouped((test.operation, test) for test in ordered if test.rows)


def _title(operation: str, tests: Sequence[NcclTest]) -> str:
    elsewhere = any(row.in_place is None and row.timing for test in tests for row in test.rows)
    place = "in place, where a test has that, else out of place" if elsewhere else "in place"
    return f"bus bandwidth of {operation or 'an unnamed collective'} by nccl-tests, {place}"


def _names(tests: Sequence[NcclTest]) -> list[str]:
    """The cases; of several tests of one case with a number."""
    return distinct((test.case for test in tests), "{} [{}]")


def _legend(tests: Sequence[NcclTest]) -> list[str]:
    """A line per test: its file, devices, NCCL, and the average over sizes that it prints."""
    lines = []
    for name, test in zip(_names(tests), tests, strict=True):
        facts = [test.file, *test.models]
        facts += [f"NCCL {test.nccl}"] if test.nccl else []
        facts += ["results not checked"] if test.wrong is None else []
        facts += [] if test.average is None else [f"average {test.average:g} {UNIT}"]
        lines.append(f"{name}: {', '.join(facts)}")
    return lines


def _table(tests: Sequence[NcclTest]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Heads as (name, unit), and a row per size; the mean of a size that a test has several times."""
    columns = [_busbw(test) for test in tests]
    sizes = sorted({size for column in columns for size in column})
    heads = [("size", "B"), *((name, UNIT) for name in _names(tests))]
    return heads, [
        [str(size), *(number(column[size]) if size in column else "" for column in columns)] for size in sizes
    ]


def _busbw(test: NcclTest) -> dict[int, float]:
    by_size = grouped((row.bytes, row.timing.busbw) for row in test.rows if row.timing is not None)
    return {size: sum(values) / len(values) for size, values in by_size.items()}
