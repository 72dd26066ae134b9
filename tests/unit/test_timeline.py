"""parse.timeline: what is drawn of a run, to the nanosecond, and what is not."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, GRADS_READY
from hpc.model.trace import Trace
from hpc.model.trace_file import open_trace
from parse.timeline import main
from parse.trace_events.event_file import MAX_NAME
from parse.trace_events.phases import Phase, phases_of_step
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.simulated import draw_clocks, equal_ranks, simulate
from tests.unit.simulated_meetings import Meeting, simulate_meetings
from tests.unit.trace_processor import query
from tests.unit.traces import cut_short, make_ranks, make_run, make_trace, put

ROOT = Path(__file__).parents[2]
ALL = frozenset({"batch_ready", "grads_ready", "last_grads_ready", "reduced"})
SLICES = """
    select slice.ts, slice.dur, slice.name, slice.depth, thread.name, process.name from slice
    join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
FLOWS = """
    select source.name, source_thread.name, target.name, target_thread.name, target.ts + target.dur from flow
    join slice source on slice_out = source.id join thread_track source_track on source.track_id = source_track.id
    join thread source_thread on source_track.utid = source_thread.utid
    join slice target on slice_in = target.id join thread_track target_track on target.track_id = target_track.id
    join thread target_thread on target_track.utid = target_thread.utid
"""


def ns(us: Any) -> int:
    return round(us * 1000)


class Drawn:
    """A file that was written, strictly read: every event is of a kind, and has what it needs."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        self.path = path
        self.events = json.loads(text, parse_constant=pytest.fail)["traceEvents"]
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        for event in self.events:
            assert event["ph"] in "MXiCsf", event
            assert isinstance(event["pid"], int) and isinstance(event["ts"], int | float), event
            if event["name"] == "process_name":
                assert event["pid"] not in self.processes
                self.processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                assert (event["pid"], event["tid"]) not in self.threads
                self.threads[event["pid"], event["tid"]] = event["args"]["name"]
        for event in self.of("Xisf"):
            assert (event["pid"], event["tid"]) in self.threads, event

    def of(self, kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["ph"] in kinds]

    def slices(self, thread: str) -> list[tuple[str, int, int]]:
        """(name, begin, end) of the slices and marks on the track of that name, in the order of the file."""
        return [
            (event["name"], ns(event["ts"]), ns(event["ts"]) + ns(event.get("dur", 0)))
            for event in self.of("Xi")
            if self.threads[event["pid"], event["tid"]] == thread
        ]

    def args(self, name: str) -> list[dict[str, Any]]:
        return [event["args"] for event in self.of("Xi") if event["name"] == name]


def draw(folder: Path, *traces: Trace, options: str = "", status: int = 0) -> Drawn:
    for number, trace in enumerate(traces):
        (folder / str(number)).mkdir()
        put(folder / str(number), trace)
    files = [str(path) for path in sorted(folder.glob("*/*.h5"))]
    assert main([*files, "--out", str(folder / "t.json.gz"), *shlex.split(options)]) == status
    return Drawn(folder / "t.json.gz")


def late_trace(**changes: Any) -> tuple[Trace, Any]:
    """Two nodes of two ranks; rank 3 is 5 ms late in every other step. The trace and the truth of it."""
    run = run_of(measured_steps=10, **changes)
    random = np.random.default_rng(7)
    late = np.zeros((run.ranks, run.steps), bool)
    late[3, ::2] = True
    durations = equal_ranks(random, run.ranks, run.steps, spread=0.0, common=0.0).longer("backward", late, 5_000_000)
    simulated = simulate(run, durations, draw_clocks(random, run.nodes), random)
    return simulated.trace, simulated.global_ns


# One step


STAMPS = [10, 20, 30, 50, 80, 90]


def test_a_step_has_the_terms_of_the_ledger():
    assert phases_of_step(STAMPS, ALL, 60) == [
        Phase("data", 10, 20), Phase("compute", 20, 50, (Phase("forward", 20, 30), Phase("backward", 30, 50))),
        Phase("wait", 50, 60), Phase("communication", 60, 80), Phase("optimizer", 80, 90),
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


def test_a_forward_that_ends_elsewhere_is_left_out():
    stamps = [10, 20, 55, 50, 80, 90]
    phases = phases_of_step(stamps, ALL, None)
    assert phases is not None and phases[1] == Phase("compute", 20, 50)


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
    """Rank 3 is late by 1 ms: within 4 ms of what the clocks leave open it cannot be told from the other node's ranks,
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


