"""Shared memory of dead ranks: what is removed, and what stays whatever happens."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.recovery import folders
from hpc.recovery.folders import remove_shared_memory

NAMES = (
    "vader_segment.n1.1000.7a0001.0", "sm_segment.n1.1000.7a0001.0", "mpich_shar_tmpQ1w2E3", "Intel_MPI_Q1w2E3",
    "psm2_shm.10000", "ucx_shm_posix_77abcd", "nccl-Q1w2E3", "cuda.shm.3e8.77.1", "torch_77_12345_0", "psm_0a1b2c3d",
    "sem.mp-q1w2e3", "sem.loky-77-q1", "pymp-q1w2", "paddle_77_1_2", "__KMP_REGISTERED_LIB_77_1000",
)  # fmt: skip


def make(folder: Path, name: str, changed_s: float = 200.0) -> Path:
    path = folder / name
    path.write_bytes(bytes(4096))
    os.utime(path, (changed_s, changed_s))
    return path


@pytest.fixture(autouse=True)
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a change is that of the content alone: nobody can set st_ctime back."""
    monkeypatch.setattr(folders, "_changed_ns", lambda status: status.st_mtime_ns)


@pytest.mark.parametrize("name", NAMES)
def test_segments_of_known_libraries_are_removed(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    assert remove_shared_memory(100 * 10**9, tmp_path) == [name]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "changed_s"),
    [*((name, 200) for name in ("my_results", "rankwise-1000", "nccl", "sem.mine", "psm_and_more", "torch_model.pt")),
     ("nccl-Q1w2E3", 99)],
)  # fmt: skip
def test_unknown_names_and_segments_older_than_the_attempt_stay(tmp_path: Path, name: str, changed_s: float) -> None:
    make(tmp_path, name, changed_s)
    assert remove_shared_memory(100 * 10**9, tmp_path) == []


def test_links_and_folders_stay(tmp_path: Path) -> None:
    elsewhere = make(tmp_path, "elsewhere")
    (tmp_path / "nccl-link").symlink_to(elsewhere)
    (tmp_path / "nccl-folder").mkdir()
    assert remove_shared_memory(0, tmp_path) == []


def test_segments_that_a_living_process_uses_stay(tmp_path: Path) -> None:
    opened, mapped = make(tmp_path, "nccl-open"), make(tmp_path, "nccl-mapped")
    program = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", program, str(opened)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with mapped.open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        assert remove_shared_memory(0, tmp_path) == []
        mapping.close()
        assert remove_shared_memory(0, tmp_path) == ["nccl-mapped"]
        process.communicate()
    assert remove_shared_memory(0, tmp_path) == ["nccl-open"]


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    assert remove_shared_memory(0, tmp_path / "none") == []
