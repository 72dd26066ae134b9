"""The argv of one run, as a list of tokens: with every size explicit, no inherited setting, and no manual quoting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc.model.spec import RunSpec
from launch.jobs.site import Site

_PMIX = {"SLURM_PMIX_FENCE": "ring"}
"""Left alone, Slurm's PMIx plugin (20.11 and later) lets the ranks of a node pass a fence without data before those of
the other nodes have come there, where a step has fewer nodes than TreeWidth. MPI_Init then ends too early, and a rank
that is still in it can crash: docs/outcomes.md."""


class Unquoted(str):
    """A token written into the script unquoted, for the shell to expand; all others are quoted."""


def run_argv(run: RunSpec, site: Site, program: Sequence[str]) -> list[str]:
    """Starts `program` as the run's ranks, `ranks_per_node` on each of its nodes, in blocks.

    A nested run has its nodes, some of the job's, in the second argument of its shell function.
    """
    nested = run.placement == "nested"
    if site.launcher == "srun":
        # Since Slurm 22.05 srun inherits no --cpus-per-task from the job. GPUs are given to the node, not to tasks:
        # --gpus-per-task hides the GPUs of a node from one another, and NCCL falls back to PCIe without a word.
        gpus = [f"--gpus-per-node={run.gpus_per_node}"] if run.gpus_per_node else []
        launcher = [
            "srun",
            f"--nodes={run.nodes}",
            *([Unquoted('--nodelist="$2"')] if nested else []),
            f"--ntasks={run.ranks}",
            f"--ntasks-per-node={run.ranks_per_node}",
            f"--cpus-per-task={run.cpus_per_rank}",
            *gpus,
            "--distribution=block",
            f"--mpi={site.mpi}",
            "--kill-on-bad-exit=1",
        ]
        variables = {**_PMIX, **run.env} if site.mpi == "pmix" else run.env
        return [*_env(variables), *launcher, *in_container(run, site), *program]
    if site.mpi == "openmpi":
        hosts = ["--host", Unquoted(f'"${{2//,/:{run.ranks_per_node},}}:{run.ranks_per_node}"')] if nested else []
        placed = ["--map-by", f"ppr:{run.ranks_per_node}:node", "--bind-to", "none"]
        launcher = ["mpirun", *hosts, "-n", str(run.ranks), *placed]
    else:
        hosts = ["-hosts", Unquoted('"$2"')] if nested else []
        launcher = ["mpirun", *hosts, "-n", str(run.ranks), "-ppn", str(run.ranks_per_node)]
    # mpirun hands only its own variables to other nodes: the run's are set again behind it.
    return [*_env(run.env), *launcher, *_env(run.env), *in_container(run, site), *program]


def local_argv(run: RunSpec, launcher: Sequence[str], program: Sequence[str]) -> list[str]:
    """The argv of `program` as the run's ranks on this machine; `launcher` are tokens that end with mpiexec."""
    return [*_env(run.env), *launcher, "-n", str(run.ranks), *program]


def once_per_node_argv(
    launcher: str, nodes: int, nodelist: str, container: Sequence[str], program: Sequence[str]
) -> list[str]:  # fmt: skip
    """Starts `program` once on each of the nodes, inside a job; `launcher` is srun, openmpi, mpich, or local.

    `nodelist` is theirs with commas, or the job's own in Slurm's notation; `container` precedes the program.
    """
    listed = nodelist.split(",") if "[" not in nodelist else []
    named = len(listed) == nodes
    if launcher == "local":
        return list(program)
    if launcher == "srun":
        where = [f"--nodes={nodes}", f"--ntasks={nodes}", *([f"--nodelist={nodelist}"] if named else [])]
        start = ["srun", *where, "--ntasks-per-node=1", "--cpus-per-task=1", "--mpi=none"]
    elif launcher == "openmpi":
        hosts = ["--host", ",".join(f"{node}:1" for node in listed)] if named else []
        start = ["mpirun", *hosts, "-n", str(nodes), "--map-by", "ppr:1:node"]
    else:
        hosts = ["-hosts", nodelist] if named else []
        start = ["mpirun", *hosts, "-n", str(nodes), "-ppn", "1"]
    return [*start, *container, *program]


def _env(variables: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in sorted(variables.items()))] if variables else []


def in_container(run: RunSpec, site: Site) -> list[str]:
    """The tokens before a program that run it in the run's container."""
    if not run.container:
        return []
    if site.container == "pyxis":
        return [f"--container-image={run.container}", *site.container_args]
    # A site with AMD GPUs, or with another way to NVIDIA's, says so among its arguments.
    chosen = {"--nv", "--nvccli", "--rocm"} & set(site.container_args)
    nvidia = ["--nv"] if run.gpus_per_node and not chosen else []
    return ["apptainer", "exec", *nvidia, *site.container_args, run.container]
