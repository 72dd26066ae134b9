"""parse.report.table: what a summary looks like; what outside text may do to it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.system.sanitize import plain
from parse.report.export import dlperf
from parse.report.notices import warnings
from parse.report.summary import Summary, TableError, choose
from parse.report.table import FORMATS, text
from parse.text import Page, csv_text
from tests.unit.traces import judged, make_ranks, make_run, make_trace, point, repeats

NGC = make_run(backend="torch-ddp", workload="resnet50", batch_size=128, warmup_steps=20, measured_steps=100)
SPEEDS = {
    1: [366.27, 366.14, 365.81, 365.51, 366.54],
    4: [1448.06, 1447.61, 1445.03, 1448.58, 1449.08],
    8: [2833.72, 2808.11, 2800.71, 2803.56, 2806.66],
}


def on(devices: int) -> RunSpec:
    return dataclasses.replace(NGC, ranks_per_node=devices, gpus_per_node=devices)


def reference() -> Summary:
    return Summary(results=judged([trace for n, speeds in SPEEDS.items() for trace in point(on(n), speeds)]))


def laptop() -> Summary:
    """Three points on two cores, in two settings; a failed run, a missing one, hostile words, broken files."""
    traces, plan = [], []
    for image_size in ("64", "32"):
        for nodes, speed in ((1, 40.0), (2, 60.0), (4, 61.0)):
            run = make_run(
                nodes=nodes, backend="torch-ddp", workload="my|net.py:\x1b[31mNet", options={"image_size": image_size}
            )
            runs = repeats(run, 3)
            machine = make_ranks(run, boot_id="one", affinity=[0, 1])
            traces += point(run, [speed, speed * 1.01, speed * 0.99], ranks=machine)
            plan += runs
    traces[4] = dataclasses.replace(traces[4], outcome=Outcome.RANK_FAIL, evidence="boom\n\x1b]0;owned\x07|")
    return Summary(
        results=judged([*traces[:-1]], plan),
        reduced=("steps 16 instead of 120", "image_size 64 instead of 224"),
        remarks=("a\tremark",),
        refusals=("/tmp/x\x1b[2J.h5: not an HDF5 file",),
    )


@pytest.mark.parametrize(
    ("summary", "form", "ending"),
    [(reference, "table", "txt"), (laptop, "table", "txt"), (laptop, "markdown", "md"), (laptop, "csv", "csv")],
)
def test_the_formats_are_as_in_the_golden_files(golden, summary, form, ending):
    golden(f"summary_{summary.__name__}.{ending}", FORMATS[form](summary()))


def test_the_json_is_as_in_the_golden_file(golden):
    golden("summary_reference.json", FORMATS["json"](reference()))


def test_the_reference_json_to_the_letter(golden):
    golden("summary_reference.dlperf.json", dlperf(reference()))


# What the head says


def test_variables_that_all_points_set_stand_apart_in_the_head() -> None:
    written = text(Summary(results=judged([make_trace(make_run(env={"NCCL_ALGO": "Ring"}))])))
    assert "\nenvironment set: NCCL_ALGO=Ring\n" in written
    assert "environment set" not in text(reference())


def apart(**changes):
    """1n1g, and 2n2g measured by a sweep of its own with these changes."""
    others = {"nodes": 2, "ranks_per_node": 2, "cpus_per_rank": 4} | changes
    runs = (make_run(cpus_per_rank=4), make_run(**others))
    return Summary(results=judged([make_trace(repeat) for run in runs for repeat in repeats(run, 2)]))


def test_cases_measured_apart_with_other_sizes_are_told_which_and_how_to_set_them() -> None:
    line = "2n2g: no baseline in common with 1n1g: cpus_per_rank is 4 there and 2 here"
    assert f"{line}; measure both with one --cpus-per-rank\n" in text(apart(cpus_per_rank=2), Page(width=240))
    both = text(apart(cpus_per_rank=2, batch_size=64), Page(width=240))
    assert (
        f"{line}, batch_size is 4 there and 64 here; measure both with one --cpus-per-rank and --batch-size\n" in both
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="they share them"),
        pytest.param({"precision": "bf16", "cpus_per_rank": 2}, id="more differs"),
        pytest.param({"nodes": 1, "ranks_per_node": 1, "cpus_per_rank": 2}, id="one case with several sizes"),
    ],
)
def test_sizes_are_not_named_where_cases_share_them_or_more_differs(changes):
    assert "no baseline in common" not in text(apart(**changes), Page(width=240))


def test_a_point_without_numbers_is_a_row_all_the_same() -> None:
    run = make_run(nodes=2)
    written = text(Summary(results=judged([], repeats(run, 5))))
    row = next(line for line in written.splitlines() if line.startswith("2n1g "))
    assert row.split() == ["2n1g", "2", "2", "0/5"] + ["-"] * 3
    assert "run 1, 2, 3, 4, 5: missing" in written


# Outside text


@given(st.text())
def test_plain_text_steers_nothing(line):
    assert not any(unicodedata.category(character)[0] == "C" for character in plain(line))
    assert plain("ä – 中 | <") == "ä – 中 | <"


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_no_control_character_reaches_the_output(form):
    summary = laptop()
    summary = dataclasses.replace(summary, results=choose(summary.results, {"option.image_size": ["64"]}))
    written = FORMATS[form](summary)
    assert "\x1b" not in written
    assert "\x07" not in written
    assert all("\x1b" not in line and "\n" not in line for line in warnings(summary))


def test_markdown_cells_keep_their_columns() -> None:
    written = FORMATS["markdown"](laptop())
    table = [line for line in written.splitlines() if line.startswith("|")]
    bars = {line.replace(r"\|", "").count("|") for line in table}
    assert len(bars) == 1
    assert r"my\|net.py:\\x1b[31mNet" in written


def test_a_link_in_outside_text_is_no_link() -> None:
    run = make_run(options={"a": "[x](javascript:alert(1))"})
    written = FORMATS["markdown"](Summary(results=judged([make_trace(run)])))
    assert "](" not in written


# CSV and JSON


HOSTILE = {
    "=HYPERLINK(1)": "'=HYPERLINK(1)", "@SUM(1)": "'@SUM(1)", "\t=1+1": "'\\t=1+1", "+21.67": "+21.67", "-0.5": "-0.5",
    "-1e-05": "-1e-05", "-": "-", "-x": "'-x", "-2+3+cmd|' /C calc'!A0": "'-2+3+cmd|' /C calc'!A0",
    "+33.33 %": "+33.33 %", "-1 ": "'-1 ", "-1\n": "'-1\\n", "1n1g": "1n1g", "": "",
}  # fmt: skip
"""Texts, and what CSV has of them."""


def test_no_cell_of_a_csv_is_a_formula() -> None:
    (row,) = csv.reader(io.StringIO(csv_text([[*HOSTILE, -0.5]])))
    assert row == [*HOSTILE.values(), "-0.5"]
    run = make_run(workload="=cmd.py:Net", env={"A": "=1", "=B": "2"})
    (cells,) = csv.DictReader(io.StringIO(FORMATS["csv"](Summary(results=judged([make_trace(run)])))))
    assert not [text for text in (*cells, *cells.values()) if text.startswith(("=", "+", "@", "-", "\t"))]
    assert "'=cmd.py:Net" in cells.values()


def test_the_folders_above_a_persons_own_file_are_not_handed_on() -> None:
    """The whole path tells points apart, and is shown nowhere."""
    runs = [make_run(workload=f"/home/ada/secret/{name}:Net") for name in ("one.py", "two.py")]
    summary = Summary(results=judged([make_trace(run) for run in runs]))
    for name, shown in ((name, show(summary)) for name, show in FORMATS.items() if name != "dlperf"):
        assert ("one.py:Net" in shown, "secret" in shown) == (True, False), name
    assert len(choose(summary.results, {"workload": ["one.py:Net"]})) == 1
    assert len(choose(summary.results, {"workload": ["/home/ada/secret/one.py:Net"]})) == 1


# The reference JSON


def test_points_that_would_overwrite_one_another_are_an_error() -> None:
    other = dataclasses.replace(NGC, batch_size=256, precision="amp-fp16")
    summary = Summary(results=judged([make_trace(NGC), make_trace(other)]))
    with pytest.raises(
        TableError, match=r"2 points would be r50 1n1g .* batch_size 128, 256; precision fp32, amp-fp16"
    ):
        dlperf(summary)
    chosen = dataclasses.replace(summary, results=choose(summary.results, {"precision": ["fp32"]}))
    assert json.loads(dlperf(chosen))["r50"]["1n1g"]["batch_size_per_device"] == 128


def test_strong_scaling_gives_the_batch_of_a_device() -> None:
    run = dataclasses.replace(on(4), scaling="strong", batch_size=256)
    content = json.loads(dlperf(Summary(results=judged([make_trace(run)]))))
    assert content["r50"]["1n4g"]["batch_size_per_device"] == 64


def test_points_without_a_speed_are_left_out_and_none_left_is_an_error() -> None:
    summary = Summary(results=judged([make_trace(NGC)], [NGC, on(8)]))
    assert list(json.loads(dlperf(summary))["r50"]) == ["1n1g"]
    assert any(line.startswith("1n8g") and "missing" in line for line in warnings(summary))
    with pytest.raises(TableError, match="no point has a run that ended ok"):
        dlperf(Summary(results=judged([], [NGC])))


# Choosing


def test_choosing_by_what_is_requested() -> None:
    summary = laptop()
    chosen = choose(summary.results, {"case": ["1n1g", "2n1g"], "option.image_size": ["32"]})
    assert [(r.run.case, r.run.options["image_size"]) for r in chosen] == [("1n1g", "32"), ("2n1g", "32")]
    assert chosen[1].speedup == pytest.approx(1.5)
    assert choose(summary.results, {"case": ["9n9g"]}) == ()
    with pytest.raises(TableError, match="no point has colour; known here are backend, batch_size, case"):
        choose(summary.results, {"colour": ["red"]})


def test_long_cells_stand_above_the_table_by_number() -> None:
    """A column of long names would push the numbers out of the window."""
    runs = [make_run(options={"data_folder": name}) for name in ("a" * 40, "b" * 40, "c")]
    written = text(Summary(results=judged([trace for run in runs for trace in point(run, [40.0])])), Page(wide=True))
    assert f"option.data_folder [1]: {'a' * 40}" in written
    rows = [line.split() for line in written.splitlines() if line.startswith("1n1g ")]
    assert sorted(row[3] for row in rows) == ["[1]", "[2]", "[3]"]
