"""Steps at sizes that were not measured, by their terms, from traces whose scatter and network are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # no stubs here
import numpy as np
import pytest

from hpc.model.collective_plan import collectives_run
from hpc.model.outcome import Outcome
from parse import summarize
from parse.extrapolation.outlook import Range, SizeRequest
from parse.extrapolation.step_terms import measured_overheads
from parse.extrapolation.text import _apart
from parse.forecast import main
from parse.page.forecast import forecast_section, forecasts_of
from parse.page.paper.proposal import ProposedWork, proposal_parts, proposals
from parse.page.types import Listing, Table
from parse.report.reading import read_summary
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.networks import ring
from tests.unit.test_collectives import measured as collectives
from tests.unit.test_ledger_standalone import SIZES
from tests.unit.traces import put, put_exit_record

RANKS = 2
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "summary.schema.json"


def measured(
    folder: Path, sizes: tuple[int, ...] = (1, 2, 3), seed: int = 1, slow: tuple[int, ...] = (), by_ms: float = 8
) -> Path:
    """Traces of two runs at each size: exponential compute, a ring of known latency and bandwidth; slow nodes."""
    for nodes in sizes:
        for repeat in (1, 2):
            run = run_of(nodes=nodes, ranks_per_node=RANKS, measured_steps=120, repeat=repeat)
            put(folder, trace_of(run, **known(nodes, seed + 100 * repeat, slow, by_ms)))
    return folder


def known(nodes: int, seed: int, slow: tuple[int, ...] = (), by_ms: float = 8) -> dict[str, Any]:
    scatter = np.random.default_rng((seed, nodes)).exponential(1, (nodes * RANKS, 400))
    return {
        "communication": ring(nodes, 0.1, 1.0, 1_000_000), "seed": seed,
        "backward": lambda rank, step: scatter[rank, step] + by_ms * (rank // RANKS in slow),
    }  # fmt: skip


def steps_of(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any] | None:
    assert main([str(folder), "--format", "json", *options]) in (0, 1)
    (series,) = json.loads(capsys.readouterr().out)["series"]
    steps: dict[str, Any] | None = series["steps"]
    return steps


def forecast_and_truth(folder: Path, capsys: pytest.CaptureFixture[str], seed: int = 1) -> tuple[dict[str, Any], float]:
    """Four nodes forecast from one, two and three, and their mean step in ms."""
    steps = steps_of(measured(folder, seed=seed), capsys, "--nodes", "4")
    truth = trace_of(run_of(nodes=4, ranks_per_node=RANKS, measured_steps=120), **known(4, seed + 1000))
    ends_ns = truth.stamps[0, -121:, -1]
    assert steps is not None
    (size,) = steps["sizes"]
    return size, float(ends_ns[-1] - ends_ns[0]) / 120e6


def test_a_step_on_four_nodes_is_within_its_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size, truth = forecast_and_truth(tmp_path, capsys)
    assert size["step"]["low"] <= truth <= size["step"]["high"] < 19
    terms = [size[name] for name in ("data", "compute", "optimizer")]
    both = [size[name]["value"] for name in ("wait", "communication")]
    assert sum(terms + both) == pytest.approx(size["step"]["value"], rel=0.02)
    assert {each["change"] for each in size["what_ifs"]} == {
        "every rank at the median", "communication for free", "input always ready",
    }  # fmt: skip


def test_three_sizes_cannot_tell_rounds_of_messages_from_a_ring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for nodes in (1, 2, 3):
        run = run_of(nodes=nodes, ranks_per_node=RANKS, measured_steps=120)
        put(tmp_path, trace_of(run, **known(nodes, 1) | {"communication": 10 * (nodes - 1)}))
    steps = steps_of(tmp_path, capsys, "--nodes", "4")
    assert steps is not None
    (size,) = steps["sizes"]
    assert size["communication"]["low"] < 20.5 and size["communication"]["high"] > 29.5


@pytest.mark.all
def test_of_twenty_sweeps_seventeen_are_within_their_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = 0
    for seed in range(20):
        (folder := tmp_path / str(seed)).mkdir()
        size, truth = forecast_and_truth(folder, capsys, seed)
        inside += size["step"]["low"] <= truth <= size["step"]["high"]
    assert inside >= 17


def test_slow_nodes_are_named_as_a_level_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured(tmp_path, (2, 8), slow=(1, 6))
    assert main([str(folder), "--nodes", "16"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "nodes of two levels: 2 of 8 (n1, n6) take " in out
    assert "16 nodes: held back most by wait" in out and "without the straggler +" in out


@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 3)])
def test_no_time_and_no_speed_is_below_zero_where_nodes_differ_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: tuple[int, ...]
) -> None:
    steps = steps_of(measured(tmp_path, sizes, slow=(1,), by_ms=60), capsys, "--nodes", "4")
    assert steps is not None
    (size,) = steps["sizes"]
    assert all(0 < size[name]["low"] < size[name]["value"] < size[name]["high"] for name in ("step", "speed"))


def test_summary_and_page_have_the_same_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = steps_of(measured(tmp_path), capsys, "--nodes", "8")
    assert summarize.main([str(tmp_path), "--forecast", "8", "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    jsonschema.validate(summary, json.loads(SCHEMA.read_text()))
    assert steps is not None and [series["steps"] for series in summary["forecast"]["series"]] == [steps]
    section = forecast_section(forecasts_of(read_summary([tmp_path])[0], SizeRequest(nodes=(8,))))
    assert section is not None
    assert "By the terms of a step, from 3n2g" in [
        block.caption for block in section.blocks if isinstance(block, Table)
    ]
    (lines,) = (block.lines for block in section.blocks if isinstance(block, Listing) and "holds" in block.title)
    assert lines[0].startswith("8 nodes: held back most by ")


def test_a_proposal_says_what_holds_back_its_size_and_those_ahead(tmp_path: Path) -> None:
    summary = read_summary([measured(tmp_path, (1, 2, 4))])[0]
    forecasts = forecasts_of(summary, SizeRequest(nodes=(8,)))
    (its,) = proposals(summary, ProposedWork(work=1e6, efficiency=0.01), forecasts)
    assert its.recommended is not None and its.recommended.result is not None
    overheads = measured_overheads(its.recommended.result)
    assert overheads is not None and overheads["communication"] == pytest.approx(ring(4, 0.1, 1.0, 1_000_000), rel=0.1)
    (part,) = proposal_parts([its], ProposedWork(work=1e6))
    words = [text for paragraph in part.paragraphs for text in paragraph]
    (now, ahead) = [text for text in words if "takes most for" in text or "held back most by" in text]
    assert now.startswith(f"Beside compute, a step on 4 nodes takes most for {next(iter(overheads))}: ")
    assert ahead.startswith("By forecast, not measured, 8 nodes: held back most by ")


@pytest.mark.parametrize(("sizes", "request_nodes"), [((2,), "4"), ((1,), "4"), ((1, 2, 3), "2")])
def test_where_the_series_cannot_tell_its_terms_cannot_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: tuple[int, ...], request_nodes: str
) -> None:
    assert steps_of(measured(tmp_path, sizes), capsys, "--nodes", request_nodes) is None


def test_failed_runs_are_left_out_and_a_million_nodes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_exit_record(tmp_path, run_of(nodes=6, ranks_per_node=RANKS, measured_steps=120), Outcome.TIMEOUT)
    steps = steps_of(measured(tmp_path, (1, 2)), capsys, "--nodes", "128,1000000")
    assert steps is not None
    (size,) = steps["sizes"]
    assert size["nodes"] == 128 and size["step"]["low"] < size["step"]["value"] < size["step"]["high"]


def test_ranks_of_one_node_are_said_not_to_show_how_nodes_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for nodes in (1, 2):
        run = run_of(nodes=nodes, ranks_per_node=RANKS, measured_steps=20)
        put(tmp_path, trace_of(run, **known(nodes, 1)))
    steps = steps_of(tmp_path, capsys, "--nodes", "4")
    assert steps is not None and steps["reason"] == "a run has 20 steps; the scatter of ranks needs 40"


def test_what_collectives_cost_alone_is_what_communication_grows_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for nodes in (1, 2):
        run = run_of(nodes=nodes, ranks_per_node=RANKS, measured_steps=120)
        put(tmp_path, trace_of(run, **known(nodes, 1), backend={"gradient_bytes": 4096}))
    put(tmp_path, collectives(collectives_run(run, ["all-reduce"], SIZES)))
    steps = steps_of(tmp_path, capsys, "--nodes", "8")
    assert steps is not None and steps["collectives"] == [2]
    # 4 KiB take 2.25 ms alone on two nodes, 1.5 of it for their bytes.
    (size,) = steps["sizes"]
    exposed = ring(2, 0.1, 1.0, 1_000_000)
    low, high = (size["communication"][end] - exposed for end in ("low", "high"))
    assert (low, high) == pytest.approx((2 * 0.75 + 0.75 * 1.5, 6 * 0.75 + 2 * 1.5), abs=0.1)


def test_a_rule_and_terms_that_share_no_speed_are_said_to_contradict() -> None:
    ranges = [Range(value=value, low=low, high=high) for value, low, high in ((2, 1, 3), (5, 4, 6), (3, 2, 4))]
    assert [_apart(ranges[0], other) for other in ranges] == [False, True, False]
    assert _apart(ranges[1], ranges[0])
    assert not _apart(Range(value=9), ranges[0])
