"""Outputs of the OSU Micro-Benchmarks: units, directions, and what is no number."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse import summarize
from parse.logs.network_tests import Measures, NetworkTest, Refusal, network_tests
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.logs import made
from tests.unit.logs.benchmark_lines import HPL, OSU_ALLREDUCE, OSU_BIBW, OSU_BW, OSU_LATENCY, OSU_OTHERS, WRITE
from tests.unit.traces import put


def measured(text: str) -> tuple[NetworkTest, ...]:
    return network_tests(text, "x.txt", devices=8, nodes=2)


@pytest.mark.parametrize(
    ("text", "program", "measures", "size", "value"),
    [
        (OSU_BW, "osu_bw", Measures.ONE_DIRECTION, 4194304, 23989.54e6 / 1e9),
        (OSU_BIBW, "osu_bibw", Measures.BOTH_DIRECTIONS, 1048576, 43759.66e6 / 1e9),
        (OSU_LATENCY, "osu_latency", Measures.ONE_WAY, 65536, 20.77),
        (OSU_ALLREDUCE, "osu_allreduce", Measures.CALL, 1073741824, 18630.58),
    ],
)
def test_units_and_directions(text, program, measures, size, value):
    for labels in ("", "[1,0]<stdout>:"):
        (test,) = measured("\n".join(labels + line for line in text.splitlines()))
        assert (test.program, test.measures, test.refused) == (program, measures, ())
        assert (test.rows[-1].bytes, test.rows[-1].value) == (size, pytest.approx(value))


def test_what_is_known_beside_the_numbers():
    (reduce,), (latency,), (transfer,) = map(measured, (OSU_ALLREDUCE, OSU_LATENCY, OSU_BW))
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
    ],
)
def test_what_is_no_number(text, reason):
    (test,) = measured(text)
    assert [row.reason for row in test.refused] == [reason]
    assert test.refused[0].bytes not in [row.bytes for row in test.rows]


def test_the_summary_keeps_them_apart(tmp_path, monkeypatch, capsys):
    for name, text in (("bw.txt", OSU_BW), ("bibw.txt", OSU_BIBW)):
        made.put(tmp_path, f"net/{name}", text)
    monkeypatch.chdir(tmp_path)
    assert summarize.main(["net"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "osu_bw: bandwidth of one direction; no bus bandwidth [1]: net/bw.txt, OSU Micro-Benchmarks 7.5, MPI",
        "osu_bibw: bandwidth of both directions together; no bus bandwidth",
    ):
        assert words in out
    assert "samples/s" not in out
    assert summarize.main(["net", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["results"] == page["refusals"] == []
    assert {test["unit"] for test in page["network_tests"]} == {"GB/s"}


def test_osu_allreduce_beside_the_ledger_where_its_path_says_the_case(tmp_path, capsys):
    put(tmp_path, trace_of(run_of(), backend={"gradient_bytes": 134217728}))
    for name in ("2n2g", "elsewhere"):
        made.put(tmp_path, f"{name}/osu_allreduce.txt", OSU_ALLREDUCE)
    assert summarize.main([str(tmp_path), "--ledger"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("osu_allreduce (MPI, device buffers) on 2n2g: this gradient volume (134 MB) takes 12.68 ms") == 1


@pytest.mark.parametrize("text", [HPL, WRITE])
def test_outputs_of_hpl_and_perftest_are_refused_by_name(tmp_path, capsys, text):
    """Not taken for steps by inference: NVIDIA's HPL prints lines with a number that grows and a rate beside it."""
    progress = "".join(f"step {at}/300 time={at * 2.0:.2f}s step_time=2.00s 64.00 samples/s\n" for at in range(1, 301))
    path = str(made.put(tmp_path, "1n8g/hpl.log", progress + text))
    assert summarize.main([path]) == 1
    printed = capsys.readouterr()
    assert "an output of HPL or perftest, which is not read" in printed.err
    assert "samples/s" not in printed.out


def test_sizes_in_several_rows_are_shown_by_the_worst(tmp_path, capsys):
    row = next(line for line in OSU_BW.splitlines() if "23989.54" in line)
    path = made.put(tmp_path, "bw.txt", f"{OSU_BW.rstrip()}\n{row.replace('23989.54', '13989.54')}\n")
    assert summarize.main([str(path), "--warnings"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4194304 13.99" in out
    assert "4194304 bytes in several rows, the worst is shown" in out


def test_records_of_nccl_inspector_are_named_with_the_command_that_reads_them(tmp_path, capsys):
    record = '{"header":{"id":"0x1","rank":0,"n_ranks":2},"metadata":{},"coll_perf":{"coll":"AllReduce","coll_sn":1}}\n'
    path = str(made.put(tmp_path, "node0-pid7.log", record * 300))
    assert summarize.main([path]) == 1
    assert "python -m parse.collective_trace reads those of all ranks" in capsys.readouterr().err


ANY = st.sampled_from([line for text in (OSU_BW, OSU_ALLREDUCE) for line in text.splitlines()])


@given(st.lists(st.one_of(ANY, st.text(alphabet="0123456789 #.|eE+-naPFis[]/", max_size=60)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_is_a_traceback(lines):
    text = "\n".join(lines)
    for test in measured(text):
        assert all(row.value > 0 or row.bytes == 0 for row in test.rows)