def test_ranks_of_a_node_with_clocks_of_their_own_have_counters_of_their_own(tmp_path):
    run = make_run(ranks_per_node=2)
    drawn = draw(tmp_path, make_trace(run))
    assert {event["name"] for event in drawn.of("C")} == {"clock bound of rank 0", "clock bound of rank 1"}


def test_timing_by_steps_draws_what_it_has(tmp_path):
    trace, _ = late_trace(timing="step")
    drawn = draw(tmp_path, trace)
    names = Counter(name for name, _, _ in drawn.slices("rank 2") if not name.startswith("step "))
    assert names == {"data": trace.run.steps, "compute+wait+communication+optimizer": trace.run.steps}
    assert not drawn.of("sf")


def test_without_reduction_nobody_waits(tmp_path):
    drawn = draw(tmp_path, trace_of(run_of(reduction="off"), backward=on(3, ms=5)))
    assert {"wait+communication"} <= {name for name, _, _ in drawn.slices("rank 0")}
    assert not drawn.of("sf")


def test_one_rank_waits_for_nobody(tmp_path):
    drawn = draw(tmp_path, make_trace())
    names = {name for name, _, _ in drawn.slices("rank 0") if not name.startswith("step ")}
    assert names == {"data", "compute", "forward", "backward", "communication", "optimizer"}
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


def meetings_trace(late: int, phase: str) -> Trace:
    run = run_of(measured_steps=10, backend="torch-ddp")
    random = np.random.default_rng(3)
    where = np.zeros((run.ranks, run.steps), bool)
    where[late] = True
    durations = equal_ranks(random, run.ranks, run.steps, spread=0.0).longer(phase, where, 4_000_000)
    meetings = [Meeting("all-gather", "forward"), Meeting("all-gather", "backward"), Meeting("norm", "optimizer")]
    return simulate_meetings(run, durations, meetings, draw_clocks(random, run.nodes), random).trace


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


# What a viewer makes of it


def test_perfetto_counts_the_slices(tmp_path):
    trace, _ = late_trace()
    drawn = draw(tmp_path, trace)
    slices, flows, counters = query(drawn.path, SLICES, FLOWS, "select value from counter")
    expected = Counter(
        (begin, end - begin, name, thread)
        for thread in {*drawn.threads.values()} - {"run"}
        for name, begin, end in drawn.slices(thread)
    )
    assert Counter((ts, dur, name, thread) for ts, dur, name, _, thread, _ in slices if thread != "run") == expected
    depths = {(name, depth) for _, _, name, depth, thread, _ in slices if thread == "rank 0" and name != "straggler"}
    assert {depth for name, depth in depths if name.startswith("step ")} == {0}
    assert {depth for name, depth in depths if name in ("data", "compute", "wait", "communication")} == {1}
    assert {depth for name, depth in depths if name in ("forward", "backward")} == {2}
    steps = trace.run.steps
    assert len([name for _, _, name, _, _, _ in slices if name == "data"]) == 4 * steps
    assert len(counters) == 2 * steps
    assert len(flows) == len(drawn.of("f"))
    ends = {args["step"]: args for args in drawn.args("straggler")}
    assert {(source, target) for source, _, target, _, _ in flows} == {("backward", "communication")}
    assert Counter(thread for _, thread, _, _, _ in flows) == Counter(
        f"rank {args['rank']}" for args in ends.values() for _ in range(args["ranks_waiting"])
    )


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_arrows_lead_from_the_straggler_whatever_made_it_late(tmp_path, phase):
    """It is so late that its last phase begins after the others have begun to wait."""
    drawn = draw(tmp_path, trace_of(run_of(measured_steps=4), **{phase: on(3, ms=40)}))
    (flows,) = query(drawn.path, FLOWS)
    assert {(source, thread, target) for source, thread, target, _, _ in flows} == {
        ("backward", "rank 3", "communication")
    }
    assert Counter(thread for _, _, _, thread, _ in flows) == dict.fromkeys(("rank 0", "rank 1", "rank 2"), 10)


