"""Commands whose output cannot be written, or not in this encoding, in real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from hpc.system.command_line import COMMANDS, called
from hpc.system.command_line import SUBCOMMANDS as MODULES
from launch.sweep.request import SUBCOMMANDS
from tests.sweeps import ROOT, outcomes, with_checkout
from tests.unit.commands import ASCII, DRY_RUN, command, process, when_imported
from tests.unit.every_command import PRINTING, main_of, make_workplace
from tests.unit.sweep_command import NO_SLURM
from tests.unit.traces import make_run, make_trace, put


@pytest.fixture
def traces(traces: Path) -> Path:
    """A folder with one trace."""
    put(traces, make_trace(make_run()))
    return traces


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command has something to print."""
    return make_workplace(tmp_path_factory.mktemp("workplace"))


def documented() -> dict[str, tuple[list[int], int]]:
    """By command of docs/outcomes.md: its statuses but 130, and the one without output."""
    rows: dict[str, tuple[list[int], int]] = {}
    text = (ROOT / "docs" / "outcomes.md").read_text().partition("\n## Exit statuses\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].startswith("`"):
            numbers = [number for number, cell in enumerate(cells[1:4]) if cell]
            numbers += map(int, re.findall(r"(\d): ", cells[4]))
            typed = cells[0].strip("`").split()
            module = MODULES.get(typed[1], typed[1])
            rows[" ".join([module, *typed[2:]])] = numbers, int(cells[5].partition(",")[0])
    return rows


def without_output(argv: tuple[str, ...]) -> int:
    """The documented status of this command line where standard output cannot be written."""
    rows = documented()
    return rows.get(" ".join(argv[:2]), rows[argv[0]])[1]


def test_every_command_is_in_the_table_of_exit_statuses() -> None:
    assert {*documented()} == {*COMMANDS, *(f"hpc.sweep {name}" for name in SUBCOMMANDS)}
    assert {argv[0] for argv in PRINTING} == {*COMMANDS}


@pytest.mark.parametrize("name", documented())
def test_the_help_has_the_statuses_of_the_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, *words = name.split()
    with pytest.raises(SystemExit) as ended:
        main_of(module)([*words, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code in (0, None)
    assert shown.startswith(f"usage: {called(module)} ")
    statuses = re.findall(r"\b(\d): ", f"{shown.partition('Exit status ')[2]} ".replace("\n", " "))
    assert [*map(int, dict.fromkeys(statuses))] == documented()[name][0]


def ids(argv: tuple[str, ...]) -> str:
    return "-".join(argv[:4]).replace("/", "_")


def lines_of(done: subprocess.CompletedProcess[str], argv: tuple[str, ...]) -> list[str]:
    """The lines of standard error, less those that this command prints with output too."""
    return [line for line in done.stderr.splitlines() if not line.startswith(f"{argv[0]}: note: ")]


UNABLE = (DRY_RUN, ("parse.compare", "traces", "after"))
"""A command whose exit status is a verdict, and one whose is none."""


@pytest.mark.parametrize(
    ("argv", "sink"),
    [
        *((argv, sink) for argv in UNABLE for sink in ("full", "closed pipe")),
        *(pytest.param(argv, sink, marks=pytest.mark.all) for argv in UNABLE for sink in ("closed", "unbuffered")),
        *(pytest.param(argv, "full", marks=pytest.mark.all) for argv in PRINTING if argv not in UNABLE),
    ],
    ids=lambda value: value if isinstance(value, str) else ids(value),
)
def test_output_that_cannot_be_written_has_the_documented_status(
    argv: tuple[str, ...], sink: str, workplace: Path
) -> None:
    """One line says so; none for a closed pipe, which is what `| head -1` leaves. `closed` is `>&-`."""
    env = {"PATH": NO_SLURM, "PYTHONUNBUFFERED": "1" if sink == "unbuffered" else ""}
    read, write = os.pipe() if sink == "closed pipe" else (None, os.open("/dev/full", os.O_WRONLY))
    if read is not None:
        os.close(read)
    shell = ["/bin/bash", "-c", 'exec "$@" >&-', "bash"] if sink == "closed" else []
    done = process([*shell, sys.executable, "-m", *argv], workplace, env, stdout=write)
    os.close(write)
    assert done.returncode == without_output(argv), done.stderr
    lost = f"{called(argv[0])}: standard output cannot be written: {os.strerror(errno.ENOSPC)}"
    if sink == "closed":
        lost = f"{called(argv[0])}: standard output is closed: redirect it, > FILE or > /dev/null"
    assert lines_of(done, argv) == ([] if sink == "closed pipe" else [lost])


@pytest.mark.parametrize("argv", [("parse.compare", "a", "b"), ("parse.history", "a"), ("parse.summarize", "a")])
@pytest.mark.parametrize("error", ["ModuleNotFoundError('no numpy', name='numpy')", "ValueError('a bug')"])
def test_a_command_that_could_not_compare_does_not_say_slower(
    argv: tuple[str, ...], error: str, workplace: Path, tmp_path: Path
) -> None:
    """Its 1 is a verdict, so that neither a missing package nor a bug may end it with 1."""
    done = command(*argv, cwd=workplace, env=when_imported(tmp_path / "site", "numpy", f"raise {error}"))
    assert done.returncode == documented()[argv[0]][1]
    assert ("Traceback" in done.stderr) is ("bug" in error)


def test_one_file_that_cannot_be_read_beside_others_is_named_and_no_failure(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(workplace / "traces", tmp_path / "traces")
    shutil.copy(workplace / "cut" / "x_r1.1.h5", tmp_path / "traces")
    assert main_of("parse.report")([str(tmp_path / "traces"), "--out", str(tmp_path / "r.html")]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("not read: "))
    assert "x_r1.1.h5" in line


def test_a_command_that_looks_after_measurements_does_all_its_work_without_output(tmp_path: Path) -> None:
    """hpc.recovery recover has a line for each attempt; the first cannot be written."""
    partials = [tmp_path / f"{make_run().run_id}.{attempt}.partial" for attempt in (1, 2, 3)]
    for partial in partials:
        partial.mkdir()
        os.utime(partial, (0, 0))
    with Path("/dev/full").open("wb") as full:
        done = command(
            "hpc.recovery", "recover", str(tmp_path), cwd=tmp_path, env={"PYTHONUNBUFFERED": "1"}, stdout=full.fileno()
        )
    assert done.returncode == 1
    assert not any(partial.exists() for partial in partials)
    assert done.stderr == f"rankwise hpc.recovery: standard output cannot be written: {os.strerror(errno.ENOSPC)}\n"


def test_an_attempt_is_recorded_where_the_output_of_the_job_is_lost(tmp_path: Path) -> None:
    traces, logs = tmp_path / "traces", tmp_path / "logs"
    traces.mkdir()
    logs.mkdir()
    step = ("launch.step", "--run", "r1", "--traces", str(traces), "--logs", str(logs), "--launcher", "local")
    with Path("/dev/full").open("wb") as full:
        done = process([sys.executable, "-m", *step, "--", "true"], tmp_path, stdout=full.fileno())
    assert done.returncode == 10  # the run is not ok: `true` wrote no trace
    assert set(outcomes(tmp_path)) == {"r1.1"}
    assert done.stderr == f"launch.step: standard output cannot be written: {os.strerror(errno.ENOSPC)}\n"


def test_tables_and_paths_are_printed_in_ascii(traces: Path, tmp_path: Path) -> None:
    folder = traces.rename(tmp_path / "übersicht")
    (folder / "größe.h5").write_text("no trace")
    done = command("parse.summarize", folder.name, cwd=tmp_path, env=ASCII)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "1n1g" in done.stdout and re.search(r"not read: \\\S+e\.h5: not an HDF5 file\n", done.stdout)
    done = command("parse.summarize", "größe", cwd=tmp_path, env=ASCII)
    assert done.returncode == 1
    assert re.search(r"nothing to summarise in gr(\\\w+)+e\n", done.stderr)


def test_a_sweep_is_planned_in_ascii(tmp_path: Path) -> None:
    (tmp_path / "läufe.py").touch()
    done = command(*DRY_RUN, "--script", "läufe.py", "--env", "PLACE=größe", "--out", "läufe", cwd=tmp_path, env=ASCII)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert r"l\xe4ufe/jobs/1n.sh" in done.stdout
    (script,) = (tmp_path / "läufe" / "jobs").glob("*.sh")
    assert "läufe/traces" in script.read_text()


def printed_in_terminal(columns: int, *argv: str, cwd: Path) -> list[str]:
    """The lines that a command shows in a terminal of so many columns."""
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environ = {name: value for name, value in with_checkout(os.environ).items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", *argv],
        stdin=terminal, stdout=terminal, stderr=terminal, env={**environ, "TERM": "xterm"}, cwd=cwd,
    ):  # fmt: skip
        os.close(terminal)
        output = b""
        with suppress(OSError):  # EIO: the command has ended
            while chunk := os.read(controller, 1 << 16):
                output += chunk
    os.close(controller)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    return re.split(r"[\r\n]+", text)


def without_scripts(lines: list[str]) -> list[str]:
    """The lines of a dry run without the job scripts, which are files."""
    begins = [at for at, line in enumerate(lines) if line.startswith("===== ")]
    return lines if not begins else [*lines[: begins[0]], *lines[lines.index("dry run: nothing was submitted") :]]


@pytest.mark.parametrize(
    "argv", [("parse.summarize", "traces", "--ledger"), ("launch.catalog", "workloads"), DRY_RUN], ids=ids
)
def test_lines_fit_the_terminal(argv: tuple[str, ...], workplace: Path) -> None:
    lines = without_scripts(printed_in_terminal(60, *argv, cwd=workplace))
    assert len(lines) > 5
    assert [line for line in lines if len(line) > 60 and len(line.split()) > 1] == []


IN_TERMINALS = {
    "airank": ("parse.summarize", "--airank", "linux/resnet50/log"),
    "collectives": ("hpc.collectives", "--show", "collectives.h5"),
    "timeline": ("parse.timeline", "traces", "--out", "timeline.json.gz"),
    "compare": ("parse.compare", "traces", "after"), "history": ("parse.history", "nights/n00", "nights/n01"),
    "status": ("hpc.sweep", "status", "--out", "sweep"), "cancel": ("hpc.sweep", "cancel", "--out", "sweep"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*IN_TERMINALS, "doctor"])
def test_prose_and_tables_fit_the_terminal(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is longer for a word that is longer, such as a path; no word and no figure gets lost in a narrow one."""
    monkeypatch.chdir(workplace)
    argv = IN_TERMINALS.get(name, ("launch.doctor", "--cluster", "local"))
    shown: dict[int, set[str]] = {}
    for columns in (60, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        main_of(argv[0])(argv[1:])
        printed = capsys.readouterr()
        lines = f"{printed.out}{printed.err}".splitlines()
        shown[columns] = {*" ".join(lines).split()}
        assert len(shown[columns]) > 5, lines
        assert [line for line in lines if len(line) > columns and len(line.split()) > 1] == []
    if name != "doctor":  # which says how busy the machine is
        assert shown[140] <= shown[60]
