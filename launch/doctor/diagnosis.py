"""What a site file says against what the cluster says of itself: a list of advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launch.cluster.partitions import minutes_of
from launch.doctor.advice import Advice, change, note, ok, unknown
from launch.doctor.cluster_facts import ClusterFacts
from launch.jobs.site import Site

FEWEST_KILL_WAIT_S = 10
"""What is left between SIGTERM and SIGKILL for a last copy of the stamps; a slow shared folder takes seconds."""
LEAST_MEMORY_S = 300
"""For how long Slurm remembers, by its own default, how a job ended."""
_FENCES_BROKEN_SINCE = (20, 11)


def of_site(site: Site, cluster: ClusterFacts) -> list[Advice]:
    """What is well and what is not, before anything is started."""
    sizes = [*_partition(site, cluster), _gpus(site, cluster), _cpus(site, cluster)]
    return [*sizes, *_pmi(site, cluster), *_settings(cluster)]


def _partition(site: Site, cluster: ClusterFacts) -> Iterator[Advice]:
    found = cluster.partition
    if not found:
        named = f"partition {site.partition!r}" if site.partition else "default partition"
        why = _why(cluster, "partition")
        yield change("partition", f"Slurm shows no {named}{f' ({why})' if why else ''}", 'partition = "…"')
        return
    name, state, limit = (found.get(word, "") for word in ("PartitionName", "State", "MaxTime"))
    if state == "UP":
        yield ok("partition", f"{name} is up, {cluster.nodes} nodes")
    else:
        yield change("partition", f"{name} is {state}: it starts no job", 'partition = "…"')
    minutes, said = minutes_of(limit), site.time_limit_min
    if limit == "UNLIMITED":
        yield ok("time limit", f"{name} has none")
    elif minutes is None:
        yield unknown("time limit", f"{name} does not say how long a job may take ({limit!r})")
    elif said is None or said > minutes:
        asked = "no time_limit_min" if said is None else f"time_limit_min = {said}"
        text = f"{name} lets a job take {minutes} min, the site says {asked}: longer plans are refused, not split"
        yield change("time limit", text, f"time_limit_min = {minutes}")
    else:
        yield ok("time limit", f"{said} of the {minutes} min that {name} allows")


def _gpus(site: Site, cluster: ClusterFacts) -> Advice:
    name, said, shown = "gpus_per_node", site.gpus_per_node, cluster.gpus
    here = " or ".join(map(str, shown))
    if not shown:
        if said is None:
            text = "neither the site nor sinfo says how many GPUs a node has; 0 where runs use none"
            return change(name, text, "gpus_per_node = 0")
        return (ok if said == 0 else unknown)(name, f"{said}; sinfo shows no GPU to Slurm")
    if said == 0:
        return ok(name, f"0: runs use CPUs alone, though nodes have {here} GPUs")
    if said is None and len(shown) > 1:
        text = f"nodes have {here}: say which are meant, and choose them by constraint or nodelist"
        return change(name, text, f"gpus_per_node = {max(shown)}")
    if said is None or said in shown:
        return ok(name, f"{said or here}, as sinfo says")
    return change(name, f"the site says {said}, sinfo {here}", f"gpus_per_node = {max(shown)}")


def _cpus(site: Site, cluster: ClusterFacts) -> Advice:
    name, said, shown = "cpus_per_node", site.cpus_per_node, cluster.cpus
    here = " or ".join(map(str, shown))
    if not shown:
        return unknown(name, f"sinfo does not tell; the site says {'nothing' if said is None else said}")
    if said is None and len(shown) > 1:
        return change(name, f"nodes have {here}: say which are meant", f"cpus_per_node = {min(shown)}")
    if said is not None and said > max(shown):
        text = f"the site says {said}, sinfo {here}: jobs that ask for more are refused"
        return change(name, text, f"cpus_per_node = {max(shown)}")
    return ok(name, f"{here}, as sinfo says" if said is None else f"{said}; sinfo says {here}")


def _pmi(site: Site, cluster: ClusterFacts) -> Iterator[Advice]:
    if site.launcher != "srun":
        return
    speaks = ", ".join(cluster.pmis)
    if not cluster.pmis:
        yield unknown("srun --mpi", f"srun --mpi=list names none of pmix and pmi2: {_why(cluster, '--mpi')}")
    elif site.mpi in cluster.pmis:
        yield ok("srun --mpi", f"srun speaks {speaks}")
        if site.mpi == "pmix":
            yield from _fences(cluster.settings)
    else:
        yield change("srun --mpi", f"srun speaks {speaks}, not {site.mpi}", f'mpi = "{cluster.pmis[0]}"')


def _fences(said: Mapping[str, str]) -> Iterator[Advice]:
    """Whether MPI_Init can crash by Slurm's PMIx, where ranks are started by srun without us: docs/outcomes.md."""
    version = tuple(int(word) for word in said.get("SLURM_VERSION", "").split(".")[:2] if word.isdigit())
    if version < _FENCES_BROKEN_SINCE:
        return
    if said.get("PMIxCollFence", "") == "ring":
        yield ok("PMIx fences", "as a ring (PMIxCollFence)")
    else:
        text = (
            "as a tree, in which nodes do not wait for one another: a few starts in a thousand crash in MPI_Init; "
            "Rankwise's runs ask for a ring"
        )
        yield note("PMIx fences", text, "for other programs: PMIxCollFence=ring in mpi.conf, or SLURM_PMIX_FENCE=ring")


