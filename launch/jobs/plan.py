"""Plans jobs: one per node count, or one nested job for all, split to fit the time limit. Writes their files once."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise
from pathlib import Path

from hpc.model.outcome import MAX_PLAN_BYTES
from hpc.model.spec import COLLECTIVES, Plan, RunSpec, shuffled
from hpc.system.atomic import encoded, write_atomic, write_durable
from hpc.system.regular_file import read_text, read_whole
from hpc.system.text import grouped, plural
from hpc.system.version import WRITTEN_BY
from launch.jobs.launchers import gpu_option, may_be_pmix
from launch.jobs.script import LOGS, Folders
from launch.jobs.site import Site
from launch.jobs.slurm_options import FLAG, IN_SBATCH

RequestValue = str | int | bool
_NAME_CHARACTERS = 40
"""As many of a workload's name are in a job's name."""


class PlanError(ValueError):
    """The plan cannot be written or does not fit the site; the text has the request and what is possible."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """One job: its name (`2n`, `2n-part2`, `4n-nested`), its request in the scheduler's words, its runs in order.
    `subsets` has by id of each nested run the indices of the job's nodes that it uses."""

    name: str
    nodes: int
    time_min: int
    request: Mapping[str, RequestValue]
    runs: tuple[RunSpec, ...]
    subsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ranks_per_node(self) -> int:
        return int(self.request.get("ntasks_per_node", 0))

    @property
    def cpus_per_rank(self) -> int:
        return int(self.request.get("cpus_per_task", 0))

    @property
    def gpus_per_node(self) -> int:
        """The GPUs that it requests of every node, in whatever way; 0 where it requests none."""
        has_option = {"gpus_per_node", "gpus_per_task"} & self.request.keys() or "gpu" in str(self.request.get("gres"))
        return max(run.gpus_per_node for run in self.runs) if has_option else 0

    @property
    def warning_s(self) -> int:
        """Seconds before its time limit at which the script gets its signal, to end the present run and record it."""
        return 60 if self.time_min >= 5 else 30

    @property
    def node_hours(self) -> float:
        """The node-hours of the job up to its time limit."""
        return self.nodes * self.time_min / 60


@dataclass(frozen=True, kw_only=True)
class WrittenJob:
    """A job with its script. `passed_over` are scripts of the same runs with other texts: changed by hand, or made with
    other options."""

    plan: JobPlan
    script: Path
    text: str
    passed_over: tuple[Path, ...] = ()

    @property
    def logs(self) -> Path:
        """The folder of its output."""
        return self.script.parent / LOGS


def plan_jobs(runs: Iterable[RunSpec], site: Site, minutes_per_run: int, time_min: int | None) -> list[JobPlan]:
    """Groups runs by node count, nested ones all in one; each run is allowed `minutes_per_run`, a job at most the limit
    of site and person. A nested job is split between blocks only, so that each has one allocation for all its runs."""
    separate = grouped((run.nodes, [run]) for run in runs if run.placement != "nested")
    nested = grouped((run.repeat, run) for run in runs if run.placement == "nested")
    groups = [(f"{nodes}n", nodes, blocks) for nodes, blocks in sorted(separate.items())]
    if nested:
        largest = max(run.nodes for block in nested.values() for run in block)
        groups.append((f"{largest}n-nested", largest, list(nested.values())))
    jobs = []
    for name, nodes, blocks in groups:
        limit = _limit_min(site, nodes, minutes_per_run, time_min)
        for part, chosen in enumerate(_parts(blocks, limit, minutes_per_run), start=1):
            part_name = name if part == 1 else f"{name}-part{part}"
            minutes = time_min if time_min and limit == time_min else len(chosen) * minutes_per_run
            request = _request(part_name, nodes, chosen, site.at(nodes), minutes)
            subsets = _subsets(chosen, nodes)
            jobs.append(
                JobPlan(
                    name=part_name, nodes=nodes, time_min=minutes, runs=chosen, request=request, subsets=subsets
                )
            )  # fmt: skip
    return jobs


def _limit_min(site: Site, nodes: int, minutes_per_run: int, time_min: int | None) -> int | None:
    """The minutes that a job of so many nodes may take. Raises PlanError where no run fits into them, or where the site
    lets no job have so many nodes."""
    fitted = site.at(nodes)
    if fitted.max_nodes is not None and nodes > fitted.max_nodes:
        raise PlanError(
            f"{nodes} nodes: a job may have {fitted.max_nodes} on site {site.name} (max_nodes): lower --nodes"
        )
    limit = min((limit for limit in (site.limit_min(nodes), time_min) if limit is not None), default=None)
    if limit is not None and limit < minutes_per_run:
        of_nodes = f" of {plural(nodes, 'node')}" if fitted.max_node_minutes is not None else ""
        raise PlanError(
            f"a job{of_nodes} may take {limit} min and a run is allowed {minutes_per_run} min: not one run fits; "
            "raise --time, or lower --minutes-per-run"
        )
    return limit


