"""A development cluster is started once, by whoever may and wherever it can be; stopped, nothing of it stays."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.devclusters import NAMES, ONE_NODE, commands, daemon_pids, devcluster, sleepers
from tests.sweeps import ROOT
from tests.waiting import LIMIT_S, until
from tools.devcluster.__main__ import EXAMPLE
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import TMP, Shape
from tools.devcluster.processes import namespaces_refused

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


def test_a_daemon_that_does_not_start_is_quoted_and_all_is_stopped(new_root, tmp_path):
    root = new_root()
    with stub(tmp_path / "bin", "slurmd", "echo 'no luck today'; exit 3") as path:
        done = devcluster("start", "--nodes=1", "--root", root, PATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "devcluster: node1 ended at once: no luck today\n"
    assert commands(str(root)) == {}


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
    assert lines[0].startswith("rankwise devcluster start")
    assert lines[-1] == "rankwise devcluster stop"
    script = "\n".join([f'python() {{ {sys.executable} "$@"; }}', *lines])
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    argv = ["bash", "-ec", script]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    DevCluster(cache / "rankwise" / "devcluster").stop()
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"^(node\d) 0,1,2,3,4,5,6,7 ", done.stdout, re.MULTILINE)) == NAMES
    assert done.stdout.splitlines()[-1] == "stopped"
    assert " ".join(EXAMPLE.split()) in " ".join(devcluster("--help").stdout.split())  # as wide as the terminal


def test_another_shape_is_refused(new_root):
    root = new_root()
    with DevCluster(root, ONE_NODE):
        done = devcluster("start", "--nodes=2", "--cpus=2", "--gpus=0", "--root", root)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(
            r"devcluster: a cluster of 1 node of 2 CPUs .* requested .* 2 nodes .*: stop it first .*\n", done.stderr
        )
        assert DevCluster.running(root).shape == ONE_NODE


def test_a_folder_with_other_files_is_refused(tmp_path, new_root):
    root = new_root()
    (root / "log").mkdir()
    (root / "log" / "diary").write_text("dear")
    done = devcluster("start", "--root", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds other files" in done.stderr
    assert [path.name for path in root.rglob("*")] == ["log", "diary"]
