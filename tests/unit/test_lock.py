"""The lock of a sweep's folder: its holder, waiting, and file systems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launch.scheduler.lock import LOCK, FolderLock, LockError


def test_a_waiting_process_learns_the_holder(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    holders: list[str] = []

    def waiting(holder: str) -> None:
        holders.append(holder)
        first.release()

    assert first.take()
    assert not second.take()
    with second.held(waiting, poll_s=0), second.held(waiting, poll_s=0):  # held once, however deep
        assert not FolderLock(tmp_path).take()
    assert FolderLock(tmp_path).take()
    [holder] = holders
    assert holder.startswith(f"process {os.getpid()} on {socket.gethostname()}, of ")


def test_a_process_that_inherits_the_descriptor_holds_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.take()
    heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=lock.file, stdout=subprocess.PIPE)
    waiting = subprocess.Popen(["sleep", "600"], stdin=lock.file)
    try:
        lock.release()
        heir.wait()
        assert not FolderLock(tmp_path).take()
        assert FolderLock(tmp_path).process_here() is None  # this process signed it and has it no more
    finally:
        waiting.kill()
        waiting.wait()
    assert FolderLock(tmp_path).take()


def test_the_lock_is_never_writable_for_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert FolderLock(tmp_path).take()
    finally:
        os.umask(before)
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOLCK, "has no locks .*--out.*Lustre: -o flock"),
        (errno.ENOSYS, "has no locks"),
        (errno.EBADF, r"can be locked by .* alone.*chmod g\+w"),
        (errno.EIO, "cannot be locked: Input/output error"),
    ],
)
def test_a_file_system_without_locks_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """A fake `flock`: such a file system cannot be had here."""

    def refuse(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LockError, match=words):
        FolderLock(tmp_path).take()


def test_a_folder_without_a_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"none/\.lock cannot be opened: No such file"):
        FolderLock(tmp_path / "none").take()
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockError, match="cannot be opened"):
        FolderLock(tmp_path).take()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "1"}', '{"user": "a", "host": "b", "pid": 1}'])
def test_a_damaged_signature_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    assert FolderLock(tmp_path).signed_by() is None
    assert FolderLock(tmp_path).holder() == "a process without a name"
    assert FolderLock(tmp_path).process_here() is None
