"""Traces whose steps were drawn, as releases before wrote them: none is taken for measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import parse.compare
import parse.forecast
import parse.history
import parse.page.command
import parse.summarize
import parse.timeline
from hpc.model.spec import SIMULATED
from parse.runs.no_scaling import SIMULATED_LABEL
from tests.unit.simulated import draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run, put


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One and 32 nodes of 8 ranks."""
    out, random = tmp_path_factory.mktemp("simulated"), np.random.default_rng(3)
    for nodes in (1, 32):
        run = make_run(
            nodes=nodes, ranks_per_node=8, backend=SIMULATED, site=SIMULATED, workload="stated", warmup_steps=6,
            measured_steps=40,
        )  # fmt: skip
        trace = simulate(run, equal_ranks(random, run.ranks, run.steps), draw_clocks(random, nodes), random).trace
        environment = {SIMULATED: {"source": "a stated distribution", "seed": 3, "step_ms": 14.0, "costs_ms": {}}}
        put(out, replace(trace, environment=environment))
    return out


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_the_first_line_of_a_summary_says_it(form: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse.summarize.main([str(folder), "--format", form]) == 0
    assert "simulated" in capsys.readouterr().out.splitlines()[0].lower()


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_the_first_line_of_a_forecast_says_it(form: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse.forecast.main([str(folder), "--nodes", "32", "--format", form]) == 0
    out = capsys.readouterr().out
    assert SIMULATED_LABEL in out.splitlines()[0]
    assert form != "json" or json.loads(out)["simulated"].startswith(SIMULATED_LABEL)


def test_page_and_timeline_say_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, line = tmp_path / "page.html", tmp_path / "t.json"
    assert parse.page.command.main([str(folder), "--out", str(page)]) == 0
    assert capsys.readouterr().out.startswith(SIMULATED_LABEL)
    assert f"<title>{SIMULATED_LABEL}" in page.read_text()
    assert f"<h1>{SIMULATED_LABEL}" in page.read_text()
    assert parse.timeline.main([str(folder), "--steps", "20:20", "--out", str(line)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == SIMULATED_LABEL
    processes = [
        event["args"]["name"]
        for event in json.loads(line.read_text())["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert all(name.startswith(SIMULATED_LABEL) for name in processes if "node" in name)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (parse.summarize.main, ("--format", "dlperf")), (parse.page.command.main, ("--format", "latex")),
        (parse.compare.main, (".",)), (parse.history.main, ()),
    ],
)  # fmt: skip
def test_what_is_for_measurements_alone_refuses_it(
    command: object, arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    assert callable(command)
    assert command([*arguments, "."]) in (1, 2)
    assert SIMULATED_LABEL in capsys.readouterr().err
