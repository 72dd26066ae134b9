"""The argv of one run, as a list of tokens: every size spelled out, nothing inherited, nothing quoted by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc.spec import RunSpec
from launch.site import Site


def run_argv(run: RunSpec, site: Site, program: Sequence[str]) -> list[str]:
    """Starts `program` as the run's ranks, `ranks_per_node` on each of its nodes, in blocks."""
    if site.launcher == "srun":
        # Since Slurm 22.05 srun inherits no --cpus-per-task from the job. GPUs are given to the node, not to tasks:
        # --gpus-per-task hides the GPUs of a node from one another, and NCCL falls back to PCIe without a word.
        gpus = [f"--gpus-per-node={run.gpus_per_node}"] if run.gpus_per_node else []
        launcher = [
            "srun",
            f"--nodes={run.nodes}",
            f"--ntasks={run.ranks}",
            f"--ntasks-per-node={run.ranks_per_node}",
            f"--cpus-per-task={run.cpus_per_rank}",
            *gpus,
            "--distribution=block",
            f"--mpi={site.mpi}",
            "--kill-on-bad-exit=1",
        ]
        return [*_env(run.env), *launcher, *_in_container(run, site), *program]
    if site.mpi == "openmpi":
        launcher = ["mpirun", "-n", str(run.ranks), "--map-by", f"ppr:{run.ranks_per_node}:node", "--bind-to", "none"]
    else:
        launcher = ["mpirun", "-n", str(run.ranks), "-ppn", str(run.ranks_per_node)]
    # mpirun hands only its own variables to other nodes: the run's are set again behind it.
    return [*_env(run.env), *launcher, *_env(run.env), *_in_container(run, site), *program]


def local_argv(run: RunSpec, launcher: Sequence[str], program: Sequence[str]) -> list[str]:
    """Starts `program` as the run's ranks on this machine; `launcher` are the tokens that end with mpiexec."""
    return [*_env(run.env), *launcher, "-n", str(run.ranks), *program]


def node_argv(run: RunSpec, site: Site, program: Sequence[str]) -> list[str]:
    """Starts `program` once on each node of the run."""
    if site.launcher == "srun":
        sizes = [f"--nodes={run.nodes}", f"--ntasks={run.nodes}", "--ntasks-per-node=1", "--cpus-per-task=1"]
        launcher = ["srun", *sizes, "--mpi=none"]
    elif site.mpi == "openmpi":
        launcher = ["mpirun", "-n", str(run.nodes), "--map-by", "ppr:1:node"]
    else:
        launcher = ["mpirun", "-n", str(run.nodes), "-ppn", "1"]
    return [*launcher, *_in_container(run, site), *program]


def _env(variables: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in sorted(variables.items()))] if variables else []


def _in_container(run: RunSpec, site: Site) -> list[str]:
    if not run.container:
        return []
    if site.container == "pyxis":
        return [f"--container-image={run.container}", *site.container_args]
    nvidia = ["--nv"] if run.gpus_per_node else []
    return ["apptainer", "exec", *nvidia, *site.container_args, run.container]
