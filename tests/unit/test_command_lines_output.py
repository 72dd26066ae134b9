"""Commands whose output cannot be written, or not in this encoding, in real processes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.system.command_line import COMMANDS
from tests.sweeps import outcomes, with_checkout
from tests.unit.commands import ASCII, DRY_RUN, NO_SUCH_TRACE, command, process
from tests.unit.sweep_command import NO_SLURM
from tests.unit.traces import make_run, make_trace, put


@pytest.fixture
def traces(traces: Path) -> Path:
    """A folder with one trace."""
    put(traces, make_trace(make_run()))
    return traces


def outputs() -> list[tuple[str, ...]]:
    """Command lines that print much or little, by Python's print, by argparse and by rich."""
    return [
        *((name, "--help") for name in COMMANDS),
        DRY_RUN,
        ("hpc.sweep", "list"),
        ("parse.summarize", "traces"),
        ("parse.summarize", "traces", "--format", "json"),
        ("hpc.recovery.recover", "traces"),
        ("hpc.collectives", "--show", "traces/none.h5"),
        ("launch.doctor", "--cluster", "local"),
    ]


@pytest.mark.parametrize("argv", outputs(), ids=lambda argv: "-".join(argv[:3]))
def test_output_into_a_closed_pipe_ends_in_silence(argv: tuple[str, ...], traces: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = command(argv[0], *argv[1:], cwd=traces.parent, env={"PATH": NO_SLURM}, stdout=write)
    finally:
        os.close(write)
    assert done.returncode == 1
    assert done.stderr.startswith(NO_SUCH_TRACE) if "none.h5" in argv[-1] else done.stderr == ""


def with_buffers() -> list[tuple[str, tuple[str, ...]]]:
    """All of them, and one of each way to print without Python's buffer."""
    unbuffered = [argv for argv in outputs() if argv == ("hpc.sweep", "--help") or argv[-1] != "--help"]
    return [*(("", argv) for argv in outputs()), *(("1", argv) for argv in unbuffered)]


@pytest.mark.parametrize(
    ("unbuffered", "argv"),
    with_buffers(),
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:3]),
)
def test_output_to_a_full_disk_is_one_line(argv: tuple[str, ...], unbuffered: str, traces: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        env = {"PATH": NO_SLURM, "PYTHONUNBUFFERED": unbuffered}
        done = command(argv[0], *argv[1:], cwd=traces.parent, env=env, stdout=full.fileno())
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    lost = f"{argv[0]}: standard output cannot be written: {os.strerror(errno.ENOSPC)}"
    assert line.startswith(NO_SUCH_TRACE) if "none.h5" in argv[-1] else line == lost


@pytest.mark.parametrize("argv", [DRY_RUN, ("parse.summarize", "traces"), ("launch.devcluster", "status", "--help")])
def test_a_closed_standard_output_is_one_line(argv: tuple[str, ...], traces: Path) -> None:
    done = process(["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "-m", *argv], traces.parent)
    assert done.returncode == 1
    assert done.stderr == f"{argv[0]}: standard output cannot be written: {os.strerror(errno.EBADF)}\n"


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


@pytest.mark.parametrize("argv", [(name, "--help") for name in COMMANDS], ids=lambda argv: argv[0])
@pytest.mark.parametrize("env", ASCII[:1], ids=["PYTHONIOENCODING"])
def test_help_is_printed_in_ascii(argv: tuple[str, ...], env: dict[str, str], tmp_path: Path) -> None:
    done = command(*argv, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and done.stdout.startswith("usage: ")


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


def test_a_sweep_is_planned_in_ascii(tmp_path: Path) -> None:
    done = command(*DRY_RUN, "--out", "läufe", cwd=tmp_path, env=ASCII[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert r"l\xe4ufe/jobs/1n.sh" in done.stdout
    assert (tmp_path / "läufe" / "jobs" / "1n.sh").exists()
