"""Compares a site file with the facts of the cluster, its nodes and the ranks on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpc.model import findings
from hpc.model.findings import CheckFinding, FigureValue, Severity, State
from hpc.system.command_line import PIPE_WIDTH
from hpc.system.text import first_of, plural
from launch.doctor.job import AllocatedNode, JobFacts, Start
from launch.jobs.site import Site
from launch.scheduler.protocol import ClusterFacts
from launch.scheduler.slurm_nodes import minutes_of

# The doctor's findings: how they are made, and their text and JSON.

_MAX_HOSTS = 8
_LABELS: dict[str, str] = {Severity.ALARM: "CHANGE", Severity.FATAL: "CHANGE"}


def ok(name: str, text: str, **figures: FigureValue) -> CheckFinding:
    return CheckFinding(name=name, text=text, state=State.OK, severity=Severity.NOTE, figures=figures)


def change(name: str, text: str, fix: str = "", **figures: FigureValue) -> CheckFinding:
    """Something to do; `fix` is the text for the site file or the command to run."""
    return CheckFinding(name=name, text=text, fix=fix, figures=figures)


def note(name: str, text: str, fix: str = "", **figures: FigureValue) -> CheckFinding:
    """Only administrators can change it, or it is optional."""
    return CheckFinding(name=name, text=text, severity=Severity.NOTE, fix=fix, figures=figures)


def unknown(name: str, text: str) -> CheckFinding:
    return CheckFinding(name=name, text=text, state=State.UNKNOWN, severity=Severity.NOTE)


def to_change(finding: CheckFinding) -> bool:
    """Whether the finding requires a change."""
    return finding.label in _LABELS


def hosts(names: Iterable[str]) -> str:
    """The first names, and the number of the others."""
    return first_of(list(names), _MAX_HOSTS)


def as_text(results: Sequence[CheckFinding], width: int = PIPE_WIDTH) -> str:
    """How many findings require a change, and may be followed; then a line for each, its fix below it."""
    changes = sum(map(to_change, results))
    advice = sum(bool(finding.fix) and not to_change(finding) for finding in results)
    summary = f"{changes} to change" if changes else "nothing must be changed" if advice else "nothing to change"
    advised = f"; {plural(advice, 'note')} with advice" if advice else ""
    return "\n".join([f"{summary}{advised}", *findings.as_text(results, _LABELS, width)])


def as_json(results: Sequence[CheckFinding]) -> str:
    return json.dumps({"findings": [finding.to_json() for finding in results]}, indent=1)


MIN_KILL_WAIT_S = 10
"""The least KillWait, from SIGTERM to SIGKILL, for a last copy of the time stamps; slow shared folders take seconds."""
MIN_LOCAL_BYTES = 64 << 20
"""The size of the time stamps of 16 ranks with 80,000 steps each."""


def of_site(site: Site, cluster: ClusterFacts) -> list[CheckFinding]:
    """Findings about the site file, before any job is started."""
    sizes = [*_partition(site, cluster), _gpus(site, cluster), _cpus(site, cluster)]
    return [*sizes, *_pmi(site, cluster), *_settings(cluster)]


def _partition(site: Site, cluster: ClusterFacts) -> Iterator[CheckFinding]:
    partition = cluster.partition
    if not partition:
        named = f"partition {site.partition!r}" if site.partition else "default partition"
        reason = _read_error(cluster, "partition")
        yield change("partition", f"Slurm shows no {named}{f' ({reason})' if reason else ''}", 'partition = "…"')
        return
    name, state, limit = (partition.get(key, "") for key in ("PartitionName", "State", "MaxTime"))
    if state == "UP":
        yield ok("partition", f"{name} is up, {cluster.nodes} nodes", nodes=cluster.nodes)
    else:
        yield change("partition", f"{name} is {state}: it starts no job", 'partition = "…"')
    minutes, configured = minutes_of(limit), site.time_limit_min
    if limit == "UNLIMITED":
        yield ok("time limit", f"{name} has none")
    elif minutes is None:
        yield unknown("time limit", f"{name} does not say how long a job may take ({limit!r})")
    elif configured is None or configured > minutes:
        setting = "no time_limit_min" if configured is None else f"time_limit_min = {configured}"
        text = f"{name} lets a job take {minutes} min, the site says {setting}: longer plans are refused, not split"
        yield change("time limit", text, f"time_limit_min = {minutes}", limit_min=minutes)
    else:
        yield ok("time limit", f"{configured} of the {minutes} min that {name} allows", limit_min=minutes)


def _gpus(site: Site, cluster: ClusterFacts) -> CheckFinding:
    name, configured, reported = "gpus_per_node", site.gpus_per_node, cluster.gpus
    counts = " or ".join(map(str, reported))
    if not reported:
        if configured is None:
            text = "neither the site nor Slurm says how many GPUs a node has; 0 where runs use none"
            return change(name, text, "gpus_per_node = 0")
        text = f"{configured}; Slurm knows no GPU of its nodes"
        return ok(name, text) if configured == 0 else unknown(name, text)
    fix = f"gpus_per_node = {max(reported)}"
    if configured == 0:
        return ok(name, f"0: runs use CPUs alone, though nodes have {counts} GPUs", reported=reported)
    if configured is None and len(reported) > 1:
        text = f"nodes have {counts}: say which are meant, and choose them by constraint or nodelist"
        return change(name, text, fix, reported=reported)
    if configured is None or configured in reported:
        return ok(name, f"{configured or counts}, as Slurm says", reported=reported)
    return change(name, f"the site says {configured}, Slurm {counts}", fix, reported=reported)


def _cpus(site: Site, cluster: ClusterFacts) -> CheckFinding:
    name, configured, reported = "cpus_per_node", site.cpus_per_node, cluster.cpus
    counts = " or ".join(map(str, reported))
    if not reported:
        return unknown(name, f"Slurm reports no CPUs; the site says {'nothing' if configured is None else configured}")
    if configured is None and len(reported) > 1:
        text = f"nodes have {counts}: say which are meant"
        return change(name, text, f"cpus_per_node = {min(reported)}", reported=reported)
    if configured is not None and configured > max(reported):
        text = f"the site says {configured}, Slurm {counts}: jobs that request more are refused"
        return change(name, text, f"cpus_per_node = {max(reported)}", reported=reported)
    text = f"{counts}, as Slurm says" if configured is None else f"{configured}; Slurm says {counts}"
    return ok(name, text, reported=reported)


def _pmi(site: Site, cluster: ClusterFacts) -> Iterator[CheckFinding]:
    if site.launcher != "srun":
        return
    speaks = ", ".join(cluster.pmis)
    if not cluster.pmis:
        yield unknown("srun --mpi", f"srun --mpi=list names no type: {_read_error(cluster, '--mpi')}")
    elif not site.mpi:
        default = cluster.settings.get("MpiDefault", "unknown")
        text = f'mpi = "" leaves it to Slurm, whose default is {default}; srun speaks {speaks}'
        none = default == "none"
        yield change("srun --mpi", text, f'mpi = "{cluster.pmis[0]}"') if none else ok("srun --mpi", text)
    elif site.mpi in cluster.pmis:
        yield ok("srun --mpi", f"srun speaks {speaks}")
    else:
        yield change("srun --mpi", f"srun speaks {speaks}, not {site.mpi}", f'mpi = "{cluster.pmis[0]}"')


def _settings(cluster: ClusterFacts) -> Iterator[CheckFinding]:
    """Findings about settings that decide how runs end before their time; only administrators change them."""
    settings = cluster.settings
    if not settings:
        yield unknown("settings", f"the scheduler's: {_read_error(cluster, 'config') or 'it says nothing'}")
        return
    mode = cluster.partition.get("PreemptMode") or settings.get("PreemptMode", "")
    yield _preemption(mode.split(",")[-1], settings.get("PreemptType", ""))
    if (wait_s := _seconds(settings.get("KillWait", ""))) is not None:
        text = f"{wait_s} s from the signal at a time limit to the end"
        short = f"{text}: what was measured after the last copy may be lost; a shorter --copy-s loses less"
        enough = wait_s >= MIN_KILL_WAIT_S
        yield ok("KillWait", text, wait_s=wait_s) if enough else note("KillWait", short, wait_s=wait_s)


def _preemption(mode: str, kind: str) -> CheckFinding:
    if kind in ("preempt/none", "") or mode in ("OFF", ""):
        return ok("preemption", "no job is preempted")
    if mode == "REQUEUE":
        return ok("preemption", "a preempted job goes back to the queue and goes on with what is left")
    texts = {
        "CANCEL": "a preempted job is cancelled: the same sweep again runs what is left",
        "SUSPEND": "a preempted job is suspended, and its run measures the pause: take another partition",
    }
    return note("preemption", texts.get(mode, f"PreemptMode is {mode}"))


def _read_error(cluster: ClusterFacts, argument: str) -> str:
    return next((error for command, error in cluster.unread.items() if argument in command), "")


def _seconds(text: str) -> int | None:
    """The seconds in Slurm's `30 sec`."""
    number = text.partition(" ")[0]
    return int(number) if number.isdigit() else None


