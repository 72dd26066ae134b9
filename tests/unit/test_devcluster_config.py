"""The development cluster's files and environment, as text, and what its command line refuses."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launch.jobs.site import read_site
from tests.processes import Process
from tests.slurm.jobs import is_of_job
from tools.devcluster import daemons
from tools.devcluster.__main__ import main
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import (
    MAX_ROOT_BYTES,
    DevClusterError,
    Host,
    Shape,
    check_root,
    client_env,
    files,
    mpi_env,
    remembered,
    shared_folders,
    shell_lines,
)

HOST = Host(
    name="box", address="127.0.0.1", hosts="127.0.1.1 box\n", uid=1000, user="me", memory_mb=2000, own_names=True,
    own_storage=True, pmix=True, shared=(),
)  # fmt: skip
ROOT = Path("/tmp/x")


@pytest.fixture
def short_root() -> Iterator[Path]:
    """A folder that does not exist, of a name short enough."""
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/tmp") as folder:
        yield Path(folder) / "none"


def texts(host: Host = HOST, shape: Shape | None = None) -> dict[str, str]:
    """A cluster's files, with the ports 7000 (controller), 7001, …"""
    shape = shape or Shape()
    return files(host, shape, ROOT, ports=range(7000, 7001 + shape.nodes + shape.accounting), first_job_id=42)


def conf(host: Host = HOST, shape: Shape | None = None) -> str:
    return texts(host, shape)["slurm.conf"]


def test_daemons_are_known_by_the_names_that_their_hosts_have() -> None:
    separate, shared = conf(), conf(replace(HOST, own_names=False))
    assert "SlurmctldHost=slurmctld(127.0.0.1)" in separate
    assert "NodeName=node2 NodeHostname=node2 " in separate
    assert "SlurmctldHost=box(127.0.0.1)" in shared
    assert "NodeName=node2 NodeHostname=box " in shared


def test_where_there_is_loopback_only_slurm_resolves_names_of_any_family() -> None:
    isolated = texts(replace(HOST, loopback_only=True), Shape(accounting=True))
    assert "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny,EnableIPv6\n" in isolated["slurm.conf"]
    assert "CommunicationParameters=NoCtldInAddrAny,EnableIPv6\n" in isolated["login.conf"]
    assert "CommunicationParameters=NoInAddrAny,EnableIPv6\n" in isolated["slurmdbd.conf"]


@pytest.mark.parametrize("host", [HOST, replace(HOST, uid=0), replace(HOST, own_names=False)])
def test_the_site_file_is_one_that_the_sweep_reads(host: Host, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(texts(host, Shape(cpus=5))["site.toml"])
    site = read_site(tmp_path / "site.toml")
    assert (site.name, site.gpus_per_node, site.cpus_per_node) == ("devcluster", 0, 5)
    assert (site.launcher, site.mpi, site.time_limit_min) == ("srun", "pmix", 60)
    assert site.env == mpi_env(host)


def test_the_files_hold_the_requested_rules() -> None:
    shape = Shape(
        nodes=2, clocks=True, preempt_mode="CANCEL", grace_s=3, job_requeue=False, min_job_age_s=2, max_job_count=5,
        slurmd_timeout_s=7, message_timeout_s=4, kill_wait_s=6, accounting=True,
    )  # fmt: skip
    written = texts(shape=shape)
    assert set(written["slurm.conf"].splitlines()) >= {
        "JobRequeue=0", "MinJobAge=2", "MaxJobCount=5", "SlurmdTimeout=7", "MessageTimeout=4", "KillWait=6",
        "AccountingStorageType=accounting_storage/slurmdbd", "AccountingStoragePort=7003",
        "PartitionName=main Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime=3",
    }  # fmt: skip
    assert "DbdPort=7003\nCommunicationParameters=NoInAddrAny\n" in written["slurmdbd.conf"]
    assert "pass" not in written["slurmdbd.conf"].lower()
    assert remembered(written["cluster.json"]) == (HOST, shape)
    assert str(shape).endswith("preempt_mode CANCEL, grace_s 3, job_requeue False, min_job_age_s 2, max_job_count 5, "
                               "slurmd_timeout_s 7, message_timeout_s 4, kill_wait_s 6, accounting True")  # fmt: skip
    assert "slurmdbd" not in conf()
    with pytest.raises(DevClusterError, match="preempt_mode is 'cancel'; a development cluster takes REQUEUE, CANCEL"):
        Shape(preempt_mode="cancel")


def test_a_client_inherits_nothing_of_another_cluster_or_job() -> None:
    base = {
        "SLURM_CONF": "/etc/other", "SLURM_JOB_ID": "7", "SBATCH_PARTITION": "big", "OMPI_MCA_btl": "vader",
        "PMIX_RANK": "3", "HOME": "/home/x", "PATH": "/opt/bin:/usr/sbin",
    }  # fmt: skip
    env = client_env(base, Path("/tmp/x/slurm.conf"), {"OMPI_MCA_a": "b"})
    assert env == {
        "SLURM_CONF": "/tmp/x/slurm.conf", "OMPI_MCA_a": "b", "HOME": "/home/x",
        "PATH": "/opt/bin:/usr/sbin:/usr/local/sbin:/sbin",
    }  # fmt: skip
    assert client_env(env, Path("/tmp/x/slurm.conf"), {"OMPI_MCA_a": "b"}) == env


def test_a_shell_gets_the_environment_whatever_is_in_it(tmp_path: Path) -> None:
    base = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "KEPT": "as it is"}
    wanted = {"PATH": "/bin:/usr/bin", "KEPT": "as it is", "HOSTILE": "a'; touch pwned #\n$(touch pwned) `touch pwned`"}
    lines = shell_lines(base, wanted)
    assert not [line for line in lines if "KEPT" in line]
    script = "\n".join(lines) + "\nenv -0"
    done = subprocess.run(["bash", "-c", script], env=base, cwd=tmp_path, capture_output=True, text=True, check=True)
    got = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    assert {name: got.get(name) for name in wanted} == wanted
    assert "SLURM_JOB_ID" not in got
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", '{"host": {}, "shape": {}}', '{"host": {"colour": 1}, "shape": {}}', "[1]"])
def test_a_record_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(DevClusterError, match=r"another version of devcluster started this cluster .*: stop it first"):
        remembered(text)


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 65}, {"cpus": 0}, {"gpus": -1}, {"gpus": 65}])
def test_impossible_shapes_are_refused(wrong: dict[str, int]) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(DevClusterError, match=f"{name} is {value}; a development cluster takes . to 64|to 1024"):
        Shape(**wrong)  # type: ignore[arg-type]  # the names are Shape's


