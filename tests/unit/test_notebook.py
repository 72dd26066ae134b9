"""`import rankwise` in a notebook: records and tables are the summary's; pandas, polars and pyarrow read them."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import numpy as np
import pandas
import polars
import pyarrow
import pytest
from nbclient import NotebookClient

import rankwise
from hpc.model.trace_file import read_trace
from parse import arrow
from parse.report.export import CSV_COLUMNS
from parse.summarize import main as summarize
from tests.sweeps import ROOT, with_checkout
from tests.unit.page_folders import LATE_RANK, MARKUP, put_hostile, put_sweep, put_together
from tests.unit.pages import Elements
from tests.unit.traces import make_run, make_trace, put

VALUES: dict[str, list[Any]] = {
    "whole": [1, None, -(2**60)], "real": [0.5, None, 1e300], "mixed": [1, 2.5, None], "text": ["a", None, "größe\0"],
    "yes": [True, None, False], "none": [None, None, None], "nine": [1, 2, 3],
}  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "traces"
    put_sweep(folder, nodes=(1, 2), count=3)
    return folder


@pytest.fixture(scope="module")
def measurement(sweep: Path) -> Any:
    return rankwise.load(sweep)


def columns_of(count: int) -> arrow.ArrowColumns:
    return {
        name: arrow.column((values * count)[:count], float if name == "none" else str)
        for name, values in VALUES.items()
    }


# --- Arrow's PyCapsule interface ---


@pytest.mark.parametrize("count", [0, 3, 9, 1000])
def test_pyarrow_polars_and_pandas_read_every_type_and_where_no_value_is(count: int) -> None:
    handed = arrow.ArrowTable(columns_of(count))
    table = pyarrow.table(handed)
    table.validate(full=True)
    if count:
        kinds = ["int64", "double", "double", "large_string", "bool", "double", "int64"]
        assert [str(kind) for kind in table.schema.types] == kinds
    expected = {name: (values * count)[:count] for name, values in VALUES.items()}
    assert table.to_pydict() == expected
    assert polars.DataFrame(handed).to_dict(as_series=False) == expected
    frame = pandas.DataFrame.from_arrow(handed)
    assert {name: [*column.isna()] for name, column in frame.items()} == {
        name: [value is None for value in values] for name, values in expected.items()
    }


@pytest.mark.parametrize(
    "use",
    [
        pyarrow.table,
        polars.DataFrame,
        pandas.DataFrame.from_arrow,
        lambda handed: handed.__arrow_c_stream__(),
        pyarrow.RecordBatchReader.from_stream,
        lambda handed: pyarrow.RecordBatchReader.from_stream(handed).schema,
        lambda handed: [*pyarrow.RecordBatchReader.from_stream(handed)],
        lambda handed: pyarrow.table(handed).column("text").chunk(0),
    ],
    ids=["pyarrow", "polars", "pandas", "not read", "not begun", "schema", "batches", "one column"],
)
def test_what_is_handed_over_is_released_once(use: Callable[[arrow.ArrowTable], object]) -> None:
    """A second release would be an exception in a callback, which pytest makes an error."""
    gc.collect()
    assert not arrow._taken and not arrow._capsules
    handed = arrow.ArrowTable(columns_of(50))
    for _ in range(200):
        use(handed)
    result = use(handed)
    gc.collect()
    assert len(arrow._capsules) <= 1  # of the result, and of none of the rounds before
    del result
    gc.collect()
    assert not arrow._taken and not arrow._capsules


def test_a_column_outlives_its_table() -> None:
    column = pyarrow.table(arrow.ArrowTable(columns_of(300))).column("text")
    gc.collect()
    assert column.to_pylist() == VALUES["text"] * 100


# --- what load returns ---


def test_records_have_the_numbers_of_the_summary(measurement: Any, sweep: Path, capsys: Any) -> None:
    assert summarize([str(sweep), "--ledger", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert [point.json for point in measurement.points] == page["results"]
    small, large = measurement.points
    assert (large.case, large.devices, large.runs_ok, large.unit) == ("2n2g", 4, 2, "samples/s")
    assert large.median_speed == page["results"][1]["median_speed"] and large.speedup > 2
    assert large.interval == tuple(page["results"][1]["interval"]) and large.base == small.case == "1n1g"
    assert [run.outcome for run in measurement.runs] == ["ok"] * 5 + ["oom"]
    ledger = measurement.ledger(large)
    assert ledger.json == page["ledgers"][1]
    assert ledger.loss.value == pytest.approx(sum(term.loss.value for term in ledger.terms))
    (finding, *_) = measurement.findings
    assert finding == ledger.findings[0] and finding.kind == "straggler" and f"Rank {LATE_RANK}" in finding.sentences[0]


def test_tables_have_the_columns_of_the_csv(measurement: Any, sweep: Path, capsys: Any) -> None:
    assert summarize([str(sweep), "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [*measurement.points.columns] == lines[0].split(",") and {*CSV_COLUMNS} <= {*measurement.points.columns}
    points = polars.DataFrame(measurement.points)
    assert points["median_speed"].to_list() == [point.median_speed for point in measurement.points]
    assert points["interval_low"].to_list() == [point.interval[0] for point in measurement.points]
    runs = pandas.DataFrame.from_arrow(measurement.runs)
    assert [*runs["run_id"]] == [run.run_id for run in measurement.runs] and runs["throughput"].isna().tolist()[-1]
    terms = pyarrow.table(measurement.ledger(measurement.points[1])).to_pylist()
    assert [row["term"] for row in terms] == ["data", "compute", "wait", "communication", "optimizer", "step"]
    findings = pyarrow.table(measurement.findings).to_pylist()
    assert [row["costs"] for row in findings] == [finding.costs for finding in measurement.findings]


def test_steps_are_on_the_clock_of_all_ranks(measurement: Any) -> None:
    run = measurement.points[1].runs[0]
    steps, trace = measurement.steps(run), read_trace(Path(run.trace))
    table = polars.DataFrame(steps)
    assert (len(steps), len({step.rank for step in steps})) == (trace.run.ranks * trace.run.steps, 4)
    ends = table["end_ns"].to_numpy().reshape(4, -1)
    begins = table["begin_ns"].to_numpy().reshape(4, -1)
    assert begins.min() == 0 and (np.diff(ends.max(axis=0)) > 0).all()
    latest = trace.globally(trace.stamps[:, :, 5])
    assert (ends == latest - trace.globally(trace.stamps[:, :, 0]).min()).all()
    first, stop = trace.blocks[0]
    assert table.filter("measured")["step"].unique().sort().to_list() == [*range(first, stop)]
    assert steps[-1].end_ns == ends[-1, -1] and steps[1:3][0].step == 1 and steps[0].samples == 4
    last = table.filter("measured").sort("grads_ready_ns").group_by("step").last()["rank"].mode().to_list()
    assert last == [LATE_RANK]


def test_an_absent_stamp_and_loss_are_none(tmp_path: Path) -> None:
    trace = make_trace(make_run(timing="step"))
    trace.stamps[:, :, 2], trace.losses[:, 0] = np.iinfo(np.int64).min, np.nan
    put(tmp_path, trace)
    loaded = rankwise.load(tmp_path)
    steps = loaded.steps(loaded.runs[0])
    assert (steps[0].forward_end_ns, steps[0].loss, steps[1].loss) == (None, None, 1.0) and steps[0].begin_ns == 0
    assert polars.DataFrame(steps)["forward_end_ns"].null_count() == len(steps)


def test_a_notebook_shows_cards_and_tables(measurement: Any) -> None:
    shown = Elements(measurement._repr_html_())
    assert "How does it scale?" in shown.text and f"Rank {LATE_RANK}" in shown.text and "2n2g" in shown.text
    assert "straggler" in Elements(measurement.findings._repr_html_()).text
    assert "communication" in Elements(measurement.ledger(measurement.points[1])._repr_html_()).text
    many = Elements(measurement.steps(measurement.points[1].runs[0])._repr_html_())
    assert len(many.all("tr")) == 51 and many.text.endswith("50 of 184 rows")


def test_nothing_that_was_measured_is_markup(tmp_path: Path) -> None:
    put_hostile(tmp_path)
    loaded = rankwise.load(tmp_path)
    for shown in (loaded, loaded.points, loaded.runs, loaded.findings, loaded.ledger(loaded.points[0])):
        written = shown._repr_html_()
        assert {tag for tag, _ in Elements(written).elements} <= {
            "div", "b", "br", "big", "table", "thead", "tbody", "tr", "th", "td", "p"
        }  # fmt: skip
        assert "\u202e" not in written and "<img" not in written
    assert loaded.points[0].json["requested"]["option.note"] == MARKUP


@pytest.mark.parametrize(
    ("chart", "title"),
    [("speed", "Speed (samples/s)"), ("efficiency", "Efficiency against 1n1g (%)"), ("ledger", "A step, by what")],
)
def test_a_plot_is_an_svg_file_that_needs_nothing(chart: str, title: str, measurement: Any) -> None:
    written = measurement.plot(chart)._repr_svg_()
    root = ElementTree.fromstring(written)
    texts = [text for text in root.itertext() if text.strip()]
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and texts[0].startswith(title)
    assert {"2n2g"} <= {*texts} or "4" in texts
    names, declared = set(re.findall(r"var\((--[a-z]+)\)", written)), set(re.findall(r"(--[a-z]+):", written))
    assert names <= declared and "http" not in written.replace("http://www.w3.org/2000/svg", "")


def test_a_chart_that_is_not_there_is_said(measurement: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no chart 'pie' of this: speed, speedup, efficiency, ledger"):
        measurement.plot("pie")
    put(tmp_path, make_trace(make_run()))
    with pytest.raises(ValueError, match="a single point has none"):
        rankwise.load(tmp_path).plot()


def test_logs_have_points_and_no_steps_or_ledger(tmp_path: Path) -> None:
    _, logs, _ = put_together(tmp_path)
    loaded = rankwise.load(logs)
    assert [point.case for point in loaded.points] == ["1n1g", "1n8g"] and loaded.points[1].runs[0].trace is None
    with pytest.raises(ValueError, match="no trace"):
        loaded.steps(loaded.runs[0])
    with pytest.raises(KeyError, match="no ledger"):
        loaded.ledger(loaded.points[0])
    assert len(loaded.findings) == 0 and len(pyarrow.table(loaded.findings)) == 0


def test_a_summary_is_read_again(measurement: Any, sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "summary.json"
    assert summarize([str(sweep), "--format", "json", "--out", str(page)]) == 0
    assert [point.median_speed for point in rankwise.load(page).points] == [
        pytest.approx(point.median_speed) for point in measurement.points
    ]


def test_what_cannot_be_read_is_an_error_that_says_so(tmp_path: Path, sweep: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        rankwise.load(sweep, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="nothing to read in"):
        rankwise.load(tmp_path)
    with pytest.raises(ValueError, match="8n8g"):
        rankwise.load(sweep, base="8n8g")


# --- a guest in somebody's process ---


def python(code: str, cwd: Path, **env: str) -> str:
    environ = with_checkout({"PATH": "/usr/bin:/bin", **env})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_is_light(tmp_path: Path) -> None:
    code = "import sys, rankwise; print(*{'numpy', 'h5py', 'rich', 'parse', 'hpc', 'dataclasses'} & {*sys.modules})"
    assert python(code, tmp_path).split() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_foreign_package_of_our_names_stays_what_it_is(when: str, sweep: Path, tmp_path: Path) -> None:
    """PyPI's `parse` is one file, and many a notebook has it."""
    (tmp_path / "parse.py").write_text("def search(text): return text\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        + ("import parse\n" if when == "before" else "")
        + f"import rankwise; measurement = rankwise.load({str(sweep)!r})\n"
        "import parse; assert parse.search('x') == 'x'\n"
        "print(len(measurement.findings), len(measurement.steps(measurement.runs[0])), 'hpc' in sys.modules)\n"
        "assert 'straggler' in measurement._repr_html_() and parse is sys.modules['parse']\n"
    )
    assert python(code, tmp_path).split() == ["1", "46", "False"]


def test_the_example_runs(sweep: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "scaling.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    client = NotebookClient(
        notebook, timeout=120, iopub_timeout=60, resources={"metadata": {"path": str(sweep.parent)}}
    )
    client.execute(env=with_checkout({**os.environ, "IPYTHONDIR": str(tmp_path)}))
    shown = json.dumps([cell.get("outputs") for cell in notebook.cells])
    assert "How does it scale?" in shown and "Rank 3" in shown and "communication" in shown and "<svg" in shown
