"""Where journals lie: private folders with room, the folder of the traces and no other of its name."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.model.files import FolderReplaced
from hpc.node_agent.copies import RankCopy
from hpc.recovery.__main__ import main
from hpc.recovery.collect import collect
from hpc.recovery.folders import BEGUN, JournalError
from hpc.recovery.journal import Journal
from tests.unit.journals import STEM, written

pytestmark = pytest.mark.usefixtures("places")


def test_nobody_else_can_read_along(traces: Path, places: list[Path]) -> None:
    made = written(traces, 0)
    modes = {path: path.stat().st_mode & 0o777 for path in (places[0], made.folder, made.folder / "rank0.stamps")}
    assert modes == {places[0]: 0o700, made.folder: 0o700, made.folder / "rank0.stamps": 0o600}


@pytest.mark.parametrize("trap", ["link", "open to others", "file"])
def test_a_place_that_is_not_private_is_passed_over(
    traces: Path, places: list[Path], tmp_path: Path, trap: str
) -> None:
    if trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        places[0].symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        places[0].write_text("")
    else:
        places[0].mkdir()
        places[0].chmod(0o777)
    assert written(traces, 0).folder.parent == places[1]
    assert collect(traces, STEM) == 1


def test_a_place_where_no_file_can_be_opened_is_left_as_it_was(
    traces: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def refused(path: Path, *arguments: int, **more: int) -> int:
        if Path(path).name == BEGUN and Path(path).is_relative_to(places[0]):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return really_open(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    assert written(traces, 0).folder.parent == places[1]
    assert not list(places[0].iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_a_name_that_another_user_took_is_passed_over_and_its_owner_and_the_ways_out_are_named(
    traces: Path, places: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    places[0].mkdir()
    places[0].chmod(0o777)
    os.chown(places[0], 65534, -1)
    made = written(traces, 0)
    owner = pwd.getpwuid(65534).pw_name
    reason = f"{places[0]}: belongs to {owner} (mode 0777), so that others could read or plant files: {owner} or"
    assert made.folder.parent == places[1] and reason in capsys.readouterr().err
    assert [*places[0].iterdir()] == []
    made.remove()
    places[1].rmdir()
    places[1].symlink_to(places[0])
    with pytest.raises(JournalError, match=r"\(a link\).*: chmod 700, or remove it\. TMPDIR, set for the job"):
        Journal(traces, STEM, 0, 3)


@pytest.mark.parametrize("size", ["4k", "320k"])
def test_a_full_shared_memory_is_passed_over_and_what_lies_elsewhere_is_read(tmp_path: Path, size: str) -> None:
    """4 KiB have room for nothing, 320 KiB for the stamps of one of two ranks. It is a real tmpfs."""
    unshare = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount here")
    program = """
import os, subprocess, sys
from pathlib import Path
from hpc.recovery import folders
from hpc.recovery.collect import collect
from hpc.node_agent.copies import Copies
from hpc.recovery.journal import Journal
from hpc.recovery.journal import read_journals
shm, disk, traces = (Path(sys.argv[1]) / name for name in ("shm", "disk", "runs"))
for folder in (shm, disk, traces):
    folder.mkdir(exist_ok=True)
folders._bases = lambda: [shm / "rankwise-7", disk / "rankwise-7"]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={sys.argv[2]}", "none", shm], check=True)
if sys.argv[2] == "4k":
    (shm / "full").write_bytes(bytes(4096))
made = [Journal(traces, "x.1", rank, 900) for rank in (0, 1)]
for rank, journal in enumerate(made):
    journal.samples[: 3 + rank] = memoryview(bytes([4] + [0] * 7) * (3 + rank)).cast("q")
    journal.stamps[:] = memoryview(bytes([1] * 8) * len(journal.stamps)).cast("q")
print([journal.folder.parent.parent.name for journal in made], flush=True)
assert len(folders.attempt_folders(traces, "x.1")) == len({journal.folder for journal in made})
copies = Copies({rank: journal.folder for rank, journal in enumerate(made)}, traces / "x.1.partial", 10.0)
copies.look()
assert copies.ranks_live()
assert [journal.steps_completed for journal in read_journals(traces / "x.1.partial")] == [3, 4]
copies.remove()
assert collect(traces, "x.1") == 2
assert [journal.steps_completed for journal in read_journals(traces / "x.1.partial")] == [3, 4]
assert not list(shm.glob("rankwise-7/*")) and not list(disk.glob("rankwise-7/*"))
"""
    argv = [*unshare, sys.executable, "-c", program, str(tmp_path), size]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    taken = ["disk", "disk"] if size == "4k" else ["shm", "disk"]
    assert done.stdout.splitlines()[0] == str(taken)
    assert "No space left on device" in done.stderr


def test_where_no_place_has_room_all_are_named(
    traces: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(JournalError) as caught:
        Journal(traces, STEM, 0, 3)
    for place in places:
        assert f"{place}/{STEM}-" in str(caught.value)
        assert list(place.iterdir()) == []
    assert str(caught.value).startswith(f"no place on {socket.gethostname()} for 168 bytes of stamps of rank 0: ")
    assert str(caught.value).count("No space left on device") == 2


def test_a_folder_that_has_gone_is_never_made_anew(traces: Path, tmp_path: Path, places: list[Path]) -> None:
    made = written(traces, 0)
    traces.rename(tmp_path / "away")
    copy = RankCopy(made.folder, traces / f"{STEM}.partial", 0)
    for act in (copy.look, lambda: collect(traces, STEM)):
        with pytest.raises(FileNotFoundError):
            act()
    assert not traces.exists()
    assert main(["collect", "--stem", STEM, "--to", str(traces)]) == 1
    (tmp_path / "away").rename(traces)
    copy.look()
    assert collect(traces, STEM) == 1


def test_nothing_is_written_to_another_folder_of_the_same_name(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = written(traces, 0)
    (made.folder / f"{STEM}.rank0.json").write_text("{}")
    traces.rename(tmp_path / "away")
    traces.mkdir()  # what is seen of a mount point whose file system is gone
    with pytest.raises(FolderReplaced, match="not the folder that was there when the attempt began"):
        RankCopy(made.folder, traces / f"{STEM}.partial", 0).look()
    assert main(["collect", "--stem", STEM, "--to", str(traces)]) == 1
    assert f"kept: {socket.gethostname()}:{made.folder}" in capsys.readouterr().err
    assert list(traces.iterdir()) == []
    (traces / f"{STEM}.begin.json").touch()  # the right one, mounted anew
    assert collect(traces, STEM) == 1
    assert (traces / f"{STEM}.rank0.json").exists()
