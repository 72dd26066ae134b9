"""parse.load: what lies in a folder, what is odd about it, what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpc.outcome import Outcome, RankNote
from hpc.stamps import ABSENT, END
from hpc.trace import TraceError
from parse.attempt import Attempt, describe, measure, settling
from parse.load import load
from tests.unit.traces import (
    OFFSET_NS,
    cut_short,
    make_ranks,
    make_run,
    make_trace,
    put,
    put_exit_record,
    put_plan,
    repeats,
)


def only(loaded) -> Attempt:
    assert len(loaded.attempts) == 1
    return loaded.attempts[0]


def test_a_folder_with_plan_record_and_trace(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run, step_s=0.1))
    put_exit_record(tmp_path, run, Outcome.OK)
    put_plan(tmp_path, repeats(run, 2))
    loaded = load([tmp_path])
    attempt = only(loaded)
    assert attempt.counts
    assert attempt.measured.throughput == pytest.approx(40)
    assert attempt.steps_completed == 15
    assert [asked.run.repeat for asked in loaded.asked] == [1, 2]
    assert (loaded.refusals, loaded.remarks) == ((), ())


def test_no_stamps_are_kept(tmp_path):
    put(tmp_path, make_trace(make_run(nodes=3, measured_steps=500)))
    measured = only(load([tmp_path])).measured
    assert measured.step_s.nbytes == 500 * 8
    assert measured.step_s.base is None


def test_files_and_folders_that_overlap_are_read_once(tmp_path):
    path = put(tmp_path, make_trace())
    (tmp_path / "link.h5").symlink_to(path)
    loaded = load([tmp_path, path, tmp_path / "." / path.name])
    assert only(loaded).counts


def test_folders_below_are_read(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    put(tmp_path / "a" / "b", make_trace())
    assert only(load([tmp_path])).counts


def test_unfinished_and_foreign_files_beside_are_left_alone(tmp_path):
    (tmp_path / ".x.h5.17.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "settings.json").write_text("{}")
    loaded = load([tmp_path])
    assert (loaded.attempts, loaded.refusals) == ((), ())


# Refusals


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.h5", b"step time\n", "not an HDF5 file"),
        ("x.h5", b"", "is empty"),
        ("r.1.exit.json", b"{", "cannot be read"),
        ("r.1.exit.json", b'{"outcome": "ok"}', "not an exit record"),
        ("r.1.rank0.json", b"[]", "not a JSON object"),
        ("r.exit.json", b"{}", "neither a plan nor a record"),
        ("plan.abc.json", b"\xff\xfe", "cannot be read"),
        ("plan.abc.json", b"[]", "not a plan of ours"),
        ("plan.abc.json", b'{"schema": "rankwise-plan", "schema_version": 2, "runs": []}', "plan of schema 2"),
        ("plan.abc.json", b'{"schema": "rankwise-plan", "schema_version": 1}', "without a list of runs"),
        ("plan.abc.json", b'{"schema": "rankwise-plan", "schema_version": 1, "runs": [3]}', "describes none"),
        ("plan.abc.json", b'{"schema": "rankwise-plan", "schema_version": 1, "runs": [{}]}', "lacks nodes"),
    ],
)
def test_a_broken_file_is_one_line_with_its_name(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    put(tmp_path, make_trace())
    loaded = load([tmp_path])
    assert len(loaded.refusals) == 1
    assert str(tmp_path / name) in loaded.refusals[0]
    assert why in loaded.refusals[0]
    assert only(loaded).counts


def test_paths_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    refusals = load([tmp_path / "no", tmp_path / "other.json"]).refusals
    assert refusals == (
        f"{tmp_path / 'no'}: no such file or folder",
        f"{tmp_path / 'other.json'}: by its name neither a plan nor a record of an attempt",
    )


# Two traces of one attempt


def test_the_same_trace_twice_counts_once(tmp_path):
    path = put(tmp_path, make_trace())
    shutil.copy(path, tmp_path / "copy.h5")
    loaded = load([tmp_path])
    assert only(loaded).counts
    assert any("byte for byte; counted once" in remark for remark in loaded.remarks)


def test_two_different_traces_of_one_attempt_are_both_set_aside(tmp_path):
    first = put(tmp_path, make_trace(step_s=0.1))
    (tmp_path / "again").mkdir()
    second = put(tmp_path / "again", make_trace(step_s=0.2))
    loaded = load([tmp_path])
    attempt = only(loaded)
    assert attempt.measured is None
    assert not attempt.counts
    said = [remark for remark in loaded.remarks if "neither is counted" in remark]
    assert len(said) == 1
    assert str(first) in said[0]
    assert str(second) in said[0]


def test_a_file_named_like_another_run_counts_as_what_it_holds(tmp_path):
    put(tmp_path, make_trace()).rename(tmp_path / "other_r9.4.h5")
    loaded = load([tmp_path])
    assert only(loaded).number == 1
    assert "other_r9.4.h5: holds run" in loaded.remarks[0]


# What an attempt ended as


def test_the_exit_record_stands_over_the_trace(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run))
    put_exit_record(tmp_path, run, Outcome.TIMEOUT)
    loaded = load([tmp_path])
    assert only(loaded).outcome is Outcome.TIMEOUT
    assert not only(loaded).counts
    assert any("says ok, its exit record, written later, timeout" in remark for remark in loaded.remarks)


def test_a_second_exit_record_that_says_otherwise_is_said(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run))
    put_exit_record(tmp_path, run, Outcome.OK)
    (tmp_path / "z").mkdir()
    put_exit_record(tmp_path / "z", run, Outcome.OOM)
    loaded = load([tmp_path])
    assert only(loaded).outcome is Outcome.OK
    assert any("a second exit record" in remark for remark in loaded.remarks)


def test_ok_without_a_readable_trace_is_a_problem(tmp_path):
    run = make_run()
    put_plan(tmp_path, [run])
    put_exit_record(tmp_path, run, Outcome.OK)
    (tmp_path / f"{run.run_id}.1.h5").write_text("broken")
    loaded = load([tmp_path])
    assert only(loaded).problem == "ended ok, but no readable trace of it is here"
    assert len(loaded.refusals) == 1


def test_the_first_rank_to_fail_is_the_evidence(tmp_path):
    run = make_run(nodes=2)
    put_plan(tmp_path, [run])
    put_exit_record(tmp_path, run, Outcome.OOM)
    for rank, step in ((0, 7), (1, 6)):
        note = RankNote(
            rank=rank, outcome=Outcome.OOM, exception="OutOfMemoryError", message="no", step=step, hostname="a"
        )
        note.write(tmp_path, f"{run.run_id}.1")
    assert only(load([tmp_path])).evidence == "rank 1 on a after 7 steps: OutOfMemoryError: no"


def test_an_attempt_that_only_began_has_no_outcome(tmp_path):
    run = make_run()
    put_plan(tmp_path, [run])
    (tmp_path / f"{run.run_id}.1.begin.json").write_text("{}")
    assert only(load([tmp_path])).outcome is None


def test_records_of_runs_that_nothing_describes_are_said(tmp_path):
    put_exit_record(tmp_path, make_run(), Outcome.OK)
    loaded = load([tmp_path])
    assert only(loaded).asked is None
    assert any("no plan and no trace here describes this run" in remark for remark in loaded.remarks)


def test_without_a_plan_that_is_said(tmp_path):
    put(tmp_path, make_trace())
    assert any("no plan" in remark for remark in load([tmp_path]).remarks)


# Schemas of another age


def test_a_plan_with_unknown_fields_and_ids_of_its_own_is_read(tmp_path):
    path = put_plan(tmp_path, [make_run()])
    plan = json.loads(path.read_text())
    plan["runs"][0] |= {"fabric": "ib", "run_id": "old_name_r1"}
    path.write_text(json.dumps(plan))
    (asked,) = load([tmp_path]).asked
    assert (asked.run, asked.run_id, asked.extra) == (make_run(), "old_name_r1", {"fabric": "ib"})


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
    attempt = only(load([tmp_path]))
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


# Machine


def machine(run, **facts):
    return describe(make_trace(run, ranks=make_ranks(run, **facts)))


def test_facts_that_ranks_share_and_those_of_their_own_are_put_together():
    run = make_run(nodes=2, gpus_per_node=1)
    found = machine(run)
    assert found.ranks == 2
    assert found.facts["device"] == ("H200",)
    assert found.facts["driver"] == ("570.1",)
    assert found.facts["torch"] == ("2.13",)
    assert found.facts["numpy"] == ("2.0",)
    assert (found.oversubscribed, found.nodes_simulated) == ("", "")


def test_a_fact_in_which_ranks_differ_keeps_both_values():
    run = make_run(nodes=2)
    ranks = make_ranks(run)
    ranks[1]["software"] = {"torch": "2.12"}
    ranks[1]["nvidia_driver"] = "560.3"
    found = describe(make_trace(run, ranks=ranks))
    assert found.facts["torch"] == ("2.12", "2.13")
    assert found.facts["driver"] == ("560.3", "570.1")


@pytest.mark.parametrize(
    ("run", "facts", "reason"),
    [
        (make_run(ranks_per_node=2), {"affinity": [0]}, "2 ranks of 1 core each on a machine with 1 for them"),
        (
            make_run(ranks_per_node=2, cpus_per_rank=2),
            {"affinity": [0, 1, 2]},
            "2 ranks of 2 cores each on a machine with 3",
        ),
        (make_run(ranks_per_node=2), {"affinity": [0, 1]}, ""),
        (make_run(ranks_per_node=3), {"affinity": None, "cpus": 2}, "on a machine with 2"),
        (make_run(ranks_per_node=3), {"affinity": None, "cpus": None}, ""),
        (make_run(nodes=3), {"affinity": [0, 1], "boot_id": "one"}, "3 ranks of 1 core each on a machine with 2"),
        (make_run(nodes=3), {"affinity": [0, 1]}, ""),
        (
            make_run(ranks_per_node=2, gpus_per_node=2),
            {"device": {"uuid": "GPU-7"}},
            "2 ranks share 1 GPU",
        ),
        (make_run(ranks_per_node=2, gpus_per_node=2), {}, ""),
    ],
)
def test_oversubscription(run, facts, reason):
    found = machine(run, **facts).oversubscribed
    assert (reason in found) if reason else found == ""


def test_nodes_that_are_groups_of_ranks():
    run = make_run(nodes=2)
    assert machine(run, boot_id="one").nodes_simulated == "2 nodes on 1 machine"
    assert machine(run, boot_id=None).nodes_simulated == ""
    assert machine(run, boot_id=None, hostname="one").nodes_simulated != ""
    assert machine(run, nodes_simulated=True).nodes_simulated == "2 nodes on 2 machines"
    assert machine(make_run(ranks_per_node=2), nodes_simulated=True).nodes_simulated == ""


def test_facts_of_any_shape_are_borne():
    odd = {"backend": 3, "device": [], "software": ["a"], "boot_id": [1], "affinity": [[1]], "nvidia_driver": {"a": 1}}
    found = describe(make_trace(make_run(), ranks=[odd], environment={"backend": None, "project": "x"}))
    assert found.facts == {"driver": ("{'a': 1}",)}


# Which attempt counts


def attempts(*outcomes):
    whole = measure(make_trace())
    return [
        Attempt(run_id="r", number=n, asked=None, outcome=outcome, measured=whole if outcome is Outcome.OK else None)
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
def test_the_settling_attempt(outcomes, number):
    assert settling(reversed(attempts(*outcomes))).number == number


def test_an_ok_attempt_without_numbers_gives_way_to_one_with():
    first, second = attempts(Outcome.OK, Outcome.OK)
    assert settling([dataclasses.replace(first, measured=None), second]).number == 2
    assert settling([first, dataclasses.replace(second, measured=None)]).number == 1


def test_a_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def walk(path: Path, onerror):
        onerror(PermissionError(13, "Permission denied", str(path)))
        return iter(())

    monkeypatch.setattr("parse.load.os.walk", walk)
    assert load([tmp_path]).refusals == (f"{tmp_path}: cannot be read (Permission denied)",)
