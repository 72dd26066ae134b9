"""A site's expectations on a real Slurm of several nodes: a run that breaks one ends at once, on all ranks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.model.trace_file import read_trace
from tests.slurm.conftest import Command
from tools.devcluster.cluster import DevCluster

TINY = ("--nodes", "2", "--no-baseline", "--repeats", "1", "--backend", "mpi", "--workload", "delay", "--option",
        "compute_ms=1", "--steps", "8", "--warmup", "5", "--ranks-per-node", "2", "--cpus-per-rank", "1")  # fmt: skip

Promising = Callable[[str, str], subprocess.CompletedProcess[str]]


@pytest.fixture
def promising(tmp_path: Path, cluster: DevCluster, sweep: Command) -> Promising:
    """`promising(key, table)`: one run on two nodes, of the cluster's site with a key and a table more."""

    def run(key: str, table: str) -> subprocess.CompletedProcess[str]:
        site = tmp_path / "site.toml"
        site.write_text(f"{key}\n{cluster.site_file.read_text()}\n{table}\n")
        return sweep(*TINY, site=site)

    return run


@pytest.mark.skipif(Path("/sys/class/infiniband").is_dir(), reason="this machine may have what the site promises")
def test_a_promise_that_the_nodes_do_not_keep_is_invalid(tmp_path: Path, promising: Promising) -> None:
    done = promising('expect_transport = "ib"', "")
    assert done.returncode == 1, done.stdout + done.stderr
    (record,) = [json.loads(path.read_text()) for path in (tmp_path / "traces").glob("*.exit.json")]
    assert record["outcome"] == "invalid"
    (script,) = (tmp_path / "jobs").glob("*.sh")
    assert "--expect-transport ib" in " ".join(script.read_text().replace("\\\n", " ").split())
    notes = [json.loads(path.read_text()) for path in (tmp_path / "traces").glob("*.rank*.json")]
    assert notes
    for note in notes:
        assert note["message"].startswith("fabric: the site promises ib; no adapter")
        assert "of node1; node2: leave the nodes without one out" in note["message"]
        assert note["step"] == -1


@pytest.mark.all
def test_a_check_that_the_site_switches_off_is_not_made(tmp_path: Path, promising: Promising) -> None:
    done = promising('expect_transport = "ib"', '[preflight]\nfabric = "off"\nload = "alarm"')
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "traces").glob("*.h5")
    trace = read_trace(path)
    assert "fabric" not in trace.environment["preflight"]
    assert trace.environment["preflight"]["ranks_per_node"]["text"] == "2 nodes with 2 ranks each, as requested"
    assert ["node" in rank["start"] for rank in trace.ranks] == [True, False, True, False]
