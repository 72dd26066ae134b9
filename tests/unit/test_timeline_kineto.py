"""Profiles of torch.profiler beside a run: placed by the trace's synchronisation points, or refused with the reason."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.trace import Trace
from parse.timeline import main
from parse.trace_events.kineto import EVENTS, EventsError, read_profile, values_of
from tests.unit.simulated import Clock, equal_ranks, simulate
from tests.unit.timelines import Drawn, ns
from tests.unit.trace_processor import query
from tests.unit.traces import make_run, put

GOLDEN = Path(__file__).parents[1] / "golden" / "kineto"
BASE_NS = 1_790_000_000_000_000_000
UNIX_NS = (1_795_000_000_000_000_000, 1_795_000_000_400_000_000)
"""Unix time when the clock of each node shows 0: the second one's is set wrong by 400 ms, as if by hand."""
BOUND_NS = 150


def two_nodes(**changes: Any) -> tuple[Trace, np.ndarray]:
    """A run on two nodes with clocks of their own, and when its steps truly happened."""
    run = make_run(nodes=2, warmup_steps=6)
    random = np.random.default_rng(5)
    clocks = [Clock(), Clock(offset_ns=77_000_000_000, drift=30e-6)]
    simulated = simulate(run, equal_ranks(random, 2, run.steps), clocks, random)
    shape = simulated.trace.clock_local_ns.shape
    offsets = np.broadcast_to(np.array(UNIX_NS, np.int64)[:, None], shape) + random.integers(-BOUND_NS, BOUND_NS, shape)
    unix = {"unix_offset_ns": offsets, "unix_bound_ns": np.full(shape, BOUND_NS)}
    return dataclasses.replace(simulated.trace, **(unix | changes)), simulated.global_ns


def profile(trace: Trace, rank: int, **changes: Any) -> dict[str, Any]:
    """What Kineto writes on a rank of that run: its forward in each step, by the Unix time of its node."""
    unix_ns = trace.stamps[rank] + UNIX_NS[rank]

    def event(step: int) -> dict[str, Any]:
        begin, end = (int(moment) - BASE_NS for moment in unix_ns[step, 1:3])
        return {"ph": "X", "cat": "user_annotation", "name": f"forward {step}", "pid": 4242, "tid": 4242,
                "ts": begin / 1000, "dur": (end - begin) / 1000, "args": {"External id": step}}  # fmt: skip

    named = {"ph": "M", "ts": 0.0, "pid": 4242, "tid": 0}
    events = [
        {**named, "name": "process_name", "args": {"name": "python"}},
        {**named, "name": "thread_name", "tid": 4242, "args": {"name": "thread 4242 (python)"}},
        *(event(step) for step in range(len(unix_ns))),
        {"ph": "s", "id": 7, "cat": "ac2g", "name": "ac2g", "pid": 4242, "tid": 4242, "ts": event(3)["ts"] + 1},
        {"ph": "f", "bp": "e", "id": 7, "cat": "ac2g", "name": "ac2g", "pid": 4242, "tid": 4242,
         "ts": event(4)["ts"] + 1},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": event(5)["ts"]},
    ]  # fmt: skip
    content = {"schemaVersion": 1, "host_name": f"n{rank}", "baseTimeNanoseconds": BASE_NS,
               "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "traceEvents": events,
               "traceName": "x"}  # fmt: skip
    return {**content, **changes}


