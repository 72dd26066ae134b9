"""A development cluster that runs is what it claims to be: several nodes, open to this machine alone."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.slurm.devclusters import NAMES, daemon_pids
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import CLOCK_DISTANCE_S, Shape


def listening(pids: set[int]) -> set[str]:
    """The addresses, as /proc/net has them, that these processes listen on."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):  # a child of a daemon that has ended meanwhile
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(handle.readlink()))
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                addresses.add(fields[1])
    return addresses


def test_every_node_has_its_own_name_and_clock(cluster, tmp_path):
    (tmp_path / "look.py").write_text(
        "import os, socket, time\n"
        "names = os.environ['SLURMD_NODENAME'], socket.gethostname()\n"
        "print(*names, time.monotonic_ns(), os.readlink('/proc/self/ns/time'))\n"
    )
    before_ns = time.monotonic_ns()
    rows = [line.split() for line in cluster.run("srun", "-N4", sys.executable, tmp_path / "look.py").splitlines()]
    after_ns = time.monotonic_ns()
    assert sorted(row[0] for row in rows) == NAMES
    if not cluster.host.own_names:
        pytest.skip("unshare is refused here: nodes have neither names nor clocks of their own")
    assert all(row[1] == row[0] for row in rows)
    if not cluster.shape.clocks:
        pytest.skip("time namespaces are refused here: nodes have no clocks of their own")
    assert len({row[3] for row in rows}) == 4
    for node, _, now_ns, _ in rows:
        ahead_ns = CLOCK_DISTANCE_S * int(node.removeprefix("node")) * 1_000_000_000
        assert before_ns < int(now_ns) - ahead_ns < after_ns


def test_gpus_are_given_to_jobs(cluster):
    show = 'echo "$CUDA_VISIBLE_DEVICES"'
    assert cluster.run("srun", "-N2", "--gpus-per-node=8", "sh", "-c", show).split() == ["0,1,2,3,4,5,6,7"] * 2
    assert cluster.run("srun", "-N1", "--gpus-per-node=2", "sh", "-c", show).split() == ["0,1"]
    assert cluster.run("srun", "-N1", "sh", "-c", show).split() == []


def test_daemons_listen_only_on_loopback(cluster):
    addresses = listening(daemon_pids(cluster))
    assert len(addresses) >= 5
    assert {address.split(":")[0] for address in addresses} == {"0100007F"}


PRIVATE = """#!/bin/sh
echo "batch $SLURMD_NODENAME"
srun -N2 --ntasks-per-node=1 sh -c 'echo $SLURMD_NODENAME >/tmp/whose; touch shared.$SLURMD_NODENAME'
srun -N2 --ntasks-per-node=1 sh -c "
    test -e '$0' && script=present || script=absent
    test -e '$OUTSIDE' && outside=present || outside=absent
    echo \\$SLURMD_NODENAME \\$(cat /tmp/whose) \\$(ls shared.* | wc -l) \\$outside \\$script"
"""


@pytest.mark.all
def test_nodes_share_only_the_folders_in_use(slurm_installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster, the folder that it is started in and the job's files lie below /tmp."""
    with TemporaryDirectory(prefix="rw-", dir="/tmp") as place, TemporaryDirectory(dir="/tmp") as outside:
        here = Path(place) / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        (here / "job.sh").write_text(PRIVATE)
        with DevCluster(Path(place) / "c", Shape(nodes=2, gpus=0)) as cluster:
            if not cluster.host.own_storage:
                pytest.skip("mounting is refused here: nodes have no storage of their own")
            assert {f"{place}/c", str(here)} <= set(cluster.host.shared)
            assert DevCluster.running(cluster.root).host == cluster.host
            cluster.run("sbatch", "-W", "-N2", "-o", "out", "-e", "err", f"--export=ALL,OUTSIDE={outside}", "job.sh")
        batch, *rows = (here / "out").read_text().splitlines()
        assert batch == "batch node1"
        assert sorted(rows) == ["node1 node1 2 absent present", "node2 node2 2 absent absent"]
        assert not Path("/tmp/whose").exists()
