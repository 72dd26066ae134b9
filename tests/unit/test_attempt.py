"""parse.runs.attempt: what is measured of an attempt, on which machine, and which attempt of a run counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import TraceError
from parse.runs.attempt import Attempt, deciding_attempt, describe, measure
from parse.runs.load import load
from tests.unit.traces import OFFSET_NS, cut_short, make_ranks, make_run, make_trace, put

# Measure


def test_clocks_seconds_apart_change_no_throughput():
    trace = make_trace(make_run(nodes=4), step_s=0.25)
    assert int(trace.stamps[0, 0, END] - trace.stamps[3, 0, END]) == 3 * OFFSET_NS
    assert measure(trace).throughput == pytest.approx(64)


def test_a_block_ends_with_its_last_rank():
    trace = make_trace(make_run(nodes=2), step_s=0.1)
    late = trace.stamps.copy()
    late[1, -1, END] += 500_000_000
    measured = measure(dataclasses.replace(trace, stamps=late))
    assert measured.throughput == pytest.approx(80 / 1.5)
    assert measured.step_s[-1] == pytest.approx(0.6)


def test_pauses_between_blocks_are_listed_and_part_of_no_speed():
    run = make_run(nodes=2, measured_steps=11, block_steps=4)
    assert run.blocks == [[5, 9], [14, 18], [23, 26]]
    step_s = np.full(run.steps, 0.1)
    step_s[[9, 10, 20]] = 0.3, 2, 1  # on the ways into the second and the third block
    trace = make_trace(run, step_s=step_s)
    measured = measure(trace)
    assert measured.pauses_s == pytest.approx((0.3 + 2 + 3 * 0.1, 1 + 4 * 0.1))
    assert (measured.throughput, measured.samples) == (pytest.approx(80), 88)
    assert measured.step_s == pytest.approx(np.full(11, 0.1))
    late = trace.stamps.copy()
    late[1, 8, END] += 50_000_000  # the first block ends later, so the pause is shorter
    assert measure(dataclasses.replace(trace, stamps=late)).pauses_s[0] == pytest.approx(2.55)
    assert measure(make_trace()).pauses_s == ()


def test_the_clocks_bounds_are_part_of_the_measure():
    trace = make_trace(make_run(nodes=2), step_s=0.1, clock_bound_ns=np.full((2, 2), 1e6))
    # 1 ms at either end of a second, and the allowance between the two synchronisations.
    assert 0.002 <= measure(trace).clock_share < 0.003
    assert measure(make_trace()).clock_share == 0
    by_a_device = make_trace(ranks=make_ranks(make_run(), stamp_bound_ns=5e6))
    assert measure(by_a_device).clock_share == pytest.approx(0.01)


def test_a_window_with_a_hole_is_not_measured(tmp_path):
    trace = make_trace(make_run(nodes=2))
    holed = trace.stamps.copy()
    holed[1, 9, END] = ABSENT
    put(tmp_path, dataclasses.replace(trace, stamps=holed))
    (attempt,) = load([tmp_path]).attempts
    assert not attempt.counts
    assert "ranks lack the end of a step among 4 to 14" in attempt.problem


def test_steps_that_run_backwards_are_not_measured():
    trace = make_trace()
    turned = trace.stamps.copy()
    turned[0, 9, END] = turned[0, 7, END]
    with pytest.raises(TraceError, match="before the one in front"):
        measure(dataclasses.replace(trace, stamps=turned))


def test_an_attempt_without_blocks_is_no_measure():
    with pytest.raises(TraceError, match="no measured block"):
        measure(cut_short(make_trace(), 3, Outcome.RANK_FAIL))


def test_a_window_without_samples_has_no_speed():
    trace = make_trace(make_run(nodes=2))
    with pytest.raises(TraceError, match="no samples"):
        measure(dataclasses.replace(trace, samples=np.zeros_like(trace.samples)))


# Machine


def machine(run, **facts):
    return describe(make_trace(run, ranks=make_ranks(run, **facts)))


def test_facts_that_ranks_share_and_those_of_their_own_are_put_together():
    run = make_run(nodes=2, gpus_per_node=1)
    result = machine(run)
    assert result.ranks == 2
    shown = {name: result.facts[name] for name in ("device", "driver", "torch", "numpy")}
    assert shown == {"device": ("H200",), "driver": ("570.1",), "torch": ("2.13",), "numpy": ("2.0",)}
    assert (result.oversubscribed, result.nodes_simulated) == ("", "")
    ranks = make_ranks(run)
    ranks[1]["software"] = {"torch": "2.12"}
    ranks[1]["nvidia_driver"] = "560.3"
    facts = describe(make_trace(run, ranks=ranks)).facts
    assert (facts["torch"], facts["driver"]) == (("2.12", "2.13"), ("560.3", "570.1"))


@pytest.mark.parametrize(
    ("run", "facts", "reason"),
    [
        (make_run(ranks_per_node=2), {"affinity": [0]}, "more ranks than cores: 2 ranks of 1 core on 1 core"),
        (
            make_run(ranks_per_node=2, cpus_per_rank=2),
            {"affinity": [0, 1, 2]},
            "too few cores: 2 ranks of 2 cores on 3 cores",
        ),
        (make_run(ranks_per_node=2), {"affinity": [0, 1]}, ""),
        (make_run(ranks_per_node=3), {"affinity": None, "cpus": 2}, "more ranks than cores: "),
        (make_run(ranks_per_node=3), {"affinity": None, "cpus": None}, ""),
        (make_run(nodes=3), {"affinity": [0, 1], "boot_id": "one"}, "3 ranks of 1 core on 2 cores"),
        (make_run(nodes=3), {"affinity": [0, 1]}, ""),
        (
            make_run(ranks_per_node=2, gpus_per_node=2),
            {"device": {"uuid": "GPU-7"}},
            "more ranks than GPUs: 2 ranks share 1 GPU",
        ),
        (make_run(ranks_per_node=2, gpus_per_node=2), {}, ""),
    ],
)
def test_oversubscription(run, facts, reason):
    result = machine(run, **facts).oversubscribed
    assert (reason in result) if reason else result == ""


def test_nodes_that_are_groups_of_ranks():
    run = make_run(nodes=2)
    assert machine(run, boot_id="one").nodes_simulated == "2 nodes on 1 machine"
    assert machine(run, boot_id=None).nodes_simulated == ""
    assert machine(run, boot_id=None, hostname="one").nodes_simulated != ""
    assert machine(run, nodes_simulated=True).nodes_simulated == "2 nodes on 2 machines"
    assert machine(make_run(ranks_per_node=2), nodes_simulated=True).nodes_simulated == ""


def test_facts_of_another_type_are_absent():
    odd = {"backend": 3, "device": [], "software": ["a"], "boot_id": [1], "affinity": [[1]], "nvidia_driver": {"a": 1}}
    result = describe(make_trace(make_run(), ranks=[odd], environment={"backend": None, "project": "x"}))
    assert result.facts == {}


# Which attempt counts


def attempts(*outcomes):
    whole = measure(make_trace())
    return [
        Attempt(
            run_id="r", number=n, requested=None, outcome=outcome, measured=whole if outcome is Outcome.OK else None
        )
        for n, outcome in enumerate(outcomes, start=1)
    ]


@pytest.mark.parametrize(
    ("outcomes", "number"),
    [
        ((Outcome.OK,), 1),
        ((Outcome.TIMEOUT, Outcome.OK), 2),
        ((Outcome.OOM, Outcome.OK), 2),
        ((Outcome.OK, Outcome.OK), 2),
        ((Outcome.PREEMPTED, Outcome.OOM, Outcome.TIMEOUT), 2),
        ((Outcome.PREEMPTED, Outcome.NODE_FAIL), 2),
        ((Outcome.PREEMPTED, None), 2),
    ],
)
def test_the_deciding_attempt(outcomes, number):
    assert deciding_attempt(reversed(attempts(*outcomes))).number == number


def test_an_ok_attempt_without_numbers_gives_way_to_one_with():
    first, second = attempts(Outcome.OK, Outcome.OK)
    assert deciding_attempt([dataclasses.replace(first, measured=None), second]).number == 2
    assert deciding_attempt([first, dataclasses.replace(second, measured=None)]).number == 1


def test_the_code_that_measured_a_run_is_a_fact_of_its_machine() -> None:
    """Runs of one point that other code measured disagree in it (alarm `disagreement`); older traces do not say it."""
    described = [describe(make_trace(make_run(), environment={"project": project})) for project in ({"code": "a"}, {})]
    assert [machine.facts.get("code of this project") for machine in described] == [("a",), None]
