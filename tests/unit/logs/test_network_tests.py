"""Outputs of OSU, nccl-tests and HPL-MxP in forms that threads and versions have; rows of `nan` are no numbers."""

from __future__ import annotations

import pytest

from parse.logs.linpack import linpacks
from parse.logs.nccl_tests import nccl_tests
from parse.logs.network_tests import Refusal, network_tests
from tests.unit.logs.benchmark_lines import HPL_MXP, OSU_LATENCY, WRITE
from tests.unit.logs.nccl_lines import ONE_NODE


@pytest.mark.parametrize("text", [OSU_LATENCY.replace("20.77", "-nan"), WRITE.replace("44276.64", "nan")])
def test_a_row_of_nan_is_named(text: str) -> None:
    (test,) = network_tests(text, "x.txt", devices=8, nodes=2)
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


def test_words_behind_the_rates_of_hpl_mxp() -> None:
    # scc25-benchmarking.readthedocs.io
    plain, *_ = linpacks(HPL_MXP, "x.txt")
    lines = [f"{line} ------ words" if "GFLOPS =" in line else line for line in HPL_MXP.splitlines()]
    worded, *_ = linpacks("\n".join(lines), "x.txt")
    assert plain.gflops and worded == plain
