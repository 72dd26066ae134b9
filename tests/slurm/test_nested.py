"""Nested placement on a real Slurm of four nodes, one of which is slow: one job, cases on one another's nodes, the slow
node named; by hand and after a requeue the same. By mpirun: under srun runs of two nodes hang (docs/cluster.md)."""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Command
from tests.slurm.jobs import has_ended, submit
from tests.waiting import until
from tools.devcluster.cluster import DevCluster

REPEATS = 2
"""Blocks, each on other nodes."""
SLOW_NODE = '''
"""Sleeps 10 ms in a step, and 60 ms on one node. Waits at its start while a file `hold` lies beside this one."""

import socket
import time
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class SlowNode(Line):
    def __init__(self, run, device, rank):
        while Path(__file__).with_name("hold").exists():
            time.sleep(0.05)
        super().__init__(run, device, rank)
        self.sleep_s = 0.06 if socket.gethostname() == "node2" else 0.01

    def forward(self, batch):
        time.sleep(self.sleep_s)
        return super().forward(batch)
'''

Summary = dict[str, Any]


def records(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The exit records by their names."""
    paths = sorted((tmp_path / "traces").glob("*.exit.json"))
    return {path.name.removesuffix(".exit.json"): json.loads(path.read_text()) for path in paths}


def summarized(command: Command) -> Summary:
    done = command(sys.executable, "-m", "parse.summarize", "traces", "--format", "json")
    assert done.returncode == 0, done.stderr
    content: Summary = json.loads(done.stdout)
    return content


def hosts(summary: Summary) -> dict[int, dict[int, set[str]]]:
    """By repeat and number of nodes, the nodes that the run was on."""
    blocks: dict[int, dict[int, set[str]]] = {}
    for result in summary["results"]:
        for run in result["runs"]:
            assert run["outcome"] == "ok", run
            blocks.setdefault(run["repeat"], {})[result["nodes"]] = set(run["hosts"])
    return blocks


def logs_of_speeds(summary: Summary) -> dict[str, list[float]]:
    """The logarithms of the speeds of one-node runs, by node; each is at most what that node's sleeps allow."""
    speeds: dict[str, list[float]] = defaultdict(list)
    for result in summary["results"]:
        for run in result["runs"] if result["nodes"] == 1 else ():
            (node,) = run["hosts"]
            assert run["throughput"] <= result["global_batch_size"] / (0.06 if node == "node2" else 0.01)
            speeds[node].append(math.log(run["throughput"]))
    return speeds


def assert_nested(summary: Summary) -> None:
    blocks = hosts(summary)
    assert sorted(blocks) == [*range(1, REPEATS + 1)]
    for cases in blocks.values():
        assert [len(cases[nodes]) for nodes in (1, 2, 4)] == [1, 2, 4]
        assert cases[1] < cases[2] < cases[4]
    assert not [alarm for result in summary["results"] for alarm in result["alarms"] if alarm["name"] == "not_nested"]


@pytest.fixture
def nested(tmp_path: Path, sweep: Command) -> Command:
    """A nested sweep of the workload that is slow on one node."""
    workload = tmp_path / "slow_node.py"
    workload.write_text(SLOW_NODE)

    def run(*arguments: str, **site: Path) -> subprocess.CompletedProcess[str]:
        done = sweep(
            "--placement", "nested", "--minutes-per-run", "2", "--ranks-per-node", "1", "--cpus-per-rank", "1",
            "--backend", "mpi", "--workload", f"{workload}:SlowNode", "--steps", "8", "--warmup", "5", *arguments,
            **site,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_cases_share_nodes_in_one_job_and_the_slow_node_comes_first(
    tmp_path: Path, cluster: DevCluster, command: Command, nested: Command, mpirun_site: Path
) -> None:
    done = nested("--nodes", "1,2,4", "--repeats", str(REPEATS), site=mpirun_site)
    assert "0.8 node-hours at most; separate jobs would request 0.5" in done.stdout

    first = records(tmp_path)
    assert len(first) == 3 * REPEATS and len({record["job_id"] for record in first.values()}) == 1
    summary = summarized(command)
    assert_nested(summary)
    assert len(set.union(*(cases[1] for cases in hosts(summary).values()))) == REPEATS
    order = re.findall(r"^point\d+ (\S+)", (tmp_path / "jobs" / "4n-nested.sh").read_text(), re.MULTILINE)
    begins = [first[f"{run_id}.1"]["begin_unix_s"] for run_id in order]
    assert begins == sorted(begins) and len(begins) == len(first)
    in_blocks = [tuple(run_id[:2] for run_id in order[at : at + 3]) for at in range(0, len(order), 3)]
    assert all(sorted(block) == ["1n", "2n", "4n"] for block in in_blocks)  # their order: unit tests

    # A node is six times as slow by its sleeps. Load of this machine may hold up the one run of any node: so by what
    # that shows.
    (site,) = summary["nodes"]
    assert [node["runs"] for node in site["nodes"]] == [1] * REPEATS
    means = {node: statistics.mean(logs) for node, logs in logs_of_speeds(summary).items()}
    centre = statistics.median(means.values())
    assert [node["node"] for node in site["nodes"]] == sorted(means, key=means.__getitem__)
    for node in site["nodes"]:
        assert node["relative"] == pytest.approx(math.expm1(means[node["node"]] - centre))
    assert (site["scatter"], site["alarms"]) == (None, []) and "--repeats" in site["missing"]
    text = command(sys.executable, "-m", "parse.summarize", "traces").stdout
    assert f"placement nested (same nodes): in {REPEATS} blocks" in text
    assert "speed by node of devcluster: one-node runs of 1 point" in text

    passes_over_what_is_done_also_after_a_requeue(tmp_path, cluster, command)


def passes_over_what_is_done_also_after_a_requeue(tmp_path: Path, cluster: DevCluster, command: Command) -> None:
    """The files of one run are deleted, the script is submitted by hand, and requeued while the run waits to go on."""
    (gone,) = (name for name in records(tmp_path) if name.startswith("2n") and f"_r{REPEATS}." in name)
    for path in (tmp_path / "traces").glob(f"{gone}.*"):
        path.unlink()
    hold = tmp_path / "hold"
    hold.touch()
    before = records(tmp_path)
    job_id = submit(cluster, tmp_path / "jobs" / "4n-nested.sh")
    first, second = (tmp_path / "traces" / f"{gone[:-1]}{attempt}.begin.json" for attempt in (2, 3))
    # The logs still have the first attempt.
    until(first.exists, "the run is begun")
    cluster.run("scontrol", "requeue", job_id)
    until(second.exists, "it is begun again")
    hold.unlink()
    until(lambda: has_ended(cluster, job_id), "the job ends")
    assert {name: record for name, record in records(tmp_path).items() if name in before} == before
    second = records(tmp_path)[f"{gone[:-1]}3"]
    assert (second["outcome"], second["restart_count"], len(second["nodelist"].split(","))) == ("ok", 1, 2)
    assert_nested(summarized(command))


def test_pairs_that_would_hang_under_srun_are_refused(tmp_path: Path, sweep: Command) -> None:
    done = sweep("--nodes", "1,2,4", "--placement", "nested")
    assert done.returncode == 1 and "hang under srun --mpi=pmix" in done.stderr, done.stdout + done.stderr
    assert not list(tmp_path.glob("jobs/*.sh"))
