"""What benchmarks measured, as text: nccl-tests, osu_allreduce; a table for each kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpc.system.text import grouped, plural
from parse.logs.benchmarks import Benchmarks
from parse.logs.nccl_tests import NcclTest
from parse.logs.osu_allreduce import PROGRAM, OsuTest, RowRefusal
from parse.text import TableData, TextBlock, distinct, number


def benchmarks_blocks(benchmarks: Benchmarks) -> list[TextBlock]:
    """All tables, those of a kind together, with an empty line between them; empty where there is no benchmark."""
    parts = [*_nccl_blocks(benchmarks.nccl_tests), *_osu_blocks(benchmarks.osu_tests)]
    blocks: list[TextBlock] = []
    for part in parts:
        blocks += ["", *part] if blocks else part
    return blocks


def _table(names: Sequence[str], unit: str, columns: Sequence[Mapping[int, float]]) -> TableData:
    """A row per size, and a column per test."""
    sizes = sorted({size for column in columns for size in column})
    return TableData(
        heads=[("size", "B"), *((name, unit) for name in names)],
        rows=[[str(size), *(number(column[size]) if size in column else "" for column in columns)] for size in sizes],
        label_columns=0,
        keys=1,
    )


def problems(benchmarks: Benchmarks) -> Iterator[tuple[str, str]]:
    """The file and what is wrong, for each problem."""
    for test in benchmarks.nccl_tests:
        yield from ((test.file, text) for text in nccl_problems(test))
    for measured in benchmarks.osu_tests:
        yield from ((measured.file, text) for text in osu_problems(measured))


# Bandwidths that nccl-tests measured.

UNIT = "GB/s"


def _nccl_blocks(all_tests: Sequence[NcclTest]) -> Iterator[list[TextBlock]]:
    """A title, a line per test, and a table for each operation; of tests that have a bandwidth, on fewer devices
    first. The mean of a size that a test has several times."""
    ordered = sorted(all_tests, key=lambda test: (test.devices or 0, test.nodes or 0))
    for operation, tests in grouped((test.operation, test) for test in ordered if test.rows).items():
        names = distinct((test.case for test in tests), "{} [{}]")
        legend = [f"{name}: {_nccl_facts(test)}" for name, test in zip(names, tests, strict=True)]
        yield [_operation_title(operation, tests), legend, _table(names, UNIT, [*map(_busbw, tests)])]


def nccl_problems(test: NcclTest) -> list[str]:
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


def _operation_title(operation: str, tests: Sequence[NcclTest]) -> str:
    elsewhere = any(row.in_place is None and row.timing for test in tests for row in test.rows)
    place = "in place, where a test has that, else out of place" if elsewhere else "in place"
    return f"bus bandwidth of {operation or 'an unnamed collective'} by nccl-tests, {place}"


def _nccl_facts(test: NcclTest) -> str:
    """Its file, devices, NCCL, and the average over sizes that it prints."""
    library = "RCCL" if any(model.startswith("AMD ") for model in test.models) else "NCCL"
    facts = [test.file, *test.models, *([f"{library} {test.nccl}"] if test.nccl else [])]
    facts += ["results not checked"] if test.wrong is None else []
    facts += ["bus bandwidth is 0 on one device, by definition"] if test.devices == 1 else []
    facts += [] if test.average is None else [f"average {test.average:g} {UNIT}"]
    return ", ".join(facts)


def _busbw(test: NcclTest) -> dict[int, float]:
    by_size = grouped((row.bytes, row.timing.busbw) for row in test.rows if row.timing is not None)
    return {size: sum(values) / len(values) for size, values in by_size.items()}


# Times that osu_allreduce measured.


def osu_problems(test: OsuTest) -> list[str]:
    """What is wrong with a test."""
    refused = grouped((row.reason, row.bytes) for row in test.refused)
    texts = [f"{PROGRAM}: {_sizes(refused[reason])}: {reason}; no number" for reason in RowRefusal if reason in refused]
    if not test.rows and not test.refused:
        texts.append(f"{PROGRAM}: it ended before its first size")
    repeated = [size for size, values in _times(test).items() if len(values) > 1]
    if repeated:
        texts.append(f"{PROGRAM}: {_sizes(repeated)} in several rows, the slowest is shown")
    return texts


def _osu_blocks(all_tests: Sequence[OsuTest]) -> Iterator[list[TextBlock]]:
    """A title, a line per test, and a table; none where nothing was tested."""
    if tests := [test for test in all_tests if test.rows]:
        names = [name.strip() or "[1]" for name in distinct((test.case for test in tests), "{} [{}]")]
        columns = [{size: max(values) for size, values in _times(test).items()} for test in tests]
        title = f"{PROGRAM} (sizes are bytes of the buffer): time of a call, mean over the ranks"
        about = (f"{name}: {_about(test)}" for name, test in zip(names, tests, strict=True))
        yield [title, *about, _table(names, "us", columns)]


def _about(test: OsuTest) -> str:
    """The file of a test, and what it was measured with."""
    facts = [test.file, f"OSU Micro-Benchmarks {test.version}".strip(), test.library, test.datatype]
    facts += [f"{test.buffers} buffers"]
    facts += ["what arrived was not checked (its option -c)"] if not test.checked else []
    return ", ".join(filter(None, facts))


def _times(test: OsuTest) -> dict[int, list[float]]:
    return grouped((row.bytes, row.value) for row in test.rows)


def _sizes(sizes: Sequence[int]) -> str:
    """`4 bytes`, `3 sizes from 4 to 16 bytes`."""
    distinct_sizes = sorted({*sizes})
    if len(distinct_sizes) > 1:
        return f"{len(distinct_sizes)} sizes from {distinct_sizes[0]} to {distinct_sizes[-1]} bytes"
    return f"{sizes[0]} bytes"
