"""Outputs of osu_allreduce: its times, and what is no number; records of a profiler among the logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse import summarize
from parse.logs.benchmarks import OsuTest, RowRefusal, osu_tests
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.logs import made
from tests.unit.traces import put

# github.com/FZJ-JSC/tutorial-multi-gpu, 03-Collectives
WITH_ALL = """
# OSU MPI-CUDA Allreduce Latency Test v7.0
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
16777216             8630.58           8619.50           8642.46         10
1073741824          18630.58          18619.50          18642.46         10
"""
CHECKED = """
# OSU NCCL Allreduce Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)        Validation
4                      20.77              Pass
8                      30.77              Pass
"""
OTHER = """
# OSU MPI-CUDA Bandwidth Test v7.5
# Size      Bandwidth (MB/s)
4194304             23989.54
"""


def measured(text: str) -> tuple[OsuTest, ...]:
    return osu_tests(text, "x.txt", devices=8, nodes=2)


@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:"])
def test_the_times_and_what_is_known_beside_them(label: str) -> None:
    """Launchers may label the lines; a test that is not read ends the one before."""
    (first, second) = measured("\n".join(label + line for line in (WITH_ALL + OTHER + CHECKED).splitlines()))
    assert (first.case, first.library, first.buffers, first.version) == ("2n4g", "MPI", "device", "7.0")
    row = first.rows[0]
    assert (row.bytes, row.value) == (16777216, 8630.58)
    assert (second.library, second.datatype, second.checked) == ("NCCL", "MPI_INT", True)
    assert [(row.bytes, row.value) for row in second.rows] == [(4, 20.77), (8, 30.77)]


def test_a_second_datatype_below_the_head_of_the_table_begins_a_test() -> None:
    # EESSI/software-layer/pull/716
    lines = ("# OSU MPI Allreduce Latency Test v7.2", "# Size      Avg Latency(us)", "# Datatype: MPI_CHAR.",
             "1   1.01", "# Datatype: MPI_INT.", "4   4.04")  # fmt: skip
    assert [(test.datatype, [row.bytes for row in test.rows]) for test in measured("\n".join(lines))] == [
        ("MPI_CHAR", [1]), ("MPI_INT", [4]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("8   30.77   Fail", RowRefusal.VALIDATION), ("8   30.77", RowRefusal.INCOMPLETE),
        ("8   0.00   Pass", RowRefusal.NO_NUMBER), ("8   -nan   Pass", RowRefusal.NO_NUMBER),
    ],
)  # fmt: skip
def test_what_is_no_number(row: str, reason: RowRefusal) -> None:
    (test,) = measured(CHECKED.replace(CHECKED.splitlines()[-1], row))
    assert [(each.bytes, each.reason) for each in test.refused] == [(8, reason)]
    assert [each.bytes for each in test.rows] == [4]


def test_the_summary_shows_the_slowest_of_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.put(tmp_path, "2n4g/osu.txt", f"{CHECKED.rstrip()}\n8  40.5  Pass\n")
    assert summarize.main([str(tmp_path), "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "osu_allreduce (sizes are bytes of the buffer): time of a call, mean over the ranks" in out
    assert "8 40.50" in out and "osu_allreduce: 8 bytes in several rows, the slowest is shown" in out
    assert "samples/s" not in out
    assert summarize.main([str(tmp_path), "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["results"] == page["refusals"] == []
    assert page["network_tests"][0]["rows"][-1]["value"] == 40.5


def test_osu_allreduce_beside_the_ledger_where_its_path_says_the_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, trace_of(run_of(), backend={"gradient_bytes": 134217728}))
    for name in ("2n2g", "elsewhere"):
        made.put(tmp_path, f"{name}/osu_allreduce.txt", WITH_ALL)
    assert summarize.main([str(tmp_path), "--ledger", "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("osu_allreduce (MPI, device buffers) on 2n2g: this gradient volume (134 MB) takes 12.7 ms") == 1


def test_records_of_nccl_inspector_are_named_with_the_command_that_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = '{"header":{"id":"0x1","rank":0,"n_ranks":2},"metadata":{},"coll_perf":{"coll":"AllReduce","coll_sn":1}}\n'
    path = str(made.put(tmp_path, "node0-pid7.log", record * 300))
    assert summarize.main([path]) == 1
    assert "rankwise collective-trace reads those of all ranks" in capsys.readouterr().err


ANY = st.sampled_from((WITH_ALL + CHECKED).splitlines())


@given(st.lists(st.one_of(ANY, st.text(alphabet="0123456789 #.|eE+-naPFis[]/", max_size=60)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_is_a_traceback(lines: list[str]) -> None:
    for test in measured("\n".join(lines)):
        assert all(row.value > 0 for row in test.rows)
