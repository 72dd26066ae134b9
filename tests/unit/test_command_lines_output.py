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
from importlib import import_module
from pathlib import Path

import pytest

from hpc.system.command_line import COMMANDS
from launch.sweep.request import SUBCOMMANDS
from tests.sweeps import ROOT, outcomes, with_checkout
from tests.unit.commands import ASCII, DRY_RUN, command, process, when_imported
from tests.unit.every_command import PRINTING, READING, make_workplace
from tests.unit.page_folders import put_sweep
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
    """By command of docs/exit.md: its statuses but 130, and the one without output."""
    rows: dict[str, tuple[list[int], int]] = {}
    for line in (ROOT / "docs" / "exit.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].startswith("`"):
            numbers = [number for number, cell in enumerate(cells[1:4]) if cell]
            numbers += map(int, re.findall(r"(\d): ", cells[4]))
            rows[cells[0].strip("`")] = numbers, int(cells[5].partition(",")[0])
    return rows


def without_output(argv: tuple[str, ...]) -> int:
    """The documented status of this command line where standard output cannot be written."""
    rows = documented()
    return rows.get(" ".join(argv[:2]), rows[argv[0]])[1]


def test_every_command_is_in_the_table_of_exit_statuses() -> None:
    assert {*documented()} == {*COMMANDS, *(f"hpc.sweep {name}" for name in SUBCOMMANDS)}
    assert {argv[0] for argv in PRINTING} == {*COMMANDS}


@pytest.mark.parametrize("name", documented())
def test_the_help_is_printed_in_ascii_and_has_the_statuses_of_the_table(name: str, tmp_path: Path) -> None:
    done = command(*name.split(), "--help", cwd=tmp_path, env=ASCII[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and done.stdout.split()[:4] == ["usage:", "python", "-m", name.split(maxsplit=1)[0]]
    statuses = re.findall(r"\b(\d): ", f"{done.stdout.partition('Exit status ')[2]} ".replace("\n", " "))
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
        pytest.param(argv, sink, marks=() if sink == "full" or argv in UNABLE else pytest.mark.all)
        for argv in PRINTING
        for sink in ("full", "closed pipe", "closed")
    ]
    + [(argv, "unbuffered") for argv in UNABLE],
    ids=lambda value: value if isinstance(value, str) else ids(value),
)
def test_output_that_cannot_be_written_has_the_documented_status(
    argv: tuple[str, ...], sink: str, workplace: Path
) -> None:
    """One line says so; none for a closed pipe, which is what `| head -1` leaves."""
    env = {"PATH": NO_SLURM, "PYTHONUNBUFFERED": "1" if sink == "unbuffered" else ""}
    python = [sys.executable, "-m", *argv]
    if sink == "closed":
        done = process(["/bin/bash", "-c", 'exec "$@" >&-', "bash", *python], workplace, env)
    else:
        read, write = os.pipe() if sink == "closed pipe" else (None, os.open("/dev/full", os.O_WRONLY))
        if read is not None:
            os.close(read)
        done = process(python, workplace, env, stdout=write)
        os.close(write)
    assert done.returncode == without_output(argv), done.stderr
    if sink == "closed pipe":
        assert lines_of(done, argv) == []
    else:
        reason = os.strerror(errno.EBADF if sink == "closed" else errno.ENOSPC)
        assert lines_of(done, argv) == [f"{argv[0]}: standard output cannot be written: {reason}"]


@pytest.mark.parametrize("argv", [("parse.compare", "a", "b"), ("parse.history", "a"), ("parse.summarize", "a")])
@pytest.mark.parametrize("error", ["ModuleNotFoundError('no numpy', name='numpy')", "ValueError('a bug')"])
def test_a_command_that_could_not_compare_does_not_say_slower(
    argv: tuple[str, ...], error: str, workplace: Path, tmp_path: Path
) -> None:
    """Its 1 is a verdict, so that neither a missing package nor a bug may end it with 1."""
    done = command(*argv, cwd=workplace, env=when_imported(tmp_path / "site", "numpy", f"raise {error}"))
    assert done.returncode == documented()[argv[0]][1]
    assert ("Traceback" in done.stderr) is ("bug" in error)


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("parse.summarize", "none"), 1), (("parse.summarize", "empty"), 1), (("parse.summarize", "cut"), 1),
        (("parse.summarize", "traces", "none"), 1), (("parse.summarize", "--kind", "table", "paper.md", "none"), 1),
        (("parse.report", "none"), 1), (("parse.report", "empty"), 1), (("parse.report", "cut"), 1),
        (("parse.report", "traces", "none"), 1), (("parse.report", "traces", "--published", "none"), 1),
        (("parse.report", "--published", "none"), 1), (("parse.report", "empty", "--format", "latex"), 1),
        (("parse.airank", "none"), 1), (("parse.airank", "empty"), 1),
        (("parse.airank", "linux/resnet50/log", "none"), 1),
        (("parse.timeline", "none", "--out", "t.json"), 1), (("parse.timeline", "empty", "--out", "t.json"), 1),
        (("parse.timeline", "cut", "--out", "t.json"), 1),
        (("parse.collective_trace", "none"), 1),
        (("parse.compare", "traces", "none"), 2), (("parse.compare", "empty", "traces"), 2),
        (("parse.compare", "traces", "cut"), 2), (("parse.compare", "traces", "--reference", "none"), 2),
        (("parse.forecast", "none", "--nodes", "2"), 1), (("parse.forecast", "empty", "--nodes", "2"), 1),
        (("parse.history", "none"), 2), (("parse.history", "empty"), 2),
        (("parse.history", *READING["parse.history"][0], "none", "--threshold", "50%"), 2),
        (("hpc.recovery.recover", "none"), 1), (("hpc.collectives", "--show", "none"), 1),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "-".join(value).replace("/", "_"),
)  # fmt: skip
def test_what_is_not_there_or_cannot_be_read_is_named_and_no_success(
    argv: tuple[str, ...], status: int, workplace: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(workplace)
    name = f"{argv[0]}.__main__" if argv[0] == "parse.report" else argv[0]
    assert import_module(name).main(argv[1:]) == status
    (named,) = {"none", "empty", "cut"}.intersection(argv)
    printed = capsys.readouterr()
    assert named in printed.out + printed.err


@pytest.mark.parametrize(
    "argv",
    [
        ("hpc.sweep", "--nodes", "1", "--site", "nowhere"), ("hpc.sweep", "--nodes", "1", "--site", "nowhere.toml"),
        (*DRY_RUN, "--backend", "nowhere"), (*DRY_RUN, "--workload", "nowhere"),
        ("hpc.sweep", "--recipe", "nowhere"), ("hpc.sweep", "--nodes", "1", "--config", "nowhere.toml"),
        ("hpc.sweep", "--nodes", "1", "--script", "nowhere.py"),
        ("hpc.sweep", "status", "--nodes", "1", "--site", "nowhere"),
        ("hpc.sweep", "accept", "--reference", "nowhere.toml"), ("hpc.sweep", "retry", "nowhere"),
        ("launch.doctor", "--site", "nowhere"), ("launch.doctor", "--site", "nowhere.toml"),
        ("parse.summarize", "traces", "--against", "nowhere"), ("parse.report", "traces", "--against", "nowhere"),
        ("parse.summarize", "traces", "--log-format", "nowhere"), ("parse.compare", "traces", "--reference", "nowhere"),
        ("parse.compare", "traces", "after", "--ignore", "nowhere"),
        ("parse.history", "nights/n00", "--ignore", "nowhere"), ("parse.summarize", "traces", "--where", "nowhere=1"),
        ("parse.report", "traces", "--where", "nowhere=1"),
        ("parse.compare", "traces", "after", "--where", "nowhere=1"),
        ("parse.forecast", "traces", "--nodes", "2", "--where", "nowhere=1"),
        ("parse.history", "nights/n00", "--where", "nowhere=1"), ("parse.summarize", "traces", "--base", "nowhere"),
    ],
    ids=lambda argv: "-".join(argv).replace("/", "_"),
)  # fmt: skip
def test_a_name_that_nothing_has_is_usage_everywhere(
    argv: tuple[str, ...], workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    name = {"parse.report": "parse.report.__main__", "launch.doctor": "launch.doctor.command"}.get(argv[0], argv[0])
    try:
        status = import_module(name).main(argv[1:])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert "nowhere" in printed.out + printed.err
    assert status == 2


def test_one_file_that_cannot_be_read_beside_others_is_named_and_no_failure(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(workplace / "traces", tmp_path / "traces")
    shutil.copy(workplace / "cut" / "x_r1.1.h5", tmp_path / "traces")
    assert (
        import_module("parse.report.__main__").main([str(tmp_path / "traces"), "--out", str(tmp_path / "r.html")]) == 0
    )
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("not read: "))
    assert "x_r1.1.h5" in line


def test_no_file_gets_the_number_of_a_closed_standard_stream(traces: Path) -> None:
    """With all three closed, --out would be opened as 0, and what is printed on 2 would come into it."""
    script = 'exec "$@" <&- >&- 2>&-'
    argv = [sys.executable, "-m", "parse.summarize", "traces", "--out", "table.txt", "--format", "csv"]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *argv], cwd=traces.parent, env=with_checkout(os.environ), check=False
    )
    assert done.returncode == 0
    assert (traces.parent / "table.txt").read_text().startswith("point_id,")


