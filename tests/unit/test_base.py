"""What speedups are measured against where there is no 1n1g, or another case is chosen: in tables, charts and data."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.run_fields import RunFields
from hpc.model.spec import RunSpec
from parse.alarms.table import judge
from parse.report.notices import conclusion
from parse.report.summary import Summary, against_text, by_base, no_speedup_text, read_summary
from parse.report.table import FORMATS, of_tables, text
from parse.runs.attempt import RequestedRun
from parse.runs.result import Result, Run, against_base
from parse.summarize import main
from parse.text import Page
from tests.unit.logs import made
from tests.unit.traces import ended, judged, make_ranks, make_run, make_trace, point, requested_run

SPEEDS = {1: 116.36, 2: 213.33, 4: 365.71}
"""samples/s of 1, 2 and 4 nodes of 8 GPUs: 1.83 and 3.14 times that of one node, 91.7 % and 78.6 % of ideal."""


def put_logs(folder: Path, speeds: dict[int, float] = SPEEDS) -> Path:
    """NVIDIA's PyTorch logs of so many nodes of 8 GPUs."""
    for nodes, speed in speeds.items():
        log = made.ngc_pytorch(made.steps(speed, 128 * nodes), batch=16, devices=8 * nodes)
        made.put(folder, f"pytorch/{nodes}n8g/r50_b16_fp32_1.log", log)
    return folder


def megatron(nodes: int, ms: int, batch: int) -> str:
    """Megatron-LM's log on nodes of 8 GPUs with a step of `ms` milliseconds and a global batch size."""
    lines = [f"using world size: {8 * nodes}, data-parallel size: {nodes}, tensor-model-parallel size: 8 "]
    for number, end, _ in made.ends([ms / 1e3] * 130):
        lines.append(
            f" [{end:%Y-%m-%d %H:%M:%S}] iteration {number:8d}/  250000 | consumed samples: {number * batch:12d} |"
            f" elapsed time per iteration (ms): {ms}.0 | global batch size: {batch:5d} | lm loss: 2.5E+00 |"
        )
    return "\n".join(lines) + "\n"


def put_megatron(folder: Path, logs: dict[int, tuple[int, int]]) -> Summary:
    """The summary of Megatron's logs, by nodes each with its step in ms and its global batch size."""
    for nodes, (ms, batch) in logs.items():
        made.put(folder, f"{nodes}n8g/gpt_1.log", megatron(nodes, ms, batch))
    return read_summary([folder])[0]


def on(nodes: int, ranks: int = 8, **changes: Any) -> RunSpec:
    return make_run(nodes=nodes, ranks_per_node=ranks, gpus_per_node=ranks, **changes)


def of(*points: tuple[RunSpec, float]) -> tuple[Result, ...]:
    """Judged points with three runs of that speed each."""
    return judged([trace for run, speed in points for trace in point(run, [speed] * 3)])


