"""Timelines as tests read them: strictly, and by SQL in Perfetto's own trace processor."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.trace import Trace
from parse.timeline import main
from tests.unit.ledger_traces import run_of
from tests.unit.simulated import draw_clocks, equal_ranks, simulate
from tests.unit.simulated_meetings import Meeting, simulate_meetings
from tests.unit.traces import put

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


def meetings_trace(late: int, phase: str) -> Trace:
    run = run_of(measured_steps=10, backend="torch-ddp")
    random = np.random.default_rng(3)
    where = np.zeros((run.ranks, run.steps), bool)
    where[late] = True
    durations = equal_ranks(random, run.ranks, run.steps, spread=0.0).longer(phase, where, 4_000_000)
    meetings = [Meeting("all-gather", "forward"), Meeting("all-gather", "backward"), Meeting("norm", "optimizer")]
    return simulate_meetings(run, durations, meetings, draw_clocks(random, run.nodes), random).trace
