"""launch.doctor on a real Slurm: what it says of a cluster that is well, and of sites that are wrong about theirs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import Command
from tests.slurm.jobs import state
from tests.waiting import until
from tools.devcluster.cluster import DevCluster

Told = dict[str, tuple[str, str, str]]
"""Name → word, text, what to write."""
Doctor = Callable[..., tuple[int, Told]]


@pytest.fixture
def doctor(tmp_path: Path, cluster: DevCluster, command: Command) -> Doctor:
    """`doctor(changes, *words)`: what is said of a site file with these changes, and the exit status."""

    def run(changes: Callable[[str], str] | None, *words: str, out: Path = tmp_path) -> tuple[int, Told]:
        site = tmp_path / "changed.toml"
        text = cluster.site_file.read_text()
        site.write_text(changes(text) if changes else text)
        argv = [sys.executable, "-m", "launch.doctor", "--site", str(site), "--out", str(out), "--format", "json"]
        done = command(*argv, *words)
        assert done.stdout, done.stderr
        assert list(out.glob("doctor-*")) == []  # whatever it found, it leaves nothing behind
        advice = json.loads(done.stdout)["advice"]
        return done.returncode, {one["name"]: (one["word"], one["text"], one["write"]) for one in advice}

    return run


def wrong(told: Told) -> dict[str, str]:
    return {name: write for name, (word, _, write) in told.items() if word == "change"}


def test_a_cluster_that_is_well_has_nothing_to_change(doctor: Doctor) -> None:
    status, told = doctor(None)
    assert (status, wrong(told)) == (0, {}), told
    assert told["mpi"][1].startswith("4 ranks found one another by srun --mpi=pmix (Open MPI")
    assert told["shared folder"][1] == "read and written by node1, node2"
    assert told["python"][0] == told["local storage"][0] == told["partition"][0] == "ok"
    assert told["PMIx fences"][0] == "note"
    assert told["KillWait"][0] == "note" and told["accounting"][0] == "ok"  # 5 s; a day without accounting


def test_the_wrong_pmi_is_told_with_the_one_that_works(doctor: Doctor) -> None:
    status, told = doctor(lambda text: text.replace("pmix", "pmi2"))
    assert (status, wrong(told)) == (1, {"mpi": 'mpi = "pmix"'}), told
    assert "srun --mpi=pmi2 does not bring the ranks together" in told["mpi"][1]


def test_the_wrong_mpirun_is_told_with_the_launcher_that_works(doctor: Doctor) -> None:
    status, told = doctor(lambda text: text.replace('"srun"', '"mpirun"').replace("pmix", "mpich"))
    assert (status, wrong(told)) == (1, {"mpi": 'launcher = "srun"\nmpi = "pmix"'}), told


def test_more_gpus_than_nodes_have_are_told_and_the_rest_is_looked_at(doctor: Doctor) -> None:
    status, told = doctor(lambda text: text.replace("gpus_per_node = 0", "gpus_per_node = 16"), "--ranks-per-node", "2")
    assert status == 1
    assert wrong(told)["gpus_per_node"] == "gpus_per_node = 8", told
    assert told["mpi"][0] == "ok"


def test_an_interpreter_that_nodes_do_not_have_is_told_before_mpi_is_blamed(doctor: Doctor) -> None:
    status, told = doctor(lambda text: f'{text}\n[interpreter]\ndefault = "/nowhere/python"\n')
    assert status == 1
    assert list(wrong(told)) == ["python"], told
    assert told["python"][1] == "/nowhere/python does not run on node1, node2: not there"
    assert told["mpi"][0] == "unknown"


def test_modules_and_promises_that_nodes_do_not_keep_are_told(doctor: Doctor) -> None:
    expectations = 'modules = ["CUDA/99"]\nexpect_transport = "ib"\n'
    if Path("/sys/class/infiniband").exists():
        pytest.skip("this machine has adapters that could keep the promise")
    status, told = doctor(lambda text: expectations + text)
    assert status == 1
    assert sorted(wrong(told)) == ["fabric", "modules"], told
    assert "module load CUDA/99" in told["modules"][1]


@pytest.fixture
def own_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rw-doctor-", dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_folder_that_nodes_do_not_share_is_told(doctor: Doctor, cluster: DevCluster, own_folder: Path) -> None:
    """Every node of the cluster has a /dev/shm of its own."""
    if not cluster.host.own_names:
        pytest.skip("namespaces are refused on this machine: its nodes share everything")
    status, told = doctor(None, out=own_folder)
    assert (status, list(wrong(told))) == (1, ["shared folder"]), told


def test_what_slurm_refuses_and_what_waits_are_told(doctor: Doctor, cluster: DevCluster) -> None:
    status, told = doctor(None, "--partition", "nowhere")
    assert status == 1
    assert "nowhere" in told["partition"][1] and "mpi" not in told
    blocker = cluster.run("sbatch", "--parsable", "--exclusive", f"--nodes={cluster.shape.nodes}", "--output=/dev/null",
                          "--wrap=sleep 600").strip()  # fmt: skip
    try:
        until(lambda: state(cluster, blocker) == "RUNNING", "the nodes are taken")
        status, told = doctor(None, "--wait", "0.02")
        assert (status, list(wrong(told))) == (1, ["job"]), told
        assert "was pending" in told["job"][1]
        assert cluster.run("squeue", "-h", "-o", "%i").split() == [blocker]  # its own job was cancelled, no other
    finally:
        cluster.run("scancel", blocker)
