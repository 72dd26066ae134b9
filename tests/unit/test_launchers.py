from __future__ import annotations

import dataclasses

from hpc.model.spec import RunSpec
from launch.jobs.launchers import Unquoted, local_argv, once_per_node_argv, run_argv
from launch.jobs.site import Site

RUN = RunSpec(
    nodes=2, ranks_per_node=4, gpus_per_node=4, cpus_per_rank=6, backend="torch-ddp", workload="mlp", batch_size=8,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="s",
    env={"B": "two words", "A": "1"},
)  # fmt: skip
PROGRAM = ["python", "-m", "hpc.rank"]


def test_srun_spells_out_every_size_and_isolates_no_gpu() -> None:
    assert run_argv(RUN, Site(name="s"), PROGRAM) == [
        "env", "A=1", "B=two words", "SLURM_PMIX_FENCE=ring", "srun", "--nodes=2", "--ntasks=8",
        "--ntasks-per-node=4", "--cpus-per-task=6", "--gpus-per-node=4", "--distribution=block", "--mpi=pmix",
        "--kill-on-bad-exit=1", "python", "-m", "hpc.rank",
    ]  # fmt: skip
    on_cpus = run_argv(dataclasses.replace(RUN, gpus_per_node=0), Site(name="s", mpi="pmi2"), PROGRAM)
    assert not [token for token in on_cpus if "gpu" in token]
    assert "--mpi=pmi2" in on_cpus


def test_fences_of_pmix_take_the_ring_unless_the_run_says_otherwise() -> None:
    asked = run_argv(dataclasses.replace(RUN, env={"SLURM_PMIX_FENCE": "tree"}), Site(name="s"), PROGRAM)
    assert asked[:3] == ["env", "SLURM_PMIX_FENCE=tree", "srun"]
    for other in (Site(name="s", mpi="pmi2"), Site(name="s", launcher="mpirun")):
        assert not [token for token in run_argv(RUN, other, PROGRAM) if "FENCE" in token]


def test_mpirun_sets_the_variables_again_behind_it() -> None:
    openmpi = run_argv(RUN, Site(name="s", launcher="mpirun"), PROGRAM)
    assert openmpi == [
        "env", "A=1", "B=two words", "mpirun", "-n", "8", "--map-by", "ppr:4:node", "--bind-to", "none", "env", "A=1",
        "B=two words", *PROGRAM,
    ]  # fmt: skip
    mpich = run_argv(dataclasses.replace(RUN, env={}), Site(name="s", launcher="mpirun", mpi="mpich"), PROGRAM)
    assert mpich == ["mpirun", "-n", "8", "-ppn", "4", *PROGRAM]


def test_containers_stand_between_launcher_and_program() -> None:
    run = dataclasses.replace(RUN, container="/i/torch.sif", env={})
    apptainer = Site(name="s", container="apptainer", container_args=("--bind", "/s"), images={"torch": "/i/torch.sif"})
    assert run_argv(run, apptainer, PROGRAM)[-9:] == [
        "apptainer",
        "exec",
        "--nv",
        "--bind",
        "/s",
        "/i/torch.sif",
        *PROGRAM,
    ]
    pyxis = Site(name="s", container="pyxis", images={"torch": "x"})
    assert run_argv(run, pyxis, PROGRAM)[-4:] == ["--container-image=/i/torch.sif", *PROGRAM]


def test_here_and_once_per_node() -> None:
    run = dataclasses.replace(RUN, env={})
    assert local_argv(run, ["env", "A=1", "/opt/mpiexec"], PROGRAM) == [
        "env",
        "A=1",
        "/opt/mpiexec",
        "-n",
        "8",
        *PROGRAM,
    ]
    each = "--ntasks-per-node=1", "--cpus-per-task=1", "--mpi=none"
    assert once_per_node_argv("srun", 2, "node[1-2]", [], PROGRAM) == [
        "srun", "--nodes=2", "--ntasks=2", *each, *PROGRAM
    ]  # fmt: skip
    openmpi = once_per_node_argv("openmpi", 2, "node[1-2]", ["apptainer", "exec", "x.sif"], PROGRAM)
    assert openmpi == ["mpirun", "-n", "2", "--map-by", "ppr:1:node", "apptainer", "exec", "x.sif", *PROGRAM]
    assert once_per_node_argv("mpich", 2, "node[1-2]", [], PROGRAM) == ["mpirun", "-n", "2", "-ppn", "1", *PROGRAM]
    assert once_per_node_argv("local", 1, "here", [], PROGRAM) == PROGRAM


def test_some_nodes_of_a_job_are_named() -> None:
    assert "--nodelist=c,a" in once_per_node_argv("srun", 2, "c,a", [], PROGRAM)
    assert once_per_node_argv("openmpi", 2, "c,a", [], PROGRAM)[:3] == ["mpirun", "--host", "c:1,a:1"]
    assert once_per_node_argv("mpich", 2, "c,a", [], PROGRAM)[:3] == ["mpirun", "-hosts", "c,a"]


def test_a_nested_run_is_sent_to_the_nodes_that_the_script_names() -> None:
    run = dataclasses.replace(RUN, env={}, placement="nested")
    assert run_argv(run, Site(name="s", mpi="pmi2"), PROGRAM)[:4] == [
        "srun", "--nodes=2", '--nodelist="$2"', "--ntasks=8",
    ]  # fmt: skip
    openmpi = run_argv(run, Site(name="s", launcher="mpirun"), PROGRAM)
    assert openmpi[:5] == ["mpirun", "--host", '"${2//,/:4,}:4"', "-n", "8"]
    mpich = run_argv(run, Site(name="s", launcher="mpirun", mpi="mpich"), PROGRAM)
    assert mpich[:5] == ["mpirun", "-hosts", '"$2"', "-n", "8"]
    for argv in (openmpi, mpich, run_argv(run, Site(name="s"), PROGRAM)):
        assert [token for token in argv if isinstance(token, Unquoted)] == [token for token in argv if "$" in token]
