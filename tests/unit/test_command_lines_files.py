"""Files that commands write: whole or not at all, and every error names the file."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.system.atomic import write_atomic, write_output
from tests.unit.commands import ASCII, DRY_RUN, command, process, sitecustomize
from tests.unit.traces import make_run, make_trace, put


@pytest.fixture
def traces(traces: Path) -> Path:
    """A folder with one trace."""
    put(traces, make_trace(make_run()))
    return traces


def summarize(traces: Path, out: Path, prefix: str = "") -> subprocess.CompletedProcess[str]:
    """`rankwise summarize traces --out out`, in a shell that did `prefix` before."""
    argv = [sys.executable, "-m", "parse.summarize", str(traces), "--out", str(out)]
    return process(["bash", "-c", f'{prefix}\nexec "$@"', "bash", *argv], traces)


def test_a_full_disk_keeps_the_file_that_was_there(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "table.txt"
    out.parent.mkdir()
    out.write_text("yesterday's")
    done = summarize(traces, out, "ulimit -f 0")
    assert done.returncode == 1
    assert done.stderr == f"{out}: cannot be written ({os.strerror(errno.EFBIG)})\n"
    assert out.read_text() == "yesterday's"
    assert list(out.parent.iterdir()) == [out]


def test_a_crash_in_the_middle_keeps_the_file_that_was_there(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.txt"
    out.write_text("yesterday's")
    env = sitecustomize(
        tmp_path / "site", "import os, signal\nos.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = command("parse.summarize", str(traces), "--out", str(out), cwd=tmp_path, env=env)
    assert done.returncode == -9
    assert out.read_text() == "yesterday's"


def test_the_target_of_a_link_is_written_and_the_link_stays(traces: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "results" / "table.txt", tmp_path / "latest"
    target.parent.mkdir()
    link.symlink_to("results/table.txt")
    for _ in ("a link without a target", "a link with one"):
        assert summarize(traces, link).returncode == 0
        assert link.is_symlink()
        assert "1n1g" in target.read_text()
    assert list(target.parent.iterdir()) == [target]


def test_an_existing_file_keeps_its_permissions_and_a_new_one_has_the_usual(traces: Path, tmp_path: Path) -> None:
    out, new = tmp_path / "table.txt", tmp_path / "new.txt"
    out.touch()
    out.chmod(0o604)
    assert summarize(traces, out).returncode == 0
    assert summarize(traces, new, "umask 027").returncode == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in (out, new)] == [0o604, 0o640]


def test_a_device_is_written_directly(traces: Path, tmp_path: Path) -> None:
    done = summarize(traces, Path("/dev/stdout"))
    assert done.returncode == 0 and "1n1g" in done.stdout
    done = summarize(traces, Path("/dev/full"))
    assert done.returncode == 1
    assert done.stderr == f"/dev/full: cannot be written ({os.strerror(errno.ENOSPC)})\n"
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("name", "number"), [("missing/table.txt", errno.ENOENT), ("folder", errno.EISDIR), ("loop", errno.ELOOP)]
)
def test_an_error_names_the_path(name: str, number: int, traces: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    done = summarize(traces, tmp_path / name)
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path / name}: cannot be written ({os.strerror(number)})\n"


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the operating system answers a user without rights; root may write everything."""
    out = tmp_path / "table.txt"
    out.write_text("a colleague's")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError) as caught:
        write_output(out, "mine")
    assert caught.value.filename == str(out)
    assert out.read_text() == "a colleague's"


def test_write_atomic_names_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomic(tmp_path / "folder", "text")
    assert caught.value.filename == str(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_sweep_that_finds_no_room_names_the_file(tmp_path: Path) -> None:
    done = process(["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", sys.executable, "-m", *DRY_RUN], tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    where = f"rankwise sweep: the sweep's folder cannot be written: {tmp_path}/"
    assert line.startswith(where) and line.endswith(f": {os.strerror(errno.EFBIG)}; name another with --out")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("arguments", [(), ("--cluster", "local")], ids=["dry run", "sweep"])
def test_a_sweep_into_a_folder_that_may_not_be_entered_says_so(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Root may enter every folder, unless its process gives that up."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    rights = "-dac_override,-dac_read_search"
    without = [] if os.geteuid() else ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    words = [argument for argument in DRY_RUN if argument != "--dry-run"] if arguments else DRY_RUN
    done = process([*without, sys.executable, "-m", *words, *arguments, "--out", str(closed)], tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rankwise sweep: the sweep's folder cannot be written: {closed}/")
    assert line.endswith(f": {os.strerror(errno.EACCES)}; name another with --out")


def test_the_file_of_out_is_utf_8_whatever_the_terminal_is(traces: Path, tmp_path: Path) -> None:
    done = command("parse.summarize", traces.name, "--ledger", "--verbose", "--out", "größe", cwd=tmp_path, env=ASCII)
    assert done.returncode == 0, done.stderr
    assert "±" in (tmp_path / "größe").read_text(encoding="utf-8")