def of_job(site: Site, job: JobFacts) -> list[CheckFinding]:
    """Findings about the nodes and the ranks on them."""
    setup = [change("setup", f"{line}: {error}", "setup, module_use or modules") for line, error in job.setup.items()]
    if not job.nodes:
        reason = f"no results of their shells: {job.nodes_error or job.printed or 'no output'}"
        return [*setup, unknown("nodes", reason), *_mpi(site, job)]
    return [*setup, *_folder(job), *_local(job), *_pythons(job), *_adapters(site, job), *_mpi(site, job)]


def _folder(job: JobFacts) -> Iterator[CheckFinding]:
    blind = {
        node.name: node.read_error or node.write_error for node in job.nodes if node.read_error or node.write_error
    }
    absent = [node.name for node in job.nodes if node.name not in blind and node.name not in job.arrived]
    blind |= dict.fromkeys(absent, "its file is not visible here")
    if blind:
        text = f"this folder is not shared with {hosts(blind)}: {next(iter(blind.values()))}"
        yield change("shared folder", text, "--out FOLDER, one that all nodes mount")
    else:
        yield ok("shared folder", f"read and written by {hosts(node.name for node in job.nodes)}")


def _local(job: JobFacts) -> Iterator[CheckFinding]:
    """Whether each node has a writable node-local folder; time stamps go to the first one."""
    places = {node.name: next(iter(node.free_bytes.items()), None) for node in job.nodes}
    if nowhere := [name for name, place in places.items() if place is None]:
        reason = next((reason for node in job.nodes for reason in node.unwritable.values()), "no folder")
        text = f"{hosts(nowhere)} can write neither to /dev/shm nor to $TMPDIR: {reason}"
        yield change("local storage", text, '[env] TMPDIR = "…"')
        return
    folder, least = min((place for place in places.values() if place), key=lambda place: place[1])
    aside = [name for name, place in places.items() if place and place[0] != "/dev/shm"]
    text = f"at least {least / (1 << 20):.0f} MiB free in {folder}"
    if least < MIN_LOCAL_BYTES:
        yield change("local storage", f"{text}: too little for the stamps of long runs", "empty it", free_bytes=least)
    elif aside:
        yield note("local storage", f"{text}; {hosts(aside)} cannot write to /dev/shm: stamps go to a disk there")
    else:
        yield ok("local storage", text, free_bytes=least)


