"""Uneven stages and experts, the bubble, a slow link: found in simulated steps, with what the replay saves without."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from parse.graph.findings import Bubble, SlowLink, StageImbalance, StageWork, UnevenExperts
from parse.graph.imbalance import GraphRun
from parse.ledger.breakdown import step_breakdown
from parse.ledger.graph_what_if import ReplayCase, replays
from parse.ledger.point import ledgers
from parse.ledger.types import Change, Ledger, Record
from parse.ledger.verdict import CANNOT_TELL
from parse.ledger.verdicts import verdict
from parse.ledger.what_if import what_ifs
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.simulated import MS
from tests.unit.simulated_graph import Mesh, Model
from tests.unit.test_roots import late, simulated

UNEVEN = Model(micro_batches=8, stages=(1, 1, 1.25, 1))


def ledger_of(folder: Path, *traces: Trace) -> Ledger:
    folder.mkdir(exist_ok=True)
    for repeat, trace in enumerate(traces, 1):
        run = dataclasses.replace(trace.run, repeat=repeat)
        its = dataclasses.replace(trace, run=run, run_id="", point_id="")
        write_trace(folder / f"{its.run_id}.1.h5", its)
    (ledger,) = ledgers(results(load([folder])))
    return ledger


def finding_of(kind: type[Record], folder: Path, *traces: Trace) -> Record | None:
    """What the ledger of these traces finds of a kind."""
    return next((what for _, what in ledger_of(folder, *traces).findings_of(kind)), None)


def stating(trace: Trace, of_ranks) -> Trace:
    """The same, whose ranks report these of their script."""
    ranks = [{**facts, "script": its} for facts, its in zip(trace.ranks, of_ranks, strict=True)]
    return dataclasses.replace(trace, ranks=ranks)


def on_hosts(trace: Trace, hosts: str) -> Trace:
    """The same on hosts of these names, a letter for each rank."""
    ranks = [{**facts, "hostname": host} for facts, host in zip(trace.ranks, hosts, strict=True)]
    return dataclasses.replace(trace, ranks=ranks)


def test_uneven_stages_cost_what_the_steps_with_even_ones_are_shorter(tmp_path):
    uneven = simulated(Mesh(pp=4), UNEVEN, steps=40)
    even = simulated(Mesh(pp=4), dataclasses.replace(UNEVEN, stages=(1.0625,) * 4), steps=40)
    stages = finding_of(StageImbalance, tmp_path, uneven.trace)
    assert stages is not None and stages.slowest == 2
    assert stages.runs_at == pytest.approx(1.0625 / 1.25, abs=0.01)
    first, stop = even.trace.blocks[0].tolist()
    took = [(its.ends_ns[0, stop - 1] - its.ends_ns[0, first - 1]) / (stop - first) / MS for its in (uneven, even)]
    assert stages.costs == pytest.approx(took[0] - took[1], rel=0.05)


@pytest.mark.parametrize(
    ("mesh", "model", "change", "kind"),
    [
        (Mesh(pp=4), UNEVEN, Change.STAGES, StageImbalance),
        (Mesh(dp=4, ep=4), Model(experts=(1, 1, 1.8, 1)), Change.EXPERTS, UnevenExperts),
    ],
)
def test_what_is_found_costs_what_its_what_if_gains(tmp_path, mesh, model, change, kind):
    runs = [simulated(mesh, model, steps=40, seed=seed).trace for seed in range(3)]
    ledger = ledger_of(tmp_path, *runs)
    (gain,) = [each.gain for each in what_ifs(ledger) if each.change is change]
    ((finding, its),) = ledger.findings_of(kind)
    assert finding.costs == its.costs
    assert its.costs == pytest.approx(ledger.step.value * (1 - 1 / (1 + gain)), rel=1e-3)


@pytest.mark.parametrize(
    ("mesh", "model", "other", "kind"),
    [
        (Mesh(pp=2), Model(stages=(1, 1.5)), Model(stages=(1.5, 1)), StageImbalance),
        (Mesh(dp=2, ep=2), Model(experts=(1, 1.8)), Model(experts=(1.8, 1)), UnevenExperts),
    ],
)
def test_what_is_uneven_otherwise_in_another_run_is_not_named(tmp_path, mesh, model, other, kind):
    runs = [simulated(mesh, its, steps=40, seed=seed).trace for seed, its in enumerate([model, model, other])]
    assert finding_of(kind, tmp_path / "same", *runs[:2]) is not None
    assert finding_of(kind, tmp_path / "other", *runs[1:]) is None


@pytest.mark.parametrize(
    ("stated", "microbatches"), [([8, 8], 8), ([8, 4], 0), ([8, None], 0), ([None, None], 0), ([True, True], 0)]
)
def test_micro_batches_are_those_that_the_schedules_of_all_ranks_state(tmp_path, stated, microbatches):
    trace = simulated(Mesh(pp=2), Model(micro_batches=8, stages=(1, 1.25)), steps=40).trace
    shapes = [[] if count is None else [{"schedule": "Schedule1F1B", "microbatches": count}] for count in stated]
    stages = finding_of(StageImbalance, tmp_path, stating(trace, [{"facts": {"pipelines": its}} for its in shapes]))
    assert stages is not None and stages.microbatches == microbatches


def test_the_layers_of_a_stage_are_those_that_its_ranks_state(tmp_path):
    trace = simulated(Mesh(pp=2), Model(stages=(1, 2)), steps=40).trace
    shapes = [{"facts": {"pipelines": [{"microbatches": 4, "layers": layers}]}} for layers in (1, 2)]
    stages = finding_of(StageImbalance, tmp_path, stating(trace, shapes))
    assert stages is not None and [stage.layers for stage in stages.stages] == [1, 2]
    assert not stages.layer_moves


@pytest.mark.parametrize(
    ("works", "layers", "moves"),
    [
        ((10, 20), 0, True), ((10, 20), 1, False), ((10, 20), 2, False), ((9, 20), 2, True), ((10, 20), 4, True),
        ((10, 12, 20), 4, True), ((17, 20), 4, False),
    ],
)  # fmt: skip
def test_a_layer_moves_where_the_stage_that_gets_it_takes_less_than_the_slowest(works, layers, moves):
    stages = tuple(StageWork(stage=at, ranks=(at,), work=work, layers=layers) for at, work in enumerate(works))
    slowest = len(works) - 1
    uneven = StageImbalance(stages=stages, slowest=slowest, microbatches=0, mean=15, runs_at=0.75, costs=1)
    assert uneven.layer_moves == moves


def test_the_bubble_of_the_schedule_is_that_of_equal_stages(tmp_path):
    """One forward, one backward: each rank waits (stages − 1) / micro-batches of its compute, and for messages."""
    trace = simulated(Mesh(pp=4, dp=2), Model(micro_batches=8, spread=0.0), steps=40).trace
    ledger = ledger_of(tmp_path, trace)
    ((_, bubble),) = ledger.findings_of(Bubble)
    assert not ledger.findings_of(StageImbalance)
    assert bubble.of_schedule == pytest.approx(3 * 6, abs=2)
    assert bubble.waits == pytest.approx(bubble.of_schedule, rel=0.05)
    waits = step_breakdown(trace).by_dimension["pp"].rank_ns[:, 0].mean() / MS
    assert bubble.waits == pytest.approx(waits, rel=0.01)


def test_what_evening_saves_is_no_bubble(tmp_path):
    bubbles = [
        finding_of(Bubble, tmp_path / f"{at}", simulated(Mesh(pp=2), Model(stages=stages), steps=40).trace)
        for at, stages in enumerate([(1, 2), (1.5, 1.5)])
    ]
    assert all(bubbles) and bubbles[0].waits > 1.5 * bubbles[1].waits
    assert bubbles[0].of_schedule == pytest.approx(bubbles[1].of_schedule, rel=0.15)  # data is uneven, too


def test_uneven_experts_are_a_finding_where_others_do_not_share_their_position(tmp_path):
    truth = simulated(Mesh(dp=4, ep=4), Model(experts=(1, 1, 1.8, 1)), steps=40)
    experts = finding_of(UnevenExperts, tmp_path, truth.trace)
    assert experts is not None and (experts.ranks, experts.bytes) == ((2,), 0)
    assert experts.work - experts.mean == pytest.approx(0.75 * 0.8 * 2 * 4 * 1.5, rel=0.05)
    assert not verdict(step_breakdown(truth.trace)).ranks


def test_a_rank_alone_with_its_expert_is_no_straggler_behind_the_first_all_to_all(tmp_path):
    """Nor is it known whether it is late: with as many tokens it would be."""
    trace = simulated(Mesh(dp=4, ep=4), Model(), late(2, "backward", 8), steps=40).trace
    assert not verdict(step_breakdown(trace)).ranks
    even = stating(trace, [{"exchanged_bytes": [100.0, 100.0]}] * 4)
    assert verdict(step_breakdown(even)).ranks == (2,)
    assert finding_of(UnevenExperts, tmp_path, even) is None


@pytest.mark.parametrize(
    ("exchanged", "brought"),
    [
        ([[100, 100], [100, 100], [260, 100], [100, 100]], (260, 140)),
        ([[100, 260], [100, 100], [260, 100], [100, 100]], (260, 140)),
        ([[100, 100], [140, 100], [100, 100], [100, 100]], (0, 0)), (None, (0, 0)),
    ],
    ids=["to experts", "another, on the way back", "no more for these", "not known"],
)  # fmt: skip
def test_tokens_of_experts_are_told_where_all_to_alls_show_them(tmp_path, exchanged, brought):
    """The third position takes 1.8 times as long; whether for its tokens is what sizes show."""
    trace = simulated(Mesh(dp=4, ep=4), Model(experts=(1, 1, 1.8, 1)), steps=40).trace
    of_ranks = [{} if exchanged is None else {"exchanged_bytes": exchanged[rank]} for rank in range(4)]
    experts = finding_of(UnevenExperts, tmp_path, stating(trace, of_ranks))
    assert experts is not None and (experts.ranks, (experts.bytes, experts.mean_bytes)) == ((2,), brought)


@pytest.mark.parametrize(
    "bad", [[[1.0], [1.0, 2.0]], [[1.0], []], [[1.0], ["a"]], [[1.0], [float("nan")]], [[1.0], [-1.0]]]
)
def test_sizes_that_cannot_be_are_not_known(bad):
    trace = simulated(Mesh(pp=2), Model(micro_batches=2), steps=12).trace
    assert GraphRun(stating(trace, [{"exchanged_bytes": its} for its in bad])).reader.calls.exchanged is None


def test_a_slow_link_between_stages_is_named(tmp_path):
    model = Model(micro_batches=8, links={(1, 2): 3 * MS})
    link = finding_of(SlowLink, tmp_path, simulated(Mesh(pp=4, dp=2), model, steps=40).trace)
    assert link is not None
    assert (link.sender, link.receiver) in ((2, 4), (3, 5))
    assert (link.takes, link.usual, link.messages) == (pytest.approx(3.1), pytest.approx(0.1), 8)


@pytest.mark.parametrize(
    ("stages", "slow", "hosts", "named"),
    [
        (2, (1, 0), "aa", False), (2, (1, 0), "ab", True), (4, (2, 1), "aabb", True), (4, (1, 0), "aabb", False),
        (4, (1, 0), "aaaa", True), (3, (1, 0), "aaa", False),
    ],
)  # fmt: skip
def test_a_link_is_compared_with_those_of_its_kind(tmp_path, stages, slow, hosts, named):
    """Within a host one direction of a single pair, or of two, is no other kind of link than the other."""
    trace = simulated(Mesh(pp=stages), Model(micro_batches=8, links={slow: 3 * MS}), steps=40).trace
    link = finding_of(SlowLink, tmp_path, on_hosts(trace, hosts))
    assert (None if link is None else (link.sender, link.receiver)) == (slow if named else None)


def test_a_link_that_is_slow_in_one_run_alone_is_not_named(tmp_path):
    runs = [
        simulated(Mesh(pp=4), Model(micro_batches=8, links={slow: 3 * MS}), steps=40, seed=seed).trace
        for seed, slow in enumerate([(1, 2), (2, 1)])
    ]
    assert finding_of(SlowLink, tmp_path / "both", *runs) is None
    assert finding_of(SlowLink, tmp_path / "first", runs[0], runs[0]) is not None


@pytest.mark.parametrize("mesh", [Mesh(pp=2, dp=2, tp=2), Mesh(pp=4), Mesh(dp=4, ep=4)])
def test_nothing_is_found_of_even_stages_and_experts(tmp_path, mesh):
    ledger = ledger_of(tmp_path, simulated(mesh, Model(), steps=40).trace)
    assert not [each for each in ledger.findings if isinstance(each.what, (StageImbalance, UnevenExperts, SlowLink))]


def test_halves_of_a_run_add_up_to_its_steps():
    truth = simulated(Mesh(pp=2, dp=2), Model(), late(2, "backward", 5), steps=41)
    its = replays(
        GraphRun(truth.trace), [ReplayCase(change=Change.BUBBLE), ReplayCase(change=Change.STRAGGLER)], [[((2,), None)]]
    )
    first, stop = truth.trace.blocks[0].tolist()
    took = truth.ends_ns[0, stop - 1] - truth.ends_ns[0, first - 1]
    assert its.recorded.sum() == took and (its.recorded > 0).all()
    saved = (its.recorded.sum() - its.durations[:, 1].sum()) / (stop - first) / MS
    assert saved == pytest.approx(truth.costs_ms()[0], rel=0.1)
    assert its.durations[:, 0].sum() < took


def test_a_pipeline_without_replicas_cannot_tell_who_is_late():
    assert verdict(step_breakdown(simulated(Mesh(pp=4), UNEVEN, steps=40).trace)).kind == CANNOT_TELL
