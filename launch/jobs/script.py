"""Renders the job script: header from the scheduler's side, body from sbatch_templates, every value quoted."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hpc.model.spec import RUN_SETTINGS, UNKNOWN, RunSpec
from hpc.system.sanitize import plain
from hpc.system.text import grouped, plural
from hpc.system.version import code_version
from launch.jobs.launchers import Unquoted, in_container, local_argv, run_argv
from launch.jobs.options import DEFAULT_LIMITS, RunLimits, flag
from launch.jobs.site import PURGES, Site

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder from which jobs import this project; of an installation a folder that has nothing else."""
TEMPLATES = CHECKOUT / "sbatch_templates"
LOGS = "logs"
"""The folder, beside the scripts, for the output of jobs and runs."""


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The absolute paths of a sweep's files: scripts in `jobs`, results in `traces`."""

    jobs: Path
    traces: Path

    @classmethod
    def under(cls, out: Path) -> Folders:
        """The folders of a sweep under `out`."""
        return cls(jobs=out.absolute() / "jobs", traces=out.absolute() / "traces")

    @property
    def logs(self) -> Path:
        """The folder for the output of jobs and runs."""
        return self.jobs / LOGS

    def run_file(self, run: RunSpec) -> Path:
        """RUN.json, the input of `hpc.rank`."""
        return self.jobs / "runs" / f"{run.run_id}.json"


MAX_DESCRIBED = 4
_DESCRIBED = {
    each.name: each.default for each in dataclasses.fields(RunSpec)
    if RUN_SETTINGS[each.name].is_column and isinstance(each.default, str | int | float)
}  # fmt: skip
"""Settings that are named where a run departs from these values."""


def here_python() -> str:
    """The path of this interpreter, with links unresolved: otherwise its virtual environment would be lost."""
    return str(Path(sys.executable).absolute())


@dataclass(frozen=True, kw_only=True)
class ScriptHead:
    """The first lines of a job's script, with what it requests; the command that submits it; and how many seconds
    before its time limit it gets SIGUSR1."""

    text: str
    submit: str
    warning_s: int


def render_job(
    runs: Sequence[RunSpec], head: ScriptHead, site: Site, folders: Folders, frameworks: dict[str, str],
    subsets: Mapping[str, Sequence[int]] = MappingProxyType({}), run_limits: RunLimits = DEFAULT_LIMITS,
) -> str:  # fmt: skip
    """The whole script of a job of a site. `frameworks` names the framework of each backend, `subsets` by run id
    the nodes of the job that each nested run uses, as indices."""

    def point(run: RunSpec) -> Sequence[str]:
        fitted = site.at(run.nodes)
        program = _program(fitted.python(frameworks[run.backend], here_python()), python)
        argv = run_argv(run, fitted, [*program, *expectations(fitted)], mounts)
        nodelist = [Unquoted('--nodelist "$2"')] if run.run_id in subsets else []
        words = shlex.join(in_container(run, fitted, mounts))
        container = [f"--container={words}"] if words else []
        return (*_hand_on(run), "--nodes", str(run.nodes), *nodelist, *container, "--", *argv)

    mounts = (Path(os.path.commonpath([folders.jobs, folders.traces])), CHECKOUT)
    of_job = site.at(max(run.nodes for run in runs))
    python = of_job.python("default", here_python())
    launcher = of_job.launcher if of_job.launcher == "srun" else of_job.mpi
    return _render(
        runs, point, subsets, folders, run_limits, header=head.text, python=python,
        submit=Unquoted(site.submit_command or head.submit), setup=setup_lines(of_job),
        env_of=lambda run: site.at(run.nodes).env,
        options=f"--launcher {launcher} --warning-s {head.warning_s}",
    )  # fmt: skip