def store(folder: Path, name: str, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    text = (content if isinstance(content, str) else json.dumps(content)).encode()
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def draw(folder: Path, trace: Trace, *options: str, status: int = 0) -> Drawn:
    path = put(folder, trace)
    out = folder / "t.json.gz"
    assert main([str(path), "--out", str(out), "--kineto", str(folder / "profiles"), *options]) == status
    return Drawn(out)


def test_profiles_of_all_nodes_stand_on_one_axis(tmp_path, capsys):
    """Unix time of the nodes is 400 ms apart; on the file's axis each profile lies where the run's phases do."""
    trace, truth = two_nodes()
    for rank, name in enumerate(("a.json", "b.json.gz")):
        store(tmp_path / "profiles", name, profile(trace, rank))
    drawn = draw(tmp_path, trace)
    origin = int(truth[0].min()) - next(begin for _, begin, _ in drawn.slices("rank 0"))
    profiled = {pid: name for pid, name in drawn.processes.items() if "torch.profiler" in name}
    assert sorted(profiled.values()) == [
        "torch.profiler of rank 0: (no name)", "torch.profiler of rank 0: python",
        "torch.profiler of rank 1: (no name)", "torch.profiler of rank 1: python",
    ]  # fmt: skip
    bounds = [
        float(text.split("±")[1].split()[0]) * 1000 for text in capsys.readouterr().out.splitlines() if "±" in text
    ]
    seen = 0
    for event in drawn.of("X"):
        if event["name"].startswith("forward "):
            rank, step = int(profiled[event["pid"]].split()[3][0]), int(event["name"].split()[1])
            begin, end = (int(moment) - origin for moment in truth[rank, step, 1:3])
            bound = bounds[rank] + 200  # of the printed figure's digits, and of the step's own origin
            assert abs(ns(event["ts"]) - begin) <= bound, (rank, step)
            assert abs(ns(event["ts"]) + ns(event["dur"]) - end) <= bound + 2
            seen += 1
    assert seen == 2 * trace.run.steps and bounds[0] < 1000 < bounds[1] < 100_000


def test_perfetto_shows_both(tmp_path):
    trace, _ = two_nodes()
    for rank in range(2):
        store(tmp_path / "profiles", f"{rank}.json", profile(trace, rank))
    drawn = draw(tmp_path, trace)
    counts, flows = query(
        drawn.path,
        "select process.name, count(*) from slice join thread_track on track_id = thread_track.id join thread using "
        "(utid) join process using (upid) where slice.name glob 'forward *' group by 1 order by 1",
        "select source.name, target.name from flow join slice source on slice_out = source.id "
        "join slice target on slice_in = target.id where source.name glob 'forward *'",
    )
    assert counts == [(f"torch.profiler of rank {rank}: python", trace.run.steps) for rank in range(2)]
    assert flows == [("forward 3", "forward 4")] * 2  # equal numbers of two profiles are not joined


def test_kernels_on_streams_of_a_gpu_are_those_of_the_profile(tmp_path):
    """A profile from a real GPU, on the clock of a run that is simulated around it: Perfetto shows the same kernels of
    both files on the same streams, as long as they were and as far apart, with the same arrows from launch to kernel.
    """
    path = GOLDEN / "cuda_streams.json.gz"
    begin_ns, spacing_ns = read_profile(path).begin_ns, 250  # of times in microseconds as float64
    run, random = make_run(nodes=1, ranks_per_node=1, warmup_steps=6), np.random.default_rng(5)
    one_rank = simulate(run, equal_ranks(random, 1, run.steps), [Clock()], random).trace
    shape = one_rank.clock_local_ns.shape
    unix = np.full(shape, begin_ns - int(one_rank.stamps[0, 0, 0]), np.int64)
    trace = dataclasses.replace(one_rank, unix_offset_ns=unix, unix_bound_ns=np.full(shape, BOUND_NS))
    (tmp_path / "profiles").mkdir()
    shutil.copy(path, tmp_path / "profiles")
    kernels = """
        select thread.name, slice.name, slice.dur, slice.ts from slice join thread_track on track_id = thread_track.id
        join thread using (utid) where category = 'kernel' order by slice.ts
    """
    launches = "select source.name, target.name from flow join slice source on slice_out = source.id " \
        "join slice target on slice_in = target.id order by target.ts"  # fmt: skip
    out = tmp_path / "t.json.gz"
    assert main([str(put(tmp_path, trace)), "--out", str(out), "--kineto", str(tmp_path / "profiles")]) == 0
    drawn, drawn_arrows = query(out, kernels, launches)
    known, known_arrows = query(path, kernels, launches)
    assert [row[:2] for row in drawn] == [row[:2] for row in known] and len({row[0] for row in known}) == 3
    assert drawn_arrows == known_arrows and len(known_arrows) == 8
    for ours, theirs in zip(drawn, known, strict=True):
        assert abs(ours[2] - theirs[2]) <= 2 * spacing_ns
        assert abs((ours[3] - drawn[0][3]) - (theirs[3] - known[0][3])) <= 2 * spacing_ns


def test_some_steps_cut_profiles_too(tmp_path, capsys):
    trace, _ = two_nodes()
    store(tmp_path / "profiles", "0.json", profile(trace, 0))
    drawn = draw(tmp_path, trace, "--steps", "7:8")
    assert {event["name"] for event in drawn.of("X") if "forward " in event["name"]} == {"forward 7", "forward 8"}
    assert "outside of these steps" in capsys.readouterr().out


def test_a_profile_that_begins_before_the_run_begins_the_axis(tmp_path):
    trace, _ = two_nodes()
    content = profile(trace, 0)
    early = {**content["traceEvents"][2], "name": "import", "ts": content["traceEvents"][2]["ts"] - 60e6}
    content["traceEvents"].append(early)
    store(tmp_path / "profiles", "0.json", content)
    drawn = draw(tmp_path, trace)
    assert (
        min(event["ts"] for event in drawn.of("X") if event["ph"] == "X" and event["name"] != f"{trace.run_id}.1") == 0
    )
    (first,) = [event for event in drawn.of("X") if event["name"] == "import"]
    assert first["ts"] == 0


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"distributedInfo": {"rank": 5, "world_size": 8}}, "a.json", "is of rank 5 of 8; the run has 2 ranks"),
        ({"distributedInfo": {"rank": 0, "world_size": 4}}, "a.json", "is of rank 0 of 4; the run has 2 ranks"),
        ({"distributedInfo": {}}, "a.json", "names no rank"),
        ({"distributedInfo": {"rank": True, "world_size": True}}, "a.json", "names no rank"),
        ({"distributedInfo": {}}, "rank7.json", "is of rank 7; the run has 2 ranks"),
        ({"host_name": "elsewhere.cluster"}, "a.json", "was recorded on elsewhere.cluster; rank 0 ran on n0"),
        ({"baseTimeNanoseconds": 0}, "a.json", "is of another time: it ends"),
        ({"baseTimeNanoseconds": BASE_NS + 10**13}, "a.json", "s after the run has ended"),
        ({"baseTimeNanoseconds": "soon"}, "a.json", "which is no number"),
        ({"baseTimeNanoseconds": 10**30}, "a.json", "has times that no clock shows"),
        ({"traceEvents": []}, "a.json", "has no events with a time"),
        ({"traceEvents": [{"ph": "X", "ts": "now"}, 7, None, {"ph": "X", "ts": float("nan")}]}, "a.json", "no events"),
    ],
)
def test_profiles_that_are_not_of_the_run_are_named_and_the_run_is_drawn(tmp_path, capsys, changes, name, reason):
    trace, _ = two_nodes()
    path = store(tmp_path / "profiles", name, profile(trace, 0, **changes))
    drawn = draw(tmp_path, trace, status=1)
    error = capsys.readouterr().err
    assert error.startswith(f"{path}: ") and reason in error and error.count("\n") == 1
    assert drawn.slices("rank 1") and not any("torch.profiler" in name for name in drawn.processes.values())


