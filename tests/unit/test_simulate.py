"""tools.simulation: the ledger names who was made late, levels of noise stay apart, and none is taken for measured."""

from __future__ import annotations

import json
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
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.straggler import verdict
from parse.ledger.types import PERSISTENT
from parse.runs.no_scaling import SIMULATED_LABEL
from tests.unit.simulated import equal_ranks
from tests.unit.traces import make_run, make_trace, put
from tools.simulation.__main__ import main
from tools.simulation.cluster import MS, draw_clocks, simulate
from tools.simulation.draws import ClusterSize, drawn
from tools.simulation.measured import read_parts

STATED = ("--compute", "20ms", "--scatter", "1ms", "--node-scatter", "0.1ms", "--collectives", "3ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 and 256 ranks; rank 77 of these is 5 ms late."""
    out = tmp_path_factory.mktemp("simulated")
    assert main(["--ranks", "8", *STATED, "--out", str(out)]) == 0
    assert main(["--ranks", "256", *STATED, "--straggler", "77:5", "--out", str(out)]) == 0
    return out


def of_ranks(folder: Path, ranks: int) -> Trace:
    return next(trace for trace in map(read_trace, folder.glob("*.h5")) if trace.run.ranks == ranks)


def test_the_ledger_names_the_straggler_and_its_cost(folder: Path) -> None:
    trace = of_ranks(folder, 256)
    result = verdict(step_breakdown(trace))
    (cost,) = trace.environment[SIMULATED]["costs_ms"].values()
    assert (result.kind, result.ranks) == (PERSISTENT, (77,))
    assert result.costs == pytest.approx(cost, rel=0.1)
    assert verdict(step_breakdown(of_ranks(folder, 8))).ranks == ()


def test_a_slow_node_is_named(tmp_path: Path) -> None:
    assert main(["--ranks", "64", *STATED, "--slow-node", "3:1.3", "--out", str(tmp_path)]) == 0
    assert verdict(step_breakdown(of_ranks(tmp_path, 64))).node == "n3"


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
        (parse.compare.main, (".",)), (parse.history.main, ()), (main, ("--ranks", "16", "--from")),
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


def test_node_effect_and_rank_noise_stay_apart_and_neighbouring_steps_together() -> None:
    """What is drawn of 128 measured ranks for 2,048 varies as they do, level by level."""
    random = np.random.default_rng(5)
    run = make_run(nodes=16, ranks_per_node=8, warmup_steps=6, measured_steps=200)
    durations = equal_ranks(random, run.ranks, run.steps, memory=0.9)
    of_nodes, of_ranks = 0.8 * random.standard_normal(16), 0.3 * random.standard_normal(128)
    for rank, ms in enumerate(np.repeat(of_nodes, 8) + of_ranks):
        durations = durations.longer("backward", (np.arange(128) == rank)[:, None].repeat(run.steps, 1), round(ms * MS))
    parts = read_parts(simulate(run, durations, draw_clocks(random, 16), random).trace)

    size = ClusterSize(nodes=256, ranks_per_node=8, steps=400)
    compute = drawn([parts], size, np.random.default_rng(6)).backward.reshape(256, 8, 400) / MS
    ranks = compute.mean(axis=2)
    assert ranks.mean(axis=1).std() == pytest.approx(of_nodes.std(), rel=0.2)
    assert (ranks - ranks.mean(axis=1, keepdims=True)).std() == pytest.approx(0.3, rel=0.2)
    noise = compute[:, 0] - compute.mean(axis=1)
    noise -= noise.mean(axis=1, keepdims=True)
    assert noise.std() == pytest.approx(0.03 * np.hypot(3, 6), rel=0.2)
    assert (noise[:, 1:] * noise[:, :-1]).mean() / noise.var() > 0.7
    assert compute.mean(axis=(0, 1)).std() == pytest.approx(0.05 * 9, rel=0.2)


def test_runs_of_the_largest_size_are_drawn_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    for nodes in (1, 2):
        run = make_run(nodes=nodes, ranks_per_node=4, warmup_steps=6, measured_steps=40)
        put(
            tmp_path, simulate(run, equal_ranks(random, run.ranks, run.steps), draw_clocks(random, nodes), random).trace
        )
    out = tmp_path / "out"
    assert main(["--ranks", "64", "--from", str(tmp_path), "--steps", "50", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{SIMULATED_LABEL}: 16 nodes of 4 ranks, 50 steps, drawn from 1 run of 2n4g")
    trace = of_ranks(out, 64)
    terms = dict(
        zip(("data", "compute", "wait", "communication", "optimizer"), step_breakdown(trace).mean_ns / MS, strict=True)
    )
    assert terms["compute"] == pytest.approx(9, rel=0.1)
    assert terms["communication"] == pytest.approx(2, rel=0.1)
    assert (trace.run.site, trace.run.backend) == (SIMULATED, SIMULATED)


def test_a_folder_holds_draws_from_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--collectives", "1ms", "--out", str(tmp_path)]
    assert main(["--ranks", "8", "--compute", "20ms", *arguments]) == 0
    with pytest.raises(SystemExit):
        main(["--ranks", "16", "--compute", "40ms", *arguments])
    assert "is of another source" in " ".join(capsys.readouterr().err.split()) and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("--ranks", "0", *STATED), 2, "whole number from 1 to 999,999,999"),
        (("--ranks", "8"), 2, "--from PATH is missing"),
        (("--ranks", "8", "--compute", "20"), 2, "no time like 20ms"),
        (("--ranks", "8", *STATED, "--from", "traces"), 2, "measured or stated, not both"),
        (("--ranks", "10", *STATED), 2, "no multiple of 8 ranks per node"),
        (("--ranks", "8", *STATED, "--straggler", "8:1"), 2, "the 8 ranks are counted from 0"),
        (("--ranks", "8", *STATED, "--slow-node", "0:0.5"), 2, "is not NODE:FACTOR"),
        (("--ranks", "999999999", *STATED), 2, "more than fits"),
        (("--ranks", "8", *STATED, "--scatter", "7ms"), 2, "a normal distribution has times below 0"),
        (("--ranks", "8", *STATED, "--straggler", "1:5", "--straggler", "1:7"), 2, "--straggler: the same one twice"),
        (("--ranks", "8", "--from", "none"), 1, "no such file"), (("--ranks", "8", "--from", "single"), 1, "one rank"),
        (("--ranks", "8", "--from", "traces", "single"), 1, "2 settings"),
    ],
)  # fmt: skip
def test_bad_input_is_named(
    arguments: tuple[str, ...], status: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, run in (("traces", make_run(nodes=2)), ("single", make_run(batch_size=7))):
        (tmp_path / name).mkdir()
        put(tmp_path / name, make_trace(run))
    try:
        ended = main(list(arguments))
    except SystemExit as error:
        ended = int(str(error.code))
    assert ended == status
    assert text in capsys.readouterr().err
    assert not list(tmp_path.glob("simulated/*.h5"))
