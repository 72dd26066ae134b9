"""Renders the job script: header from the scheduler's side, body from sbatch_templates, every value quoted."""

from __future__ import annotations

import dataclasses
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
from launch.jobs.site import Site

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


@dataclass(frozen=True)
class Raw:
    """Text of the script itself; everything else that reaches a template is quoted."""

    text: str

    def __str__(self) -> str:
        return self.text


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

    def point(run: RunSpec) -> _Point:
        program = _program(site.python(frameworks[run.backend], here_python()), python)
        argv = run_argv(run, site, [*program, *expectations(site)])
        nodelist = [Unquoted('--nodelist "$2"')] if run.run_id in subsets else []
        container = [f"--container={token}" for token in in_container(run, site)]
        return _Point(options=(*_hand_on(run), "--nodes", str(run.nodes), *nodelist, *container), argv=tuple(argv))

    python = site.python("default", here_python())
    launcher = site.launcher if site.launcher == "srun" else site.mpi
    return _render(
        runs, point, subsets, folders, run_limits, header=head.text, submit=Raw(head.submit), python=python,
        modules=site.modules, env=site.env,
        options=f"--launcher {launcher} --warning-s {head.warning_s}",
    )  # fmt: skip


def render_local(
    runs: Sequence[RunSpec], launcher: Sequence[str], folders: Folders, run_limits: RunLimits = DEFAULT_LIMITS,
    env: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """The whole script of a job on this machine: the same body, with mpiexec in place of srun. `env` is what all ranks
    of this machine get."""
    python = here_python()

    def point(run: RunSpec) -> _Point:
        program = [*_program(python, python), "--simulate-nodes"]
        return _Point(options=_hand_on(run), argv=tuple(local_argv(run, launcher, program)))

    return _render(
        runs, point, {}, folders, run_limits, header="#!/bin/bash\n", submit=Raw("bash"), python=python, modules=(),
        options="--launcher local", env=env,
    )  # fmt: skip


@dataclass(frozen=True)
class _Point:
    """The start of a point's runs: options of launch.step, and the command. The function's `$1` is the run."""

    options: tuple[str, ...]
    argv: tuple[str, ...]


def _hand_on(run: RunSpec) -> tuple[str, ...]:
    """A person's script may make a checkpoint on a signal."""
    return ("--hand-on",) if run.is_script else ()


def _render(
    runs: Sequence[RunSpec], point_of: Callable[[RunSpec], _Point], subsets: Mapping[str, Sequence[int]],
    folders: Folders, run_limits: RunLimits, *, header: str, options: str, env: Mapping[str, str], **values: object,
) -> str:  # fmt: skip
    """The script: a shell function for each point, a line for each run."""
    points: dict[_Point, str] = {}
    lines = []
    for run in runs:
        name = points.setdefault(point_of(run), f"point{len(points) + 1}")
        nodes = ",".join(f"${{node[{index}]}}" for index in subsets.get(run.run_id, ()))
        lines.append(" ".join([name, shlex.quote(run.run_id), *([f'"{nodes}"'] if nodes else [])]))
    first, *rest = [line for line in header.splitlines() if line and line != "# Parameters"]
    limits = " ".join(f"{flag(name)} {value:g}" for name, value in asdict(run_limits).items())
    return _ENVIRONMENT.get_template("job.sh.j2").render(
        header=Raw("\n".join([first, *describe(runs, env), *rest])), code=Raw(code_version()),
        traces=folders.traces, jobs=folders.jobs, imports=CHECKOUT, options=Raw(options), limits=Raw(limits),
        allocated=max((run.nodes for run in runs if run.run_id in subsets), default=0),
        points=[
            {"name": Raw(name), "options": Raw("".join(f" {_token(option)}" for option in point.options)),
             "lines": _lines(point.argv)}
            for point, name in points.items()
        ],
        runs=[Raw(line) for line in lines],
        **values,
    )  # fmt: skip


def describe(runs: Sequence[RunSpec], site_env: Mapping[str, str]) -> list[str]:
    """Comments that say what a job measures: its runs by their settings, of which the first MAX_DESCRIBED. Variables
    that the site gives to all runs are not among them."""
    settings = grouped((", ".join(_settings(run, site_env)), run.case) for run in runs)
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
    """The script of `launch.doctor`: `look` runs on every node, then `starts` until one brings ranks together."""
    return _ENVIRONMENT.get_template("doctor.sh.j2").render(
        header=Raw(header), out=out, imports=CHECKOUT, modules=site.modules, seconds=Raw(str(part_s)),
        look=_lines(look), starts=[_lines(start) for start in starts],
    )  # fmt: skip


def _program(python: str, script_python: str) -> list[str]:
    """The command of every rank; `script_python` is the interpreter in the script's variable."""
    interpreter = Unquoted('"$python"') if python == script_python else python
    return [interpreter, "-m", "hpc.rank", Unquoted('"$jobs/runs/$1.json"'), "--traces", Unquoted('"$traces"')]


def expectations(site: Site) -> list[str]:
    """The site's expected transport, its changed check levels and promises, as arguments of the ranks."""
    transport = ["--expect-transport", site.expect_transport] if site.expect_transport else []
    promises = [token for promise in site.promises for token in ("--expect-network", promise)]
    return [*transport, *(token for level in site.check_words for token in ("--check", level)), *promises]


def _lines(argv: Sequence[str], width: int = 100) -> list[Raw]:
    """The tokens, each quoted, gathered into lines no wider than `width` where they can be."""
    lines = [""]
    for token in map(_token, argv):
        if lines[-1] and len(lines[-1]) + len(token) >= width:
            lines.append("")
        lines[-1] += f" {token}" if lines[-1] else token
    return [Raw(line) for line in lines]


def _token(token: str) -> str:
    return token if isinstance(token, Unquoted) else shlex.quote(token)


def _quoted(value: object) -> str:
    return str(value) if isinstance(value, Raw) else shlex.quote(str(value))


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
