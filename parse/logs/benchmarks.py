"""The outputs of benchmarks among the logs: nccl-tests, OSU Micro-Benchmarks. Evidence, no trainings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parse.logs.engine.log_format import LogError, UnknownFormatError
from parse.logs.engine.reader import ANSI, pieces
from parse.logs.nccl_tests import HEAD as NCCL_TESTS
from parse.logs.nccl_tests import NcclTest, nccl_tests
from parse.logs.network_tests import MARK as OSU
from parse.logs.network_tests import NetworkTest, network_tests
from parse.logs.path_facts import PathFacts

SNIFFED_BYTES = 1 << 18
"""The output of a benchmark shows what it is within as many."""
MAX_BYTES = 1 << 24
"""More bytes of such an output are not read."""


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """What benchmarks measured, in the order of the files."""

    nccl_tests: tuple[NcclTest, ...] = ()
    network_tests: tuple[NetworkTest, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nccl_tests or self.network_tests)


NO_BENCHMARKS = Benchmarks()
_INSPECTOR = b'"coll_perf"'
_NOT_READ = (b"HPL-MxP", b"HPL MxP", b"HPL-MXP", b"HPL-AI", b"HPLinpack", b"||Ax-b||", b"#bytes     #iterations")
"""Of HPL and perftest, whose lines look like steps to inference."""
OF_INSPECTOR = "records of NCCL Inspector, no log of steps; python -m parse.collective_trace reads those of all ranks"


def joined(each: Iterable[Benchmarks]) -> Benchmarks:
    """Those of several files."""
    parts = list(each)
    return Benchmarks(
        nccl_tests=tuple(test for part in parts for test in part.nccl_tests),
        network_tests=tuple(test for part in parts for test in part.network_tests),
    )


def benchmarks_in(path: Path, place: PathFacts) -> Benchmarks:
    """Those of a file, whose `place` says its nodes and devices where the path does; empty for other files. Raises
    LogError if it cannot be read, or has records of a profiler."""
    begin = next((bytes(memoryview(buffer)[:size]) for buffer, size, _ in pieces(path, SNIFFED_BYTES)), b"")
    if _INSPECTOR in begin and begin.lstrip().startswith(b"{"):
        raise LogError(f"{path}: {OF_INSPECTOR}")
    if any(mark in begin for mark in _NOT_READ):
        raise UnknownFormatError(
            f"{path}: an output of HPL or perftest, which is not read; nccl-tests and OSU's tests are"
        )
    of_nccl, of_network = bool(NCCL_TESTS.search(begin)), OSU in begin
    if not (of_nccl or of_network):
        return NO_BENCHMARKS
    parts: list[bytes] = []
    for buffer, size, offset in pieces(path):
        if offset >= MAX_BYTES:
            break
        parts.append(bytes(memoryview(buffer)[:size]))
    text, file = ANSI.sub(b"", b"".join(parts)).decode(errors="replace"), str(path)
    devices = place.devices or (place.nodes * place.gpus_per_node if place.nodes and place.gpus_per_node else None)
    return Benchmarks(
        nccl_tests=nccl_tests(text, file) if of_nccl else (),
        network_tests=network_tests(text, file, devices=devices, nodes=place.nodes) if of_network else (),
    )
