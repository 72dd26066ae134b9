"""The table format on pages of any width: no line is wider, columns left out are named, warnings take one line."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hpc.model.outcome import Outcome
from hpc.system.sanitize import plain
from parse.report.notices import Notice, merged, notice_lines
from parse.report.summary import Summary
from parse.report.table import text
from parse.summarize import main
from parse.text import PIPE_WIDTH, Page, cut, shortened, wrapped
from tests.unit.ledgers import LATE, make_ledger
from tests.unit.test_table import laptop, reference
from tests.unit.traces import ended, judged, make_ranks, make_run, make_trace, point, put, put_plan, repeats

ROOT = Path(__file__).parents[2]
CJK, UMLAUTS = "训练数据集的路径名称" * 6, "Größenänderungsübersicht" * 4
LONG_NAMES = {"ascii": "/lustre/project/" + "x" * 90 + "/train.py:Net", "cjk": CJK, "umlauts": UMLAUTS}


def long_names(name: str) -> Summary:
    """Points that differ in long options and variables, on nodes with long names, with failures that say much."""
    traces, plan = [], []
    for backend in ("torch-ddp", f"mine-{name}"):
        for folder in (f"{name}-a", f"{name}-b"):
            for nodes, of_node, speed in ((1, 1, 123456.5), (2, 2, 234567.5), (16, 8, 5234567.25)):
                run = make_run(
                    nodes=nodes, ranks_per_node=of_node, backend=backend, workload=name,
                    options={"data_folder": folder}, env={"NCCL_SOMETHING_WITH_A_LONG_NAME": folder},
                )  # fmt: skip
                ranks = [fact | {"hostname": f"{name}-{fact['node_rank']}"} for fact in make_ranks(run)]
                traces += point(run, [speed, speed * 1.01], ranks=ranks)
                plan += repeats(run, 3)
    failed = dataclasses.replace(traces[3], outcome=Outcome.OOM, evidence=f"{name} out of memory {name} " * 5)
    return Summary(
        results=judged([*traces[:3], failed, *traces[4:]], plan),
        remarks=(f"{name}/plan.json: {name}",),
        refusals=(f"/data/{name}.h5: not an HDF5 file",),
    )


def with_ledgers(name: str) -> Summary:
    summary = long_names(name)
    scaled = [result for result in summary.results if result.median_speed is not None]
    lost = {"data": 1234.5, "compute": 34567.5, "wait": 22.5, "communication": 4.1, "optimizer": 1.0}
    ledgers = [make_ledger(result, lost, dict.fromkeys(lost, 1.0), verdict=LATE) for result in scaled]
    ledgers = tuple(
        dataclasses.replace(
            ledger, nodes=tuple(dataclasses.replace(node, name=f"{name}.{node.name}") for node in ledger.nodes)
        )
        for ledger in ledgers
    )
    return dataclasses.replace(summary, ledgers=ledgers)


SUMMARIES = {
    "reference": reference,
    "laptop": laptop,
    **{f"long {kind}": (lambda name=name: long_names(name)) for kind, name in LONG_NAMES.items()},
    **{f"ledgers {kind}": (lambda name=name: with_ledgers(name)) for kind, name in LONG_NAMES.items()},
}


@pytest.fixture(scope="module", params=sorted(SUMMARIES))
def summary(request):
    return SUMMARIES[request.param]()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_page(summary, width, verbose):
    written = text(summary, Page(width=width, verbose=verbose))
    assert [line for line in written.splitlines() if cell_len(line) > width] == []


@pytest.mark.parametrize("width", [60, 100])
def test_case_speed_speedup_and_efficiency_are_never_left_out(summary, width):
    lines = text(summary, Page(width=width)).splitlines()
    (head,) = [line.split() for line in lines if line.startswith("case ") and "efficiency" in line]
    speedup = [] if summary.ledgers else ["speedup"]  # a table of where the time goes has the efficiency
    assert {"median", *speedup, "efficiency"} <= {*head}
    for result in summary.results:
        if result.median_speed is not None:
            figures = [f"{result.median_speed:.2f}", *([f"{result.speedup:.2f}"] if result.speedup and speedup else [])]
            assert any(line.split()[0] == result.run.case and {*figures} <= {*line.split()} for line in lines if line)


def test_a_wide_table_has_all_columns_and_a_narrow_one_names_those_that_it_lacks():
    wide = text(reference(), Page(width=60, wide=True))
    assert "left out" not in wide
    head = next(line for line in wide.splitlines() if line.startswith("case "))
    narrow = text(reference(), Page(width=60, verbose=True))
    listed = " ".join(narrow.split("columns left out for lack of room: ")[1].split(";")[0].split())
    left_out = listed.split(", ")
    shown = next(line for line in narrow.splitlines() if line.startswith("case "))
    assert left_out and all(name in head and name not in shown for name in left_out)
    assert "--wide or --format csv has all" in " ".join(narrow.split())


# Names


@given(st.lists(st.text(min_size=1, max_size=60), max_size=8), st.integers(12, 60))
def test_shortened_names_fit_and_stay_apart(names, width):
    short = shortened(names, width)
    assert {*short} == {*names}
    assert all(cell_len(name) <= width for name in short.values())
    if len({*map(plain, names)}) == len({*names}):
        assert len({*short.values()}) == len({*names})


@given(st.text(alphabet=st.sampled_from("ab ü训 -"), max_size=300), st.integers(20, 60))
def test_wrapping_loses_nothing_and_fits(line, width):
    parts = wrapped([line], width)
    assert all(cell_len(part) <= width for part in parts)
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert cell_len(cut(line, width)) <= width


# Warnings


def test_equal_warnings_of_several_points_are_one_line_with_their_number():
    notices = [Notice(labels=(f"{n}n1g",), text="no network") for n in (1, 2, 4)] + [Notice(labels=("1n1g",), text="x")]
    assert notice_lines(notices, Page(width=80)) == (["3 points (1n1g, 2n1g, 4n1g): no network", "1n1g: x"], 0)
    in_full = (["1n1g, 2n1g, 4n1g: no network", "1n1g: x"], 0)
    assert notice_lines(notices, Page(width=80, verbose=True)) == in_full
    assert [len(notice.labels) for notice in merged(notices)] == [3, 1]


def test_a_long_warning_is_one_line_and_the_last_line_says_how_to_get_it_whole():
    run = make_run(nodes=2)
    summary = Summary(results=judged([], [run], [ended(run, Outcome.OOM, "no memory left on n1 " * 20)]))
    lines = text(summary).splitlines()
    (line,) = [line for line in lines if line.startswith("2n1g: run 1: oom (no memory")]
    assert line.endswith("…") and cell_len(line) <= PIPE_WIDTH
    assert lines[-1] == "--verbose adds settings, columns, 1 warning in full"
    whole = text(summary, Page(verbose=True))
    assert " ".join(whole.split()).count("no memory left on n1") == 20 and "in full" not in whole
    assert "in full" not in text(Summary(results=judged([make_trace()], repeats(make_run(), 2))))


# What it comes to


def test_the_first_lines_say_how_it_scales_and_what_is_missing():
    runs = {nodes: make_run(nodes=nodes, backend="torch-ddp", workload="resnet50") for nodes in (1, 4, 8)}
    traces = [*point(runs[1], [100.0] * 3), *point(runs[4], [290.0] * 3)]
    plan = [repeat for run in runs.values() for repeat in repeats(run, 3)]
    failed = [ended(run, Outcome.OOM) for run in repeats(runs[8], 2)]
    first = text(Summary(results=judged(traces, plan, failed))).splitlines()[:2]
    assert first == [
        "torch-ddp resnet50: 4n1g runs 2.90 × as fast as 1n1g (72 % of ideal); no speed of 8n1g",
        "6 of 9 runs ok, 2 oom, 1 missing; 2 warnings",
    ]


def test_of_many_settings_the_best_and_the_worst_are_named():
    traces = [
        trace
        for at in range(6)
        for nodes, speed in ((1, 100.0), (2, 120.0 + 10 * at))
        for trace in point(make_run(nodes=nodes, options={"size": str(at)}), [speed])
    ]
    first = text(Summary(results=judged(traces))).splitlines()[:2]
    assert first[0] == "best of 6 settings, mpi delay option.size=5: 2n1g runs 1.70 × as fast as 1n1g (85 % of ideal)"
    assert first[1] == "worst, mpi delay option.size=0: 2n1g runs 1.20 × as fast as 1n1g (60 % of ideal)"


# Variables that the target sets


def test_variables_of_the_target_are_not_shown_and_requested_ones_are(tmp_path, capsys):
    preset = {"GLOO_SOCKET_IFNAME": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}
    requested = {"NCCL_ALGO": "Ring", "OMPI_MCA_btl_tcp_if_include": "eth0"}
    run = make_run(env={**preset, **requested})
    put(tmp_path, make_trace(run))
    put_plan(tmp_path, [run], env=preset)
    assert main([str(tmp_path), "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "environment set: NCCL_ALGO=Ring, OMPI_MCA_btl_tcp_if_include=eth0\n" in out
    assert "GLOO_SOCKET_IFNAME" not in out and "site here (sets 1 environment variable)" in out.replace("\n  ", " ")
    assert main([str(tmp_path), "--format", "json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["requested"]["env.GLOO_SOCKET_IFNAME"] == "lo"
    for form in ("csv", "markdown"):
        assert main([str(tmp_path), "--format", form]) == 0
        assert "GLOO_SOCKET_IFNAME=lo" in capsys.readouterr().out


# The page


@pytest.fixture
def folder(tmp_path):
    for run in (make_run(), make_run(nodes=2, env={"X": "y" * 200})):
        put(tmp_path, make_trace(run))
    put_plan(tmp_path, [*repeats(make_run(), 2), make_run(nodes=2, env={"X": "y" * 200})])
    return tmp_path


def widest(written: str) -> int:
    return max(cell_len(line) for line in written.splitlines())


@pytest.mark.parametrize(("columns", "limit"), [("80", 80), ("20", 60), (None, PIPE_WIDTH), ("300", 300)])
def test_columns_or_a_pipe_decide_the_width(folder, columns, limit):
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    env |= {"COLUMNS": columns} if columns else {}
    done = subprocess.run(
        [sys.executable, "-m", "parse.summarize", str(folder)], cwd=ROOT, env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert 0.6 * limit < widest(done.stdout) <= limit


def test_a_terminal_decides_the_width_and_a_file_does_not(folder, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((72, 24)))
    assert main([str(folder)]) == 0
    assert widest(capsys.readouterr().out) <= 72
    assert main([str(folder), "--out", str(folder / "table.md")]) == 0
    assert 72 < widest((folder / "table.md").read_text()) <= PIPE_WIDTH


# What else lies in the folder


def test_the_folders_own_scripts_and_new_fields_of_records_are_no_warning(folder, capsys):
    (folder / "scripts").mkdir()
    (folder / "scripts" / "0123456789.sh").write_text("#!/bin/bash\n")
    begin = {"run_id": make_run().run_id, "attempt": 1, "job_id": "17", "job_name": "1n.sh", "begin_unix_s": 1}
    (folder / f"{make_run().run_id}.1.begin.json").write_text(json.dumps(begin))
    for kind in ("auto", "traces"):
        assert main([str(folder), "--kind", kind]) == 0
        out, err = capsys.readouterr()
        assert "scripts" not in out and ".sh" not in out and "job_name" not in out and "begin.json" not in out + err
