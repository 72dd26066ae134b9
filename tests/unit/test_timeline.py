"""parse.timeline: what is drawn of a run, to the nanosecond, and what is not."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, GRADS_READY
from parse.timeline import main
from parse.trace_events.step_pieces import StepSlice, phases_of_step
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.timelines import ALL, Drawn, draw, late_trace, meetings_trace
from tests.unit.trace_processor import query
from tests.unit.traces import make_run, make_trace

# One step


STAMPS = [10, 20, 30, 50, 80, 90]


def test_a_step_has_the_terms_of_the_ledger():
    assert phases_of_step(STAMPS, ALL, 60) == [
        StepSlice("data", 10, 20),
        StepSlice("compute", 20, 50, (StepSlice("forward", 20, 30), StepSlice("backward", 30, 50))),
        StepSlice("wait", 50, 60), StepSlice("communication", 60, 80), StepSlice("optimizer", 80, 90),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("absent", "borders", "last", "names"),
    [
        ((), ALL, None, "data compute wait+communication optimizer"),
        ((), ALL, 50, "data compute communication optimizer"),  # the last rank itself
        ((), ALL, 81, "data compute wait optimizer"),  # within the clocks' bounds
        ((), ALL - {"grads_ready", "last_grads_ready"}, 60, "data compute+wait+communication optimizer"),
        ((3,), ALL, 60, "data compute+wait+communication optimizer"),
        ((2, 3, 4), ALL, None, "data compute+wait+communication+optimizer"),
        ((1, 2, 3, 4), ALL, None, "data+compute+wait+communication+optimizer"),
        ((4,), ALL, 60, "data compute wait communication+optimizer"),
        ((1,), ALL, 60, "data+compute wait communication optimizer"),
    ],
)
def test_what_no_stamp_separates_is_one(absent, borders, last, names):
    stamps = [ABSENT if at in absent else stamp for at, stamp in enumerate(STAMPS)]
    phases = phases_of_step(stamps, borders, last)
    assert phases is not None and " ".join(phase.name for phase in phases) == names
    assert [phase.begin_ns for phase in phases[1:]] == [phase.end_ns for phase in phases[:-1]]
    assert (phases[0].begin_ns, phases[-1].end_ns) == (10, 90)


@pytest.mark.parametrize("stamp", [1, 3, 4, 5])
def test_a_stamp_before_an_earlier_one_leaves_no_phases(stamp):
    stamps = [*STAMPS]
    stamps[stamp] = 5
    assert phases_of_step(stamps, ALL, None) is None


# A run


def test_every_slice_is_where_it_was(tmp_path):
    """Against the truth: within the clock's bounds, and on rank 0's node, whose clock is the axis, to the ns."""
    trace, truth = late_trace()
    drawn = draw(tmp_path, trace)
    exits = trace.globally(trace.barrier_exits_ns)
    origin = int(min(truth.min(), exits.min()))
    for rank in range(4):
        slices = drawn.slices(f"rank {rank}")
        steps = [each for each in slices if each[0].startswith("step ")]
        assert [name for name, _, _ in steps] == [f"step {step}" for step in range(trace.run.steps)]
        off = np.array([[begin, end] for _, begin, end in steps]) - (truth[rank][:, [0, 5]] - origin)
        bound = 0 if rank < 2 else trace.bounds_of(trace.stamps[:, :, 0])[rank].max()
        assert abs(off).max() <= bound
    data = [(begin, end) for name, begin, end in drawn.slices("rank 1") if name == "data"]
    assert data == [(int(step[0]) - origin, int(step[1]) - origin) for step in truth[1]]
    backward = [(begin, end) for name, begin, end in drawn.slices("rank 0") if name == "backward"]
    assert backward == [(int(step[2]) - origin, int(step[3]) - origin) for step in truth[0]]


def test_waits_are_as_long_as_the_last_rank_is_late(tmp_path):
    trace, _ = late_trace()
    drawn = draw(tmp_path, trace)
    grads = trace.to_global(GRADS_READY)
    waits = {}
    for rank in range(4):
        step = ""
        for name, begin, end in drawn.slices(f"rank {rank}"):
            step = name if name.startswith("step ") else step
            if name == "wait":
                waits[rank, int(step.split()[1])] = end - begin
    assert {(rank, step): int(grads[:, step].max() - grads[rank, step]) for rank, step in waits} == waits
    for step in range(0, trace.run.steps, 2):
        assert (3, step) not in waits and {rank for rank, of in waits if of == step} == {0, 1, 2}


def test_the_straggler_is_marked_with_arrows_to_who_waits(tmp_path):
    trace, _ = late_trace()
    drawn = draw(tmp_path, trace)
    marks = {args["step"]: args for args in drawn.args("straggler")}
    assert {step for step in marks if marks[step]["rank"] == 3} >= {*range(0, trace.run.steps, 2)}
    assert (
        marks[0]["host"] == "n1" and marks[0]["ranks_waiting"] == 3 and marks[0]["at"] == "reduction of the gradients"
    )
    assert abs(marks[0]["later_than_next_us"] - 5000) < 100
    assert len(drawn.of("s")) == len(marks)
    assert len(drawn.of("f")) == sum(args["ranks_waiting"] for args in marks.values())
    (about,) = drawn.args(f"{trace.run_id}.1")
    assert about["steps_with_a_proven_last_rank"] == len(marks)
    assert about["steps_without_provable_order"] == trace.run.steps - len(marks)


@pytest.mark.parametrize(("bound_ns", "proven"), [(1_000, True), (4_000_000, False)])
def test_nothing_is_drawn_across_nodes_that_the_bounds_do_not_support(tmp_path, capsys, bound_ns, proven):
    """Rank 3 is late by 1 ms: within 4 ms of what the clocks leave open it does not differ from the other node's ranks,
    but from rank 2, whose clock it reads."""
    trace = trace_of(run_of(), bound_ns=bound_ns, backward=on(3, ms=1.0))
    drawn = draw(tmp_path, trace)
    names = [{name for name, _, _ in drawn.slices(f"rank {rank}") if "step" not in name} for rank in range(4)]
    assert [("wait" in of) for of in names] == [proven, proven, True, False]
    assert ["wait+communication" in of for of in names] == [not proven, not proven, False, not proven]
    assert len(drawn.of("s")) == (46 if proven else 0) and len(drawn.of("f")) == (138 if proven else 0)
    assert len(drawn.args("straggler")) == len(drawn.slices("straggler of each step")) == (46 if proven else 0)
    assert f"{0 if proven else 46} have no provable order" in capsys.readouterr().out


def test_a_step_has_its_number_and_figures(tmp_path):
    trace, _ = late_trace()
    (args, *_) = draw(tmp_path, trace).args("step 6")
    assert (args["step"], args["rank"], args["window"], args["last_rank"]) == (6, 0, "measured", 3)
    assert args["wait_us"] == args["before_last_us"] and args["uncertain_us"] > 0
    phases = {name for name in args if name.endswith("_us")} - {"before_last_us", "uncertain_us"}
    whole = sum(args[name] for name in phases)
    step = trace.to_global(5)[0, 6] - trace.to_global(0)[0, 6]
    assert round(whole * 1000) == step


def test_the_bounds_of_the_clocks_are_a_counter_per_node(tmp_path):
    trace, _ = late_trace()
    drawn = draw(tmp_path, trace)
    values: dict[str, list[float]] = {}
    for event in drawn.of("C"):
        values.setdefault(drawn.processes[event["pid"]], []).append(event["args"]["us"])
    assert values["node 0: n0"] == [0.0] * trace.run.steps
    expected = trace.bounds_of(trace.stamps[:, :, 0])[2:].max(axis=0) / 1000
    assert np.allclose(values["node 1: n1"], expected, atol=0.001)


def test_timing_by_steps_draws_what_it_has(tmp_path):
    trace, _ = late_trace(timing="step")
    drawn = draw(tmp_path, trace)
    names = Counter(name for name, _, _ in drawn.slices("rank 2") if not name.startswith("step "))
    assert names == {"data": trace.run.steps, "compute+wait+communication+optimizer": trace.run.steps}
    assert not drawn.of("sf")


def test_collectives_before_the_gradients_that_are_not_recorded_leave_nothing_to_compare(tmp_path, capsys):
    drawn = draw(tmp_path, trace_of(run_of(), backend={"meets_before_gradients": ["BatchNorm"]}, backward=on(3, ms=5)))
    assert "compute+wait+communication" in {name for name, _, _ in drawn.slices("rank 0")}
    assert not drawn.of("sf") and "ranks are not compared" in capsys.readouterr().out
    assert {args["not_compared_because_of"] for args in drawn.args(drawn.processes[1].removeprefix("run "))} == {
        "BatchNorm"
    }


def test_contradicting_stamps_are_counted_and_have_no_phases(tmp_path, capsys):
    trace, _ = late_trace()
    trace.stamps[1, 7, 1] += 20_000_000
    drawn = draw(tmp_path, trace)
    begin, end = next((begin, end) for name, begin, end in drawn.slices("rank 1") if name == "step 7")
    assert [name for name, at, stop in drawn.slices("rank 1") if begin <= at and stop <= end and at < stop] == [
        "step 7"
    ]
    assert "1 steps of ranks have stamps that contradict" in capsys.readouterr().out


def test_a_step_that_begins_within_another_is_left_out_and_counted(tmp_path, capsys):
    """Perfetto would drop it, and report an error of the file."""
    trace, _ = late_trace()
    trace.stamps[1, 7, 0] -= 1_000_000
    trace.stamps[2, 9, 5] = trace.stamps[2, 9, 0] - 1
    drawn = draw(tmp_path, trace)
    query(drawn.path)
    steps = [{name for name, _, _ in drawn.slices(f"rank {rank}") if "step " in name} for rank in (1, 2)]
    everything = {f"step {step}" for step in range(trace.run.steps)}
    assert [everything - those for those in steps] == [{"step 7"}, {"step 9"}]
    assert "2 steps of ranks" in capsys.readouterr().out


# Meetings


def test_collectives_inside_a_step_stand_in_their_phase(tmp_path):
    trace = meetings_trace(1, "data")
    drawn = draw(tmp_path, trace)
    assert trace.meetings is not None
    on_axis = trace.globally(trace.meetings)
    slices = drawn.slices("rank 2")
    for at, label in enumerate(("all-gather 1 of 2", "all-gather 2 of 2", "norm")):
        its = [(begin, end) for name, begin, end in slices if name == label]
        assert [end - begin for begin, end in its] == (on_axis[2, :, at, 2] - on_axis[2, :, at, 1]).tolist()
    (step, *_) = [args for args in drawn.args("straggler") if args["step"] == 8]
    assert (step["rank"], step["at"]) == (1, "all-gather 1 of 2")
    assert {args["meetings_across_phases_left_out"] for args in drawn.args(f"{trace.run_id}.1")} == {0}


def test_collectives_across_phases_or_each_other_are_left_out_and_counted(tmp_path, capsys):
    trace = meetings_trace(1, "data")
    assert trace.meetings is not None
    trace.meetings[2, 8, 0, 2] = trace.stamps[2, 8, 2] + 1000  # it ends 1 µs after the forward that it is in
    trace.meetings[3, 9, 1, 1:] = trace.stamps[3, 9, 2] - 5_000, trace.stamps[3, 9, 2] + 5_000
    drawn = draw(tmp_path, trace)
    query(drawn.path)
    assert "2 collectives across two phases left out" in capsys.readouterr().out
    assert sum(name == "all-gather 1 of 2" for name, _, _ in drawn.slices("rank 2")) == trace.run.steps - 1


# Several runs, some steps


def test_several_runs_are_a_group_each_and_begin_together(tmp_path):
    first, second = make_trace(), make_trace(make_run(repeat=2))
    drawn = draw(tmp_path, first, second)
    runs = sorted(name for name in drawn.processes.values() if " run " in name)
    assert runs == [f"1. run {first.run_id}.1", f"2. run {second.run_id}.1"]
    assert sorted(name for name in drawn.processes.values() if "node" in name) == ["1. node 0: n0", "2. node 0: n0"]
    begins = [event["ts"] for event in drawn.of("X") if event["name"] == "step 0"]
    assert begins == [1.0, 1.0]  # the clocks were compared 1 µs before


def test_some_steps(tmp_path, capsys):
    trace, _ = late_trace()
    drawn = draw(tmp_path, trace, options="--steps 5:7")
    steps = [each for each in drawn.slices("rank 0") if each[0].startswith("step ")]
    assert [name for name, _, _ in steps] == ["step 5", "step 6", "step 7"]
    assert (
        min(begin for thread in ("rank 0", "rank 1", "rank 2", "rank 3") for _, begin, _ in drawn.slices(thread)) == 0
    )
    assert "3 steps" in capsys.readouterr().out
    assert main([str(next(tmp_path.glob("*/*.h5"))), "--out", str(tmp_path / "u.json"), "--steps", "16:20"]) == 1
    assert "steps 16 to 20 were requested; it has steps 0 to 15" in capsys.readouterr().err
    assert not (tmp_path / "u.json").exists()


def test_memory_is_bounded_by_pieces(tmp_path, monkeypatch):
    """Read in pieces of two steps, the same is drawn."""
    trace, _ = late_trace()
    whole = draw(tmp_path, trace).events
    monkeypatch.setattr("parse.trace_events.step_pieces.PIECE_STAMPS", 2 * 4 * 6)
    assert main([str(tmp_path / "0"), "--out", str(tmp_path / "p.json")]) == 0
    assert sorted(map(str, Drawn(tmp_path / "p.json").events)) == sorted(map(str, whole))


def test_a_step_without_a_collective_that_others_have_has_its_order_all_the_same(tmp_path):
    trace = meetings_trace(1, "data")
    assert trace.meetings is not None
    trace.meetings[:, 8, 2] = ABSENT
    backend = {**trace.environment["backend"], "meetings_by_step": True}
    drawn = draw(tmp_path, dataclasses.replace(trace, environment={**trace.environment, "backend": backend}))
    assert sum(name == "norm" for name, _, _ in drawn.slices("rank 2")) == trace.run.steps - 1
    assert next(args["rank"] for args in drawn.args("straggler") if args["step"] == 8) == 1
