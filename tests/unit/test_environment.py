"""The facts of machine, software and job in a trace, and those that must not be in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpc.system.environment import (
    describe_host,
    describe_project,
    describe_software,
    describe_variables,
    in_common,
)
from hpc.system.job_facts import describe_job


def test_relevant_variables_are_recorded_and_secrets_are_not() -> None:
    recorded = {
        "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "4", "OMPI_MCA_btl": "tcp", "UCX_TLS": "rc",
        "HOROVOD_CYCLE_TIME": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "PADDLE_DISTRI_BACKEND": "gloo",
        "NCCL_IB_PKEY": "0x8001",
    }  # fmt: skip
    # Their names are recorded, their values are not.
    secret = ("SLURM_JWT", "NCCL_API_KEY", "SLURM_AUTH_TOKEN", "UCX_PASSWORD", "OMPI_secret", "CUDA_CREDENTIALS")
    changing = ("OMPI_MCA_orte_hnp_uri", "PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS")  # with every launch
    dropped = {"HOME": "/root", "AWS_THING": "x", "HF_TOKEN": "x", **dict.fromkeys(changing, "x")}
    proxy = {"NCCL_PROXY": "http://me:hush@proxy:3128"}
    described = describe_variables({**recorded, **dropped, **proxy, **dict.fromkeys(secret, "hush")})
    assert described == {**recorded, **dict.fromkeys((*secret, *proxy), "(left out)")}


def test_the_host_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("0a1b\n")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1024 kB\nMemFree: 3 kB\n")
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: 570.1\nGCC version: 12\n")
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.14.14\n")
    expected = {
        "boot_id": "0a1b", "cpu_model": "Fast CPU @ 3 GHz", "memory_bytes": 1024 * 1024,
        "nvidia_driver": "NVRM version: 570.1", "amdgpu_driver": "6.14.14",
        "cpus_allowed": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    described = describe_host(tmp_path, tmp_path / "sys")
    assert {name: described[name] for name in expected} == expected


def test_the_versions_are_those_installed() -> None:
    assert describe_software()["python"].startswith("3.")
    assert describe_software()["numpy"]


def test_the_job_is_described_by_slurms_variables() -> None:
    assert describe_job({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "HOME": "/"}) == {
        "job_id": "7",
        "job_nodelist": "n[1-4]",
    }
    assert describe_job({}) == {}


def test_the_project_is_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-q", "-m", "Start")
    commit = git("rev-parse", "HEAD").strip()
    assert describe_project(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("b")
    assert describe_project(tmp_path) == {"commit": commit, "dirty": True}
    # A copy inside somebody else's repository is not that repository.
    (tmp_path / "inner").mkdir()
    assert describe_project(tmp_path / "inner") == {}


def test_without_git_the_project_is_not_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_project(tmp_path) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_project() == {}


def test_facts_of_all_ranks_are_noted_once() -> None:
    ranks = [
        {"rank": 0, "software": {"torch": "2"}, "variables": {"A": "1", "B": "0"}, "backend": {"transport": "gloo"}},
        {"rank": 1, "software": {"torch": "2"}, "variables": {"A": "1", "B": "1"}, "backend": {"transport": "gloo"}},
        {"rank": 2, "software": {"torch": "3"}, "variables": {"A": "1"}, "backend": {"transport": "gloo"}},
    ]
    for rank in ranks:
        rank["preflight"] = {"load": {"state": "ok"}}
    shared, individual = in_common(ranks)
    described = {"preflight": {"load": {"state": "ok"}}}
    assert shared == {"software": {}, "variables": {"A": "1"}, "backend": {"transport": "gloo"}, **described}
    assert individual == [
        {"rank": 0, "software": {"torch": "2"}, "variables": {"B": "0"}},
        {"rank": 1, "software": {"torch": "2"}, "variables": {"B": "1"}},
        {"rank": 2, "software": {"torch": "3"}},
    ]