def test_the_rank_may_be_in_the_name(tmp_path):
    trace, _ = two_nodes()
    content = profile(trace, 1)
    del content["distributedInfo"]
    store(tmp_path / "profiles", "trace_rank_1.json", content)
    assert "torch.profiler of rank 1: python" in draw(tmp_path, trace).processes.values()


def test_a_trace_without_unix_time_says_so(tmp_path, capsys):
    trace, _ = two_nodes(unix_offset_ns=None, unix_bound_ns=None)
    store(tmp_path / "profiles", "0.json", profile(trace, 0))
    draw(tmp_path, trace, status=1)
    assert "has no Unix time beside its synchronisations" in capsys.readouterr().err


def test_unix_time_that_was_set_meanwhile_is_refused(tmp_path, capsys):
    trace, _ = two_nodes()
    assert trace.unix_offset_ns is not None
    offsets = trace.unix_offset_ns.copy()
    offsets[0, 2:] += 5_000_000
    store(tmp_path / "profiles", "0.json", profile(trace, 0))
    draw(tmp_path, dataclasses.replace(trace, unix_offset_ns=offsets), status=1)
    assert "Unix time of rank 0 was set by 5.000 ms during the run" in capsys.readouterr().err


def test_of_several_runs_a_profile_is_of_that_of_its_time(tmp_path):
    trace, _ = two_nodes()
    assert trace.unix_offset_ns is not None
    earlier = dataclasses.replace(
        trace, run=dataclasses.replace(trace.run, repeat=2), run_id="", unix_offset_ns=trace.unix_offset_ns - 10**12
    )
    files = [str(put(tmp_path, each)) for each in (trace, earlier)]
    store(tmp_path / "profiles", "0.json", profile(trace, 0))
    out = tmp_path / "t.json"
    assert main([*files, "--out", str(out), "--kineto", str(tmp_path / "profiles")]) == 0
    drawn = Drawn(out)
    (group,) = {name.split(".")[0] for name in drawn.processes.values() if "torch.profiler" in name}
    assert f"{group}. run {trace.run_id}.1" in drawn.processes.values()


