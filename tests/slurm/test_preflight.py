"""A site's expectations on a real Slurm of several nodes: a run that breaks one ends at once, on all ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.conftest import Command
from tools.devcluster.cluster import DevCluster

TINY = ("--nodes", "2", "--no-baseline", "--repeats", "1", "--backend", "mpi", "--workload", "delay", "--option",
        "compute_ms=1", "--steps", "8", "--warmup", "5", "--ranks-per-node", "2", "--cpus-per-rank", "1")  # fmt: skip


@pytest.mark.skipif(Path("/sys/class/infiniband").is_dir(), reason="this machine may have what the site promises")
def test_a_promise_that_the_nodes_do_not_keep_is_invalid(tmp_path: Path, cluster: DevCluster, sweep: Command) -> None:
    site = tmp_path / "site.toml"
    site.write_text(f'expect_transport = "ib"\n{cluster.site_file.read_text()}')
    done = sweep(*TINY, site=site)
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
