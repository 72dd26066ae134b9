from __future__ import annotations

import dataclasses
import pwd
from pathlib import Path
from typing import Any

import pytest

from launch.jobs.launchers import Unquoted, local_argv, once_per_node_argv, run_argv
from launch.jobs.site import Site
from launch.scheduler.local import launcher
from tests.unit.traces import make_run

RUN = make_run(nodes=2, ranks_per_node=4, gpus_per_node=4, cpus_per_rank=6, backend="torch-ddp", workload="mlp")
PROGRAM = ["python", "-m", "hpc.rank"]


APPTAINER = {"container": "apptainer", "container_args": ("--bind", "/s"), "images": {"torch": "/i/torch.sif"}}
PYXIS = {"container": "pyxis", "images": {"torch": "x"}}
BOUND = ["--bind", "/j", "--bind", "/t"]
RING = "SLURM_PMIX_FENCE=ring"
PLACED = ["--ntasks-per-node=4", "--cpus-per-task=6", "--gpus-per-node=4", "--distribution=block:block", "--mpi=pmix",
          "--kill-on-bad-exit=1"]  # fmt: skip
SRUN = ["srun", "--nodes=2", "--ntasks=8", *PLACED]


@pytest.mark.parametrize(
    ("changes", "site", "argv"),
    [
        ({"env": {"B": "two words", "A": "1"}}, {}, ["env", "A=1", "B=two words", RING, *SRUN, *PROGRAM]),
        ({}, {"mpi": "pmi2"}, [token.replace("pmix", "pmi2") for token in SRUN] + PROGRAM),
        ({"gpus_per_node": 0}, {}, ["env", RING, *(t for t in SRUN if "gpus" not in t), *PROGRAM]),
        ({"env": {"SLURM_PMIX_FENCE": "tree"}}, {}, ["env", "SLURM_PMIX_FENCE=tree", *SRUN, *PROGRAM]),
        # mpirun does not hand the variables to other nodes
        (
            {"env": {"A": "1"}},
            {"launcher": "mpirun"},
            ["env", "A=1", "mpirun", "-n", "8", "--map-by", "ppr:4:node", "--bind-to", "none", "env", "A=1", *PROGRAM],
        ),
        ({}, {"launcher": "mpirun", "mpi": "mpich"}, ["mpirun", "-n", "8", "-ppn", "4", *PROGRAM]),
        (
            {"container": "/i/torch.sif"},
            APPTAINER,
            ["env", RING, *SRUN, "apptainer", "exec", "--nv", *BOUND, "--bind", "/s", "/i/torch.sif", *PROGRAM],
        ),
        (
            {"container": "/i/torch.sif"},
            {**APPTAINER, "container_args": ("--rocm",)},
            ["env", RING, *SRUN, "apptainer", "exec", *BOUND, "--rocm", "/i/torch.sif", *PROGRAM],
        ),
        (
            {"container": "i.sif", "gpus_per_node": 0}, {**APPTAINER, "container": "singularity", "container_args": ()},
            ["env", RING, *(t for t in SRUN if "gpus" not in t), "singularity", "exec", *BOUND, "i.sif", *PROGRAM],
        ),
        (
            {"container": "/i/t.sif", "env": {"B": "2", "A": "1"}},
            {**PYXIS, "container_mounts": ("/d:/d:ro",), "container_env": ("C",), "rank_prefix": ("numactl", "-l")},
            ["env", "A=1", "B=2", RING, *SRUN, "--container-image=/i/t.sif", "--container-mounts=/j:/j,/t:/t,/d:/d:ro",
             "--container-env=PYTHONPATH,PYTHONSAFEPATH,PYTHONUNBUFFERED,A,B,C", "numactl", "-l", *PROGRAM],
        ),
        (
            {"container": "ngc"}, {"container": "ce", "images": {"torch": "ngc"}, "rank_prefix": ("numactl",)},
            ["env", RING, *SRUN, "--environment=ngc", "numactl", *PROGRAM],
        ),
        (
            {"container": "i"}, {"container": "shifter", "images": {"torch": "i"}, "container_args": ("--module=gpu",)},
            ["env", RING, *SRUN, "shifter", "--image=i", "--module=gpu", *PROGRAM],
        ),
        (
            {"container": "i", "env": {"A": "1"}},
            {"container": "podman-hpc", "images": {"torch": "i"}, "container_args": ("--openmpi-pmi2",),
             "container_mounts": ("/d:/d",), "rank_prefix": ("select_gpu",)},
            ["env", "A=1", RING, *SRUN, "select_gpu", "podman-hpc", "run", "--rm", "--gpu", "--net=host", "--ipc=host",
             "--pid=host", "--volume=/j:/j", "--volume=/t:/t", "--volume=/d:/d", "--env=SLURM*", "--env=PMI*",
             "--env=PALS*", "--env=OMPI*", "--env=PRTE*", "--env=PYTHONPATH", "--env=PYTHONSAFEPATH",
             "--env=PYTHONUNBUFFERED", "--env=A", "--openmpi-pmi2", "i", *PROGRAM],
        ),
        # what a site says to srun, whose default may be PMIx
        (
            {}, {"mpi": "", "cpu_bind": "cores", "gpu_bind": "none", "distribution": "block:cyclic", "gpu_type": "a100",
                 "srun": {"network": "single_node_vni", "overlap": "true"}},
            ["env", RING, "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6",
             "--gpus-per-node=a100:4", "--distribution=block:cyclic", "--cpu-bind=cores", "--gpu-bind=none",
             "--kill-on-bad-exit=1", "--network=single_node_vni", "--overlap", *PROGRAM],
        ),
        # a step with --cpus-per-task has only so many CPUs, and the named ones may be others
        (
            {}, {"cpu_bind": "none", "gpu_request": "none"},
            ["env", RING, "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--distribution=block:block",
             "--cpu-bind=none", "--mpi=pmix", "--kill-on-bad-exit=1", *PROGRAM],
        ),
        (
            {}, {"cpu_bind": "verbose,mask_cpu:fe,fe00"},
            ["env", RING, "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--gpus-per-node=4",
             "--distribution=block:block", "--cpu-bind=verbose,mask_cpu:fe,fe00", "--mpi=pmix", "--kill-on-bad-exit=1",
             *PROGRAM],
        ),
        (
            {}, {"gpu_request": "gres", "mpi": "pmix_v4"},
            ["env", RING, *(t.replace("--gpus-per-node=4", "--gres=gpu:4").replace("pmix", "pmix_v4") for t in SRUN),
             *PROGRAM],
        ),
        (
            {}, {"gpu_request": "gpus-per-task"},
            ["env", RING, *(t.replace("--gpus-per-node=4", "--gpus-per-task=1") for t in SRUN), *PROGRAM],
        ),
        ({}, {"gpu_request": "none"}, ["env", RING, *(t for t in SRUN if "gpus" not in t), *PROGRAM]),
        # another launcher is given the sizes that it takes
        (
            {"env": {"A": "1"}},
            {"launcher_command": ("env", "T={ranks_per_node}", "ibrun", "-n", "{ranks}"), "rank_prefix": ("taskset",)},
            ["env", "A=1", "env", "T=4", "ibrun", "-n", "8", "env", "A=1", "taskset", *PROGRAM],
        ),
        # the script names the nodes of a nested run
        (
            {"placement": "nested"}, {},
            ["env", RING, "srun", "--nodes=2", '--nodelist="$2"', "--ntasks=8", *PLACED, *PROGRAM],
        ),
        (
            {"placement": "nested"}, {"launcher": "mpirun"},
            ["mpirun", "--host", '"${2//,/:4,}:4"', "-n", "8", "--map-by", "ppr:4:node", "--bind-to", "none", *PROGRAM],
        ),
        (
            {"placement": "nested"}, {"launcher": "mpirun", "mpi": "mpich"},
            ["mpirun", "-hosts", '"$2"', "-n", "8", "-ppn", "4", *PROGRAM],
        ),
    ],
)  # fmt: skip
def test_the_argv_of_a_run_has_every_size(changes: dict[str, Any], site: dict[str, Any], argv: list[str]) -> None:
    tokens = run_argv(
        dataclasses.replace(RUN, **changes), Site(name="s", **site), PROGRAM, (Path("/j"), Path("/t"), Path("/j"))
    )
    assert tokens == argv
    assert [token for token in tokens if isinstance(token, Unquoted)] == [token for token in argv if "$" in token]


