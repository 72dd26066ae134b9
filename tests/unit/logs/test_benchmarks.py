"""Outputs of OSU Micro-Benchmarks, perftest and HPL: units, directions, and what is no number."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse import summarize
from parse.logs.linpack import Linpack, ResidualCheck, linpacks
from parse.logs.network_tests import Measures, NetworkTest, Refusal, network_tests
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.logs import made
from tests.unit.logs.benchmark_lines import (
    HPL,
    HPL_AI,
    HPL_MXP,
    OSU_ALLREDUCE,
    OSU_BIBW,
    OSU_BW,
    OSU_LATENCY,
    OSU_OTHERS,
    READ_LAT,
    WRITE,
    WRITE_BOTH,
    WRITE_OF_TWO_UNITS,
)
from tests.unit.traces import put

MIB = 1 << 20


def measured(text: str) -> tuple[NetworkTest, ...]:
    return network_tests(text, "x.txt", devices=8, nodes=2)


@pytest.mark.parametrize(
    ("text", "program", "measures", "size", "value"),
    [
        (OSU_BW, "osu_bw", Measures.ONE_DIRECTION, 4194304, 23989.54e6 / 1e9),
        (OSU_BIBW, "osu_bibw", Measures.BOTH_DIRECTIONS, 1048576, 43759.66e6 / 1e9),
        (OSU_LATENCY, "osu_latency", Measures.ONE_WAY, 65536, 20.77),
        (OSU_ALLREDUCE, "osu_allreduce", Measures.CALL, 1073741824, 18630.58),
        (WRITE, "ib_write_bw", Measures.ONE_DIRECTION, 65536, 44276.64 * MIB / 1e9),
        (WRITE.replace("MB/sec", "MiB/sec"), "ib_write_bw", Measures.ONE_DIRECTION, 65536, 44276.64 * MIB / 1e9),
        (WRITE_BOTH, "ib_write_bw", Measures.BOTH_DIRECTIONS, 8388608, 204.59 / 8),
        (READ_LAT, "ib_read_lat", Measures.ROUND_TRIP, 2, 4.83),
        (READ_LAT.replace("RDMA_Read", "RDMA_Write"), "ib_write_lat", Measures.ONE_WAY, 2, 4.83),
    ],
)
def test_units_and_directions(text, program, measures, size, value):
    for labels in ("", "[1,0]<stdout>:"):
        (test,) = measured("\n".join(labels + line for line in text.splitlines()))
        assert (test.program, test.measures, test.refused) == (program, measures, ())
        assert (test.rows[-1].bytes, test.rows[-1].value) == (size, pytest.approx(value))


def test_what_is_known_beside_the_numbers():
    (write,), (reduce,), (latency,), (transfer,) = map(measured, (WRITE, OSU_ALLREDUCE, OSU_LATENCY, OSU_BW))
    assert (write.link, write.clock_in_doubt, write.case) == ("mlx5_0, 4 queue pairs, InfiniBand", True, "")
    assert (reduce.case, reduce.buffers, reduce.checked) == ("2n4g", "device", False)
    assert (reduce.rows[0].min, reduce.rows[0].max, reduce.rows[0].iterations) == (8619.50, 8642.46, 10)
    assert (latency.buffers, latency.version, transfer.checked) == ("device", "5.7", True)
    assert [row.bytes for row in latency.rows] == [0, 1, 65536]


def test_a_test_that_is_not_read_ends_the_one_before():
    exchange, gather = measured(OSU_OTHERS)
    assert [row.value for row in exchange.rows] == [32.48, 32.85]
    assert (exchange.size_is, gather.size_is) == ("bytes from each rank to each other one", "bytes of a rank's share")
    assert [row.bytes for row in gather.rows] == [1, 262144]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OSU_BW.replace("23989.54              Pass", "23989.54              Fail"), Refusal.VALIDATION),
        (OSU_BW.replace("23989.54              Pass", "23989.54"), Refusal.INCOMPLETE),
        (OSU_BW.replace("23989.54", "0.00"), Refusal.ZERO),
        (WRITE_OF_TWO_UNITS, Refusal.CONTRADICTION),
        (WRITE.replace("44276.64                  0.708426", "44276.64"), Refusal.INCOMPLETE),
        (WRITE.replace("0.708426", "0.608426"), Refusal.CONTRADICTION),
    ],
)
def test_what_is_no_number(text, reason):
    (test,) = measured(text)
    assert [row.reason for row in test.refused] == [reason]
    assert test.refused[0].bytes not in [row.bytes for row in test.rows]


def single(text: str) -> Linpack:
    (solved,) = linpacks(text, "x.txt")
    return solved


def test_solved_systems():
    double, mixed, reference = single(HPL), single(HPL_MXP), single(HPL_AI)
    assert (double.benchmark, double.n, double.gflops, double.per_gpu) == ("HPL", 136192, 33110, 16560)
    assert (mixed.benchmark, mixed.n, mixed.p, mixed.q) == ("HPL-MxP", 380000, 4, 2)
    assert (mixed.gflops, mixed.lu_gflops, mixed.per_gpu, mixed.residual) == (878770, 1727300, 109846.77, 4.477002e-4)
    assert (reference.benchmark, reference.gflops, reference.check) == ("HPL-MxP", 12.345678, ResidualCheck.PASSED)
    assert [solved.benchmark for solved in linpacks(HPL + HPL_MXP + HPL, "x")] == ["HPL", "HPL-MxP", "HPL"]


@pytest.mark.parametrize("text", [HPL, HPL_MXP, HPL_AI])
def test_a_system_whose_check_does_not_pass_has_no_rate(text):
    failed = single(text.replace("PASSED", "FAILED"))
    missing = single("\n".join(line for line in text.splitlines() if "PASSED" not in line))
    assert (failed.check, failed.gflops, failed.per_gpu, failed.lu_gflops) == (ResidualCheck.FAILED, None, None, None)
    assert (missing.check, missing.gflops) == (ResidualCheck.MISSING, None)


def test_a_rate_that_its_time_contradicts_is_none():
    assert single(HPL.replace("50.86", "25.43")).contradicts
    assert single(HPL.replace("50.86", "25.43")).gflops is None


@pytest.mark.parametrize("wrong", ["50.8.6", "...", "9e999", "nan"])
def test_a_row_with_what_is_no_number_is_none(wrong):
    assert "50.86" in HPL and linpacks(HPL.replace("50.86", wrong), "x.txt") == ()


def test_the_summary_keeps_them_apart(tmp_path, monkeypatch, capsys):
    for name, text in (("bw.txt", OSU_BW), ("write.log", WRITE), ("both.log", WRITE_BOTH), ("hpl.out", HPL_MXP)):
        made.put(tmp_path, f"net/{name}", text)
    monkeypatch.chdir(tmp_path)
    assert summarize.main(["net"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "osu_bw: bandwidth of one direction; no bus bandwidth [1]: net/bw.txt, OSU Micro-Benchmarks 7.5, MPI",
        "ib_write_bw: bandwidth of one direction; no bus bandwidth [1]: net/write.log, perftest, mlx5_0",
        "ib_write_bw: bandwidth of both directions together; no bus bandwidth",
        "65536 46.43",
        "no speed of a training",
    ):
        assert words in out
    assert "samples/s" not in out
    assert summarize.main(["net", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["results"] == page["refusals"] == []
    assert {test["unit"] for test in page["network_tests"]} == {"GB/s"}
    assert page["linpacks"][0]["gflops"] == 878770


def test_osu_allreduce_beside_the_ledger_where_its_path_says_the_case(tmp_path, capsys):
    put(tmp_path, trace_of(run_of(), backend={"gradient_bytes": 134217728}))
    for name in ("2n2g", "elsewhere"):
        made.put(tmp_path, f"{name}/osu_allreduce.txt", OSU_ALLREDUCE)
    assert summarize.main([str(tmp_path), "--ledger"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("osu_allreduce (MPI, device buffers) on 2n2g: this gradient volume (134 MB) takes 12.68 ms") == 1


def test_what_benchmarks_print_is_never_taken_for_steps_by_inference(tmp_path, capsys):
    """Lines with a number that grows and a rate beside it, as an HPL of NVIDIA's prints while it runs."""
    progress = "".join(f"step {at}/300 time={at * 2.0:.2f}s step_time=2.00s 64.00 samples/s\n" for at in range(1, 301))
    path = str(made.put(tmp_path, "1n8g/hpl.log", progress + HPL))
    assert summarize.main([path]) == 0
    printed = capsys.readouterr()
    assert "33110.00" in printed.out
    assert "samples/s" not in printed.out + printed.err