def _settings(cluster: ClusterFacts) -> Iterator[Advice]:
    """Those that decide what becomes of a run when something goes wrong; only administrators change them."""
    said = cluster.settings
    if not said:
        yield unknown("settings", f"scontrol show config: {_why(cluster, 'config') or 'it says nothing'}")
        return
    mode = cluster.partition.get("PreemptMode") or said.get("PreemptMode", "")
    yield _preemption(mode.split(",")[-1], said.get("PreemptType", ""))
    if said.get("JobRequeue") == "0":
        yield ok("JobRequeue", "0; the jobs of a sweep ask for it themselves (--requeue)")
    if (wait_s := _seconds(said.get("KillWait", ""))) is not None:
        text = f"{wait_s} s from the signal at a time limit to the end"
        short = f"{text}: what was measured after the last copy may be lost; a shorter --copy-s loses less"
        yield ok("KillWait", text) if wait_s >= FEWEST_KILL_WAIT_S else note("KillWait", short)
    yield _accounting(said)
    if (silence_s := _seconds(said.get("SlurmdTimeout", ""))) is not None:
        if silence_s:
            yield ok("SlurmdTimeout", f"a dead node is noticed after {silence_s} s")
        else:
            yield note("SlurmdTimeout", "0: a dead node is never noticed by itself")
    yield _memory(said)


def _preemption(mode: str, kind: str) -> Advice:
    if kind in ("preempt/none", "") or mode in ("OFF", ""):
        return ok("preemption", "no job is preempted")
    if mode == "REQUEUE":
        return ok("preemption", "a preempted job goes back to the queue and goes on with what is left")
    told = {
        "CANCEL": "a preempted job is cancelled: the same sweep again runs what is left",
        "SUSPEND": "a preempted job is suspended, and its run measures the pause: take another partition",
    }
    return note("preemption", told.get(mode, f"PreemptMode is {mode}"))


def _accounting(said: Mapping[str, str]) -> Advice:
    if said.get("AccountingStorageType", "").endswith("/slurmdbd"):
        return ok("accounting", "sacct knows how jobs ended")
    age_s = _seconds(said.get("MinJobAge", ""))
    text = f"none: Slurm forgets how a job ended after {'some time' if age_s is None else f'{age_s} s'} (MinJobAge)"
    return ok("accounting", text) if age_s is not None and age_s >= LEAST_MEMORY_S else note("accounting", text)


def _memory(said: Mapping[str, str]) -> Advice:
    if "OverMemoryKill" in said.get("JobAcctGatherParams", ""):
        return ok("memory", "a step over its memory is ended and told (OverMemoryKill)")
    if "task/cgroup" in said.get("TaskPlugin", ""):
        return unknown("memory", "task/cgroup holds a limit where cgroup.conf, which nobody shows, sets one")
    return note("memory", "no limit is held: a run too large may take its node along")


def _why(cluster: ClusterFacts, word: str) -> str:
    return next((why for command, why in cluster.unread.items() if word in command), "")


def _seconds(text: str) -> int | None:
    """`30 sec` as Slurm says it."""
    word = text.partition(" ")[0]
    return int(word) if word.isdigit() else None
