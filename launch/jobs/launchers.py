"""The argv of one run, as a list of tokens: with every size explicit, no inherited setting, and no manual quoting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc.model.spec import RunSpec
from launch.jobs.site import BLOCKS, Site
from launch.jobs.slurm_options import PMIX, tokens


class Unquoted(str):
    """A token written into the script unquoted, for the shell to expand; all others are quoted."""


def run_argv(run: RunSpec, site: Site, program: Sequence[str], mounts: Sequence[Path]) -> list[str]:
    """Starts `program` as the run's ranks, `ranks_per_node` on each of its nodes, in blocks; see `in_container`.

    A nested run has its nodes, some of the job's, in the second argument of its shell function.
    """
    nested = run.placement == "nested"
    container = in_container(run, site, mounts)
    # Options of a launcher's plugin come before a rank's own words.
    is_option = site.container in OF_SRUN
    program = [*container, *site.rank_prefix, *program] if is_option else [*site.rank_prefix, *container, *program]
    if site.launcher == "srun":
        # A step with --cpus-per-task, which it does not inherit from the job (job.sh.j2), has only its ranks' CPUs, to
        # which Slurm binds them even with `none`. Those that a site names may be others: in whole nodes.
        whole_nodes = re.search(r"\b(none|(mask|map)_\w+)\b", site.cpu_bind)
        launcher = [
            "srun",
            f"--nodes={run.nodes}",
            *([Unquoted('--nodelist="$2"')] if nested else []),
            f"--ntasks={run.ranks}",
            f"--ntasks-per-node={run.ranks_per_node}",
            *([] if whole_nodes else [f"--cpus-per-task={run.cpus_per_rank}"]),
            *tokens(gpu_option(site, run.gpus_per_node, run.ranks_per_node)),
            *tokens(
                {"distribution": site.distribution or BLOCKS, "cpu-bind": site.cpu_bind, "gpu-bind": site.gpu_bind}
            ),
            *tokens({"mpi": site.mpi or "", "kill-on-bad-exit": "1", **site.srun}),
        ]
        variables = {**PMIX, **run.env} if may_be_pmix(site) else run.env
        return [*_env(variables), *launcher, *program]
    if site.launcher_command:
        launcher = [re.sub(r"{(\w+)}", lambda size: str(getattr(run, size[1])), each) for each in site.launcher_command]
    elif site.mpi == "openmpi":
        hosts = ["--host", Unquoted(f'"${{2//,/:{run.ranks_per_node},}}:{run.ranks_per_node}"')] if nested else []
        placed = ["--map-by", f"ppr:{run.ranks_per_node}:node", "--bind-to", "none"]
        launcher = ["mpirun", *hosts, "-n", str(run.ranks), *placed]
    else:
        hosts = ["-hosts", Unquoted('"$2"')] if nested else []
        launcher = ["mpirun", *hosts, "-n", str(run.ranks), "-ppn", str(run.ranks_per_node)]
    # mpirun hands only its own variables to other nodes: the run's are set again behind it.
    return [*_env(run.env), *launcher, *_env(run.env), *program]


def may_be_pmix(site: Site) -> bool:
    """Whether Slurm's PMIx plugin connects the ranks, of whatever version (`pmix_v4`), or may as srun's default."""
    return site.launcher == "srun" and (not site.mpi or site.mpi.startswith("pmix"))


def gpu_option(site: Site, gpus: int, ranks: int) -> dict[str, str]:
    """The option that requests so many GPUs for so many ranks of every node, as the site requests them.

    GPUs are given to the node unless a site wants them by task: --gpus-per-task hides the GPUs of a node from one
    another, and NCCL falls back to PCIe without a word.
    """
    if not gpus or site.gpu_request == "none":
        return {}
    kind = [site.gpu_type] if site.gpu_type else []
    if site.gpu_request == "gres":
        return {"gres": ":".join(["gpu", *kind, str(gpus)])}
    count = -(-gpus // ranks) if site.gpu_request == "gpus-per-task" else gpus
    return {site.gpu_request: ":".join([*kind, str(count)])}


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


OF_SRUN = ("pyxis", "ce")
"""The containers whose words are options of srun."""
_PASSED = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED")
_OF_LAUNCHERS = ("SLURM*", "PMI*", "PALS*", "OMPI*", "PRTE*")


def in_container(run: RunSpec, site: Site, mounts: Sequence[Path]) -> list[str]:
    """The words before a program that run it in the run's container.

    `mounts` are folders that the program reads or writes. Those of shifter and of Alps' Container Engine are their
    configuration's: shifter has the shared file systems, an environment file its own list.
    """
    if not run.container:
        return []
    folders = [*dict.fromkeys(map(str, mounts))]
    names = [*dict.fromkeys((*_PASSED, *sorted(run.env), *site.container_env))]
    # A site with AMD GPUs, or with another way to NVIDIA's, says so among its arguments.
    gpus = run.gpus_per_node and not {"--nv", "--nvccli", "--rocm", "--gpu"} & set(site.container_args)
    match site.container:
        case "ce":
            return [f"--environment={run.container}", *site.container_args]
        case "pyxis":
            mounted = [*(f"{folder}:{folder}" for folder in folders), *site.container_mounts]
            # Without its name here a variable of the image wins over the run's.
            options = [f"--container-mounts={','.join(mounted)}", f"--container-env={','.join(names)}"]
            return [f"--container-image={run.container}", *options, *site.container_args]
        case "shifter":
            mounted = [f"--volume={mount}" for mount in site.container_mounts]
            return ["shifter", f"--image={run.container}", *mounted, *site.container_args]
        case "podman-hpc":
            mounted = [f"--volume={mount}" for mount in (*(f"{f}:{f}" for f in folders), *site.container_mounts)]
            passed = [f"--env={name}" for name in (*_OF_LAUNCHERS, *names)]
            shared = ["--net=host", "--ipc=host", "--pid=host", *mounted, *passed]
            start = ["podman-hpc", "run", "--rm", *(["--gpu"] if gpus else [])]
            return [*start, *shared, *site.container_args, run.container]
        case _:
            mounted = [token for mount in (*folders, *site.container_mounts) for token in ("--bind", mount)]
            return [site.container, "exec", *(["--nv"] if gpus else []), *mounted, *site.container_args, run.container]
