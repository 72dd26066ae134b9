"""parse.timeline: what Perfetto's own trace processor makes of the file."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest

from parse.trace_events.event_file import MAX_NAME
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.timelines import FLOWS, SLICES, Drawn, draw, late_trace, meetings_trace
from tests.unit.trace_processor import query
from tests.unit.traces import make_ranks


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


@pytest.mark.parametrize(
    "phase", ["data", *(pytest.param(each, marks=pytest.mark.all) for each in ("forward", "backward"))]
)
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
