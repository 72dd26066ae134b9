"""What `parse.report --request-samples` adds to the section: the recommended size, its node hours, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome
from parse.page.paper.content import ProposedWork, content, proposals
from parse.report.__main__ import main
from tests.unit.papers import put_sizes, summary_of, tables_of, words_of
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan, repeats

WORK = 3.6e6
FALLING = {1: (100.0, 100.0), 2: (180.0, 180.0), 4: (300.0, 280.0), 8: (400.0, 400.0)}
SMOOTH = {nodes: (100 * nodes / (1 + 0.2 * doublings),) * 2 for doublings, nodes in enumerate((1, 2, 4, 8))}
"""Speeds that the rule of forecasts fits, so that larger sizes have an interval below 50 %."""


@pytest.mark.parametrize(("efficiency", "nodes"), [(0.7, 4), (0.71, 2), (0.5, 8), (0.95, 1)])
def test_the_largest_size_whose_lower_end_is_efficient_enough_is_recommended(
    tmp_path: Path, efficiency: float, nodes: int
) -> None:
    summary = put_sizes(tmp_path, FALLING)
    (its,) = proposals(summary, ProposedWork(work=WORK, efficiency=efficiency))
    assert its.recommended is not None and (its.recommended.size, its.unit) == (nodes, "node")
    four = its.measured[2]
    assert four.efficiency.value == pytest.approx(0.725)
    assert four.efficiency.low == pytest.approx(0.7) and four.hours.low == pytest.approx(4 * WORK / 300 / 3600)
    assert four.hours.high == pytest.approx(4 * WORK / 280 / 3600)
    assert its.recommended.wall_hours == pytest.approx(its.recommended.hours.value / nodes)


@pytest.mark.parametrize(
    ("speeds", "sentence"),
    [
        ({2: (100.0,)}, "No size is recommended. Only 2n2g was measured"),
        ({1: (100.0,), 2: (150.0,), 4: (900.0,)}, "No size is recommended. Speed per device rises"),
        ({1: (100.0,), 2: (190.0,)}, "at least 70 %, lower end of its interval included: 95.0 % (no interval)"),
    ],
)  # fmt: skip
def test_no_size_is_recommended_without_a_scaling_to_judge_by(
    tmp_path: Path, speeds: Mapping[int, tuple[float, ...]], sentence: str
) -> None:
    assert sentence in words_of(content(put_sizes(tmp_path, speeds), request=ProposedWork(work=WORK)))


def test_sizes_inside_a_node_are_in_devices(tmp_path: Path) -> None:
    for ranks, speed in {1: 100.0, 2: 190.0}.items():
        put(tmp_path, make_trace(make_run(ranks_per_node=ranks), speed=speed))
    words = words_of(content(summary_of(tmp_path), request=ProposedWork(work=0.5)))
    assert "Recommended: 2 devices, the largest size measured" in words and "There 0.5 samples take" in words
    assert "Hours are of devices, as all sizes are inside one node." in words


def test_why_that_size_and_what_is_missing_is_said(tmp_path: Path) -> None:
    put_sizes(tmp_path, SMOOTH)
    for run in repeats(make_run(nodes=1, ranks_per_node=2), 2):
        put_exit_record(tmp_path, run, Outcome.OK)
    larger = make_run(nodes=16, ranks_per_node=2)
    put_plan(tmp_path, [larger])
    put_exit_record(tmp_path, larger, Outcome.OOM)
    summary = summary_of(tmp_path)
    whole = content(summary, request=ProposedWork(work=WORK))
    (sizes,) = tables_of(whole, "request")
    assert [(row[0], row[-1]) for row in sizes.rows] == [("1", ""), ("2", ""), ("4", "recommended"), ("8", "")]
    words = words_of(whole)
    for sentence in (
        "Why no larger size: on 8 nodes", "Why no smaller size: on 2 nodes", "Without a speed: 16n2g: no speed (oom)",
        "All attempts took",
    ):  # fmt: skip
        assert sentence in words


def test_a_table_in_devices_has_device_hours_until_somebody_says_what_a_node_has(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(
        "| case | runs (ok/total) | median (samples/s) |\n|---|---|---|\n| 8g | - | 800 |\n| 16g | - | 1500 |\n"
    )
    summary = summary_of(documents=(path,))
    (its,) = proposals(summary, ProposedWork(work=WORK))
    assert its.unit == "device" and its.recommended is not None
    assert its.recommended.hours.value == pytest.approx(16 * WORK / 1500 / 3600)
    (its,) = proposals(summary, ProposedWork(work=WORK, devices_per_node=8))
    assert its.recommended is not None and (its.unit, its.recommended.size) == ("node", 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--request-samples 0 --format latex", "'0' is no number above 0"), ("--request-samples 9", "--format latex"),
        ("--efficiency 80", "of a proposal, and none is requested"),
        ("--request-samples 9 --format latex --efficiency 101", "at most 100 %"),
        ("--request-samples 9 --format latex --devices-per-node 2", "only where no input says it"),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused(
    tmp_path: Path, arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sizes(tmp_path, {2: (100.0,), 4: (200.0,)})
    with pytest.raises(SystemExit):
        main([str(tmp_path), *arguments.split(), "--out", str(tmp_path / "out")])
    assert sentence in " ".join(capsys.readouterr().err.split())