def render_local(
    runs: Sequence[RunSpec], launcher: Sequence[str], folders: Folders, run_limits: RunLimits = DEFAULT_LIMITS,
    env: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """The whole script of a job on this machine: the same body, with mpiexec in place of srun. `env` is what all ranks
    of this machine get."""
    python = here_python()

    def point(run: RunSpec) -> Sequence[str]:
        program = [*_program(python, python), "--simulate-nodes"]
        return (*_hand_on(run), "--", *local_argv(run, launcher, program))

    return _render(
        runs, point, {}, folders, run_limits, header="#!/bin/bash\n", submit=Unquoted("bash"), python=python, setup=(),
        options="--launcher local", env_of=lambda run: env,
    )  # fmt: skip


def _hand_on(run: RunSpec) -> tuple[str, ...]:
    """A person's script may make a checkpoint on a signal."""
    return ("--hand-on",) if run.is_script else ()


def _render(
    runs: Sequence[RunSpec], point_of: Callable[[RunSpec], Sequence[str]], subsets: Mapping[str, Sequence[int]],
    folders: Folders, run_limits: RunLimits, *, header: str, options: str, env_of: EnvOf, **values: object,
) -> str:  # fmt: skip
    """The script: a shell function for each point (options of launch.step, and the command; `$1` is the run), a line
    for each run."""
    points: dict[tuple[str, ...], str] = {}
    names: dict[str, str] = {}
    lines = []
    for run in runs:
        if run.point_id not in names:
            names[run.point_id] = points.setdefault(tuple(point_of(run)), f"point{len(points) + 1}")
        nodes = ",".join(f"${{node[{index}]}}" for index in subsets.get(run.run_id, ()))
        lines.append(" ".join([names[run.point_id], shlex.quote(run.run_id), *([f'"{nodes}"'] if nodes else [])]))
    first, *rest = [line for line in header.splitlines() if line and line != "# Parameters"]
    limits = " ".join(f"{flag(name)} {value:g}" for name, value in asdict(run_limits).items())
    return _ENVIRONMENT.get_template("job.sh.j2").render(
        header=Unquoted("\n".join([first, *describe(runs, env_of), *rest])), code=Unquoted(code_version()),
        traces=folders.traces, jobs=folders.jobs, imports=CHECKOUT, options=Unquoted(options), limits=Unquoted(limits),
        allocated=max((run.nodes for run in runs if run.run_id in subsets), default=0),
        points=[
            _lines([Unquoted(f'{name}() {{ attempt "$1"'), *point])
            for point, name in points.items()
        ],
        runs=[Unquoted(line) for line in lines],
        **values,
    )  # fmt: skip


EnvOf = Callable[[RunSpec], Mapping[str, str]]
"""The variables that the site gives to a run of this size."""


def describe(runs: Sequence[RunSpec], env_of: EnvOf) -> list[str]:
    """Comments that say what a job measures: its runs by their settings, of which the first MAX_DESCRIBED. Variables
    that the site gives are not among them."""
    settings = grouped((", ".join(_settings(run, env_of(run))), run.case) for run in runs)
    lines = []
    for text, cases in list(settings.items())[:MAX_DESCRIBED]:
        counts = ", ".join(f"{plural(count, 'run')} on {case}" for case, count in Counter(cases).items())
        lines += wrap(plain(f"{text}: {counts}"), 118, break_long_words=False, break_on_hyphens=False)
    if len(settings) > MAX_DESCRIBED:
        lines.append(f"and {len(settings) - MAX_DESCRIBED} settings more")
    return [f"# {line}" for line in lines]


def _settings(run: RunSpec, site_env: Mapping[str, str]) -> Iterator[str]:
    """What a run trains and how, as text: every setting that is not the default."""
    if run.diagnostic:
        yield f"{run.diagnostic} runs beside the training"
    arguments = " with its arguments" if run.arguments else ""
    yield f"{shlex.quote(run.workload)}{arguments}" if run.is_script else f"{run.backend} {run.workload}"
    if run.batch_size:
        yield f"batch size {run.batch_size} {'in all' if run.scaling == 'strong' else 'per device'}"
    if run.precision != UNKNOWN:
        yield run.precision
    yield f"{run.scaling} scaling"
    for name, usual in _DESCRIBED.items():
        if (value := getattr(run, name)) != usual and name not in ("code_digest", "search", "reduction"):
            yield f"{name} {value}"
    env = run.env.items() - site_env.items()
    yield from (f"{name}={value}" for name, value in (*run.options.items(), *sorted(env)))
    yield f"{run.measured_steps} steps after {run.warmup_steps}"


def render_doctor(
    header: str, site: Site, out: Path, part_s: int, look: Sequence[str], starts: Sequence[Sequence[str]]
) -> str:
    """The script of `rankwise doctor`: `look` runs on every node, then `starts` until one brings ranks together."""
    return _ENVIRONMENT.get_template("doctor.sh.j2").render(
        header=Unquoted(header), out=out, imports=CHECKOUT, setup=setup_lines(site), seconds=Unquoted(str(part_s)),
        look=_lines(look), starts=[_lines(start) for start in starts],
    )  # fmt: skip


def setup_lines(site: Site) -> list[str]:
    """The shell lines of a job before its runs."""
    modules = [PURGES[site.module_purge]] if site.module_purge else []
    modules += [f"module use {shlex.quote(folder)}" for folder in site.module_use]
    modules += [f"module load {module}" for module in site.modules]
    return [*modules, *site.setup]


def _program(python: str, script_python: str) -> list[str]:
    """The command of every rank; `script_python` is the interpreter in the script's variable."""
    interpreter = Unquoted('"$python"') if python == script_python else python
    return [interpreter, "-m", "hpc.rank", Unquoted('"$jobs/runs/$1.json"'), "--traces", Unquoted('"$traces"')]


def expectations(site: Site) -> list[str]:
    """The site's expected transport, its changed check levels and promises, as arguments of the ranks."""
    transport = ["--expect-transport", site.expect_transport] if site.expect_transport else []
    promises = [token for promise in site.promises for token in ("--expect-network", promise)]
    return [*transport, *(token for level in site.check_words for token in ("--check", level)), *promises]


def _lines(argv: Sequence[str], width: int = 100) -> list[Unquoted]:
    """The tokens, each quoted, gathered into lines no wider than `width` where they can be."""
    lines = [""]
    for token in map(_quoted, argv):
        if lines[-1] and len(lines[-1]) + len(token) >= width:
            lines.append("")
        lines[-1] += f" {token}" if lines[-1] else token
    return [Unquoted(line) for line in lines]


def _quoted(value: object) -> str:
    return value if isinstance(value, Unquoted) else shlex.quote(str(value))


# A finalizer quotes whatever a template prints, so that forgetting a filter cannot open a hole.
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    finalize=_quoted,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # a shell script, not HTML
)
