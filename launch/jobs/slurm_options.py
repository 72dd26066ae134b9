"""Options of sbatch and srun by their long names: which the toolkit sets itself, which change no speed, and which
variables of a shell stand for one."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from hpc.model.spec import SpecError

IN_SBATCH = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude")
"""The keys of a site that are options of sbatch, too, and so of a sweep."""
FLAG = "true"
"""The value of an option that takes none."""
PMIX = {"SLURM_PMIX_FENCE": "ring"}
"""Left alone, Slurm's PMIx plugin (20.11 and later) lets the ranks of a node pass a fence without data before those of
the other nodes have come there, where a step has fewer nodes than TreeWidth. MPI_Init then ends too early, and a rank
that is still in it can crash: docs/outcomes.md."""
GPUS_ALL_THE_SAME = "a partition that takes no job without them needs --sbatch gres=gpu:N"
"""What to do where runs use no GPU."""
GPU_KEYS = "gpu_request, gpu_type and gpus_per_node"
_OF_THE_JOB = dict.fromkeys(
    ("job-name", "output", "error", "input", "signal", "requeue", "no-requeue", "open-mode", "array", "wrap", "chdir",
     "parsable", "test-only", "wait", "kill-on-bad-exit", "jobid", "multi-prog", "pty", "prolog", "epilog"), "",
)  # fmt: skip
_INSTEAD = {
    **_OF_THE_JOB, "nodes": "--nodes", "ntasks": "--ranks-per-node", "ntasks-per-node": "--ranks-per-node",
    "cpus-per-task": "--cpus-per-rank", "time": "--time, or time_limit_min", "exclusive": "exclusive", "mpi": "mpi",
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), GPU_KEYS),
    "cpu-bind": "cpu_bind", "gpu-bind": "gpu_bind", "distribution": "distribution",
    "container-image": 'container = "pyxis" and [images]', "container-mounts": "container_mounts",
    "container-env": "container_env",
}  # fmt: skip
"""By option that the toolkit sets itself: the key or option to use, empty where there is none."""
WITHOUT_EFFECT = frozenset(
    ("account", "acctg-freq", "begin", "comment", "deadline", "delay-boot", "dependency", "exclude", "hold",
     "kill-on-invalid-dep", "label", "licenses", "mail-type", "mail-user", "nice", "no-kill", "nodelist", "partition",
     "priority", "qos", "quiet", "reservation", "time-min", "tmp", "unbuffered", "verbose", "wait-all-nodes", "wckey"),
)  # fmt: skip
"""Options that change where a job queues, how it is shown or billed, and no speed: no part of a point."""
_NAMES = {
    "mem-per-node": "mem", "timelimit": "time", "req-switch": "switches", "segment-size": "segment",
    "array-inx": "array", "cpu-freq-req": "cpu-freq", "mpi-type": "mpi",
}  # fmt: skip
"""Options whose variable has another name."""
_OF_SRUN = (
    "CPU_BIND", "GPU_BIND", "DISTRIBUTION", "HINT", "NETWORK", "MEM_BIND", "THREADS_PER_CORE", "CPU_FREQ_REQ",
    "GPU_FREQ", "RESV_PORTS", "SPREAD_JOB", "CORE_SPEC", "PROFILE",
)  # fmt: skip
"""What of `SLURM_…` is an option of srun, and nothing that describes a job."""
KEYS = ("cpu-bind", "gpu-bind", "distribution")
"""Options of srun that are keys of a site, with `_`."""


def read_options(table: str, given: Mapping[str, object], keys: Container[str] = IN_SBATCH) -> dict[str, str]:
    """The options of a table `sbatch` or `srun`, by their long names; `keys` are those that have a place of their own.
    Raises SpecError where one has another form, or is set by the toolkit."""
    chosen = {}
    for key, value in given.items():
        name = key.replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", name):
            raise SpecError(f"[{table}] {key!r} is no long name of an option, as mem or mail-type")
        if name in keys and table == "sbatch":
            raise SpecError(f"[{table}] {key} is a key or an option of its own: {name} = {value!r}, --{name}")
        if name in _INSTEAD or (name in IN_SBATCH and table == "srun"):
            instead = _INSTEAD.get(name) or (f"{name}, of the job" if name in IN_SBATCH else "")
            raise SpecError(f"[{table}] {key} is set by the toolkit{f': use {instead}' if instead else ''}")
        if table == "sbatch" and name == "mem-bind":
            raise SpecError("[sbatch] mem-bind is of the launcher: use [srun] mem-bind")
        if name == "gres" and table == "srun" and names_gpus(str(value)):
            raise SpecError(f"[{table}] gres = {value!r} requests GPUs: use {GPU_KEYS}")
        text = FLAG if value is True else str(value)
        if value is False or not text.strip() or re.search(r"[\0\n\r]", text):
            raise SpecError(f"[{table}] {key} = {value!r}: give a text of one line, a number, or true for a flag")
        chosen[name] = text
    return chosen


def names_gpus(gres: str) -> bool:
    """Whether a value of --gres requests GPUs."""
    return re.search(r"(^|,)(gres/)?gpu\b", gres) is not None


def tokens(options: Mapping[str, str]) -> list[str]:
    """The options as words of a command; those without a value are left out."""
    return [f"--{name}" if value == FLAG else f"--{name}={value}" for name, value in options.items() if value]


def instead_of_variable(name: str) -> str:
    """The key that says what this variable would tell a launcher or sbatch; empty where it tells a program."""
    kind, _, option = name.partition("_")
    if kind in ("SBATCH", "SALLOC"):
        table = "sbatch"
    elif (kind == "SLURM" and option in (*_OF_SRUN, "MPI_TYPE")) or name == "SRUN_CPUS_PER_TASK":
        table = "srun"
    else:
        return ""
    long = _long(option)
    key = long.replace("-", "_")
    return _INSTEAD.get(long) or (key if long in IN_SBATCH else f"[{table}] {long}")


def of_shell(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """The variables that would act on sbatch, and on srun in a job, beside the script: name, table, long name of the
    option, value. Within a job those of srun are that job's; a name of a job is ours in any case."""
    for name, value in sorted(environ.items()):
        kind, _, option = name.partition("_")
        if kind == "SBATCH" and option not in ("DEBUG", "VERBOSE", "JOB_NAME"):
            yield name, "sbatch", _long(option), value
        elif kind == "SLURM" and option in _OF_SRUN and "SLURM_JOB_ID" not in environ:
            yield name, "srun", _long(option), value


def shell_lines(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable of a shell that is taken into the scripts."""
    whose = {"sbatch": "jobs have", "srun": "srun has"}
    return [
        f"{name} of this shell: {whose[table]} --{option}={value}" for name, table, option, value in of_shell(environ)
    ]


def _long(option: str) -> str:
    name = option.lower().replace("_", "-")
    return _NAMES.get(name, name)