def _parts(
    blocks: Sequence[Sequence[RunSpec]], limit: int | None, minutes_per_run: int
) -> Iterator[tuple[RunSpec, ...]]:
    """The runs of as many whole blocks at a time as the limit allows. Raises PlanError if one does not fit."""
    runs: list[RunSpec] = []
    for block in blocks:
        if limit is not None and len(block) * minutes_per_run > limit:
            raise PlanError(
                f"a nested block has {len(block)} runs, one of every point, of {minutes_per_run} min each, and a job "
                f"may take {limit} min: not one block fits; raise --time, lower --minutes-per-run, or request fewer "
                "points"
            )
        if limit is not None and (len(runs) + len(block)) * minutes_per_run > limit:
            yield tuple(runs)
            runs = []
        runs += block
    yield tuple(runs)


def _subsets(runs: Sequence[RunSpec], nodes: int) -> dict[str, tuple[int, ...]]:
    """The nodes of each nested run: the first of the order of its block.

    All runs of a block (a repeat) share one order, so that fewer nodes are always some of more. The orders come from
    the seed; over as many blocks as there are nodes each node comes first once.
    """
    seed = next((run.seed for run in runs if run.diagnostic != COLLECTIVES), 0)  # collectives have no seed of their own
    subsets = {}
    for run in runs:
        if run.placement == "nested":
            circle, turn = divmod(run.repeat - 1, nodes)
            order = shuffled(range(nodes), seed, f"nodes {circle}")
            subsets[run.run_id] = (*order[turn:], *order[:turn])[: run.nodes]
    return subsets


_MAY_BE = ", which may be the default of this site: name another one by mpi"


def refuse_pairs_that_hang(jobs: Iterable[JobPlan], site: Site) -> None:
    """Raises PlanError where `srun --mpi=pmix` would start two nodes of a larger job that are not its first one.

    Of two nodes that write to one another at the same time, Slurm's PMIx plugin (17.11 to 26.05) lets one connect: the
    one whose number in the step is above the other's number in the job (`pmixp_dconn_require_connect`). Where the first
    of the two is not the job's first neither's is, and MPI_Init or MPI_Finalize never ends. In a ring of three nodes no
    two write to one another.
    """
    for job in jobs:
        if job.subsets and site.launcher_command:
            raise PlanError("--placement nested: no launcher_command says on which of a job's nodes ranks start")
        if not may_be_pmix(site.at(2)):
            continue
        if pairs := sum(len(nodes) == 2 and 0 not in nodes for nodes in job.subsets.values()):
            raise PlanError(
                f"--placement nested: {plural(pairs, 'run')} of {job.name} on two nodes without the job's first hang "
                f"under srun --mpi=pmix (a fault of Slurm: docs/cluster.md){'' if site.at(2).mpi else _MAY_BE}; "
                'write launcher = "mpirun" and mpi = "openmpi" into the site file, or leave 2 out of --nodes'
            )


def describe_nested(jobs: Sequence[JobPlan]) -> list[str]:
    """For nested jobs: their cost against separate ones, and whether blocks may get different nodes; else no lines."""
    nested = [job for job in jobs if job.subsets]
    if not nested:
        return []
    node_hours = sum(job.node_hours for job in nested)
    runs = sum(len(job.runs) for job in nested)
    separate = sum(run.nodes * job.time_min / len(job.runs) / 60 for job in nested for run in job.runs)
    lines = [
        f"nested: {runs} runs share allocations of {nested[0].nodes} nodes, {node_hours:.1f} node-hours at most; "
        f"separate jobs would request {separate:.1f}"
    ]
    if len(nested) > 1:
        lines.append(
            f"split between blocks into {len(nested)} jobs, to keep the time limit: each gets an allocation of its "
            "own, maybe of other nodes"
        )
    return lines


def _request(name: str, nodes: int, runs: Sequence[RunSpec], site: Site, minutes: int) -> dict[str, RequestValue]:
    request: dict[str, RequestValue] = {
        "job_name": f"rankwise-{_trained(runs)}-{name}", "nodes": nodes,
        "ntasks_per_node": max(run.ranks_per_node for run in runs),
        "cpus_per_task": max(run.cpus_per_rank for run in runs), "time": minutes,
    }  # fmt: skip
    gpus = gpu_option(site, max(run.gpus_per_node for run in runs), int(request["ntasks_per_node"]))
    for option, text in site.header_options(gpus).items():
        request[option.replace("-", "_")] = True if text == FLAG else text
    if site.exclusive:
        request["exclusive"] = True
    for key in IN_SBATCH:
        if value := getattr(site, key):
            request[key] = value
    for key, value in request.items():
        if isinstance(value, str) and ("\n" in value or "\r" in value):
            raise PlanError(f"{key}: {value!r} holds a line break, which no line of a job script's header can")
    return request