def test_sizes_in_several_rows_are_shown_by_the_worst(tmp_path, capsys):
    row = " 65536      5000             44326.24            44276.64                  0.708426\n"
    path = made.put(tmp_path, "write.log", WRITE + row.replace("44276.64", "43276.64").replace("0.708426", "0.692426"))
    assert summarize.main([str(path), "--warnings"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "65536 45.38" in out
    assert "2 × 65536 bytes" not in out and "65536 bytes in several rows, the worst is shown" in out


def test_records_of_nccl_inspector_are_named_with_the_command_that_reads_them(tmp_path, capsys):
    record = '{"header":{"id":"0x1","rank":0,"n_ranks":2},"metadata":{},"coll_perf":{"coll":"AllReduce","coll_sn":1}}\n'
    path = str(made.put(tmp_path, "node0-pid7.log", record * 300))
    assert summarize.main([path]) == 1
    assert "python -m parse.collective_trace reads those of all ranks" in capsys.readouterr().err


ANY = st.sampled_from(
    [line for text in (OSU_BW, OSU_ALLREDUCE, WRITE, READ_LAT, HPL, HPL_MXP, HPL_AI) for line in text.splitlines()]
)


@given(st.lists(st.one_of(ANY, st.text(alphabet="0123456789 #.|eE+-naPFis[]/", max_size=60)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_is_a_traceback(lines):
    text = "\n".join(lines)
    for test in measured(text):
        assert all(row.value > 0 or row.bytes == 0 for row in test.rows)
    for solved in linpacks(text, "x"):
        assert solved.gflops is None or solved.check is ResidualCheck.PASSED