def test_a_bug_keeps_its_traceback_where_output_is_lost_too(tmp_path: Path) -> None:
    code = (
        "import sys; from hpc.system.command_line import run\n"
        "def main():\n    print('x'); raise ValueError('a bug')\n"
        "sys.exit(run(main, 'hpc.sweep'))"
    )
    with Path("/dev/full").open("wb") as full:
        done = process([sys.executable, "-c", code], tmp_path, stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: a bug\n")
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", [True, False])
def test_a_command_that_looks_after_measurements_does_all_its_work_without_output(closed: bool, tmp_path: Path) -> None:
    """hpc.recovery.recover has a line for each attempt; the first cannot be written."""
    partials = [tmp_path / f"{make_run().run_id}.{attempt}.partial" for attempt in (1, 2, 3)]
    for partial in partials:
        partial.mkdir()
        os.utime(partial, (0, 0))
    with Path("/dev/full").open("wb") as full:
        read, write = os.pipe()
        os.close(read)
        stdout = write if closed else full.fileno()
        done = command(
            "hpc.recovery.recover", str(tmp_path), cwd=tmp_path, env={"PYTHONUNBUFFERED": "1"}, stdout=stdout
        )
        os.close(write)
    assert done.returncode == 1
    assert not any(partial.exists() for partial in partials)
    lost = f"hpc.recovery.recover: standard output cannot be written: {os.strerror(errno.ENOSPC)}\n"
    assert done.stderr == ("" if closed else lost)


@pytest.mark.parametrize("lost", ["stdout", "both"])
def test_an_attempt_is_recorded_where_the_output_of_the_job_is_lost(lost: str, tmp_path: Path) -> None:
    traces, logs = tmp_path / "traces", tmp_path / "logs"
    traces.mkdir()
    logs.mkdir()
    step = ("launch.step", "--run", "r1", "--traces", str(traces), "--logs", str(logs), "--launcher", "local")
    with Path("/dev/full").open("wb") as full:
        stderr = full.fileno() if lost == "both" else subprocess.PIPE
        argv = [sys.executable, "-m", *step, "--", "true"]
        done = process(argv, tmp_path, stdout=full.fileno(), stderr=stderr)
    assert done.returncode == 10  # the run is not ok: `true` wrote no trace
    assert set(outcomes(tmp_path)) == {"r1.1"}
    line = f"launch.step: standard output cannot be written: {os.strerror(errno.ENOSPC)}\n"
    assert done.stderr in (None, line)


def test_lost_standard_error_ends_in_silence(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = process([sys.executable, "-m", "parse.summarize", "nothing"], tmp_path, stderr=full.fileno())
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("env", ASCII, ids=["PYTHONIOENCODING", "locale"])
def test_tables_and_paths_are_printed_in_ascii(env: dict[str, str], traces: Path, tmp_path: Path) -> None:
    folder = traces.rename(tmp_path / "übersicht")
    (folder / "größe.h5").write_text("no trace")
    done = command("parse.summarize", folder.name, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "1n1g" in done.stdout and re.search(r"not read: \\\S+e\.h5: not an HDF5 file\n", done.stdout)
    done = command("parse.summarize", "größe", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert re.search(r"nothing to summarise in gr(\\\w+)+e\n", done.stderr)


@pytest.mark.parametrize("env", ASCII, ids=["PYTHONIOENCODING", "locale"])
def test_a_sweep_is_planned_in_ascii(env: dict[str, str], tmp_path: Path) -> None:
    """The same runs as in any other locale: names of files are UTF-8 whatever it says."""
    (tmp_path / "läufe.py").touch()
    argv = (*DRY_RUN, "--script", "läufe.py", "--env", "PLACE=größe", "--out", "läufe")
    done = command(*argv, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert r"l\xe4ufe/jobs/1n.sh" in done.stdout
    (script,) = (tmp_path / "läufe" / "jobs").glob("*.sh")
    text = script.read_text()
    assert "läufe/traces" in text
    command(*argv, cwd=tmp_path)
    assert script.read_text() == text
    assert len([*(tmp_path / "läufe" / "jobs").glob("plan.*.json")]) == 1


def test_a_value_that_is_no_utf_8_comes_into_the_script_as_it_is(tmp_path: Path) -> None:
    done = command(*DRY_RUN, "--env", "PLACE=gr\udcf6", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"PLACE" in (tmp_path / "jobs" / "1n.sh").read_bytes()


def printed_in_terminal(columns: int, *argv: str, cwd: Path | None = None) -> list[str]:
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


@pytest.mark.parametrize("columns", [60, 140])
def test_tables_are_as_wide_as_the_terminal(tmp_path: Path, columns: int) -> None:
    folders = [tmp_path / name for name in ("base", "new")]
    for folder in folders:
        folder.mkdir()
        put_sweep(folder)
    base, new = map(str, folders)
    for argv in (("parse.summarize", base, "--ledger"), ("parse.compare", base, new), ("parse.history", base, new)):
        lines = printed_in_terminal(columns, *argv)
        assert any("2n2g" in line for line in lines), lines
        assert [line for line in lines if len(line) > columns] == [], argv


def without_scripts(lines: list[str]) -> list[str]:
    """The lines of a dry run without the job scripts, which are files."""
    begins = [at for at, line in enumerate(lines) if line.startswith("===== ")]
    return lines if not begins else [*lines[: begins[0]], *lines[lines.index("dry run: nothing was submitted") :]]


SWEPT = (*DRY_RUN, "--nodes", "1,2", "--ranks-per-node", "2", "--out", "dry")
IN_TERMINALS = {
    "airank": ("parse.airank", "linux/resnet50/log"),
    "collectives": ("hpc.collectives", "--show", "collectives.h5"),
    "timeline": ("parse.timeline", "traces", "--out", "timeline.json.gz"),
    "list": ("hpc.sweep", "list"), "dry run": SWEPT,
    "status": ("hpc.sweep", "status", "--out", "sweep"), "cancel": ("hpc.sweep", "cancel", "--out", "sweep"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*IN_TERMINALS, "doctor"])
def test_prose_and_tables_fit_the_terminal(name: str, workplace: Path) -> None:
    """A line is longer for a word that is longer, such as a path; no word and no figure gets lost in a narrow one."""
    argv = IN_TERMINALS.get(name, ("launch.doctor", "--cluster", "local"))
    shown: dict[int, set[str]] = {}
    for columns in (60, 140):
        lines = without_scripts(printed_in_terminal(columns, *argv, cwd=workplace))
        shown[columns] = {*" ".join(lines).split()}
        assert len(shown[columns]) > 5, lines
        assert [line for line in lines if len(line) > columns and len(line.split()) > 1] == []
    if name != "doctor":  # which says how busy the machine is
        assert shown[140] <= shown[60]