def test_hostile_profiles_stay_readable(tmp_path, capsys):
    trace, _ = two_nodes()
    content = profile(trace, 0)
    template = content["traceEvents"][4]
    content["traceEvents"] += [
        {**template, "name": "<script>\ud800", "args": {"x": float("nan"), "y": [float("inf")]}},
        {**template, "pid": {"a": 1}, "tid": [2], "name": "odd"},
        {**template, "bind_id": 1, "flow_out": True, "tid": -5, "name": "negative"},
        {**template, "ph": 7}, {**template, "dur": -1}, {**template, "ts": 1e300}, "text", {"ph": "X"},
    ]  # fmt: skip
    store(tmp_path / "profiles", "0.json", content)
    drawn = draw(tmp_path, trace)
    names = {event["name"] for event in drawn.of("X")}
    assert {"<script>?", "odd", "negative"} <= names
    assert "4 untimed" in capsys.readouterr().out


# The reader of JSON in pieces


def test_values_are_the_same_in_pieces_of_any_size(tmp_path, monkeypatch):
    content = {"a": [1, {"b": 'é"\\'}], EVENTS: [{"ts": 12.5}, {"n": "x" * 50}, 3], "z": -17, "end": None}
    path = store(tmp_path, "a.json", json.dumps(content, indent=2))
    for size in (1, 2, 7, 1 << 20):
        monkeypatch.setattr("parse.trace_events.kineto.CHUNK", size)
        values = [*values_of(path)]
        assert [value for name, value in values if name == EVENTS] == content[EVENTS]
        assert {name: value for name, value in values if name != EVENTS} == {
            k: v for k, v in content.items() if k != EVENTS
        }
    assert [*values_of(store(tmp_path, "list.json", "[1, 23]"))] == [(EVENTS, 1), (EVENTS, 23)]


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "7", '{"traceEvents": [{"ts": 1}', '{"traceEvents": [1 2]}', '{"a" 1}', "{1: 2}", '{"a": 1 "b": 2}',
     "[" * 100_000, '{"a": "' + "x" * 3000],
)  # fmt: skip
def test_what_is_no_json_of_events_is_refused(tmp_path, text, monkeypatch):
    monkeypatch.setattr("parse.trace_events.kineto.MAX_VALUE", 2000)
    monkeypatch.setattr("parse.trace_events.kineto.CHUNK", 100)
    with pytest.raises(EventsError):
        [*values_of(store(tmp_path, "a.json", text))]


def test_damaged_archives_are_refused(tmp_path):
    path = store(tmp_path, "a.json.gz", '{"traceEvents": []}')
    for damaged in (path.read_bytes()[:-9], path.read_bytes()[:12] + b"\0\0\0" + path.read_bytes()[15:]):
        path.write_bytes(damaged)
        with pytest.raises(EventsError):
            [*values_of(path)]


def test_a_number_of_too_many_digits_is_refused(tmp_path):
    with pytest.raises(EventsError, match="digits"):
        [*values_of(store(tmp_path, "a.json", f"[{'9' * 5000}]"))]
