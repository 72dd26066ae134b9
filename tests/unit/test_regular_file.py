"""hpc.system.regular_file: what is opened, and that no other kind of file is waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpc.model.outcome import RecordError, read_exit_record
from hpc.model.trace import TraceError
from hpc.model.trace_file import open_trace, read_trace
from hpc.system import regular_file
from hpc.system.regular_file import NotRegularError, open_regular


def test_a_file_and_a_link_to_one(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"text"


def test_other_kinds_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path in (Path("pipe"), Path("socket"), Path("/dev/zero"), Path("/dev/null")):
            with pytest.raises(NotRegularError, match=f"no regular file: '{path}'"):
                open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_the_writer_of_a_pipe_is_not_woken(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularError):
        open_regular(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):  # nobody reads it, nor did
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)


def test_a_pipe_in_the_place_of_a_file_that_was_looked_at(tmp_path, monkeypatch):
    """The first look sees a file; what is opened is a pipe without a writer, which an ordinary open waits for."""
    path = tmp_path / "file"
    os.mkfifo(path)
    looks = iter([False, True])
    require = regular_file._require_regular
    monkeypatch.setattr(regular_file, "_require_regular", lambda *path: next(looks) and require(*path))
    with pytest.raises(NotRegularError):
        open_regular(path)
    assert next(looks, None) is None


def test_pipes_in_the_place_of_records_and_traces(tmp_path):
    os.mkfifo(tmp_path / "x.1.exit.json")
    with pytest.raises(RecordError, match="no regular file"):
        read_exit_record(tmp_path / "x.1.exit.json")
    os.mkfifo(tmp_path / "x.h5")
    with pytest.raises(TraceError, match="no regular file"):
        read_trace(tmp_path / "x.h5")
    with pytest.raises(TraceError, match="no regular file"), open_trace(tmp_path / "x.h5"):
        pass