def _pythons(job: JobFacts) -> Iterator[CheckFinding]:
    for python in dict.fromkeys(path for node in job.nodes for path in (*node.pythons, *node.missing)):
        gone = {node.name: node.missing[python] for node in job.nodes if python in node.missing}
        mpi4py = {node.name: node.mpi4py.get(python, "") for node in job.nodes if node.name not in gone}
        without = {name: text for name, text in mpi4py.items() if not _is_version(text)}
        versions = sorted({node.pythons[python] for node in job.nodes if python in node.pythons})
        elsewhere = '[interpreter] default = "…", one that all nodes have'
        if gone:
            yield change("python", f"{python} does not run on {hosts(gone)}: {next(iter(gone.values()))}", elsewhere)
        elif without:
            text = f"{python} lacks mpi4py or h5py on {hosts(without)}: {next(iter(without.values()))}"
            yield change("python", text, f"{python} -m pip install mpi4py h5py")
        elif len(versions) > 1:
            yield change("python", f"{python} is not the same on all nodes: {', '.join(versions)}", elsewhere)
        else:
            yield ok("python", f"{python} is {versions[0]}, with mpi4py, on all nodes")


def _all_have_mpi4py(node: AllocatedNode) -> bool:
    return all(_is_version(node.mpi4py.get(python, "")) for python in node.pythons)


