"""The output of nccl-tests: read as evidence, shown by size and devices, beside --collectives in the ledger."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse import summarize
from parse.ledger.standalone import beside_benchmarks, curve_of_test
from parse.ledger.types import BesideBenchmark, Standalone
from parse.logs.benchmarks import Benchmarks, NcclTest, nccl_tests
from parse.logs.engine.log_format import LogError
from parse.report.table import nccl_problems as problems
from parse.say.notes import notes
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.ledgers import two_nodes
from tests.unit.logs import made
from tests.unit.logs.nccl_lines import FOLDER, NEW, OLD, ONE_NODE, TAGGED, TWO_NODES, WITHOUT_MPI, ranks
from tests.unit.traces import put


def single_test(text: str) -> NcclTest:
    (test,) = nccl_tests(text, "x.txt")
    return test


def test_outputs(cases):
    """A file, and what is replaced in it; each test, its first and last size, and what is wrong with it."""

    def outcomes(lines: list[str]) -> Iterator[str]:
        text = (FOLDER / lines[0]).read_text()
        for old, new in (line.split(" => ") for line in lines[1:]):
            assert old in text
            text = text.replace(old, new)
        try:
            tests = nccl_tests(text, "x.txt")
        except LogError as error:
            yield f"refused: {error}"
            return
        for test in tests:
            facts = {name: value for name, value in dataclasses.asdict(test).items() if value and name != "rows"}
            yield json.dumps({"case": test.case, **facts, "wrong": test.wrong, "rows": len(test.rows)})
            yield from (json.dumps(dataclasses.asdict(row)) for row in test.rows[:: max(len(test.rows) - 1, 1)])
            yield from problems(test)

    cases("nccl_tests.txt", outcomes)


def test_groups_of_devices_and_an_end_before_the_first_size():
    lines = [line.replace("Group  0", f"Group  {at % 2}") + "\n" for at, line in enumerate(ONE_NODE.splitlines())]
    test = single_test("".join(lines))
    assert (test.devices, test.groups, test.nodes) == (4, 2, 1)
    assert "2 groups of devices reduced at once" in problems(test)[0]
    begun = single_test(ONE_NODE[: ONE_NODE.index("   134217728 ")])
    assert "it ended before its first size" in problems(begun)[0]


LOGGED = "node1:295203:29{} [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
"""What NCCL_DEBUG=INFO prints in the middle of a row, behind its keys and behind its first half."""


def parted(text: str, *, by: str) -> str:
    """The output with lines in each of its rows."""
    row = re.compile(r"^( +\d+ +\d+ +\w+ +\w+ +-1)(( +[\d.]+){4})(( +[\d.]+){4})$", re.MULTILINE)
    return row.sub(lambda row: f"{row[1]}{by.format(1)}{by.format(2)}{row[2]}{by.format(3)}{row[4]}", text)


@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:"])
@pytest.mark.parametrize("host", ["node1", "10-4-3-3"])
def test_rows_that_lines_of_the_library_part_are_whole(host: str, label: str) -> None:
    text = re.sub(r" on +\S+ device", f" on {host} device", ONE_NODE)
    split = parted(text, by=LOGGED.replace("node1", host))
    assert split.count("NCCL INFO") == 3 * len(single_test(text).rows)
    labelled = "".join(f"{label}{line}\n" for line in split.splitlines())
    assert single_test(labelled) == single_test(text)
    stamped = split.replace(f"{host}:295203", f"[2025-07-10 10:00:00] {host}:295203")
    assert single_test(stamped) == single_test(text)


def test_rows_that_cannot_be_put_together_are_no_empty_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(parted(ONE_NODE, by="training begins\n"))
    assert summarize.main([str(tmp_path), "--verbose"]) == 1
    out = capsys.readouterr().out
    assert "other lines are in the rows of 6 sizes, which are not read" in " ".join(out.split())
    assert "GB/s\n" not in out


def test_lines_that_two_processes_print_are_tests_of_each():
    labelled = "".join(f"{rank}: {line}\n" for line in ONE_NODE.splitlines() for rank in (0, 1))
    assert [test.average for test in nccl_tests(labelled, "x.txt")] == [439.369, 439.369]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_outputs_are_read_or_refused(data):
    text = data.draw(st.sampled_from([ONE_NODE, TWO_NODES, TAGGED, OLD, NEW]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        filling = data.draw(st.sampled_from(["", "\n", "N/A", "-", "1e400", "# ", " " * 50, text[:200]]))
        text = text[:at] + filling + text[at + data.draw(st.integers(0, 5)) :]
    try:
        tests = nccl_tests(text, "x")
    except LogError:
        return
    for test in tests:
        problems(test)
        assert curve_of_test(test).time_ms(1 << 20) is None or test.rows


def test_the_summary_shows_bandwidth_by_size_and_devices(tmp_path, monkeypatch, capsys):
    made.put(tmp_path, "nccl/one.txt", ONE_NODE)
    made.put(tmp_path, "nccl/two.out", TWO_NODES)
    monkeypatch.chdir(tmp_path)
    assert summarize.main(["nccl"]) == 0
    assert (
        capsys.readouterr().out
        == """\
bus bandwidth of all-reduce by nccl-tests, in place
1n8g: nccl/one.txt, NVIDIA H100 80GB HBM3, average 439.369 GB/s
2n8g: nccl/two.out, NVIDIA H100 80GB HBM3, results not checked, average 142.735 GB/s
      size    1n8g    2n8g
         B    GB/s    GB/s
   8388608           87.38
 134217728  382.34  160.64
 268435456  413.97
 536870912  430.69
