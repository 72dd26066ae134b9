"""launch.doctor on a real Slurm: a healthy cluster, and sites that do not fit it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc.model.findings import read_finding
from launch.jobs.site import read_site
from tests.slurm.conftest import Command
from tests.slurm.jobs import state
from tests.waiting import until
from tools.devcluster.cluster import DevCluster

Findings = dict[str, tuple[str, str, str]]
"""Name → label, text, fix."""
Doctor = Callable[..., tuple[int, Findings]]


@pytest.fixture
def doctor(tmp_path: Path, cluster: DevCluster, command: Command) -> Doctor:
    """`doctor(changes, *options)`: the exit status and the findings for a site file with these changes."""

    def run(changes: Callable[[str], str] | None, *options: str, out: Path = tmp_path) -> tuple[int, Findings]:
        site = tmp_path / "changed.toml"
        text = cluster.site_file.read_text()
        site.write_text(changes(text) if changes else text)
        argv = [sys.executable, "-m", "launch.doctor", "--site", str(site), "--out", str(out), "--format", "json"]
        done = command(*argv, *options)
        assert done.stdout, done.stderr
        assert list(out.glob("doctor-*")) == []  # nothing is left in the folder
        findings = map(read_finding, json.loads(done.stdout)["findings"])
        return done.returncode, {each.name: (each.label, each.text, each.fix) for each in findings}

    return run


def fixes(findings: Findings) -> dict[str, str]:
    return {name: fix for name, (label, _, fix) in findings.items() if label == "alarm"}


def test_a_healthy_cluster_has_nothing_to_change(doctor: Doctor) -> None:
    status, findings = doctor(None)
    assert (status, fixes(findings)) == (0, {}), findings
    assert findings["mpi"][1].startswith("4 ranks connected by srun --mpi=pmix (Open MPI")
    assert findings["shared folder"][1] == "read and written by node1, node2"
    assert findings["python"][0] == findings["local storage"][0] == findings["partition"][0] == "ok"
    assert findings["KillWait"][0] == "note"  # 5 s


def test_a_wrong_pmi_is_reported_with_one_that_works(doctor: Doctor) -> None:
    status, findings = doctor(lambda text: text.replace("pmix", "pmi2"))
    assert (status, fixes(findings)) == (1, {"mpi": 'mpi = "pmix"'}), findings
    assert "srun --mpi=pmi2 does not connect the ranks" in findings["mpi"][1]


def test_a_missing_interpreter_is_reported_and_mpi_is_unknown(doctor: Doctor) -> None:
    status, findings = doctor(lambda text: f'{text}\n[interpreter]\ndefault = "/nowhere/python"\n')
    assert status == 1
    assert list(fixes(findings)) == ["python"], findings
    assert findings["python"][1] == "/nowhere/python does not run on node1, node2: not there"
    assert findings["mpi"][0] == "unknown"


@pytest.mark.all
def test_missing_modules_and_adapters_are_reported(doctor: Doctor) -> None:
    expectations = 'modules = ["CUDA/99"]\nexpect_transport = "ib"\n'
    if Path("/sys/class/infiniband").exists():
        pytest.skip("this machine has adapters that could keep the promise")
    status, findings = doctor(lambda text: expectations + text)
    assert status == 1
    assert sorted(fixes(findings)) == ["expect_transport", "setup"], findings
    assert "module load CUDA/99" in findings["setup"][1]


@pytest.fixture
def own_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rw-doctor-", dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_folder_that_nodes_do_not_share_is_reported(doctor: Doctor, cluster: DevCluster, own_folder: Path) -> None:
    """Every node of the cluster has a /dev/shm of its own."""
    if not cluster.host.own_names:
        pytest.skip("namespaces are refused on this machine: its nodes share everything")
    status, findings = doctor(None, out=own_folder)
    assert (status, list(fixes(findings))) == (1, ["shared folder"]), findings


@pytest.mark.all
def test_an_unknown_partition_and_a_pending_job_are_reported(doctor: Doctor, cluster: DevCluster) -> None:
    status, findings = doctor(None, "--partition", "nowhere")
    assert status == 1
    assert "nowhere" in findings["partition"][1] and "mpi" not in findings
    blocker = cluster.run("sbatch", "--parsable", "--exclusive", f"--nodes={cluster.shape.nodes}", "--output=/dev/null",
                          "--wrap=sleep 600").strip()  # fmt: skip
    try:
        until(lambda: state(cluster, blocker) == "RUNNING", "the nodes are taken")
        status, findings = doctor(None, "--wait", "0.02")
        assert (status, list(fixes(findings))) == (1, ["job"]), findings
        assert "was pending" in findings["job"][1]
        assert cluster.run("squeue", "-h", "-o", "%i").split() == [blocker]  # its own job was cancelled, no other
    finally:
        cluster.run("scancel", blocker)


def test_a_site_file_is_made_of_what_slurm_says(command: Command, cluster: DevCluster, tmp_path: Path) -> None:
    done = command(sys.executable, "-m", "launch.doctor", "--format", "site")
    assert done.returncode == 0, done.stderr
    (tmp_path / "made.toml").write_text(done.stdout)
    made, real = read_site(tmp_path / "made.toml"), read_site(cluster.site_file)
    assert (made.partition, made.gpus_per_node, made.mpi) == ("main", cluster.shape.gpus, "pmix")
    assert made.cpus_per_node == real.cpus_per_node and made.sbatch == {"mem": "0"}
