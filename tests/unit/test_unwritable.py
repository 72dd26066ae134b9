"""Traces that cannot be written: real full, read-only, limited and vanished file systems."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpc.model.files import TracesFolder
from hpc.model.trace import TraceError
from hpc.model.trace_file import TraceUnwritable, read_trace, write_trace
from hpc.recovery import folders
from hpc.run import gather
from hpc.run.gather import TraceKept, write_or_keep
from tests.unit.traces import make_trace

ROOT = Path(__file__).resolve().parents[2]
MOUNTING = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")


def run(program: str, *argv: str | Path, wrapped: tuple[str, ...] = ()) -> str:
    """What a Python program prints; HDF5 has been seen to end a process, so these have their own."""
    command = [*wrapped, sys.executable, "-c", textwrap.dedent(program), *map(str, argv)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def mounting() -> tuple[str, ...]:
    """What runs a command where it may mount file systems that nobody else sees."""
    if shutil.which("unshare") is None or subprocess.run([*MOUNTING, "mount", "-t", "tmpfs", "none", "/mnt"],
                                                         check=False, capture_output=True).returncode:  # fmt: skip
        pytest.skip("this user may not mount here")
    return MOUNTING


def test_at_whatever_byte_the_room_ends_it_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    output = run(
        """
        import os, resource, sys
        from pathlib import Path
        from hpc.model.trace_file import TraceUnwritable, read_trace, write_trace
        from tests.unit.traces import make_trace
        folder, trace = Path(sys.argv[1]), make_trace()
        write_trace(folder / "whole.h5", trace)
        size = (folder / "whole.h5").stat().st_size
        limits = [*range(0, size, max(1, size // 150)), size - 1]
        for limit in limits:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                write_trace(folder / "cut.h5", trace)
            except TraceUnwritable as error:
                assert "cannot be written (File too large)" in str(error), error
            else:
                raise AssertionError(limit)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert os.listdir(folder) == ["whole.h5"], os.listdir(folder)
        write_trace(folder / "cut.h5", trace)
        read_trace(folder / "cut.h5")
        print(len(limits), "limits")
        """,
        tmp_path,
    )
    assert int(output.split()[0]) > 100


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        ("mount -t tmpfs -o size=4k none {place}", "No space left on device"),
        ("mount -t tmpfs -o ro none {place}", "Read-only file system"),
        ("mount --bind {place} {place} && mount -o remount,bind,ro {place}", "Read-only file system"),
    ],
)
def test_full_and_read_only_file_systems_are_named_and_the_trace_is_kept(
    tmp_path: Path, mounting: tuple[str, ...], mount: str, says: str
) -> None:
    place, local = tmp_path / "place", tmp_path / "local"
    place.mkdir()
    local.mkdir()
    output = run(
        """
        import subprocess, sys
        from pathlib import Path
        from hpc.run.gather import TraceKept, write_or_keep
        from hpc.recovery import folders
        from hpc.model.files import TracesFolder
        from tests.unit.traces import make_trace
        place, local, mount = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
        folders._bases = lambda: [local / "rankwise-7"]
        subprocess.run(mount.format(place=place), shell=True, check=True)
        try:
            write_or_keep(TracesFolder.at_start(place, "x.1"), make_trace(), waits_s=())
        except TraceKept as error:
            print(error)
        assert not list(place.iterdir())
        """,
        place,
        local,
        mount,
        wrapped=mounting,
    )
    (trace_path,) = local.glob("rankwise-7/*/x.1.h5")
    place_of_trace = f"{os.uname().nodename}:{trace_path}"
    assert f"{place}/x.1.h5: cannot be written ({says}); the whole trace is kept at {place_of_trace}" in output
    assert read_trace(trace_path).run_id == make_trace().run_id


@pytest.mark.parametrize("steps", [1000, 20])
def test_copies_go_on_once_there_is_room_again(tmp_path: Path, mounting: tuple[str, ...], steps: int) -> None:
    """Long journals have no room from the start; short ones lack it for their header."""
    place = tmp_path / "place"
    place.mkdir()
    output = run(
        """
        import subprocess, sys
        from pathlib import Path
        from hpc.recovery import folders
        from hpc.recovery.journal import Journal
        from hpc.node_agent.copies import Copies
        from hpc.recovery.journal import read_journals
        place, steps = Path(sys.argv[1]), int(sys.argv[2])
        folders._bases = lambda: [place.parent / "shm"]
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", place], check=True)
        made = Journal(place, "x.1", 0, steps)
        made.stamps[:12] = memoryview(bytes(range(96))).cast("q")
        made.samples[0] = made.samples[1] = 4
        copies = Copies({0: made.folder}, place / "x.1.partial", 10.0, lambda **facts: print(facts))
        copies.look()
        assert not [each for each in read_journals(place / "x.1.partial", []) if each.steps_completed]
        copies.look()
        subprocess.run(["mount", "-o", "remount,size=1m", place], check=True)
        copies.look()
        (journal,) = read_journals(place / "x.1.partial")
        assert journal.stamps.tolist() == list(made.stamps)
        print(journal.steps_completed, "steps")
        """,
        place,
        str(steps),
        wrapped=mounting,
    )
    assert output.count("No space left on device") == 1
    assert output.splitlines()[-1] == "2 steps"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a trace of these tests is kept that does not come to its folder."""
    base = tmp_path / "rankwise-7"
    monkeypatch.setattr(folders, "_bases", lambda: [base])
    return base


def test_a_folder_that_comes_back_gets_its_trace(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, waited = tmp_path / "traces", []
    folder.mkdir()
    traces = TracesFolder.at_start(folder, "x.1")
    folder.rename(tmp_path / "away")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            (tmp_path / "away").rename(folder)

    monkeypatch.setattr(gather, "sleep", sleep)
    write_or_keep(traces, make_trace())
    assert waited == [1.0, 4.0]
    assert capsys.readouterr().err.count("cannot be written (No such file or directory); tried again in ") == 2
    assert read_trace(folder / "x.1.h5") is not None
    assert not node.exists()


def test_no_trace_is_written_to_another_folder_of_the_same_name(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that is lost leaves the folder below the mount point."""
    folder, waited = tmp_path / "traces", []
    folder.mkdir()
    traces = TracesFolder.at_start(folder, "x.1")
    folder.rename(tmp_path / "away")
    folder.mkdir()
    monkeypatch.setattr(gather, "sleep", waited.append)
    with pytest.raises(TraceKept, match="not the folder that was there when the attempt began"):
        write_or_keep(traces, make_trace())
    assert waited == list(gather.WAITS_S)
    assert list(folder.iterdir()) == []
    assert len(list(node.glob("*/x.1.h5"))) == 1
    (folder / "x.1.begin.json").touch()  # mounted anew, maybe with another st_dev: the attempt's own record says so
    write_or_keep(traces, make_trace())
    assert (folder / "x.1.h5").exists()


def test_where_it_can_be_kept_nowhere_a_message_states_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(folders, "_bases", lambda: [tmp_path / "file" / "rankwise-7"])
    with pytest.raises(TraceKept, match=r"Not a directory\); nor to this node: no place on .* Not a dir") as caught:
        write_or_keep(TracesFolder(tmp_path / "file", "x.1"), make_trace())
    assert caught.value.local_copy == ""


def test_a_trace_whose_name_may_not_survive_a_power_cut_is_not_reported_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        """Stands for a server that answers no more once the file has its name."""
        if (tmp_path / "x.h5").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TraceUnwritable, match="Input/output error") as caught:
        write_trace(tmp_path / "x.h5", make_trace())
    assert caught.value.error.errno == errno.EIO
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_there_is_no_reason_to_try_again(tmp_path: Path, node: Path) -> None:
    write_trace(tmp_path / "x.1.h5", make_trace())
    with pytest.raises(TraceKept, match="never overwritten; the whole trace is kept at") as caught:
        write_or_keep(TracesFolder(tmp_path, "x.1"), make_trace())
    assert read_trace(Path(caught.value.local_copy.partition(":")[2])).recovered is False


def test_a_whole_trace_replaces_a_recovered_one_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = tmp_path / "x.1.h5", make_trace()
    recovered = dataclasses.replace(whole, recovered=True)
    write_trace(path, recovered)
    for first, second in ((recovered, recovered), (whole, recovered), (whole, whole)):
        path.unlink()
        write_trace(path, first)
        with pytest.raises(TraceError, match="never overwritten"):
            write_trace(path, second)
    path.unlink()
    write_trace(path, recovered)
    write_trace(path, whole)
    assert read_trace(path).recovered is False
    assert "is replaced by the whole one" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["x.1.h5"]


def test_a_full_shared_memory_does_not_keep_a_trace_that_the_next_place_has_room_for(
    tmp_path: Path, mounting: tuple[str, ...]
) -> None:
    output = run(
        """
        import subprocess, sys
        from pathlib import Path
        from hpc.run.gather import TraceKept, write_or_keep
        from hpc.recovery import folders
        from hpc.model.files import TracesFolder
        from tests.unit.traces import make_trace
        shm, disk = Path(sys.argv[1]) / "shm", Path(sys.argv[1]) / "disk"
        shm.mkdir(), disk.mkdir()
        folders._bases = lambda: [shm / "rankwise-7", disk / "rankwise-7"]
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", shm], check=True)
        try:
            write_or_keep(TracesFolder(Path(sys.argv[1]) / "gone", "x.1"), make_trace(), waits_s=())
        except TraceKept as error:
            print(error.local_copy)
        assert not list(shm.glob("*/*/*.h5*"))
        """,
        tmp_path,
        wrapped=mounting,
    )
    assert f":{tmp_path}/disk/rankwise-7/x.1-" in output
