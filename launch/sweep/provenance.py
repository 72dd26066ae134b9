"""Changes since a run was measured that this machine can see: packages, Python, MPI, the project."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.backends import BACKENDS
from hpc.model.spec import RunSpec
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from hpc.system.environment import describe_project
from hpc.system.tool import run_tool
from launch.jobs.site import Site

_TIMEOUT_S = 60
_FRAMEWORK_OWN = frozenset({"cuda", "cudnn", "nccl"})
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
