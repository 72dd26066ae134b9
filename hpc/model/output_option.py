"""Options that name what a command writes: never over what it reads, nor over what a run left.

A shell puts the first name of a glob behind `--out` and the others among the paths: `--out traces/*.h5` would destroy a
trace. Files are compared by device and inode, before any of them is read.
"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpc.model.files import OF_SWEEP, PARTIAL, PLAN
from hpc.system.command_parser import CheckedAction
from hpc.system.regular_file import open_regular
from hpc.system.sanitize import plain

_OF_RUNS = (b"\x89HDF\r\n\x1a\n", b'{\n "run_id":', b'{"run_id":', b'{\n "schema": "rankwise-plan"')
"""How traces, records and plans begin, whatever their names are."""
_OURS = (b"<!DOCTYPE html>", b"<?xml", b"% Needs", b"# TYPE rankwise_", b'{\n "schema": "rankwise-', b"point_id,")
"""How pages, tables and exports of ours begin, which a command may write anew in a folder that it reads."""
_SUMMARIES = (b'{\n "schema": "rankwise-summary"', b"point_id,")
"""Those of them that a command reads where they are named."""


class OutputFolder(CheckedAction):
    """An option that names a folder to write into; what is in it is checked file by file."""

    noun = "folder"

    def __call__(self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, *_: object) -> None:
        """Stores the value; `-` is refused."""
        if str(value) == "-":
            raise argparse.ArgumentError(self, f"- names no {self.noun}: name one")
        setattr(options, self.dest, value)


class OutputFile(OutputFolder):
    """An option that names a file to write; `-` is standard output where the command prints what it would write."""

    noun = "file"

    def __init__(self, *arguments: Any, prints: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._prints = prints

    def __call__(self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, *_: object) -> None:
        """Stores the path; None for standard output."""
        super().__call__(parser, options, None if self._prints and str(value) == "-" else value)

    def refusal(self, options: argparse.Namespace, outputs: Collection[str]) -> str:
        """Why the file is not to be written; empty where it may be."""
        value = getattr(options, self.dest)
        reason = "" if value is None else why_not_written(Path(value), inputs_of(options, outputs))
        return reason and f"{'/'.join(self.option_strings)}: {reason}"


def refuse_outputs(paths: Iterable[Path], options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the command where one of the files whose names follow from `--out` is not to be written."""
    inputs = inputs_of(options)
    for reason in filter(None, (why_not_written(path, inputs) for path in paths)):
        parser.error(plain(f"--out: {reason}"))


def inputs_of(options: argparse.Namespace, outputs: Collection[str] = ("out",)) -> list[Path]:
    """What the options name that is there, without those that name what is written."""
    values = [value for name, value in vars(options).items() if name not in outputs]
    named = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
    return [Path(each) for each in named if each and isinstance(each, str | Path) and _status(Path(each))]


def why_not_written(out: Path, inputs: Sequence[Path]) -> str:
    """Why a file is not to be written over, with what to do; empty where it may be. `inputs` are files and folders that
    the command reads."""
    status = _status(out)
    if status is None or not stat.S_ISREG(status.st_mode):
        return ""
    try:
        with open_regular(out) as file:
            begin = file.read(64)
    except OSError:  # it may be written and not read
        begin = b""
    if begin.startswith(_OF_RUNS) or any(map(_is_named_of_run, (out.absolute(), out.resolve()))):
        return f"{out} is a trace, a record or a plan of a run (a shell puts the first of a glob here): name another"
    if any(os.path.samestat(status, its) for its in map(_status, inputs) if its):
        return f"{out} is read by this command: name another file to write"
    if not begin.startswith(_OURS) and (folder := next(_folders_with(status, inputs), None)):
        return f"{out} is in {folder}, which this command reads: name a file elsewhere, or remove this one first"
    names = (out.absolute(), out.resolve())
    alike = [path for path in inputs if path.is_file() and _beside(path) in map(_beside, names)]
    if alike and (begin.startswith(_SUMMARIES) or not begin.startswith(_OURS)):
        return (
            f"{out} is there already beside {alike[0]}, which this command reads (a shell puts the first of *"
            f"{out.suffix} here): name another file, or remove this one first"
        )
    return ""


def _beside(path: Path) -> tuple[Path, str]:
    return path.absolute().parent, path.suffix


def _is_named_of_run(path: Path) -> bool:
    in_journals = any(parent.name.endswith(PARTIAL) for parent in path.parents)
    return in_journals or any(form.fullmatch(path.name) for form in (OF_SWEEP, PLAN))


def _folders_with(status: os.stat_result, folders: Sequence[Path]) -> Iterator[Path]:
    """Those of the folders that have the file below them, by whatever name."""
    for folder in folders:
        names = (Path(at, name) for at, _, files in os.walk(folder) for name in files)
        if any(os.path.samestat(status, its) for its in map(_status, names) if its):
            yield folder


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):  # ValueError: a zero byte in an option that names no file
        return None