def _is_version(text: str) -> bool:
    return text[:1].isdigit()


def _adapters(site: Site, job: JobFacts) -> Iterator[CheckFinding]:
    """A transport that the site could expect, or one that it expects and nodes do not have."""
    without = [node.name for node in job.nodes if not any("ACTIVE" in port for port in node.ports)]
    name = "expect_transport"
    if len(without) == len(job.nodes):
        if site.expect_transport.startswith("ib"):
            yield change(name, "the site promises ib, and no node has an adapter with an active port", f'{name} = ""')
    elif without:
        text = f"no active port in /sys/class/infiniband on {hosts(without)}; other nodes have one"
        yield change("adapters", text, f'exclude = "{",".join(without)}"')
    elif site.expect_transport:
        yield ok(name, f"{site.expect_transport}; all nodes have adapters with an active port")
    else:
        text = "all nodes have adapters in /sys/class/infiniband; promised, a run that goes another way is invalid"
        yield note(name, text, f'{name} = "ib"')


def _mpi(site: Site, job: JobFacts) -> Iterator[CheckFinding]:
    configured, *others = job.starts
    better = next((start for start in others if start.connected), None)
    if configured.connected:
        launched = configured.report.get("launched", {})
        library = str(launched.get("library", "")).partition(",")[0]
        yield ok("mpi", f"{launched.get('size')} ranks connected by {_way(configured)} ({library})")
        yield from _findings(configured)
    elif any(node.missing or not _all_have_mpi4py(node) for node in job.nodes):
        yield unknown("mpi", "no ranks without an interpreter that has mpi4py on all nodes")
    elif better is not None:
        launcher = f'launcher = "{better.launcher}"\n' if better.launcher != site.launcher else ""
        text = f"{_way(configured)} does not connect the ranks ({_failure(configured)}); {_way(better)} does"
        yield change("mpi", text, f'{launcher}mpi = "{better.mpi}"')
        yield from _findings(better)
    elif configured.status is None:
        yield unknown("mpi", f"no ranks were started: {job.printed or job.nodes_error or 'the job left no file'}")
    else:
        tried = "; ".join(f"{_way(start)}: {_failure(start)}" for start in job.starts if start.status is not None)
        fix = "load the MPI that mpi4py belongs to (modules = […]), or name its library by MPI4PY_LIBMPI"
        yield change("mpi", f"nothing connects the ranks: {tried}", fix)


def _findings(start: Start) -> Iterator[CheckFinding]:
    for finding in start.findings:
        if finding.state is State.UNKNOWN:
            yield unknown(finding.name, finding.text)
        elif finding.state is State.FAILED:
            yield replace(finding, severity=Severity.ALARM if finding.fatal else Severity.NOTE)


def _failure(start: Start) -> str:
    if failed := [finding.text for finding in start.findings if finding.state is State.FAILED]:
        return failed[0]
    if start.status == 124:
        return "no answer in time"
    if start.status == 127:
        return f"{start.launcher} is not there"
    return start.error or f"exit status {start.status}"


def _way(start: Start) -> str:
    if not start.launcher:
        return "mpiexec"
    if start.launcher == "srun":
        return f"srun --mpi={start.mpi}" if start.mpi else "srun without --mpi"
    return f"mpirun of {start.mpi}"
