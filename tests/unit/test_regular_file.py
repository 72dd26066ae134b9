"""hpc.system.regular_file: what is opened, and that no other kind of file is waited for."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.spec import SpecError
from hpc.system import regular_file
from hpc.system.regular_file import (
    TOO_MUCH,
    NotRegularError,
    TooLargeError,
    open_regular,
    parse_json,
    parse_toml,
    read_text,
    read_whole,
    too_much,
)  # fmt: skip
from hpc.workloads import code_digest
from launch.jobs.site import read_site
from launch.sweep.request import read_config
from parse.logs.formats.declared import formats_of


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


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("parse", [parse_json, lambda text: parse_toml(f"value = {text}")["value"]])
def test_depth_and_numbers_are_bounded(parse: Callable[[str], Any]) -> None:
    for text in (nested(60), str(2**64 - 1), str(-(2**63)), "1e308", '"9"', "true"):
        parse(text)
    for text in (nested(70), nested(900), nested(100_000), str(2**64), str(-(2**63) - 1), "1" * 4000, "1" * 5000):
        with pytest.raises(ValueError, match=r"deep|64 bits|digits|Invalid"):
            parse(text)


def test_decimal_numbers_are_bounded() -> None:
    for text in ("1e400", "0.5", "NaN"):
        parse_json(text, parse_float=Decimal)
    for text in ("1e999999999", "1e-999999999", "9" * 500):
        with pytest.raises(ValueError, match="more than 400 digits"):
            parse_json(text, parse_float=Decimal, parse_int=Decimal)


def test_a_whole_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\r\nb\rc\n\xc3\xa4")
    assert read_whole(path, 10) == path.read_bytes() and read_text(path) == path.read_text() == "a\nb\nc\nä"
    with pytest.raises(TooLargeError, match="more than 5 bytes"):
        read_whole(path, 5)
    path.write_bytes(b"\xef\xbb\xbfa")  # as Excel begins a CSV file
    assert read_text(path) == "a"
    with pytest.raises(UnicodeDecodeError):
        path.write_bytes(b"\xff")
        read_text(path)
    os.truncate(path, 1 << 40)
    with pytest.raises(TooLargeError):
        read_text(path)


@pytest.mark.parametrize("call", [lambda: np.empty(1 << 50), lambda: float(10**400), lambda: repr(endless())])
def test_what_was_too_much_is_one_line(call: Callable[[], object]) -> None:
    with pytest.raises(TOO_MUCH) as caught:
        call()
    assert "beyond all" in too_much(caught.value) and "\n" not in too_much(caught.value)


def endless() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "a = 1\nb = 'é'\n".encode("latin1"),
            "byte 6 of line 2, 0xe9, is no UTF-8: store it as UTF-8 (iconv -f latin1 -t",
        ),
        ("a = 1".encode("utf-16"), "byte 1 of line 1, 0xff, is no UTF-8: store it as UTF-8 (iconv -f utf-16 -t utf-8)"),
        (b"a\0\xfe", "byte 3 of line 1, 0xfe, is no UTF-8: it is damaged, or no text"),
    ],
)
def test_bytes_that_are_no_utf8_are_named_with_their_place_and_what_to_do(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(content)
    for read in (lambda: read_text(path), lambda: read_site(path), lambda: read_config(path), lambda: formats_of(path)):
        with pytest.raises(ValueError, match=re.escape(reason)) as refused:
            read()
        assert "codec" not in str(refused.value)


def test_a_workload_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes("é = 1\n".encode("latin1"))
    with pytest.raises(SpecError, match=r"mine.py.*: it is no UTF-8, and its first lines name no other encoding"):
        code_digest(f"{path}:W")
