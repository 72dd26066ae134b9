"""Telemetry of whole runs: a helper on each node, gone with its rank; what the nodes read is brought together."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, END
from tests.mpi.attempts import HERE, Attempt, Ranks, spec
from tests.waiting import until

MARK = "RANKWISE_TEST_MARK"


def helpers(mark: str) -> list[str]:
    """Helpers that live and were started beneath a process with this mark in its environment."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0")
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        if marked and b"hpc.node_agent" in words:
            processes.append(process.name)
    return processes


def test_a_run_brings_telemetry_on_the_clock_of_its_stamps(ranks: Ranks, tmp_path: Path) -> None:
    begin_ns = time.perf_counter_ns()
    trace = Attempt(ranks, tmp_path, spec()).trace()
    telemetry = trace.telemetry
    assert telemetry is not None
    assert telemetry.ranks.tolist() == [0]
    assert (np.diff(telemetry.local_ns) > 0).all()
    assert (
        telemetry.local_ns[0, 0] > begin_ns
    )  # on a busy machine the helper's first look may come after the first step
    assert trace.stamps[0, -1, END] < telemetry.local_ns[0, -1] < time.perf_counter_ns()
    for rank in range(2):
        seconds = telemetry.values[0, :, list(telemetry.series).index(f"local_rank{rank}.cpu_s")]
        assert (seconds > 0).all()
        assert (np.diff(seconds) >= 0).all()
    facts = trace.ranks[0]["telemetry"]
    assert facts["interval_s"] == 1.0
    assert facts["placed"]
    assert "problem" not in facts
    assert "telemetry" not in trace.ranks[1]


def test_simulated_nodes_are_one_machine_with_one_helper(ranks: Ranks, tmp_path: Path) -> None:
    trace = Attempt(ranks, tmp_path, spec(nodes=2, ranks_per_node=1), "--simulate-nodes").trace()
    assert trace.telemetry is not None
    assert trace.telemetry.ranks.tolist() == [0]
    assert {"local_rank0.cpu_s", "local_rank1.cpu_s"} <= set(trace.telemetry.series)


def test_a_run_without_telemetry_has_none_and_says_nothing_of_it(ranks: Ranks, tmp_path: Path) -> None:
    trace = Attempt(ranks, tmp_path, spec(telemetry="off")).trace()
    assert trace.telemetry is None
    assert not any("telemetry" in facts for facts in trace.ranks)


@pytest.mark.parametrize("workload", ["RaisesAtStep7", "Line"])
def test_no_helper_outlives_its_run(ranks: Ranks, tmp_path: Path, workload: str) -> None:
    mark = str(uuid.uuid4())
    run = spec(workload=f"{HERE / 'user_workloads.py'}:{workload}")
    made = Attempt(ranks, tmp_path, run, env={MARK: mark}, check=False)
    assert (made.done.returncode == 0) == (workload == "Line")
    until(lambda: not helpers(mark), "no helper is left")


def test_a_killed_helper_costs_telemetry_and_copies_and_that_is_stated(ranks: Ranks, tmp_path: Path) -> None:
    trace = Attempt(ranks, tmp_path, spec(workload=f"{HERE / 'user_workloads.py'}:KillsItsHelper")).trace()
    host = trace.ranks[0]["hostname"]
    lacking = f"telemetry and copies of the time stamps incomplete on {host} (the helper ended early: signal 9)"
    assert (trace.outcome, trace.evidence) == ("ok", lacking)


def test_what_nodes_recorded_is_brought_together(ranks: Ranks) -> None:
    lines = ranks(4, HERE / "telemetry_ranks.py", "1000", "20").stdout.splitlines()
    whole, thinned, nothing = map(json.loads, lines[-3:])
    lacking = [-1, -1, -1]
    assert whole == {
        "ranks": [0, 3],
        "local_ns": [[0, 1, 2, 3, 4], [300, 301, 302, ABSENT, ABSENT]],
        "series": ["a", "b", "c"],
        "values": [
            [[0, 1, -1], [10, 11, -1], [20, 21, -1], [30, 31, -1], [40, 41, -1]],
            [[-1, 3000, 3001], [-1, 3010, 3011], [-1, 3020, 3021], lacking, lacking],
        ],
    }
    # 30 numbers are too many for 20: every other sample stays, on all nodes.
    assert thinned["local_ns"] == [[0, 2, 4], [300, 302, ABSENT]]
    assert thinned["values"][1] == [[-1, 3000, 3001], [-1, 3020, 3021], lacking]
    assert nothing is None