@pytest.mark.parametrize("root", ["/tmp/a b", "/tmp/a#b", "/tmp/a,b", "/tmp/%n", "/tmp/a[1]", "/tmp/a\nb", '/tmp/"'])
def test_a_root_that_slurm_would_misread_is_refused(root: str) -> None:
    with pytest.raises(DevClusterError, match="--root"):
        check_root(Path(root))


def test_a_root_too_long_for_sockets_is_refused() -> None:
    check_root(Path("/" + "r" * (MAX_ROOT_BYTES - 1)))
    with pytest.raises(DevClusterError, match=f"leave room for {MAX_ROOT_BYTES}"):
        check_root(Path("/" + "r" * MAX_ROOT_BYTES))


def test_a_host_on_which_daemons_would_be_open_to_the_network_is_refused() -> None:
    HOST.check()
    replace(HOST, address="10.0.0.5").check()
    replace(HOST, own_names=False).check()
    with pytest.raises(DevClusterError, match=r"10\.0\.0\.5: put '127\.0\.0\.1 box' first in /etc/hosts"):
        replace(HOST, own_names=False, address="10.0.0.5").check()
    with pytest.raises(DevClusterError, match="unknown: put"):
        replace(HOST, own_names=False, address="").check()


@pytest.mark.parametrize(
    ("folders", "shared"),
    [
        (["/home/me", "/var/tmp/x", "/tmp", "/", "/tmpfs/x"], ()),
        (["/tmp/b", "/tmp/a/deep", "/tmp/b", "/tmp/b/below", "/tmp/bb"], ("/tmp/a/deep", "/tmp/b", "/tmp/bb")),
    ],
)
def test_nodes_share_the_folders_in_use_below_tmp_and_not_tmp_itself(
    folders: list[str], shared: tuple[str, ...]
) -> None:
    assert shared_folders(map(Path, folders)) == shared


def test_missing_packages_are_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], short_root: Path
) -> None:
    monkeypatch.setattr(daemons.shutil, "which", lambda name, path: None if name == "slurmd" else f"/bin/{name}")
    assert main(["start", "--root", str(short_root)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"devcluster: Slurm is not installed here (missing: slurmd): {daemons.INSTALL}\n"


def test_commands_without_a_cluster(capsys: pytest.CaptureFixture[str], short_root: Path) -> None:
    assert main(["status", "--root", str(short_root)]) == 1
    assert "not running" in capsys.readouterr().out
    assert main(["env", "--root", str(short_root)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no cluster runs in" in err
    assert main(["stop", "--root", str(short_root)]) == 0
    assert "nothing runs in" in capsys.readouterr().out
    assert not (short_root).exists()


def test_a_job_of_the_same_number_on_another_cluster_is_another_job():
    conf = "SLURM_CONF=/var/tmp/rw-b/slurm.conf"
    process = Process(pid=1, words=("python", "-m", "launch.step"), environ=frozenset({"SLURM_JOB_ID=7", conf}))
    clusters_jobs = (("rw-b", "7"), ("rw-a", "7"), ("rw-b", "8"))
    ours = [is_of_job(process, DevCluster(Path("/var/tmp", name)), job_id) for name, job_id in clusters_jobs]
    assert ours == [True, False, False]
