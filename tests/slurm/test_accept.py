"""`hpc.sweep accept` on a real Slurm of four nodes: one that passes, one with a slow node; and
`--repeats auto` in jobs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.slurm.conftest import Command
from tests.sweeps import outcomes
from tools.devcluster.cluster import DevCluster

WORKLOAD = '''
"""Sleeps 0.1 s in a step, longer on the node that a file `slow` beside this one names."""

import socket
import time
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class MaybeSlow(Line):
    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        slow = Path(__file__).with_name("slow").read_text().split()
        self.sleep_s = 0.8 if socket.gethostname() in slow else 0.1

    def forward(self, batch):
        time.sleep(self.sleep_s)
        return super().forward(batch)
'''
REFERENCE = """\
title = "the development cluster"
tolerance = "65%"
source = "4 samples in 0.1 s on each node"

[settings]
backend = "mpi"
workload = "{workload}:MaybeSlow"
cpus_per_rank = 1
batch_size = 4
warmup_steps = 5
measured_steps = 8

[[point]]
speed = 40.0
settings = {{ case = "1n1g" }}

[[point]]
speed = 160.0
settings = {{ case = "4n1g" }}
"""
"""An eighth of the speed is far beyond the tolerance, and load of this machine would have to hold up a run by 1.5 s of
0.8 s to be beyond it."""


@pytest.fixture
def accept(tmp_path: Path, command: Command, cluster: DevCluster) -> Command:
    """Accepts the cluster with `slow` as the slow node; the result as JUnit in out.xml."""
    workload = tmp_path / "maybe_slow.py"
    workload.write_text(WORKLOAD)
    (tmp_path / "machine.toml").write_text(REFERENCE.format(workload=workload))

    def run(slow: str, *arguments: str):  # type: ignore[no-untyped-def]  # as Command
        (tmp_path / "slow").write_text(slow)
        done = command(
            sys.executable, "-m", "hpc.sweep", "accept", "--site", str(cluster.site_file), "--reference",
            "machine.toml", "--threshold", "65%", "--junit", "out.xml", "--minutes-per-run", "10", *arguments,
        )  # fmt: skip
        assert r"\n" not in done.stdout + done.stderr
        return done

    return run


def cases(tmp_path: Path) -> dict[str, str]:
    """By the first two words of its name: the result of each case of JUnit, `alarm` where an alarm fails nothing."""

    def result(case: ElementTree.Element) -> str:
        is_alarm = len(case) and case[0].tag == "skipped" and case[0].attrib["message"].startswith("alarm: ")
        return "alarm" if is_alarm else case[0].tag if len(case) else "passed"

    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    return {" ".join(case.attrib["name"].split()[:2]): result(case) for case in suite.iter("testcase")}


# tests/unit/test_accept.py shows it without a scheduler.
@pytest.mark.all
def test_a_cluster_as_fast_as_its_reference_is_accepted(tmp_path: Path, accept: Command) -> None:
    done = accept("", "--update-reference", "next.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\npassed: 2 points within the tolerance\n" in done.stdout
    results = cases(tmp_path)
    assert results["1n1g backend=mpi"] == results["4n1g backend=mpi"] == "passed"
    # Load that lasts may make a node a few per cent slower than its runs' scatter leaves open: an alarm, and accepted.
    assert {results[f"node node{at}"] for at in range(1, 5)} <= {"passed", "alarm"}
    assert "median of 12 runs; expected before: 40" in (tmp_path / "next.toml").read_text()


# tests/unit/test_accept.py shows it without a scheduler.
@pytest.mark.all
def test_a_cluster_with_a_slow_node_is_not_accepted(tmp_path: Path, command: Command, accept: Command) -> None:
    slow = accept("node2")
    assert slow.returncode == 1, slow.stdout + slow.stderr
    drain = (
        r"^scontrol update nodename=node2 state=drain reason='rankwise accept 20[\d-]+: [\d.]+% slower than the other"
    )
    assert re.search(r"^not accepted: .*slow node node2$", slow.stdout, re.MULTILINE)
    assert re.search(drain, slow.stdout, re.MULTILINE)
    assert re.search(r"^4n1g all-reduce: [\d.e+-]+ GB/s bus bandwidth at \d+ bytes$", slow.stdout, re.MULTILINE)
    (folder,) = (tmp_path / "acceptance").iterdir()
    assert len(outcomes(folder)) == 4 * 3 + 5 + 1 and set(outcomes(folder).values()) == {"ok"}
    for at in range(1, 5):  # each node by a job of its own
        assert f"#SBATCH --nodelist=node{at}\n" in (folder / "jobs" / f"1n-node{at}.sh").read_text()
    facts = [json.loads(path.read_text()) for path in (folder / "traces").glob("1n1g*.exit.json")]
    assert sorted(fact["nodelist"] for fact in facts) == sorted(3 * ["node1", "node2", "node3", "node4"])
    assert {name for name, result in cases(tmp_path).items() if result == "failure"} == {
        "node node2",
        "4n1g backend=mpi",
    }
    assert "drain" not in command("sinfo", "-h", "-N", "-o", "%N %T").stdout  # shown, not run


@pytest.mark.all
def test_repeats_are_added_by_jobs_of_their_own(tmp_path: Path, sweep: Command) -> None:
    """Detached, each start of the command submits one round and none twice."""
    argv = ("--nodes", "1", "--ranks-per-node", "1", "--cpus-per-rank", "1", "--backend", "mpi", "--workload", "delay",
            "--option", "compute_ms=100", "--steps", "8", "--warmup", "5", "--repeats", "auto:0.001%:7",
            "--minutes-per-run", "10")  # fmt: skip
    first = sweep(*argv, "--detach")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "more repeats are decided on once these have ended, by the same command" in first.stdout
    followed = sweep(*argv)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert "is queued or running already: followed" in followed.stdout
    assert re.search(r"^1n1g: half width .* after 6 runs; .*; 1 more run$", followed.stdout, re.MULTILINE)
    assert re.search(r"^1n1g: half width .* after 7 runs; .*no more runs are allowed", followed.stdout, re.MULTILINE)
    assert list(outcomes(tmp_path).values()) == ["ok"] * 7
    second = sweep(*argv)
    assert second.returncode == 0 and len(outcomes(tmp_path)) == 7 and "submitted as" not in second.stdout