def _trained(runs: Sequence[RunSpec]) -> str:
    """The workload of the runs, as part of a job's name; of several the number."""
    workloads = {run.workload for run in runs if run.workload != COLLECTIVES} or {COLLECTIVES}
    if len(workloads) > 1:
        return f"{len(workloads)}-workloads"
    name = Path(workloads.pop().partition(":")[0]).name.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_NAME_CHARACTERS]


def write_sweep(
    plan: Plan, scripts: Sequence[tuple[JobPlan, str]], folders: Folders, *, dry_run: bool = False
) -> list[WrittenJob]:
    """Writes RUN.json files, the plan and the jobs' scripts. Raises PlanError where the folder cannot take them.

    The plan is written beside the traces, so that missing runs are known; the plan of a dry run beside the scripts.
    A script is never overwritten by another one: if its name is taken, it is `2n.<sweep id>.sh`, or
    `2n.<sweep id>-2.sh`.
    """
    make_folders(folders)
    try:
        texts = [json.dumps(run.to_json(), indent=1) for run in plan.runs]
        plan_folder = folders.jobs if dry_run else folders.traces
        _write_once(plan_folder / f"plan.{plan.sweep_id}.json", _plan_text(plan, texts), write_durable)
        for run, text in zip(plan.runs, texts, strict=True):
            _write_once(folders.run_file(run), text + "\n")
        jobs = []
        for job, text in scripts:
            script, taken = _free(folders.jobs, job.name, plan.sweep_id, text)
            passed_over = tuple(path for path in taken if _has_runs(path, job.runs))
            _write_once(script, text, write_durable)
            jobs.append(WrittenJob(plan=job, script=script, text=text, passed_over=passed_over))
    except OSError as error:
        raise PlanError(_cannot_be_written(folders, error)) from None
    return jobs


def _plan_text(plan: Plan, runs: Sequence[str]) -> str:
    """The text of `json.dumps(plan.to_json(), indent=1)`, made of the texts of its runs."""
    text = json.dumps({**plan.to_json(), "runs": []}, indent=1) + "\n"
    if not runs:
        return text
    whole = ",\n  ".join(run.replace("\n", "\n  ") for run in runs)
    return text.removesuffix("[]\n}\n") + f"[\n  {whole}\n ]\n}}\n"


def _free(jobs: Path, name: str, sweep_id: str, text: str) -> tuple[Path, list[Path]]:
    """The first of a script's names that is unused or has the same text, and the names before it, with other texts. The
    code that wrote it may be another."""
    taken: list[Path] = []
    for tail in chain(("", f".{sweep_id}"), (f".{sweep_id}-{number}" for number in count(2))):
        script = jobs / f"{name}{tail}.sh"
        if (held := _read(script)) is None or WRITTEN_BY.sub(b"", held) == WRITTEN_BY.sub(b"", encoded(text)):
            break
        taken.append(script)
    return script, taken


def _has_runs(script: Path, runs: Sequence[RunSpec]) -> bool:
    """Whether a script has a line for each of these runs: `point1 ID`."""
    tokens = read_text(script, MAX_PLAN_BYTES, "replace").split()
    named = {token for before, token in pairwise(tokens) if re.fullmatch(r"point\d+", before)}
    return {run.run_id for run in runs} <= named


def make_folders(folders: Folders) -> None:
    """Makes the folders of a sweep. Raises PlanError if that fails."""
    try:
        for folder in (folders.jobs / "runs", folders.logs, folders.traces):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(_cannot_be_written(folders, error)) from None


def _cannot_be_written(folders: Folders, error: OSError) -> str:
    where = error.filename or folders.jobs.parent
    return f"the sweep's folder cannot be written: {where}: {error.strerror or error}; name another with --out"


def _write_once(path: Path, text: str, write: Callable[[Path, str], None] = write_atomic) -> None:
    """Writes a file whole, unless it already has this text; thousands of RUN.json are not flushed one by one."""
    if _read(path) != encoded(text):
        write(path, text)


def _read(path: Path) -> bytes | None:
    """The contents of a file, None if it does not exist. Raises PlanError with the fix if it cannot be read."""
    try:
        return read_whole(path, MAX_PLAN_BYTES)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise PlanError(_unreadable(path)) from None


def _unreadable(path: Path) -> str:
    """The reason why a file cannot be read (its mode, or that of a folder above it), its owner, and the fix."""
    folders = reversed(path.parents)
    closed = next((folder for folder in folders if not os.access(folder, os.X_OK, effective_ids=True)), path)
    status = closed.stat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"user {status.st_uid}"
    who = "g" if status.st_gid in (os.getegid(), *os.getgroups()) else "o"
    rights = "r" if closed == path else "rwx"
    return (
        f"{path} may be there already and cannot be compared: {closed} belongs to {owner} and has mode "
        f"{stat.S_IMODE(status.st_mode):04o}. {owner} opens it by `chmod {who}+{rights} {shlex.quote(str(closed))}` (a "
        "umask of 077 closes what it makes: 027 leaves it to the group); or plan into another folder with --out DIR"
    )
