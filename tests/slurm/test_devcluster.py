"""The development cluster is what it claims to be: several nodes, open to this machine alone, gone when stopped."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from launch.devcluster.__main__ import EXAMPLE
from launch.devcluster.cluster import USABLE, DevCluster
from launch.devcluster.config import CLOCK_DISTANCE_S, MAX_ROOT_BYTES, DevClusterError, Shape
from launch.devcluster.daemons import missing_programs
from launch.devcluster.processes import Processes, namespaces_refused
from tests.slurm.faults import save_state

CHECKOUT = Path(__file__).resolve().parents[2]
NAMES = ["node1", "node2", "node3", "node4"]
ONE = Shape(nodes=1, cpus=2, gpus=0)
DEADLINE_S = 300
"""Far beyond what is ever needed: it only ends a test that waits for what does not come."""

WORLD = """
import os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
rows = world.gather((world.rank, world.size, node.size, socket.gethostname(), os.environ["SLURMD_NODENAME"]))
total = world.allreduce(world.rank)
if world.rank == 0:
    for row in rows:
        print(*row, total)
"""


def until(ready: Callable[[], bool], what: str) -> None:
    """Waits; fails the test where it never comes."""
    end_s = time.monotonic() + DEADLINE_S
    while not ready():
        if time.monotonic() > end_s:
            pytest.fail(f"{what}: not after {DEADLINE_S} s")
        time.sleep(0.1)


def devcluster(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a person would call it."""
    return subprocess.run(
        [sys.executable, "-m", "launch.devcluster", *map(str, args)],
        cwd=CHECKOUT, env={**os.environ, **env}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def commands(word: str) -> dict[int, str]:
    """Process id → command line of all but this one that have the word in their command line or environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if word in command or word.encode() in environment:
                found[int(entry.name)] = command
    return found


@pytest.fixture
def nap(request: pytest.FixtureRequest) -> Iterator[str]:
    """A command that sleeps for days, and whose number no other test of any other session has."""
    command = f"/bin/sleep {1_000_000 + os.getpid()}{request.session.items.index(request.node):04}"
    yield command
    for pid in commands(command):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def sleepers(nap: str) -> int:
    """How many processes sleep so."""
    return list(commands(nap).values()).count(nap)


def daemon_pids(cluster: DevCluster) -> set[int]:
    """The controller's and the slurmds' processes, by their command lines."""
    found = commands(str(cluster.conf)).items()
    return {pid for pid, command in found if re.match(r"\S*(slurmctld|slurmd) ", command)}


def listening(pids: set[int]) -> set[str]:
    """The addresses, as /proc/net has them, that these processes listen on."""
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(handle.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1])
    return found


@contextmanager
def stub(folder: Path, name: str, script: str) -> Iterator[str]:
    """A PATH on which a program of this name is this shell script."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    yield f"{folder}:{os.environ['PATH']}"


def test_all_nodes_are_up(cluster):
    assert list(cluster.states()) == NAMES
    assert set(cluster.states().values()) <= USABLE
    assert cluster.daemons() == {"slurmctld", *NAMES}


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


def test_mpi_sees_the_nodes(cluster, tmp_path):
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py here: pip install mpi4py")
    (tmp_path / "world.py").write_text(WORLD)
    printed = cluster.run(
        "srun", "--mpi=pmix", "-N4", "-n8", "--ntasks-per-node=2", sys.executable, tmp_path / "world.py"
    )  # fmt: skip
    rows = [line.split() for line in printed.splitlines()]
    assert [(row[0], row[1], row[4], row[5]) for row in rows] == [(f"{k}", "8", NAMES[k // 2], "28") for k in range(8)]
    if cluster.host.own_names:
        assert {(row[2], row[3]) for row in rows} == {("2", name) for name in NAMES}


def test_gpus_are_given_to_jobs(cluster):
    show = 'echo "$CUDA_VISIBLE_DEVICES"'
    assert cluster.run("srun", "-N2", "--gpus-per-node=8", "sh", "-c", show).split() == ["0,1,2,3,4,5,6,7"] * 2
    assert cluster.run("srun", "-N1", "--gpus-per-node=2", "sh", "-c", show).split() == ["0,1"]
    assert cluster.run("srun", "-N1", "sh", "-c", show).split() == []


def test_a_job_is_held_to_the_memory_that_it_named(cluster, tmp_path):
    (tmp_path / "greedy.py").write_text("import time\nhoard = bytearray(400 << 20)\ntime.sleep(600)\n")
    with pytest.raises(DevClusterError, match="exceeded memory limit"):
        cluster.run("srun", "--mem=100M", sys.executable, tmp_path / "greedy.py", timeout_s=DEADLINE_S)


def test_nothing_but_the_loopback_interface_is_listened_on(cluster):
    addresses = listening(daemon_pids(cluster))
    assert len(addresses) >= 5
    assert {address.split(":")[0] for address in addresses} == {"0100007F"}


def test_a_power_cut_is_noticed_and_mended(cluster, tmp_path, nap):
    submit = ("sbatch", "--parsable", "--no-requeue", "-w", "node3", "-o", tmp_path / "out", "--wrap")
    job = cluster.run(*submit, f"exec env -i {nap}").strip()
    until(lambda: sleepers(nap) == 1, "the job runs")
    cluster.kill_node("node3")
    assert sleepers(nap) == 0
    assert cluster.daemons() == {"slurmctld", "node1", "node2", "node4"}
    until(lambda: cluster.states()["node3"].startswith("down"), "the controller notices")
    assert re.search(r"node3 +down\*? +dead", devcluster("status", "--root", cluster.root).stdout)
    until(lambda: "JobState=NODE_FAIL" in cluster.run("scontrol", "show", "job", job), "the job is given up")
    cluster.start_node("node3")
    assert cluster.states()["node3"] in USABLE
    assert cluster.run("srun", "-w", "node3", "sh", "-c", "echo $SLURMD_NODENAME") == "node3\n"


def test_every_node_has_storage_of_its_own_that_a_power_cut_takes(new_root):
    with DevCluster(new_root(), Shape(nodes=2, cpus=2, gpus=0)) as cluster:
        if not cluster.host.own_storage:
            pytest.skip("mounting is refused here: nodes have no storage of their own")
        for name in ("node1", "node2"):
            cluster.run("srun", "-w", name, "sh", "-c", "echo $SLURMD_NODENAME >/dev/shm/whose")
        assert [(cluster.local_storage(name) / "whose").read_text() for name in ("node1", "node2")] == [
            "node1\n", "node2\n",
        ]  # fmt: skip
        assert not Path("/dev/shm/whose").exists()
        cluster.kill_node("node2")
        with pytest.raises(DevClusterError, match="node2 does not run, and its storage is gone with it"):
            cluster.local_storage("node2")
        cluster.start_node("node2")
        assert list(cluster.local_storage("node2").iterdir()) == []
        assert (cluster.local_storage("node1") / "whose").exists()


def test_a_controller_that_was_killed_knows_its_jobs_when_it_is_back(new_root, nap):
    with DevCluster(new_root(), Shape(nodes=1, cpus=2, gpus=0, message_timeout_s=2)) as cluster:
        job = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", f"exec {nap}").strip()
        until(lambda: sleepers(nap) == 1, "the job runs")
        save_state(cluster, job)
        with pytest.raises(DevClusterError, match="the controller runs already"):
            cluster.start_controller()
        cluster.kill_controller()
        assert cluster.daemons() == {"node1"}
        with pytest.raises(DevClusterError, match="Unable to contact slurm controller"):
            cluster.run("squeue")
        cluster.start_controller()
        assert cluster.run("squeue", "-h", "-o", "%i %T").split() == [job, "RUNNING"]
        assert sleepers(nap) == 1
        with pytest.raises(DevClusterError, match="'slurmdbd' is no daemon of this cluster: slurmctld, node1"):
            cluster.freeze("slurmdbd")


def test_accounts_are_kept_and_nothing_of_them_is_open(new_root):
    if missing := missing_programs(accounting=True):
        pytest.skip(missing)
    root = new_root()
    with DevCluster(root, Shape(nodes=1, cpus=2, gpus=0, accounting=True)) as cluster:
        assert cluster.daemons() == {"slurmctld", "node1", "slurmdbd", "mariadbd"}
        job = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true").strip()
        until(lambda: "COMPLETED" in cluster.run("sacct", "-X", "-n", "-o", "State", "-j", job), "sacct knows it")
        found = {pid for pid, command in commands(str(cluster.conf)).items() if re.match("slurmdbd|mariadbd", command)}
        addresses = listening(found)
        assert len(addresses) == 1
        assert {address.split(":")[0] for address in addresses} == {"0100007F"}
        assert (root / "database").stat().st_mode & 0o777 == 0o700
    assert commands(str(root)) == {}


def test_nodes_are_told_by_their_names(cluster):
    with pytest.raises(DevClusterError, match="'node9' is no node of this cluster: node1, node2, node3, node4"):
        cluster.kill_node("node9")
    with pytest.raises(DevClusterError, match="node1 runs already"):
        cluster.start_node("node1")


def test_a_failing_client_command_is_told_with_its_own_words(cluster):
    with pytest.raises(DevClusterError, match=r"scontrol show node node9: exit status 1: .*not found"):
        cluster.run("scontrol", "show", "node", "node9")


def test_the_second_starter_joins(new_root):
    root = new_root()
    argv = [sys.executable, "-m", "launch.devcluster", "start", "--nodes=2", "--gpus=0", "--root", str(root)]
    starters = [subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(starter.communicate(timeout=DEADLINE_S)[0].split(":")[0] for starter in starters)
    assert said == ["running already, joined", "started"]
    assert [starter.returncode for starter in starters] == [0, 0]
    cluster = DevCluster.running(root)
    assert cluster.shape == Shape(nodes=2, gpus=0)
    assert len(daemon_pids(cluster)) == 3


def test_another_shape_is_refused(new_root):
    root = new_root()
    with DevCluster(root, ONE):
        done = devcluster("start", "--nodes=2", "--cpus=2", "--gpus=0", "--root", root)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(
            r"devcluster: a cluster of 1 node of 2 CPUs .* asked .* 2 nodes .*: stop it first .*\n", done.stderr
        )
        assert DevCluster.running(root).shape == ONE


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
    assert waiting.wait(timeout=DEADLINE_S) != 0
    assert not cluster.stop()
    done = devcluster("status", "--root", root)
    assert (done.returncode, done.stdout) == (1, f"not running: {root}\n")


def test_a_cluster_that_another_version_started_can_be_stopped(new_root):
    root = new_root()
    DevCluster(root, ONE).start()
    (root / "cluster.json").write_text('{"shape": {}}\n')
    done = devcluster("start", "--nodes=1", "--root", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"devcluster: another version .*: stop it first\n", done.stderr)
    assert devcluster("stop", "--root", root).stdout == "stopped\n"
    assert commands(str(root)) == {}


def test_two_clusters_side_by_side(cluster, new_root):
    with DevCluster(new_root(), ONE) as other:
        assert other.run("scontrol", "show", "hostnames", "node[1]") == "node1\n"
        assert list(other.states()) == ["node1"]
        assert other.run("srun", "sh", "-c", "echo $SLURM_CONF") == f"{other.conf}\n"
        assert cluster.run("srun", "sh", "-c", "echo $SLURM_CONF") == f"{cluster.conf}\n"
    assert not other.is_running()
    assert cluster.daemons() == {"slurmctld", *NAMES}


def test_the_number_of_a_namespace_that_is_gone_tells_nothing(new_root):
    """A cluster that ends gives its namespaces' numbers to one that starts at that moment, and must not end that."""
    root = new_root()
    ending = DevCluster(root, ONE)
    ending.start()
    if not ending.host.own_names:
        pytest.skip("unshare is refused here: nodes have no namespaces of their own")
    known = Processes([str(ending.conf)], own_names=True)
    assert set(known.living().values()) == {"slurmctld", "node1"}
    ending.stop()
    with DevCluster(new_root(), ONE) as starting:
        assert known.living() == {}
        assert starting.daemons() == {"slurmctld", "node1"}


def test_job_ids_are_never_given_twice(new_root, monkeypatch, tmp_path):
    root = new_root()
    submit = ("sbatch", "--parsable", "-o", tmp_path / "out", "--wrap", "true")
    with DevCluster(root, ONE) as cluster:
        first = int(cluster.run(*submit))
    monkeypatch.setattr(time, "time", lambda: 1000.0)  # a machine whose clock was set back
    with DevCluster(root, ONE) as cluster:
        assert cluster.run("squeue", "-h", "-t", "all") == ""
        assert int(cluster.run(*submit)) > first


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path, new_root):
    root = new_root()
    (root / "log").mkdir()
    (root / "log" / "diary").write_text("dear")
    done = devcluster("start", "--root", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds other files" in done.stderr
    assert [path.name for path in root.rglob("*")] == ["log", "diary"]


def test_a_daemon_that_does_not_come_up_is_told_and_nothing_stays(new_root, tmp_path):
    root = new_root()
    with stub(tmp_path / "bin", "slurmd", "echo 'no luck today'; exit 3") as path:
        done = devcluster("start", "--nodes=1", "--root", root, PATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "devcluster: node1 ended at once: no luck today\n"
    assert commands(str(root)) == {}


def test_without_namespaces_nodes_share_one_name_and_it_is_said(new_root, tmp_path, nap):
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
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"note: {socket.gethostname()} is 127.0.1.1 in /etc/hosts" in done.stdout
    assert sorted(re.findall(r"task on (\w+)", done.stdout)) == ["node1", "node2"]
    assert re.findall(r": step on (\w+)", done.stdout) == ["node1", "node2"]


def test_mpi_works_in_the_longest_root(new_root, tmp_path):
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py here: pip install mpi4py")
    (tmp_path / "world.py").write_text(WORLD)
    root = new_root()
    root /= "r" * (MAX_ROOT_BYTES - 1 - len(str(root)))
    with DevCluster(root, Shape(nodes=10, gpus=0)) as cluster:
        printed = cluster.run(
            "srun", "--mpi=pmix", "-w", "node[9-10]", "-n2", "-N2", sys.executable, tmp_path / "world.py"
        )
    assert len(printed.splitlines()) == 2


def test_a_normal_user_can_start_one(new_root, nap):
    if os.getuid() != 0:
        pytest.skip("all tests here run as a normal user already")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nonexistent"]

    def new_enough(python: str) -> bool:
        probe = [*nobody, python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    pythons = [python for python in (sys.executable, "/usr/bin/python3") if new_enough(python)]
    if not pythons:
        pytest.skip("no Python 3.11 here that a normal user can run")
    root = new_root()
    shutil.copytree(CHECKOUT / "launch", root / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    os.chown(root, 65534, 65534)
    script = f"""
        python="{pythons[0]} -m launch.devcluster"
        $python start --nodes 2 --root {root}/c
        eval "$($python env --root {root}/c)"
        srun -N2 sh -c 'echo $(id -u) on $SLURMD_NODENAME'
        sbatch -o {root}/out --wrap 'env -i {nap}' >/dev/null
        $python status --root {root}/c
        $python stop --root {root}/c
    """
    argv = [*nobody, "bash", "-ec", script]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"65534 on (\w+)", done.stdout)) == ["node1", "node2"]
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
    done = subprocess.run(argv, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    DevCluster(cache / "rankwise" / "devcluster").stop()
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"^(node\d) 0,1,2,3,4,5,6,7 ", done.stdout, re.MULTILINE)) == NAMES
    assert done.stdout.splitlines()[-1] == "stopped"
    assert EXAMPLE.strip() in devcluster("--help").stdout