1073741824  464.70
2147483648  469.64
4294967296  476.53
8589934592          155.56
"""
    )
    assert summarize.main(["nccl", "--format", "markdown"]) == 0
    assert "| 134217728 | 382.34 | 160.64 |" in capsys.readouterr().out
    assert summarize.main(["nccl", "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["results"] == content["refusals"] == content["remarks"] == []
    first = content["nccl_tests"][0]
    assert {name: first[name] for name in ("file", "case", "devices", "nodes", "wrong", "average")} == {
        "file": "nccl/one.txt", "case": "1n8g", "devices": 8, "nodes": 1, "wrong": 0, "average": 439.369,
    }  # fmt: skip
    assert first["rows"][0]["in_place"] == {"time_us": 614.3, "algbw": 218.48, "busbw": 382.34, "wrong": 0}


def test_it_is_no_log_of_steps(tmp_path, capsys):
    path = str(made.put(tmp_path, "1n8g/all_reduce.log", ONE_NODE.replace("413.97      0", "413.97      7")))
    for option in ([], ["--log-format", "plsc"], ["--pattern", "step {step} {ms}"]):
        assert summarize.main([path, *option, "--verbose"]) == 0
        printed = capsys.readouterr()
        assert "476.53" in printed.out
        assert "7 wrong elements: its results are wrong, whatever its bandwidth" in " ".join(printed.out.split())
        assert "samples/s" not in printed.out + printed.err
        assert "not read" not in printed.out + printed.err
    assert summarize.main(["--explain", path]) == 1
    assert "output of a benchmark, no log of steps" in capsys.readouterr().err
    mixed = str(made.put(tmp_path, "mixed.log", WITHOUT_MPI))
    assert summarize.main([mixed]) == 1
    assert f"not read: {mixed}: several processes print tests" in capsys.readouterr().err


STANDALONE = Standalone(gradient_bytes=134217728, standalone=1.0, exposed=0.5, run_id="c")


def test_beside_the_standalone_reduction_of_as_many_devices():
    tests = (single_test(ONE_NODE), single_test(TWO_NODES), *nccl_tests(NEW, "spark.txt"))
    (beside,), remarks = beside_benchmarks(8, 134217728, STANDALONE, Benchmarks(nccl_tests=tests))
    assert (beside.case, beside.time, remarks) == ("1n8g", 0.6143, ())
    assert beside.bus_bandwidth == pytest.approx(382.34, rel=1e-4)
    assert beside.standalone_bus_bandwidth == pytest.approx(134217728 / 1e6 * 1.75)
    (only,), _ = beside_benchmarks(16, 134217728, None, Benchmarks(nccl_tests=tests))
    assert (only.case, only.standalone_bus_bandwidth) == ("2n8g", None)
    assert beside_benchmarks(4, 134217728, None, Benchmarks(nccl_tests=tests)) == ((), ())
    none, (remark,) = beside_benchmarks(8, 1 << 20, None, Benchmarks(nccl_tests=tests))
    assert none == ()
    assert remark == (
        "x.txt: nccl-tests measured all-reduce from 134217728 to 4294967296 bytes, not 1048576 bytes of gradients "
        "(its options -b, -e)"
    )


@pytest.mark.parametrize("count", [2, 3])
def test_the_ledger_has_it_beside_its_own(tmp_path, capsys, count):
    """Traces of 2 nodes of 2 ranks beside a test of twice as many ranks as `count`."""
    put(tmp_path, trace_of(run_of(), backend={"gradient_bytes": 134217728}))
    devices = ranks("n1", count=count) + ranks("n2", first=count, count=count)
    made.put(tmp_path, "nccl.txt", "+ mpirun all_reduce_perf\n" + ONE_NODE.replace(ranks("node005"), devices))
    assert summarize.main([str(tmp_path), "--ledger", "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    note = (
        "nccl-tests on 2n2g: this gradient volume (134 MB) takes 0.61 ms, bus bandwidth 328 GB/s; no --collectives of "
        "these ranks is here"
    )
    assert (note in out) == (count == 2)
    assert summarize.main([str(tmp_path), "--ledger", "--format", "json"]) == 0
    (ledger,) = json.loads(capsys.readouterr().out)["ledgers"]
    assert [beside["bus_bandwidth"] for beside in ledger["nccl_tests"]] == (
        [pytest.approx(134217728 / 614.3e3 * 1.5, rel=1e-4)] if count == 2 else []
    )


def test_the_ledger_note_has_both_bandwidths():
    beside = BesideBenchmark(
        file="nccl.txt", case="2n2g", gradient_bytes=102_228_128, time=40.0, bus_bandwidth=3.83,
        standalone_bus_bandwidth=2.79,
    )  # fmt: skip
    assert (
        "nccl-tests on 2n2g: this gradient volume (102 MB) takes 40.0 ms, bus bandwidth 3.83 GB/s; --collectives "
        "measured 2.79 GB/s (nccl.txt)"
    ) in notes(two_nodes(nccl_tests=(beside,)))


def test_what_is_wrong_or_of_several_groups_does_not_count():
    good = single_test(ONE_NODE)
    for changed in ({"wrong": 1}, {"groups": 2}, {"operation": "all-gather"}, {"rows": ()}):
        assert beside_benchmarks(
            8, 134217728, None, Benchmarks(nccl_tests=(dataclasses.replace(good, **changed),))
        ) == ((), ())
