"""A development cluster is started once, by whoever may and wherever it can be; stopped, nothing of it stays."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.devclusters import NAMES, ONE_NODE, WORLD, commands, daemon_pids, devcluster, sleepers
from tests.sweeps import ROOT
from tests.waiting import LIMIT_S, until
from tools.devcluster.__main__ import EXAMPLE
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import MAX_ROOT_BYTES, TMP, Shape
from tools.devcluster.processes import Processes, namespaces_refused

pytestmark = pytest.mark.all


@contextmanager
def stub(folder: Path, name: str, script: str) -> Iterator[str]:
    """A PATH on which a program of this name is this shell script."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    yield f"{folder}:{os.environ['PATH']}"


def test_the_second_starter_joins(new_root):
    root = new_root()
    argv = [sys.executable, "-m", "launch.devcluster", "start", "--nodes=2", "--gpus=0", "--root", str(root)]
    starters = [subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    messages = sorted(starter.communicate(timeout=LIMIT_S)[0].split(":")[0] for starter in starters)
    assert messages == ["running already", "started"]
    assert [starter.returncode for starter in starters] == [0, 0]
    cluster = DevCluster.running(root)
    assert cluster.shape == Shape(nodes=2, gpus=0)
    assert len(daemon_pids(cluster)) == 3


def test_another_shape_is_refused(new_root):
    root = new_root()
    with DevCluster(root, ONE_NODE):
        done = devcluster("start", "--nodes=2", "--cpus=2", "--gpus=0", "--root", root)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(
            r"devcluster: a cluster of 1 node of 2 CPUs .* requested .* 2 nodes .*: stop it first .*\n", done.stderr
        )
        assert DevCluster.running(root).shape == ONE_NODE


def test_stop_leaves_no_process(new_root, tmp_path, nap):
    root = new_root()
    cluster = DevCluster(root, Shape(nodes=2, gpus=0))
    cluster.start()
    run = ("sbatch", "-N2", "-o", tmp_path / "out", "--wrap")
    cluster.run(*run, f"srun env -i {nap}")
    cluster.run(*run, f"trap '' TERM; {nap}; {nap}")
    waiting = subprocess.Popen(["srun", "--exclusive", "true"], env=cluster.environ, stderr=subprocess.DEVNULL)
    until(lambda: sleepers(nap) == 3, "both jobs run")
    assert cluster.stop()
    assert commands(nap) == {}
    assert set(commands(str(root))) <= {waiting.pid}
    assert waiting.wait(timeout=LIMIT_S) != 0
    assert not cluster.stop()
    done = devcluster("status", "--root", root)
    assert (done.returncode, done.stdout) == (1, f"not running: {root}\n")


def test_a_cluster_that_another_version_started_can_be_stopped(new_root):
    root = new_root()
    DevCluster(root, ONE_NODE).start()
    (root / "cluster.json").write_text('{"shape": {}}\n')
    done = devcluster("start", "--nodes=1", "--root", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"devcluster: another version .*: stop it first\n", done.stderr)
    assert devcluster("stop", "--root", root).stdout == "stopped\n"
    assert commands(str(root)) == {}


def test_two_clusters_side_by_side(cluster, new_root):
    with DevCluster(new_root(), ONE_NODE) as other:
        assert other.run("scontrol", "show", "hostnames", "node[1]") == "node1\n"
        assert list(other.states()) == ["node1"]
        assert other.run("srun", "sh", "-c", "echo $SLURM_CONF") == f"{other.conf}\n"
        assert cluster.run("srun", "sh", "-c", "echo $SLURM_CONF") == f"{cluster.conf}\n"
    assert not other.is_running()
    assert cluster.daemons() == {"slurmctld", *NAMES}


def test_a_reused_namespace_number_identifies_no_process(new_root):
    """A cluster that ends gives its namespaces' numbers to one that starts at that moment, and must not end that."""
    root = new_root()
    ending = DevCluster(root, ONE_NODE)
    ending.start()
    if not ending.host.own_names:
        pytest.skip("unshare is refused here: nodes have no namespaces of their own")
    known = Processes([str(ending.conf)], own_names=True)
    assert set(known.alive().values()) == {"slurmctld", "node1"}
    ending.stop()
    with DevCluster(new_root(), ONE_NODE) as starting:
        assert known.alive() == {}
        assert starting.daemons() == {"slurmctld", "node1"}


def test_job_ids_are_never_reused(new_root, monkeypatch, tmp_path):
    root = new_root()
    submit = ("sbatch", "--parsable", "-o", tmp_path / "out", "--wrap", "true")
    with DevCluster(root, ONE_NODE) as cluster:
        first = int(cluster.run(*submit))
    monkeypatch.setattr(time, "time", lambda: 1000.0)  # a machine whose clock was set back
    with DevCluster(root, ONE_NODE) as cluster:
        assert cluster.run("squeue", "-h", "-t", "all") == ""
        assert int(cluster.run(*submit)) > first


def test_a_folder_with_other_files_is_refused(tmp_path, new_root):
    root = new_root()
    (root / "log").mkdir()
    (root / "log" / "diary").write_text("dear")
    done = devcluster("start", "--root", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds other files" in done.stderr
    assert [path.name for path in root.rglob("*")] == ["log", "diary"]


def test_a_daemon_that_does_not_start_is_quoted_and_all_is_stopped(new_root, tmp_path):
    root = new_root()
    with stub(tmp_path / "bin", "slurmd", "echo 'no luck today'; exit 3") as path:
        done = devcluster("start", "--nodes=1", "--root", root, PATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "devcluster: node1 ended at once: no luck today\n"
    assert commands(str(root)) == {}


def test_without_namespaces_nodes_share_one_name_and_a_note_is_printed(new_root, tmp_path, nap):
    if socket.gethostbyname(socket.gethostname()) != "127.0.0.1":
        pytest.skip("without namespaces the host's name has to be 127.0.0.1")
    root = new_root()
    with stub(tmp_path / "bin", "unshare", "echo 'not today' >&2; exit 1") as path:
        refused = devcluster("start", "--clocks", "--root", root, PATH=path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "time namespaces are refused here: not today" in refused.stderr
        started = devcluster("start", "--nodes=2", "--gpus=0", "--root", root, PATH=path)
    assert "note: unshare is refused here: all nodes share one host name" in started.stdout
    cluster = DevCluster.running(root)
    assert cluster.environ["OMPI_MCA_btl"] == "self,tcp"
    assert set(cluster.run("srun", "-N2", "hostname").split()) == {socket.gethostname()}
    cluster.run("sbatch", "-N2", "-o", tmp_path / "out", "--wrap", f"srun env -i {nap}")
    until(lambda: sleepers(nap) == 2, "both tasks run")
    cluster.freeze("slurmctld")  # it would end the job of a node that is silent for long
    cluster.kill_node("node2")
    assert sleepers(nap) == 1
    cluster.stop()
    assert commands(nap) == {}


def test_a_host_whose_name_is_another_address(new_root, tmp_path):
    """Debian writes 127.0.1.1, a container its address: clients outside a job must be reachable all the same."""
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    if refused := namespaces_refused(clocks=False):
        pytest.skip(f"namespaces are refused here ({refused})")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
    root = new_root()
    script = f"""
        mount --bind {tmp_path}/hosts /etc/hosts
        {sys.executable} -m launch.devcluster start --nodes 2 --gpus 0 --root {root}
        eval "$({sys.executable} -m launch.devcluster env --root {root})"
        srun -N2 sh -c 'echo task on $SLURMD_NODENAME'
        sbatch -W -N2 -o {tmp_path}/out --wrap "srun -l sh -c 'echo step on \\$SLURMD_NODENAME'" >/dev/null
        sort {tmp_path}/out
    """
    argv = ["unshare", *user, "--mount", "bash", "-ec", script]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"note: {socket.gethostname()} is 127.0.1.1 in /etc/hosts" in done.stdout
    assert sorted(re.findall(r"task on (\w+)", done.stdout)) == ["node1", "node2"]
    assert re.findall(r": step on (\w+)", done.stdout) == ["node1", "node2"]


def test_a_machine_with_loopback_only(new_root, tmp_path):
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py here: pip install mpi4py")
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    isolated = ["unshare", *user, "--net", "bash", "-ec"]
    up = "ip link set lo up"
    tried = subprocess.run([*isolated, up], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network of loopback only can be made here: {tried.stderr.strip()}")
    (tmp_path / "world.py").write_text(WORLD)
    root = new_root()
    script = f"""
        {up}
        trap '{sys.executable} -m launch.devcluster stop --root {root}' EXIT
        {sys.executable} -m launch.devcluster start --nodes 2 --gpus 0 --root {root}
        eval "$({sys.executable} -m launch.devcluster env --root {root})"
        srun --mpi=pmix -N2 -n4 --ntasks-per-node=2 {sys.executable} {tmp_path}/world.py
        sbatch -W -N2 -o {tmp_path}/out --wrap "srun sh -c 'echo step on \\$SLURMD_NODENAME'" >/dev/null
        cat {tmp_path}/out
    """
    argv = [*isolated, script]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started: 2 nodes" in done.stdout and done.stdout.endswith("stopped\n")
    assert len(re.findall(r"^\d 4 2 node\d node\d 6$", done.stdout, re.MULTILINE)) == 4
    assert sorted(re.findall(r"step on (\w+)", done.stdout)) == ["node1", "node2"]


def test_mpi_works_in_the_longest_root(new_root, tmp_path):
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py here: pip install mpi4py")
    (tmp_path / "world.py").write_text(WORLD)
    root = new_root()
    root /= "r" * (MAX_ROOT_BYTES - 1 - len(str(root)))
    with DevCluster(root, Shape(nodes=10, gpus=0)) as cluster:
        printed = cluster.run(
            "srun", "--mpi=pmix", "-w", "node[9-10]", "-n2", "-N2", sys.executable, tmp_path / "world.py",
            timeout_s=LIMIT_S,
        )  # fmt: skip
    assert len(printed.splitlines()) == 2


def test_a_normal_user_can_start_one(new_root, nap):
    if os.getuid() != 0:
        pytest.skip("all tests here run as a normal user already")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nonexistent"]

    def new_enough(python: str) -> bool:
        argv = [*nobody, python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    pythons = [python for python in (sys.executable, "/usr/bin/python3") if new_enough(python)]
    if not pythons:
        pytest.skip("no Python 3.11 here that a normal user can run")
    root = new_root(TMP)  # where each node has a /tmp of its own, with this folder in it
    for package in ("launch", "hpc", "tools/devcluster"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    os.chown(root, 65534, 65534)
    script = f"""
        python="{pythons[0]} -m launch.devcluster"
        $python start --nodes 2 --root {root}/c
        eval "$($python env --root {root}/c)"
        srun -N2 sh -c 'echo $SLURMD_NODENAME >/tmp/whose; echo $(id -u) on $SLURMD_NODENAME'
        srun -N2 sh -c 'echo $(cat /tmp/whose) is $SLURMD_NODENAME'
        sbatch -o {root}/out --wrap 'env -i {nap}' >/dev/null
        $python status --root {root}/c
        $python stop --root {root}/c
    """
    argv = [*nobody, "bash", "-ec", script]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"65534 on (\w+)", done.stdout)) == ["node1", "node2"]
    if not namespaces_refused(storage=True):
        assert sorted(re.findall(r"(\w+ is node\d)", done.stdout)) == ["node1 is node1", "node2 is node2"]
    assert commands(nap) == commands(f"{root}/c") == {}


def test_the_example_of_the_help_works_when_copied(new_root):
    if refused := namespaces_refused(clocks=True):
        pytest.skip(f"time namespaces are refused here ({refused})")
    cache = new_root()
    lines = re.findall(r"^  (.*)", EXAMPLE, re.MULTILINE)
    assert lines[0].startswith("python -m launch.devcluster start")
    assert lines[-1] == "python -m launch.devcluster stop"
    script = "\n".join([f'python() {{ {sys.executable} "$@"; }}', *lines])
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    argv = ["bash", "-ec", script]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    DevCluster(cache / "rankwise" / "devcluster").stop()
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"^(node\d) 0,1,2,3,4,5,6,7 ", done.stdout, re.MULTILINE)) == NAMES
    assert done.stdout.splitlines()[-1] == "stopped"
    assert " ".join(EXAMPLE.split()) in " ".join(devcluster("--help").stdout.split())  # as wide as the terminal
