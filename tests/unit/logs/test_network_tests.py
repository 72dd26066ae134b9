"""Outputs of OSU and nccl-tests in forms that threads and versions have; rows of `nan` are no numbers."""

from __future__ import annotations

from parse.logs.nccl_tests import nccl_tests
from parse.logs.network_tests import Refusal, network_tests
from tests.unit.logs.benchmark_lines import OSU_LATENCY
from tests.unit.logs.nccl_lines import ONE_NODE


def test_a_row_of_nan_is_named() -> None:
    (test,) = network_tests(OSU_LATENCY.replace("20.77", "-nan"), "x.txt", devices=8, nodes=2)
    assert [row.reason for row in test.refused] == [Refusal.NO_NUMBER]


def test_a_datatype_below_the_head_of_the_table() -> None:
    # EESSI/software-layer/pull/716; a second datatype begins a test of its own
    lines = ("# OSU MPI-CUDA Bandwidth Test v7.2", "# Size      Bandwidth (MB/s)", "# Datatype: MPI_CHAR.", "1   1.01",
             "# Datatype: MPI_INT.", "4   4.04")  # fmt: skip
    tests = network_tests("\n".join(lines), "x.txt", devices=None, nodes=None)
    assert [(test.link, [row.bytes for row in test.rows]) for test in tests] == [("MPI_CHAR", [1]), ("MPI_INT", [4])]


def test_lines_of_nccl_tests_without_their_marks() -> None:
    # NVIDIA/nccl/issues/583: quoted in a thread
    (test,) = nccl_tests("\n".join(line.lstrip("#") for line in ONE_NODE.splitlines()), "x.txt")
    assert (test.devices, test.nodes, len(test.rows)) == (8, 1, len(nccl_tests(ONE_NODE, "x.txt")[0].rows))
