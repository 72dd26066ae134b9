"""What stragglers cost a pipeline: known by hand, by simulation, and by ByteDance's own analysis of its traces."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from parse.pipeline.read import GroupCost, GroupedBy, Kind, PipelineResult, read_pipeline_trace
from parse.pipeline.result import MAX_GROUPS, pipeline_result
from tests.unit.pipeline.made import Seconds, columns, fixed, slow, write

REDUCED = Path(__file__).parent / "ST-3-steps.parquet"
PUBLISHED = os.environ.get("STRAGGLER_ANALYSIS_DATA")
"""The folder `data` of ByteDance-Seed/StragglerAnalysis, whose three traces are then replayed, too."""


def result_of(folder: Path, seconds: Seconds = fixed, **sizes: int) -> PipelineResult:
    return pipeline_result(read_pipeline_trace(write(folder / "trace.parquet", columns(seconds, **sizes))))


def cost(result: PipelineResult, by: GroupedBy, **group: object) -> GroupCost:
    (single,) = [
        each for each in result.costs
        if each.group.by is by and all(getattr(each.group, name) == value for name, value in group.items())
    ]  # fmt: skip
    return single


def slow_sends(kind: str, stage: int, number: int, step: int, dp_rank: int) -> float:
    """FIXED, but a send takes longer than its recv and than a computation, so that the next send waits for it."""
    return fixed(kind, stage, number, step, dp_rank) * (6 + step if kind.endswith("send") else 1)


def scattered(kind: str, stage: int, number: int, step: int, dp_rank: int) -> float:
    """A time between half and one and a half times FIXED, the same for the same operation."""
    place = random.Random(f"{kind} {stage} {number} {step} {dp_rank}").uniform(0.5, 1.5)
    return fixed(kind, stage, number, step, dp_rank) * place


def test_a_slow_worker_costs_what_it_does_by_hand(tmp_path: Path) -> None:
    """Two stages, two data-parallel ranks, one micro batch; stage 1 of data-parallel rank 1 computes 3 times as long.

    Path of data-parallel rank 1: gather 0.5, forward 1, transfer 0.5, forward 3, backward 6, transfer 0.5, backward 2;
    then embedding, scatter, clip (0.25 each) and optimizer 0.5, for which rank 0 waits: 14.75 s. The mean forward is
    1.5 s and the mean backward 3 s: 11.75 s. Only the slow worker at these means: 10.25 s. All others at them: 16.25 s.
    """
    result = result_of(tmp_path, slow(fixed, 3, stage=1, dp_rank=1))
    times = result.recorded_s, result.replayed_s, result.ideal_s, result.loss_s
    assert times == pytest.approx((14.75, 14.75, 11.75, 3))
    worker = cost(result, GroupedBy.WORKER, stage=1, dp_rank=1)
    assert worker.group.rank == 3
    assert (worker.without_s, worker.alone_s, worker.pays_s, worker.share) == pytest.approx((10.25, 16.25, 4.5, 1.5))
    assert result.costs[0] == worker
    assert result.has_stragglers and result.loss_margin_s is None


@pytest.mark.parametrize("seconds", [scattered, slow_sends])
@pytest.mark.parametrize(
    ("stages", "dp_ranks", "micro_batches"), [(1, 1, 1), (1, 3, 2), (4, 1, 2), (4, 3, 6), (3, 2, 1)]
)
def test_the_replay_gives_back_a_trace_without_gaps(
    tmp_path: Path, seconds: Seconds, stages: int, dp_ranks: int, micro_batches: int
) -> None:
    sizes = {"stages": stages, "dp_ranks": dp_ranks, "micro_batches": micro_batches, "steps": 3}
    result = result_of(tmp_path, seconds, **sizes)
    for step in result.steps:
        assert step.replayed_s == pytest.approx(step.recorded_s, rel=1e-9)


def test_gaps_between_operations_are_left_out(tmp_path: Path) -> None:
    rows = columns(steps=2)
    rows["start_ts"] = [
        start + 5 * (kind == "optimizer") for start, kind in zip(rows["start_ts"], rows["optype"], strict=True)
    ]
    result = pipeline_result(read_pipeline_trace(write(tmp_path / "gaps.parquet", rows)))
    assert result.recorded_s == pytest.approx(result.replayed_s + 5)


def test_a_recv_that_ends_before_its_send_begins_takes_no_time(tmp_path: Path) -> None:
    """The clocks of two stages differ: the forward recv ends at 1.2 s; its send lasts from 1.5 to 2 s."""
    rows = columns()
    rows["duration"] = [
        0.7 if kind == "forward-recv" else duration
        for kind, duration in zip(rows["optype"], rows["duration"], strict=True)
    ]
    result = pipeline_result(read_pipeline_trace(write(tmp_path / "early.parquet", rows)))
    assert (result.recorded_s, result.replayed_s) == pytest.approx((8.75, 8.25))


def test_the_usual_time_of_an_optimizer_is_its_mean_and_of_communication_its_median(tmp_path: Path) -> None:
    """One optimizer of four takes 2.5 s in place of 0.5 s: 1 s in the mean. One of four gradient scatters takes 6.25 s
    in place of 0.25 s: 0.25 s in the median. 8.75 s is the step without both."""

    def uneven(kind: str, stage: int, number: int, step: int, dp_rank: int) -> float:
        extra = {"optimizer": 2.0, "grads-reduce-scatter": 6.0}.get(kind, 0.0) if (stage, dp_rank) == (1, 1) else 0.0
        return fixed(kind, stage, number, step, dp_rank) + extra

    result = result_of(tmp_path, uneven)
    assert (result.recorded_s, result.ideal_s) == pytest.approx((16.75, 9.25))


def test_equal_operations_have_no_stragglers(tmp_path: Path) -> None:
    result = result_of(tmp_path, stages=3, micro_batches=4, steps=3)
    assert not result.has_stragglers
    assert result.ideal_s == pytest.approx(result.replayed_s)
    assert {each.share for each in result.costs} == {None}


def test_a_slow_stage_pays_most_and_workers_alone_nothing(tmp_path: Path) -> None:
    result = result_of(tmp_path, slow(fixed, 2, stage=2), stages=4, dp_ranks=2, micro_batches=4, steps=2)
    assert result.costs[0].group.by is GroupedBy.STAGE and result.costs[0].group.stage == 2
    assert max(each.pays_s for each in result.costs if each.group.by is GroupedBy.WORKER) == pytest.approx(0)


def test_kinds_are_those_of_the_trace_and_a_transfer_is_one(tmp_path: Path) -> None:
    kinds = [each.group.kinds for each in result_of(tmp_path).costs if each.group.kinds]
    assert {kind for group in kinds for kind in group} == set(Kind)
    assert (Kind.FORWARD_SEND, Kind.FORWARD_RECV) in kinds and (Kind.BACKWARD_SEND, Kind.BACKWARD_RECV) in kinds


def test_of_many_workers_those_are_replayed_that_take_longest(tmp_path: Path) -> None:
    result = result_of(tmp_path, slow(fixed, 3, stage=0, dp_rank=MAX_GROUPS), dp_ranks=MAX_GROUPS + 2)
    assert dict(result.omitted) == {GroupedBy.WORKER: MAX_GROUPS + 4, GroupedBy.DP_RANK: 2}
    assert cost(result, GroupedBy.WORKER, stage=0, dp_rank=MAX_GROUPS).share == pytest.approx(1, abs=0.5)


def test_three_steps_of_a_published_trace_agree_with_its_authors_analysis() -> None:
    result = pipeline_result(read_pipeline_trace(REDUCED))
    times = result.recorded_s, result.replayed_s, result.ideal_s
    assert times == pytest.approx((2.3007136980692544, 2.258663840165051, 2.0400689890163144), rel=1e-5)
    last = cost(result, GroupedBy.STAGE, stage=3)
    assert (last.without_s, last.alone_s) == pytest.approx((1.9552973050025078, 2.4430650038199624), rel=1e-5)
    assert last.pays_s / result.loss_s == pytest.approx(1.3878027481815027, rel=1e-4)
    assert not result.has_stragglers and last.share is None  # three steps differ by more than their mean loses
    slowdowns = {0: 1.1067780733259192, 1: 1.1062282873154394}
    for dp_rank, slowdown in slowdowns.items():
        single = cost(result, GroupedBy.DP_RANK, dp_rank=dp_rank)
        assert single.alone_s / result.ideal_s == pytest.approx(slowdown, rel=1e-5)
    for kind, slowdown in ((Kind.FORWARD, 1.078137031344225), (Kind.EMBEDDING_REDUCE, 0.9627787034949586)):
        assert cost(result, GroupedBy.KIND, kinds=(kind,)).alone_s / result.ideal_s == pytest.approx(slowdown, rel=1e-5)


@pytest.mark.skipif(not PUBLISHED, reason="STRAGGLER_ANALYSIS_DATA names no folder with the published traces")
@pytest.mark.parametrize("name", ["AR", "SE", "ST"])
def test_the_published_answers_are_met_within_one_percent(name: str) -> None:
    folder = Path(PUBLISHED or "")
    published = json.loads((folder / f"result-{name}.json").read_text())
    stage = json.loads((folder / f"ms-{name}.json").read_text())
    result = pipeline_result(read_pipeline_trace(folder / f"trace-{name}.parquet"))
    times = zip((result.recorded_s, result.replayed_s, result.ideal_s), ("base", "nodelay", "noblk"), strict=True)
    for seconds, key in times:
        by_step = published[f"step_t_{key}"].values()
        assert seconds == pytest.approx(sum(by_step) / len(by_step), rel=0.01)
    last = cost(result, GroupedBy.STAGE, stage=result.stages - 1)
    assert (last.without_s, last.alone_s) == pytest.approx((stage["trem"], stage["tadd"]), rel=0.01)
