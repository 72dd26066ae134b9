"""Compares a site file with the facts of the cluster and returns advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launch.cluster.partitions import minutes_of
from launch.doctor.advice import Advice, change, note, ok, unknown
from launch.doctor.cluster_facts import ClusterFacts
from launch.jobs.site import Site

FEWEST_KILL_WAIT_S = 10
"""The least KillWait, from SIGTERM to SIGKILL, for a last copy of the stamps; a slow shared folder takes seconds."""
LEAST_MEMORY_S = 300
"""Slurm's default MinJobAge: how long it remembers how a job ended."""
_FENCES_BROKEN_SINCE = (20, 11)


def of_site(site: Site, cluster: ClusterFacts) -> list[Advice]:
    """Advice about the site file, before any job is started."""
    sizes = [*_partition(site, cluster), _gpus(site, cluster), _cpus(site, cluster)]
    return [*sizes, *_pmi(site, cluster), *_settings(cluster)]


def _partition(site: Site, cluster: ClusterFacts) -> Iterator[Advice]:
    partition = cluster.partition
    if not partition:
        named = f"partition {site.partition!r}" if site.partition else "default partition"
        reason = _read_error(cluster, "partition")
        yield change("partition", f"Slurm shows no {named}{f' ({reason})' if reason else ''}", 'partition = "…"')
        return
    name, state, limit = (partition.get(key, "") for key in ("PartitionName", "State", "MaxTime"))
    if state == "UP":
        yield ok("partition", f"{name} is up, {cluster.nodes} nodes")
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
        yield change("time limit", text, f"time_limit_min = {minutes}")
    else:
        yield ok("time limit", f"{configured} of the {minutes} min that {name} allows")


def _gpus(site: Site, cluster: ClusterFacts) -> Advice:
    name, configured, shown = "gpus_per_node", site.gpus_per_node, cluster.gpus
    here = " or ".join(map(str, shown))
    if not shown:
        if configured is None:
            text = "neither the site nor sinfo says how many GPUs a node has; 0 where runs use none"
            return change(name, text, "gpus_per_node = 0")
        return (ok if configured == 0 else unknown)(name, f"{configured}; sinfo shows no GPU to Slurm")
    if configured == 0:
        return ok(name, f"0: runs use CPUs alone, though nodes have {here} GPUs")
    if configured is None and len(shown) > 1:
        text = f"nodes have {here}: say which are meant, and choose them by constraint or nodelist"
        return change(name, text, f"gpus_per_node = {max(shown)}")
    if configured is None or configured in shown:
        return ok(name, f"{configured or here}, as sinfo says")
    return change(name, f"the site says {configured}, sinfo {here}", f"gpus_per_node = {max(shown)}")


def _cpus(site: Site, cluster: ClusterFacts) -> Advice:
    name, configured, shown = "cpus_per_node", site.cpus_per_node, cluster.cpus
    here = " or ".join(map(str, shown))
    if not shown:
        return unknown(name, f"sinfo does not tell; the site says {'nothing' if configured is None else configured}")
    if configured is None and len(shown) > 1:
        return change(name, f"nodes have {here}: say which are meant", f"cpus_per_node = {min(shown)}")
    if configured is not None and configured > max(shown):
        text = f"the site says {configured}, sinfo {here}: jobs that ask for more are refused"
        return change(name, text, f"cpus_per_node = {max(shown)}")
    return ok(name, f"{here}, as sinfo says" if configured is None else f"{configured}; sinfo says {here}")


def _pmi(site: Site, cluster: ClusterFacts) -> Iterator[Advice]:
    if site.launcher != "srun":
        return
    speaks = ", ".join(cluster.pmis)
    if not cluster.pmis:
        yield unknown("srun --mpi", f"srun --mpi=list names none of pmix and pmi2: {_read_error(cluster, '--mpi')}")
    elif site.mpi in cluster.pmis:
        yield ok("srun --mpi", f"srun speaks {speaks}")
        if site.mpi == "pmix":
            yield from _fences(cluster.settings)
    else:
        yield change("srun --mpi", f"srun speaks {speaks}, not {site.mpi}", f'mpi = "{cluster.pmis[0]}"')


