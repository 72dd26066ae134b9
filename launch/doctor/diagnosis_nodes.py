"""Advice from the results of the doctor's job: the checks of nodes and of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from launch.doctor.advice import Advice, AdviceLevel, change, hosts, note, ok, unknown
from launch.doctor.look import JobFacts, NodeLook, Start
from launch.jobs.site import Site

LEAST_LOCAL_BYTES = 64 << 20
"""The size of the stamps of 16 ranks with 80,000 steps each."""


def of_job(site: Site, job: JobFacts) -> list[Advice]:
    """Advice about the nodes and the ranks on them."""
    modules = [
        change("modules", f"module load {name}: {error}", "modules = […]") for name, error in job.modules.items()
    ]
    on_nodes = [*_folder(job), *_local(job), *_pythons(job), *_adapters(site, job)] if job.looks else [_no_look(job)]
    ranks = list(_mpi(site, job))
    seen = {item.name for item in ranks if item.word is AdviceLevel.CHANGE}
    # The ranks' own check of adapters is more precise.
    return [*modules, *(item for item in on_nodes if item.name != "expect_transport" or "fabric" not in seen), *ranks]


def _no_look(job: JobFacts) -> Advice:
    return unknown("nodes", f"their shells told nothing: {job.nodes_error or job.printed or 'no output'}")


def _folder(job: JobFacts) -> Iterator[Advice]:
    blind = {look.name: look.read or look.wrote for look in job.looks if look.read or look.wrote}
    absent = [look.name for look in job.looks if look.name not in blind and look.name not in job.arrived]
    blind |= dict.fromkeys(absent, "what it wrote there does not show here")
    if blind:
        text = f"this folder is not shared with {hosts(blind)}: {next(iter(blind.values()))}"
        yield change("shared folder", text, "--out FOLDER, one that all nodes mount")
    else:
        yield ok("shared folder", f"read and written by {hosts(look.name for look in job.looks)}")


def _local(job: JobFacts) -> Iterator[Advice]:
    """Whether each node has a writable node-local folder; stamps go to the first one."""
    places = {look.name: next(iter(look.free_bytes.items()), None) for look in job.looks}
    if nowhere := [name for name, place in places.items() if place is None]:
        reason = next((reason for look in job.looks for reason in look.closed.values()), "no folder")
        text = f"{hosts(nowhere)} can write neither to /dev/shm nor to $TMPDIR: {reason}"
        yield change("local storage", text, '[env] TMPDIR = "…"')
        return
    folder, least = min((place for place in places.values() if place), key=lambda place: place[1])
    aside = [name for name, place in places.items() if place and place[0] != "/dev/shm"]
    text = f"at least {least / (1 << 20):.0f} MiB free in {folder}"
    if least < LEAST_LOCAL_BYTES:
        yield change("local storage", f"{text}: too little for the stamps of long runs", "empty it")
    elif aside:
        yield note("local storage", f"{text}; {hosts(aside)} cannot write to /dev/shm: stamps go to a disk there")
    else:
        yield ok("local storage", text)


def _pythons(job: JobFacts) -> Iterator[Advice]:
    for python in dict.fromkeys(path for look in job.looks for path in (*look.pythons, *look.missing)):
        gone = {look.name: look.missing[python] for look in job.looks if python in look.missing}
        mpi4py = {look.name: look.mpi4py.get(python, "") for look in job.looks if look.name not in gone}
        without = {name: text for name, text in mpi4py.items() if not _is_version(text)}
        versions = sorted({look.pythons[python] for look in job.looks if python in look.pythons})
        elsewhere = '[interpreter] default = "…", one that all nodes have'
        if gone:
            yield change("python", f"{python} does not run on {hosts(gone)}: {next(iter(gone.values()))}", elsewhere)
        elif without:
            text = f"{python} has no mpi4py on {hosts(without)}: {next(iter(without.values()))}"
            yield change("python", text, f"{python} -m pip install mpi4py")
        elif len(versions) > 1:
            yield change("python", f"{python} is not the same on all nodes: {', '.join(versions)}", elsewhere)
        else:
            yield ok("python", f"{python} is {versions[0]}, with mpi4py, on all nodes")


def _all_have_mpi4py(look: NodeLook) -> bool:
    return all(_is_version(look.mpi4py.get(python, "")) for python in look.pythons)


def _is_version(text: str) -> bool:
    return text[:1].isdigit()


def _adapters(site: Site, job: JobFacts) -> Iterator[Advice]:
    """A transport that the site could promise, or one that it promises and nodes do not have."""
    without = [look.name for look in job.looks if not any("ACTIVE" in port for port in look.ports)]
    name = "expect_transport"
    if len(without) == len(job.looks):
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


def _mpi(site: Site, job: JobFacts) -> Iterator[Advice]:
    configured, *others = job.starts
    better = next((start for start in others if start.met), None)
    if configured.met:
        launched = configured.report.get("launched", {})
        library = str(launched.get("library", "")).partition(",")[0]
        yield ok("mpi", f"{launched.get('size')} ranks found one another by {_way(configured)} ({library})")
        yield from _findings(configured)
    elif any(look.missing or not _all_have_mpi4py(look) for look in job.looks):
        yield unknown("mpi", "no ranks without an interpreter that has mpi4py on all nodes")
    elif better is not None:
        launcher = f'launcher = "{better.launcher}"\n' if better.launcher != site.launcher else ""
        text = f"{_way(configured)} does not bring the ranks together ({_failure(configured)}); {_way(better)} does"
        yield change("mpi", text, f'{launcher}mpi = "{better.mpi}"')
        yield from _findings(better)
    elif configured.status is None:
        yield unknown("mpi", f"no ranks were started: {job.printed or job.nodes_error or 'the job left nothing'}")
    else:
        tried = "; ".join(f"{_way(start)}: {_failure(start)}" for start in job.starts if start.status is not None)
        fix = "load the MPI that mpi4py belongs to (modules = […]), or name its library by MPI4PY_LIBMPI"
        yield change("mpi", f"nothing brings the ranks together: {tried}", fix)


def _findings(start: Start) -> Iterator[Advice]:
    """The failed and unknown checks of the ranks."""
    for finding in start.findings:
        name, text, state = finding.get("name", ""), finding.get("text", ""), finding.get("state", "")
        if state == "failed":
            say = change if finding.get("severity") == "fatal" else note
            yield say(name, text, finding.get("fix", ""))
        elif state == "unknown":
            yield unknown(name, text)


def _failure(start: Start) -> str:
    if failed := [finding for finding in start.findings if finding.get("state") == "failed"]:
        return failed[0].get("text", "")
    if start.status == 124:
        return "no answer in time"
    if start.status == 127:
        return f"{start.launcher} is not there"
    return start.error or f"exit status {start.status}"


def _way(start: Start) -> str:
    if not start.launcher:
        return "mpiexec"
    return f"srun --mpi={start.mpi}" if start.launcher == "srun" else f"mpirun of {start.mpi}"
