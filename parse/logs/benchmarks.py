"""The outputs of benchmarks among the logs: nccl-tests, osu_allreduce. Evidence, no trainings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import ANSI, pieces
from parse.logs.nccl_tests import HEAD as NCCL_TESTS
from parse.logs.nccl_tests import NcclTest, nccl_tests
from parse.logs.osu_allreduce import MARK as OSU
from parse.logs.osu_allreduce import OsuTest, osu_tests
from parse.logs.path_facts import PathFacts

SNIFFED_BYTES = 1 << 18
"""The output of a benchmark shows what it is within as many."""
MAX_BYTES = 1 << 24
"""More bytes of such an output are not read."""


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """What benchmarks measured, in the order of the files."""

    nccl_tests: tuple[NcclTest, ...] = ()
    osu_tests: tuple[OsuTest, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nccl_tests or self.osu_tests)


NO_BENCHMARKS = Benchmarks()
_INSPECTOR = b'"coll_perf"'
OF_INSPECTOR = "records of NCCL Inspector, no log of steps; python -m parse.collective_trace reads those of all ranks"


def joined(each: Iterable[Benchmarks]) -> Benchmarks:
    """Those of several files."""
    parts = list(each)
    return Benchmarks(
        nccl_tests=tuple(test for part in parts for test in part.nccl_tests),
        osu_tests=tuple(test for part in parts for test in part.osu_tests),
    )


def benchmarks_in(path: Path, place: PathFacts) -> Benchmarks:
    """Those of a file, whose `place` says its nodes and devices where the path does; empty for other files. Raises
    LogError if it cannot be read, or has records of a profiler."""
    begin = next((bytes(memoryview(buffer)[:size]) for buffer, size, _ in pieces(path, SNIFFED_BYTES)), b"")
    if _INSPECTOR in begin and begin.lstrip().startswith(b"{"):
        raise LogError(f"{path}: {OF_INSPECTOR}")
    of_nccl, of_osu = bool(NCCL_TESTS.search(begin)), OSU in begin
    if not (of_nccl or of_osu):
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
        osu_tests=osu_tests(text, file, devices=devices, nodes=place.nodes) if of_osu else (),
    )