@pytest.mark.parametrize(("home", "tokens"), [("/home/ada", []), (None, ["HOME=/nonexistent"])])
def test_ranks_of_a_user_without_a_home_get_one_that_nobody_can_write(
    monkeypatch: pytest.MonkeyPatch, home: str | None, tokens: list[str]
) -> None:
    """As `nobody` in a container, who has no entry in passwd either: without HOME, PMIx 4 crashes."""

    def absent(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", absent)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert [token for token in launcher() if token.startswith("HOME=")] == tokens


def test_the_argv_of_a_local_run_ends_with_the_program() -> None:
    argv = local_argv(RUN, ["env", "A=1", "/opt/mpiexec"], PROGRAM)
    assert argv == ["env", "A=1", "/opt/mpiexec", "-n", "8", *PROGRAM]


ONCE = ["--ntasks-per-node=1", "--cpus-per-task=1", "--mpi=none"]


@pytest.mark.parametrize(
    ("launcher", "nodelist", "argv"),
    [
        ("local", "here", []),
        ("srun", "node[1-2]", ["srun", "--nodes=2", "--ntasks=2", *ONCE]),
        ("srun", "c,a", ["srun", "--nodes=2", "--ntasks=2", "--nodelist=c,a", *ONCE]),
        ("openmpi", "node[1-2]", ["mpirun", "-n", "2", "--map-by", "ppr:1:node"]),
        ("openmpi", "c,a", ["mpirun", "--host", "c:1,a:1", "-n", "2", "--map-by", "ppr:1:node"]),
        ("mpich", "node[1-2]", ["mpirun", "-n", "2", "-ppn", "1"]),
        ("mpich", "c,a", ["mpirun", "-hosts", "c,a", "-n", "2", "-ppn", "1"]),
    ],
)
def test_a_program_once_per_node(launcher: str, nodelist: str, argv: list[str]) -> None:
    container = [] if launcher == "local" else ["apptainer", "exec", "x.sif"]
    assert once_per_node_argv(launcher, 2, nodelist, container, PROGRAM) == [*argv, *container, *PROGRAM]
