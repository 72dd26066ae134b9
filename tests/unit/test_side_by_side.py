"""parse.report.side_by_side: backends side by side; what stands in one table, in one column, in a cell."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from parse.report.side_by_side import WORK, compare, outcomes
from parse.report.summary import Summary, TableError, requested_values
from parse.report.table import FORMATS, text
from parse.text import Page
from tests.unit.traces import ended, judged, make_run, make_trace, point, repeats

CASES = ((1, 1), (1, 2), (2, 2))
SWEEP = {"workload": "resnet50", "options": {"image_size": "64"}}
UNFUSED = {"software": {"numpy": "2.0"}, "backend": {"fused": False}}
A, B = make_run(backend="a"), make_run(backend="b")


def frameworks() -> Summary:
    """Seven backends and two settings of one; one grows too large, one is refused, one not installed."""
    xla = {"options": {**SWEEP["options"], "xla": "on"}}
    settings = [
        ({"backend": "torch-ddp"}, (41.2, 80.11, 158.9)),
        ({"backend": "torch-horovod"}, (40.7, 78.0, 151.25)),
        ({"backend": "torch-dp"}, (Outcome.INVALID,) * 3),
        ({"backend": "tensorflow-horovod"}, (36, 70, 131.5)),
        ({"backend": "tensorflow-horovod", **xla}, (37.5, 73.8, 142.77)),
        ({"backend": "tensorflow-multiworker"}, (35.5, 64.02, 118)),
        ({"backend": "paddle-fleet"}, (13.1, 25.2, Outcome.OOM)),
        ({"backend": "mxnet-horovod"}, (Outcome.LAUNCH_FAIL, None)),
    ]
    traces, plan, attempts = [], [], []
    for setting, ends in settings:
        for (nodes, ranks_per_node), end in zip(CASES, ends, strict=False):
            runs = repeats(make_run(nodes=nodes, ranks_per_node=ranks_per_node, **(SWEEP | setting)), 2)
            plan += runs
            if isinstance(end, Outcome):
                attempts += [ended(run, end, evidence="why") for run in runs]
            elif end is not None:
                facts = {"environment": UNFUSED} if "horovod" in setting["backend"] else {}
                traces += [make_trace(run, speed=end, **facts) for run in runs]
    return Summary(results=judged(traces, plan, attempts))


def compared(*runs: RunSpec):
    return compare(judged([make_trace(run) for run in runs]))


def names(*runs: RunSpec) -> list[list[str]]:
    """The columns of each table."""
    return [[column.name for column in comparison.columns] for comparison in compared(*runs)]


def other(run: RunSpec, **changes: object) -> RunSpec:
    return dataclasses.replace(run, **changes)


@pytest.mark.parametrize(("form", "ending"), [("table", "txt"), ("markdown", "md")])
def test_the_formats_are_as_in_the_golden_files(golden, form, ending):
    golden(f"summary_frameworks.{ending}", FORMATS[form](frameworks()))


# What stands in one table


def test_one_backend_is_compared_with_nothing():
    assert compared(A, other(A, nodes=2), other(A, timing="step"), other(A, env={"X": "1"})) == ()
    assert len(compared(A, B)) == 1
    assert compared(A, other(B, gpus_per_node=1)) == ()


CHANGES = {
    "workload": "mlp", "code_digest": "ab", "batch_size": 8, "precision": "bf16", "scaling": "strong", "data": "jpeg",
    "site": "there", "warmup_steps": 6, "measured_steps": 11, "seed": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_other_work_is_another_table(name):
    assert set(WORK) == {*CHANGES, "on"}
    changed = {name: CHANGES[name]}
    assert compared(A, other(B, **changed)) == ()
    assert names(A, B, other(A, **changed), other(B, **changed)) == [["a", "b"], ["a", "b"]]


def test_an_option_of_all_says_what_is_compared():
    runs = [make_run(backend=b, options={"image_size": size}) for b in "ab" for size in ("32", "64")]
    tables = compared(*runs)
    assert [(table.same["option.image_size"], len(table.columns)) for table in tables] == [("32", 2), ("64", 2)]
    written = text(Summary(results=judged([make_trace(run) for run in runs])))
    for size in ("32", "64"):
        assert f"\nworkload delay, batch_size 4, precision fp32, option.image_size {size}\n" in written


# What makes a column


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"timing": "step"}, "b timing=step"),
        ({"telemetry": "off"}, "b telemetry=off"),
        ({"block_steps": 5}, "b block_steps=5"),
        ({"options": {"xla": "on"}}, "b option.xla=on"),
        ({"env": {"NCCL_ALGO": "Ring"}}, "b env.NCCL_ALGO=Ring"),
        ({"env": {"NCCL_ALGO": ""}}, "b env.NCCL_ALGO="),
        ({"container": "new.sif"}, "b container=new.sif"),
    ],
)
def test_a_setting_is_a_column_named_by_what_differs(changes, name):
    assert names(A, B, other(B, **changes)) == [["a", "b", name]]


def test_what_only_one_backend_has_is_named_and_a_container_of_each_is_not():
    assert names(A, other(B, timing="step")) == [["a", "b timing=step"]]
    assert names(A, other(B, cpus_per_rank=2)) == [["a cpus_per_rank=1", "b cpus_per_rank=2"]]
    assert names(other(A, container="torch.sif"), other(B, container="tf.sif")) == [["a", "b"]]


def test_two_points_of_a_case_are_two_columns():
    single, eight = (make_run(backend="a", ranks_per_node=ranks, gpus_per_node=8) for ranks in (1, 8))
    (table,) = compared(single, eight, other(eight, backend="b"))
    assert [column.name for column in table.columns] == [
        "a ranks_per_node=1 gpus_per_node=8", "a ranks_per_node=8 gpus_per_node=8", "b",
    ]  # fmt: skip


def test_one_rank_that_drives_all_gpus_of_its_node_is_one_column():
    whole = make_run(backend="torch-dp", gpus_per_node=8)
    ddp = make_run(backend="torch-ddp", ranks_per_node=8, gpus_per_node=8)
    (table,) = compared(whole, whole.baseline(), ddp, ddp.baseline())
    assert [(column.name, list(column.points)) for column in table.columns] == [
        ("torch-ddp", ["1n1g", "1n8g"]), ("torch-dp", ["1n1g", "1n8g"]),
    ]  # fmt: skip


AXES = {
    "nodes": (1, 2), "ranks_per_node": (1, 2, 4), "gpus_per_node": (0, 4), "cpus_per_rank": (1, 2),
    "backend": ("a", "b", "c"), "timing": ("phases", "step"), "container": ("", "x"), "precision": ("fp32", "bf16"),
    "options": ({}, {"xla": "on"}, {"xla": "off", "size": "1"}), "env": ({}, {"X": ""}, {"xla": "on"}),
}  # fmt: skip
RUNS = st.lists(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in AXES.items()}), max_size=12)


@given(RUNS)
def test_no_point_is_lost_or_shares_its_cell(settings):
    results = judged(
        [make_trace(run) for run in {run.point_id: run for run in (make_run(**fields) for fields in settings)}.values()]
    )
    tables = compare(results)
    cells = [
        result.requested.point for table in tables for column in table.columns for result in column.points.values()
    ]
    assert len(cells) == len(set(cells))
    without_pair = [result for result in results if result.requested.point not in cells]
    assert compare(without_pair) == ()
    for table in tables:
        assert len({column.name for column in table.columns}) == len(table.columns)
        assert all(tuple(column.points) and set(column.points) <= set(table.cases) for column in table.columns)


def test_all_that_a_run_asks_for_has_a_name():
    run = make_run(backend="a", nodes=2, ranks_per_node=2)
    changes = {
        "nodes": 3, "ranks_per_node": 3, "gpus_per_node": 2, "cpus_per_rank": 2, "backend": "b", "timing": "step",
        "block_steps": 5, "reduction": "off", "telemetry": "off", "placement": "nested", "search": "batch-size",
        "container": "x", "options": {"x": "1"}, "data_cache": "device", "epochs": 9, "target_accuracy": 75.9,
        "eval_every": 3, "arguments": ("--lr", "0.1"), "tokens_per_sample": 128,
        "env": {"X": "1"}, **CHANGES,
    }  # fmt: skip
    assert set(changes) == {field.name for field in dataclasses.fields(RunSpec)} - {"repeat"}
    before, *after = judged([make_trace(each) for each in (run, *(other(run, **{n: v}) for n, v in changes.items()))])
    assert all(requested_values(result) != requested_values(before) for result in after)


def test_columns_of_other_machines_have_a_remark():
    met = {"hostname": "n0", "cpus": 64, "device": {"kind": "gpu", "name": "A100", "uuid": "GPU-0"}}
    runs = [other(run, gpus_per_node=1) for run in (A, B)]
    elsewhere = make_trace(runs[1], ranks=[{**met, "cpu_model": "Xeon", "nvidia_driver": "570.1"}])
    results = judged([make_trace(runs[0]), elsewhere])
    (table,) = compare(results)
    assert table.apart == ("not the same device in all columns: H200 (a); A100 (b)",)
    for form in ("table", "markdown", "json"):
        assert table.apart[0] in FORMATS[form](Summary(results=results))
    assert compared(*runs)[0].apart == ()


# Cells


def test_cases_go_from_few_devices_to_many():
    runs = [other(run, nodes=n, ranks_per_node=r) for run in (A, B) for n, r in ((10, 1), (1, 8), (2, 1), (1, 2))]
    assert compared(*runs)[0].cases == ("1n2g", "2n1g", "1n8g", "10n1g")


def row(written: str, case: str) -> list[str]:
    return next(line for line in written.splitlines() if line.startswith(f"{case} ")).split()


def test_a_cell_says_what_became_of_its_point():
    runs = repeats(A, 3)
    attempts = [
        ended(run, outcome) for run, outcome in zip(runs, (Outcome.TIMEOUT, Outcome.OOM, Outcome.OOM), strict=True)
    ]
    results = judged([make_trace(B)], [*runs, B, other(B, nodes=2)], attempts)
    assert outcomes(results[0]) == ("oom", "timeout")
    written = text(Summary(results=results))
    assert row(written, "1n1g") == ["1n1g", "oom,", "…", "40.00", "1.00"]
    assert row(written, "2n1g") == ["2n1g", "missing"]


def test_a_point_of_which_some_runs_ended_ok_has_a_speed():
    runs = repeats(A, 2)
    results = judged([make_trace(runs[0]), make_trace(B)], [*runs, B], [ended(runs[1], Outcome.OOM)])
    assert outcomes(results[0]) == ("ok",)
    assert row(text(Summary(results=results)), "1n1g") == ["1n1g", "40.00", "1.00", "40.00", "1.00"]


def test_a_speed_without_a_baseline_has_no_speedup():
    assert row(text(Summary(results=judged([make_trace(other(run, nodes=2)) for run in (A, B)]))), "2n1g") == [
        "2n1g", "80.00", "-", "80.00", "-",
    ]  # fmt: skip


def test_the_speeds_are_those_of_the_long_table():
    summary = frameworks()
    (table,) = compare(summary.results)
    shown = {result.requested.point: result for column in table.columns for result in column.points.values()}
    assert {result.requested.point: result for result in summary.results} == shown


# Printed


def test_a_long_name_is_shortened_unless_the_page_is_wide():
    long = make_run(backend="b" * 200)
    summary = Summary(results=judged([make_trace(run) for run in (A, long)]))
    assert f"{'b' * 45}…{'b' * 45}" in text(summary)
    assert f"a   {'b' * 200}\n" in text(summary, Page(wide=True))


def test_a_title_says_what_differs_from_table_to_table():
    runs = [other(run, scaling=scaling) for run in (A, B) for scaling in ("weak", "strong")]
    written = text(Summary(results=judged([make_trace(run) for run in runs])))
    titles = re.findall(r"^workload delay, batch_size 4, precision fp32, scaling .*", written, re.MULTILINE)
    assert sorted(titles) == [f"workload delay, batch_size 4, precision fp32, scaling {s}" for s in ("strong", "weak")]


def test_outside_words_steer_nothing():
    hostile = make_run(backend="x|y\x1b[31m", env={"A": "\x07|"})
    summary = Summary(results=judged([make_trace(run) for run in (A, hostile)]))
    for form in ("table", "markdown", "json"):
        assert not {"\x1b", "\x07"} & set(FORMATS[form](summary))
    table = [line for line in FORMATS["markdown"](summary).splitlines() if line.startswith("| ")][:3]
    assert {line.replace(r"\|", "").count("|") for line in table} == {6}


def test_json_has_it_as_data():
    (table,) = json.loads(FORMATS["json"](frameworks()))["comparisons"]
    assert table["cases"] == ["1n1g", "1n2g", "2n2g"]
    assert table["requested"]["option.image_size"] == "64"
    assert table["columns"][3] == {
        "name": "tensorflow-horovod option.xla=on", "backend": "tensorflow-horovod", "differs": {"option.xla": "on"},
    }  # fmt: skip
    assert len(table["cells"]) == 23
    cells = {(cell["case"], cell["column"]): cell for cell in table["cells"]}
    assert cells["2n2g", "torch-ddp"] == {
        "case": "2n2g", "column": "torch-ddp", "speed": pytest.approx(158.9), "speedup": pytest.approx(3.857, abs=1e-3),
        "base": "1n1g", "outcome": "ok", "point_id": "2n2g_torch-ddp_resnet50_b4_fp32_cd9fa20bcd", "folder": None,
    }  # fmt: skip
    oom = cells["2n2g", "paddle-fleet"]
    assert (oom["speed"], oom["speedup"], oom["outcome"]) == (None, None, "oom")
    assert ("2n2g", "mxnet-horovod") not in cells


def test_the_reference_json_refuses_several_backends_and_says_how_to_choose():
    summary = Summary(results=judged([trace for run in (A, other(B, env={"X": "a b"})) for trace in point(run, [1.0])]))
    with pytest.raises(
        TableError, match=r"backend a, b; .* choose one, for example by --where backend=b --where 'env.X=a b'"
    ):
        FORMATS["dlperf"](summary)