def test_three_logs_scale_against_the_smallest(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    summary, _ = read_summary([put_logs(tmp_path)])
    golden("summary_base.txt", text(summary))
    rows = {row["case"]: row for row in csv.DictReader(io.StringIO(FORMATS["csv"](summary)))}
    assert [(row["base"], row["base_devices"]) for row in rows.values()] == [("1n8g", "8")] * 3
    assert float(rows["4n8g"]["scaling_efficiency"]) == pytest.approx(0.786, abs=5e-4)
    content = json.loads(FORMATS["json"](summary))
    assert [(each["base"], each["base_devices"], round(each["speedup"], 2)) for each in content["results"]] == [
        ("1n8g", 8, 1.0), ("1n8g", 8, 1.83), ("1n8g", 8, 3.14),
    ]  # fmt: skip


def test_logs_of_one_global_batch_size_are_strong_scaling(tmp_path: Path) -> None:
    summary = put_megatron(tmp_path, {1: (8800, 128), 2: (4800, 128), 4: (2800, 128)})
    assert [result.requested.case for result in summary.results] == ["1n8g", "2n8g", "4n8g"]
    assert [round(result.scaling_efficiency or 0, 3) for result in summary.results] == [1.0, 0.917, 0.786]
    page = text(summary, Page(verbose=True))
    assert "batch_size 128" in page and "scaling strong" in page
    assert "1n8g, 2n8g, 4n8g: strong scaling: these logs have one global batch size, 128" in page
    assert "3 of 3 runs ok; no warnings" in page
    rows = json.loads(FORMATS["json"](summary))["results"]
    assert [(row["scaling"], row["batch_size_per_device"], row["global_batch_size"]) for row in rows] == [
        ("strong", 16, 128), ("strong", 8, 128), ("strong", 4, 128),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("logs", "speedups"),
    [
        ({1: (8800, 128), 2: (9600, 256), 4: (11200, 512)}, [1.0, 1.83, 3.14]),
        ({1: (8800, 128), 2: (4800, 128), 4: (9600, 512)}, [None, 1.0, 3.67]),  # 4n8g has the local one of 1n8g
    ],
)
def test_logs_of_several_global_batch_sizes_are_told_apart_by_their_local_ones(
    tmp_path: Path, logs: dict[int, tuple[int, int]], speedups: list[float | None]
) -> None:
    summary = put_megatron(tmp_path, logs)
    assert not any(result.requested.strong for result in summary.results)
    actual = {(result.requested.case, result.run.batch_size): result.speedup for result in summary.results}
    assert sorted(round(value, 2) if value else 0 for value in actual.values()) == sorted(
        each or 0 for each in speedups
    )


NAMES = ["run_{}nodes/train.log", "nodes{}/train.log", "sweep-gpus{}/out.log", "{}-nodes_final/train.log",
         "2025-11-0{}_10-00-00/train.log", "slurm-123{}/train.log", "77780{}/train.log"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strong", [False, True])
def test_folders_that_differ_by_size_or_launch_alone_are_one_setting(tmp_path: Path, name: str, strong: bool) -> None:
    for nodes, ms in {1: 8800, 2: 9600, 4: 11200}.items():
        batch, factor = (128, nodes) if strong else (128 * nodes, 1)
        made.put(tmp_path, name.format(nodes), megatron(nodes, ms // factor, batch))
    results = read_summary([tmp_path])[0].results
    assert [round(result.scaling_efficiency or 0, 3) for result in results] == [1.0, 0.917, 0.786]
    assert len({result.requested.point for result in results}) == 3


def test_folders_of_other_names_or_with_a_case_twice_are_settings_of_their_own(tmp_path: Path) -> None:
    for folder, nodes in (("may", 1), ("june", 2), ("layers24", 4), ("seq_4096", 3), ("seq_8192", 6)):
        made.put(tmp_path / "named", f"{folder}/train.log", megatron(nodes, 8800, 128 * nodes))
    for folder, nodes in (("run_1nodes", 1), ("run_2nodes", 2), ("run_3nodes", 2)):
        made.put(tmp_path / "twice", f"{folder}/train.log", megatron(nodes, 8800, 128 * nodes))
    for each in ("named", "twice"):
        results = read_summary([tmp_path / each])[0].results
        assert results and all(result.base is None for result in results)
        reason = "no other case with all else equal is here; logs of other folders are other measurements"
        assert {no_speedup_text(result) for result in results} == {reason}


def test_the_reference_json_has_speedups_against_one_device_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(put_logs(tmp_path)), "--format", "dlperf"]) == 0
    captured = capsys.readouterr()
    assert [point["speedup"] for point in json.loads(captured.out)["r50"].values()] == [None] * 3
    assert (
        "1n8g, 2n8g, 4n8g: no speedup in this format, whose speedups are against 1n1g; here it is against 1n8g\n"
        in captured.err
    )


def test_a_case_without_a_speedup_stands_in_the_table_of_its_setting() -> None:
    points = ((on(1, 1), 15.0), (on(1), 110.0), (on(2, seed=7), 50.0), (on(4, seed=7), 90.0), (on(3, seed=9), 9.0))
    traces = [trace for run, speed in points for trace in point(run, [speed])]
    results = judged(traces, without_trace=[ended(on(8, seed=7), Outcome.OOM), ended(on(2), Outcome.OOM)])
    tables = [[f"{result.requested.case} {result.run.seed}" for result in part] for part in by_base(results)]
    assert tables == [["1n1g 0", "1n8g 0", "2n8g 0", "3n8g 9"], ["2n8g 7", "4n8g 7", "8n8g 7"]]


def test_the_conclusion_names_the_base_and_the_smaller_case_that_has_no_speed() -> None:
    traces = [trace for run, speed in ((on(1), 110.0), (on(2), 198.0), (on(6), 330.0)) for trace in point(run, [speed])]
    results = judged(traces, without_trace=[ended(on(1, 1), Outcome.OOM)])
    assert conclusion(Summary(results=results), [], 200)[0] == (
        "mpi delay: 6n8g runs 3.00 × as fast as 1n8g on 6 times the devices (50 % of ideal); not against 1n1g: oom"
    )


def test_a_chosen_base_hides_no_alarm_over_one_device() -> None:
    results = of((on(1, 1), 10), (on(1), 100), (on(2), 200))
    assert [[alarm.name for alarm in result.alarms] for result in results] == [[], ["superlinear"], ["superlinear"]]
    chosen = judge(against_base(results, "1n8g"))
    assert [[alarm.name for alarm in result.alarms] for result in chosen] == [[], ["rising"], ["rising"]]


def test_a_base_on_another_device_is_named() -> None:
    single, double = (make_trace(run, speed=100.0 * run.nodes) for run in (on(1), on(2)))
    other = dataclasses.replace(single, ranks=make_ranks(single.run, nvidia_driver="535.0"))
    (alarm,) = judged([other, double])[1].alarms
    assert alarm.text == "its base 1n8g ran with another driver: 535.0, not 570.1"
    assert alarm.figures["base"] == "1n8g"


SIZES = st.sampled_from([(1, 1), (1, 2), (1, 8), (2, 8), (4, 8)])
SPEED = st.sampled_from(["", "OOM"]) | st.floats(1, 1e6)


def speed_of(requested: RequestedRun, speed: float | str) -> Result:
    """A point of that speed, or one whose run is missing (empty), or will get no number (a word in its place)."""
    if isinstance(speed, float):
        return Result(requested=requested, runs=(), planned_runs=None, median_speed=speed)
    run = Run(requested=requested, attempt=None, placeholder=speed)
    return Result(requested=requested, runs=(run,), planned_runs=None)


@given(
    settings=st.lists(st.dictionaries(SIZES, SPEED, min_size=1), min_size=1, max_size=4),
    data=st.data(),
)
def test_whatever_the_bases_no_table_and_no_column_has_two(
    settings: list[dict[tuple[int, int], float | str]], data: st.DataObject
) -> None:
    backends = ("mpi", "torch-ddp", "paddle-fleet", "torch-fsdp")
    points = [
        speed_of(requested_run(on(*size, backend=backend)), speed)
        for backend, speeds in zip(backends, settings, strict=False)
        for size, speed in speeds.items()
    ]
    cases = {result.requested.case for result in points}
    results = judge(against_base(points, data.draw(st.sampled_from(["", *sorted(cases)]))))
    tables = of_tables(results)
    assert sorted(id(result) for table in tables for result in table) == sorted(map(id, results))
    for several in tables:
        assert len({against_text(result) for result in several if result.speedup is not None}) <= 1
    summary = Summary(results=results)
    for page in (text(summary), FORMATS["markdown"](summary), FORMATS["csv"](summary)):
        assert page
    for row in json.loads(FORMATS["json"](summary))["results"]:
        assert (row["speedup"] is None) == bool(row["no_speedup"])
        if row["speedup"] is not None:
            efficiency = row["speedup"] * row["base_devices"] / row["devices"]
            assert row["scaling_efficiency"] == pytest.approx(efficiency)


def test_what_a_site_sets_by_the_number_of_nodes_leaves_points_one_setting() -> None:
    """NCCL_NET is Socket on one node and OFI on several: otherwise no point would have a base."""

    def of(nodes: int, network: str, **changes: Any) -> RequestedRun:
        run = make_run(
            nodes=nodes, env={"NCCL_NET": network, "A": "1"}, by_nodes=("env.NCCL_NET", "sbatch.segment"),
            job_options={"cpu_bind": "none", **({"sbatch.segment": "2"} if nodes > 1 else {})},
        )  # fmt: skip
        run = dataclasses.replace(run, **changes)
        return RequestedRun(run=RunFields.of(run), run_id=run.run_id)

    single, double = of(1, "Socket"), of(2, "OFI")
    assert single.setting == double.setting and single.point != double.point
    assert of(1, "OFI").point != single.point
    assert of(2, "OFI", job_options={"cpu_bind": "cores"}).setting != single.setting
    assert of(2, "OFI", env={"NCCL_NET": "OFI", "A": "2"}).setting != single.setting