def _fences(settings: Mapping[str, str]) -> Iterator[Advice]:
    """Whether Slurm's PMIx can crash MPI_Init of programs started by srun without Rankwise: docs/outcomes.md."""
    version = tuple(int(part) for part in settings.get("SLURM_VERSION", "").split(".")[:2] if part.isdigit())
    if version < _FENCES_BROKEN_SINCE:
        return
    if settings.get("PMIxCollFence", "") == "ring":
        yield ok("PMIx fences", "as a ring (PMIxCollFence)")
    else:
        text = (
            "as a tree, in which nodes do not wait for one another: a few starts in a thousand crash in MPI_Init; "
            "Rankwise's runs ask for a ring"
        )
        yield note("PMIx fences", text, "for other programs: PMIxCollFence=ring in mpi.conf, or SLURM_PMIX_FENCE=ring")


def _settings(cluster: ClusterFacts) -> Iterator[Advice]:
    """Advice about settings that decide how failures of nodes and jobs end runs; only administrators change them."""
    settings = cluster.settings
    if not settings:
        yield unknown("settings", f"scontrol show config: {_read_error(cluster, 'config') or 'it says nothing'}")
        return
    mode = cluster.partition.get("PreemptMode") or settings.get("PreemptMode", "")
    yield _preemption(mode.split(",")[-1], settings.get("PreemptType", ""))
    if settings.get("JobRequeue") == "0":
        yield ok("JobRequeue", "0; the jobs of a sweep ask for it themselves (--requeue)")
    if (wait_s := _seconds(settings.get("KillWait", ""))) is not None:
        text = f"{wait_s} s from the signal at a time limit to the end"
        short = f"{text}: what was measured after the last copy may be lost; a shorter --copy-s loses less"
        yield ok("KillWait", text) if wait_s >= FEWEST_KILL_WAIT_S else note("KillWait", short)
    yield _accounting(settings)
    if (silence_s := _seconds(settings.get("SlurmdTimeout", ""))) is not None:
        if silence_s:
            yield ok("SlurmdTimeout", f"a dead node is noticed after {silence_s} s")
        else:
            yield note("SlurmdTimeout", "0: a dead node is never noticed by itself")
    yield _memory(settings)


def _preemption(mode: str, kind: str) -> Advice:
    if kind in ("preempt/none", "") or mode in ("OFF", ""):
        return ok("preemption", "no job is preempted")
    if mode == "REQUEUE":
        return ok("preemption", "a preempted job goes back to the queue and goes on with what is left")
    texts = {
        "CANCEL": "a preempted job is cancelled: the same sweep again runs what is left",
        "SUSPEND": "a preempted job is suspended, and its run measures the pause: take another partition",
    }
    return note("preemption", texts.get(mode, f"PreemptMode is {mode}"))


def _accounting(settings: Mapping[str, str]) -> Advice:
    if settings.get("AccountingStorageType", "").endswith("/slurmdbd"):
        return ok("accounting", "sacct knows how jobs ended")
    age_s = _seconds(settings.get("MinJobAge", ""))
    text = f"none: Slurm forgets how a job ended after {'some time' if age_s is None else f'{age_s} s'} (MinJobAge)"
    return ok("accounting", text) if age_s is not None and age_s >= LEAST_MEMORY_S else note("accounting", text)


def _memory(settings: Mapping[str, str]) -> Advice:
    if "OverMemoryKill" in settings.get("JobAcctGatherParams", ""):
        return ok("memory", "a step over its memory is ended and told (OverMemoryKill)")
    if "task/cgroup" in settings.get("TaskPlugin", ""):
        return unknown("memory", "task/cgroup holds a limit where cgroup.conf, which nobody shows, sets one")
    return note("memory", "no limit is held: a run too large may take its node along")


def _read_error(cluster: ClusterFacts, argument: str) -> str:
    return next((error for command, error in cluster.unread.items() if argument in command), "")


def _seconds(text: str) -> int | None:
    """The seconds in Slurm's `30 sec`."""
    number = text.partition(" ")[0]
    return int(number) if number.isdigit() else None
