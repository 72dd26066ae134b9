"""Runs that are final and wanted once more: all, those with an outcome, those whose environment has changed."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.backends import BACKENDS
from hpc.model.outcome import (
    ExitRecord,
    Outcome,
    exit_records,
    final_record,
    is_final,
    request_reruns,
    requested_reruns,
)
from hpc.model.spec import RunSpec
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from hpc.system.environment import describe_project
from hpc.system.text import plural
from hpc.system.tool import run_tool
from launch.jobs.site import Site
from launch.sweep.request import SweepOptions

# Changes since a run was measured that this machine can see: packages, Python, MPI, the project.

_TIMEOUT_S = 60
_FRAMEWORK_OWN = frozenset({"cuda", "cudnn", "hip", "miopen", "nccl", "rccl"})
"""Versions that a framework reports of the libraries it was built with or loads; no package of that name has them."""
_VERSIONS = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
distributions = packages_distributions()
def installed(name):
    for distribution in distributions.get(name, [name]):
        try: return version(distribution)
        except PackageNotFoundError: pass
try:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    mpi = MPI.Get_library_version().strip("\\0\\n ").splitlines()[0]
except Exception:
    mpi = None
print(json.dumps({**{name: installed(name) for name in sys.argv[1:]}, "python": platform.python_version(), "mpi": mpi}))
"""
"""Run by the interpreter of the runs, which may be another one than this."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Descriptions of what has changed, and of what could not be compared with the reason."""

    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def changes_since(run: RunSpec, trace: Path, site: Site | None) -> Changes:
    """Compares the environment that the trace of a run recorded with the present one of its interpreter here."""
    try:
        recorded = read_trace(trace).environment
    except TraceError as error:
        return Changes(unknown=(f"{run.run_id}: {error}",))
    changed, unknown = [], ["driver, kernel and devices of the nodes: only a run sees them"]
    software = {name: value for name, value in recorded.get("software", {}).items() if value is not None}
    if run.container:
        unknown.append(f"what is in the container image {run.container}, which has kept its name")
    elif site is not None and (site.modules or "PYTHONPATH" in site.env):
        unknown.append(f"packages that the modules or the PYTHONPATH of site {site.name} bring")
    else:
        python = sys.executable if site is None else site.python(BACKENDS[run.backend].framework, sys.executable)
        now = _installed(python, tuple(sorted(software)))
        if isinstance(now, str):
            unknown.append(f"packages of {python}: {now}")
        else:
            known = {name for name in software if name not in _FRAMEWORK_OWN and (name != "mpi" or now[name])}
            different = [name for name in sorted(known) if now[name] != str(software[name])]
            changed += [f"{name} was {software[name]}, is {now[name] or 'not there'}" for name in different]
            if rest := sorted(set(software) - known):
                unknown.append(f"{', '.join(rest)}: what a framework brings or loads itself, only a run sees")
    then, here = recorded.get("project", {}), describe_project()
    if "commit" not in then or "commit" not in here:
        problem = here.get("problem") or then.get("problem") or "it is no git repository here, or was none there"
        unknown.append(f"the project's commit: {problem}")
    else:
        changed += _project_changes(then, here)
    return Changes(changed=tuple(changed), unknown=tuple(unknown))


def _project_changes(then: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    if then["commit"] != here["commit"]:
        return [f"the project was at {then['commit'][:10]}, is at {here['commit'][:10]}"]
    if then["dirty"] != here["dirty"]:
        return ["the project had local changes" if then["dirty"] else "the project has local changes"]
    return []


@functools.cache
def _installed(python: str, names: tuple[str, ...]) -> Mapping[str, str | None] | str:
    """Versions of these packages, of the interpreter and of its MPI library; else the reason why they are not known."""
    answer = run_tool([python, "-c", _VERSIONS, *names], timeout_s=_TIMEOUT_S)
    try:
        return answer.describe() or dict(json.loads(answer.stdout))
    except ValueError:
        return f"its answer cannot be read ({answer.output[-200:]})"


def choose_reruns(
    options: SweepOptions, runs: Sequence[RunSpec], traces: Path, site: Site | None, say: Callable[[str], None]
) -> None:
    """Writes rerun requests beside the records of final runs; prints how many and why. The folder must be locked."""
    records, rerun_requests = exit_records(traces), requested_reruns(traces)
    final = [run for run in runs if is_final(records.get(run.run_id, []), rerun_requests)]
    latest = {run.run_id: record for run in final if (record := final_record(records[run.run_id])) is not None}
    chosen: list[str] = []
    if options.force:
        chosen += latest
        say(f"--force: {len(latest)} final runs once more")
    if options.retry:
        retried = [run_id for run_id, record in latest.items() if record.outcome in options.retry]
        chosen += retried
        say(f"retry {','.join(options.retry)}: {plural(len(retried), 'run')} once more")
    if options.rerun_if_changed:
        measured = [(run, latest[run.run_id]) for run in final if latest[run.run_id].outcome is Outcome.OK]
        chosen += _changed(measured, traces, site, say)
    request_reruns(traces, [record for run_id in chosen for record in records[run_id] if record.is_final])


def _changed(
    measured: Sequence[tuple[RunSpec, ExitRecord]], traces: Path, site: Site | None, say: Callable[[str], None]
) -> list[str]:
    """The measured runs whose recorded environment differs from the present one."""
    chosen, unknown = [], set()
    for run, record in measured:
        changes = changes_since(run, record.files(traces).trace, site)
        unknown |= set(changes.unknown)
        if changes.changed:
            chosen.append(run.run_id)
            say(f"{run.run_id}: {'; '.join(changes.changed)}")
    say(f"--rerun-if-changed: {len(chosen)} of {len(measured)} runs that ended ok once more")
    for line in sorted(unknown):
        say(f"not compared: {line}")
    return chosen