def test_perfetto_reads_collectives_and_hostile_names(tmp_path):
    trace = meetings_trace(1, "data")
    hosts = ["<script>alert(1)</script>", "<script>alert(1)</script>", "\x1b[2J" + "x" * 10_000, "x"]
    ranks = [{**facts, "hostname": host} for facts, host in zip(make_ranks(trace.run), hosts, strict=True)]
    drawn = draw(tmp_path, dataclasses.replace(trace, ranks=ranks))
    slices, flows, processes = query(drawn.path, SLICES, FLOWS, "select name from process where name is not null")
    named = sorted(name for (name,) in processes)
    assert named[0] == "node 0: <script>alert(1)</script>"
    assert (
        named[1].startswith("node 1: \N{REPLACEMENT CHARACTER}[2Jxxx") and len(named[1]) == len("node 1: ") + MAX_NAME
    )
    assert Counter(name for _, _, name, depth, _, _ in slices if name == "norm" and depth == 2) == {
        "norm": 4 * trace.run.steps
    }
    assert {(source, target) for source, thread, target, _, _ in flows if thread == "rank 1"} == {
        ("forward", "communication")
    }


def test_these_readers_can_fail(tmp_path):
    for name, content in (
        ("kind", '{"traceEvents": [{"ph": "Q", "name": "a", "pid": 1, "tid": 1, "ts": 0}]}'),
        ("thread", '{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]}'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(AssertionError):
            Drawn(tmp_path / name)
    crossing = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": at, "dur": 10} for at in (0, 5)]
    (tmp_path / "crossing.json").write_text(json.dumps({"traceEvents": crossing}))
    with pytest.raises(AssertionError):
        query(tmp_path / "crossing.json")


# Several runs, some steps


def test_several_runs_are_a_group_each_and_begin_together(tmp_path):
    one, two = make_trace(), make_trace(make_run(repeat=2))
    drawn = draw(tmp_path, one, two)
    runs = sorted(name for name in drawn.processes.values() if " run " in name)
    assert runs == [f"1. run {one.run_id}.1", f"2. run {two.run_id}.1"]
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


@pytest.mark.parametrize("steps", ["5", "7:5", "a:b", "-1:2", "5:"])
def test_wrong_steps_are_usage(steps, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["t.h5", "--out", "t.json", f"--steps={steps}"])
    assert ended.value.code == 2 and "FIRST:LAST" in capsys.readouterr().err


def test_memory_is_bounded_by_pieces(tmp_path, monkeypatch):
    """Read in pieces of two steps, the same is drawn."""
    trace, _ = late_trace()
    whole = draw(tmp_path, trace).events
    monkeypatch.setattr("parse.trace_events.step_pieces.PIECE_STAMPS", 2 * 4 * 6)
    assert main([str(tmp_path / "0"), "--out", str(tmp_path / "p.json")]) == 0
    assert sorted(map(str, Drawn(tmp_path / "p.json").events)) == sorted(map(str, whole))


# Files that are not as they should be


@pytest.mark.parametrize("name", ["trace_v1.h5", "trace_v1_coarse.h5", "trace_v2.h5"])
def test_older_files_are_drawn(tmp_path, name):
    path = ROOT / "tests/golden" / name
    assert main([str(path), "--out", str(tmp_path / "t.json")]) == 0
    drawn = Drawn(tmp_path / "t.json")
    with open_trace(path) as trace:
        assert len([event for event in drawn.of("X") if event["name"] == "step 1"]) == len(trace.stamps)


def test_a_failed_run_is_drawn_as_far_as_it_came(tmp_path, capsys):
    trace, _ = late_trace()
    cut = cut_short(trace, 4, Outcome.OOM)
    cut.stamps[2, 2:] = ABSENT
    cut.steps_completed[2] = 2
    drawn = draw(tmp_path, cut)
    counts = [sum(name.startswith("step ") for name, _, _ in drawn.slices(f"rank {rank}")) for rank in range(4)]
    assert counts == [4, 4, 2, 4]
    (about,) = drawn.args(f"{trace.run_id}.1")
    assert (about["steps"], about["steps_compared"]) == (4, 2)
    assert about["steps_without_provable_order"] == 4 - about["steps_with_a_proven_last_rank"]
    assert {args["outcome"] for args in drawn.args(f"{trace.run_id}.1")} == {"oom"}
    after = [name for name, begin, _ in drawn.slices("rank 0") if name in ("wait", "wait+communication")]
    assert after[-2:] == ["wait+communication"] * 2  # nothing is known of rank 2 there
    assert "4 steps" in capsys.readouterr().out


def test_a_run_without_a_step_is_one_line(tmp_path, capsys):
    trace = dataclasses.replace(cut_short(make_trace(), 0, Outcome.OOM), evidence="no room\nat all")
    path = put(tmp_path, trace)
    assert main([str(path), "--out", str(tmp_path / "t.json.gz")]) == 1
    assert capsys.readouterr().err == f"{path}: no rank completed a step (outcome oom: no room at all)\n"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_clocks_that_were_never_compared_are_one_line(tmp_path, capsys):
    trace, _ = late_trace()
    nothing = {"clock_local_ns": np.int64, "clock_offset_ns": np.float64, "clock_bound_ns": np.float64}
    path = put(tmp_path, dataclasses.replace(trace, **{name: np.empty((4, 0), of) for name, of in nothing.items()}))
    assert main([str(path), "--out", str(tmp_path / "t.json.gz")]) == 1
    assert "the ranks' clocks were never synchronised" in capsys.readouterr().err
    assert not (tmp_path / "t.json.gz").exists()


def test_files_that_are_none_are_named_and_the_others_drawn(tmp_path, capsys):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "a.h5").write_text("nothing")
    draw(tmp_path / "0", make_trace(), status=0)
    assert main([str(tmp_path / "0" / "a.h5"), str(tmp_path / "0" / "0"), "--out", str(tmp_path / "u.json")]) == 1
    assert "a.h5: not an HDF5 file" in capsys.readouterr().err
    assert "step 0" in {event["name"] for event in Drawn(tmp_path / "u.json").events}


def test_text_that_is_not_utf_8_is_one_line(tmp_path, capsys):
    import h5py

    path = put(tmp_path, make_trace())
    with h5py.File(path, "r+") as file:
        del file.attrs["outcome"]
        file.attrs["outcome"] = np.bytes_(b"\xff\xfeok")
    assert main([str(path), "--out", str(tmp_path / "t.json")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{path}: ") and error.count("\n") == 1


def test_numbers_that_are_none_do_not_reach_the_file(tmp_path):
    trace, _ = late_trace()
    ranks = [{**facts, "stamp_bound_ns": float("nan"), "hostname": "\ud800"} for facts in trace.ranks]
    losses = np.full_like(trace.losses, np.nan)
    drawn = draw(tmp_path, dataclasses.replace(trace, ranks=ranks, losses=losses))  # Drawn fails on NaN
    assert not drawn.of("sf")  # what nothing bounds is not proven


@pytest.mark.parametrize("name", ["missing.h5", "empty"])
def test_nothing_to_draw_is_named(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / name), "--out", str(tmp_path / "t.json")]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / name) in error and error.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    path = put(tmp_path, make_trace())
    assert main([str(path), "--out", str(tmp_path / "no" / "t.json")]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'no' / 't.json'}: No such file or directory\n"


def test_an_existing_file_stays_where_nothing_is_drawn(tmp_path):
    (tmp_path / "t.json").write_text("before")
    assert main([str(tmp_path / "missing.h5"), "--out", str(tmp_path / "t.json")]) == 1
    assert (tmp_path / "t.json").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_same_trace_gives_the_same_file(tmp_path):
    path = put(tmp_path, make_trace())
    for name in ("a.json.gz", "b.json.gz"):
        assert main([str(path), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
