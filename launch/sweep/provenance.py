"""What has changed since a run was measured, as far as this machine can know: packages, Python, MPI, the project."""

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
_OF_FRAMEWORKS = frozenset({"cuda", "cudnn", "nccl"})
"""Versions that a framework tells of what it was built with or loads; no package of that name has them."""
_LOOK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
brought = packages_distributions()
def found(name):
    for distribution in brought.get(name, [name]):
        try: return version(distribution)
        except PackageNotFoundError: pass
try:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    mpi = MPI.Get_library_version().strip("\\0\\n ").splitlines()[0]
except Exception:
    mpi = None
print(json.dumps({**{name: found(name) for name in sys.argv[1:]}, "python": platform.python_version(), "mpi": mpi}))
"""
"""Run by the interpreter of the runs, which may be another one than this."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is not as it was, each in words; and what could not be compared, with the reason."""

    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def changes_since(run: RunSpec, trace: Path, site: Site | None) -> Changes:
    """Compares what the run's trace recorded with what its interpreter has now, asked on this machine."""
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
            known = [name for name in sorted(software) if name not in _OF_FRAMEWORKS and (name != "mpi" or now[name])]
            changed += [
                f"{name} was {software[name]}, is {now[name] or 'not there'}"
                for name in known
                if now[name] != str(software[name])
            ]
            if unsaid := sorted(set(software) - set(known)):
                unknown.append(f"{', '.join(unsaid)}: what a framework brings or loads itself, only a run sees")
    then, here = recorded.get("project", {}), describe_project()
    if "commit" not in then or "commit" not in here:
        problem = here.get("problem") or then.get("problem") or "it is no git repository here, or was none there"
        unknown.append(f"the project's commit: {problem}")
    else:
        changed += _of_project(then, here)
    return Changes(changed=tuple(changed), unknown=tuple(unknown))


def _of_project(then: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    if then["commit"] != here["commit"]:
        return [f"the project was at {then['commit'][:10]}, is at {here['commit'][:10]}"]
    if then["dirty"] != here["dirty"]:
        return ["the project had local changes" if then["dirty"] else "the project has local changes"]
    return []


@functools.cache
def _installed(python: str, names: tuple[str, ...]) -> Mapping[str, str | None] | str:
    """Versions of these packages as the interpreter knows them, and its own and its MPI library's; else why not."""
    answer = run_tool([python, "-c", _LOOK, *names], timeout_s=_TIMEOUT_S)
    try:
        return answer.describe() or dict(json.loads(answer.stdout))
    except ValueError:
        return f"its answer cannot be read ({answer.output[-200:]})"
