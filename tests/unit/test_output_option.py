"""No command writes over what it reads or what a run left, and none makes a file named `-`."""

from __future__ import annotations

import os
import shutil
from argparse import Action
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hpc.model.output_option import OutputFile, OutputFolder, inputs_of, why_not_written
from hpc.system.command_line import COMMANDS
from hpc.system.command_parser import CommandParser
from launch.sweep.request import SUBCOMMANDS
from tests.unit.every_command import make_workplace

READ = {
    "--against", "--config", "--explain", "--expect-glibc", "--formats", "--from", "--image", "--kineto",
    "--make-reference", "--published", "--reference", "--root", "--run", "--script", "--show", "--site", "--to",
}  # fmt: skip
"""Options that name files or folders to read, and those of programs that jobs run."""
NAMES = {"FILE", "DIR", "PATH", "FOLDER", "TRACES", "RUN.json", "TRACE.h5", "NAME|FILE", "DOCUMENT"}
MODULES = {"parse.report": "parse.report.__main__", "launch.doctor": "launch.doctor.command"}


class _Made(Exception):
    def __init__(self, parser: CommandParser) -> None:
        self.parser = parser


def main_of(command: str) -> Any:
    """The `main` of a command."""
    for name in (MODULES.get(command, command), f"{command}.__main__"):
        module = import_module(name)
        if hasattr(module, "main"):
            return module.main
    raise AssertionError(command)


def actions(parser: CommandParser) -> Iterator[Action]:
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for sub in action.choices.values():
                yield from actions(sub)


@cache
def options_of(command: str) -> tuple[Action, ...]:
    """The options of a command, or of a subcommand of the sweep."""
    module, _, subcommand = command.partition(" ")

    def made(parser: CommandParser, *_: object) -> None:
        raise _Made(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandParser, "parse_known_args", made)
        with pytest.raises(_Made) as caught:
            main_of(module)([subcommand] if subcommand else [])
    return tuple(actions(caught.value.parser))


EVERY = [*COMMANDS, *(f"hpc.sweep {name}" for name in SUBCOMMANDS)]
FILES = [(command, action.option_strings[0]) for command in EVERY for action in options_of(command)
         if isinstance(action, OutputFile)]  # fmt: skip
NEEDED: dict[str, tuple[str, ...]] = {
    "parse.compare": ("traces", "after"), "parse.forecast": ("after", "--devices", "2"),
    "parse.history": ("nights/n00", "nights/n01"), "parse.report": ("after",), "parse.summarize": ("after",),
    "parse.timeline": ("after",), "parse.watch": ("after",), "hpc.preflight": ("--run", "run.json"),
    "hpc.sweep accept": ("--reference", "machine.toml"),
}  # fmt: skip


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workplace(tmp_path_factory.mktemp("outputs"))


@pytest.mark.parametrize("command", EVERY)
def test_every_option_that_names_a_file_goes_through_the_door_or_is_read(command: str) -> None:
    """A new option with such a name of its value is an OutputFile, an OutputFolder, or enters READ."""
    named = {
        action for action in options_of(command)
        if action.option_strings
        and (action.metavar in NAMES or action.type is Path or action.dest in ("out", "output", "junit"))
    }  # fmt: skip
    assert {action.option_strings[-1] for action in named if not isinstance(action, OutputFolder)} <= READ


def test_the_door_is_at_the_commands_that_write() -> None:
    assert {command for command, _ in FILES} == {
        "hpc.preflight", "hpc.sweep accept", "parse.compare", "parse.forecast", "parse.history", "parse.report",
        "parse.summarize", "parse.timeline", "parse.watch",
    }  # fmt: skip


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(command: str, option: str, out: str, capsys: pytest.CaptureFixture[str], *inputs: str) -> str:
    """What a command says that ends with 2 for this value of its option."""
    module, *subcommand = command.split()
    with pytest.raises(SystemExit) as ended:
        main_of(module)([*subcommand, *inputs, option, out])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("command", "option"), FILES)
def test_no_command_writes_over_a_trace_a_record_or_a_plan(
    command: str, option: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    traces = Path("sweep/traces")
    shutil.copy(next(Path("traces").glob("*.h5")), "renamed.bin")
    before = contents(workplace)
    record, plan = next(traces.glob("*.exit.json")), next(traces.glob("plan.*.json"))
    for path in (next(Path("traces").glob("*.h5")), record, plan, Path("renamed.bin")):
        assert f"{path} is a trace, a record or a plan of a run" in refused(
            command, option, str(path), capsys, *NEEDED[command]
        )
    assert contents(workplace) == before


@pytest.mark.parametrize(("command", "option"), FILES)
def test_no_command_makes_a_file_named_by_a_dash(
    command: str, option: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    if command in ("parse.compare", "parse.forecast", "parse.history", "parse.summarize"):
        inputs = NEEDED[command]
        main_of(command)([*inputs, option, "-"])
        printed = capsys.readouterr().out
        main_of(command)([*inputs])
        assert printed and printed == capsys.readouterr().out
    else:
        assert "- names no file" in refused(command, option, "-", capsys, *NEEDED[command])
    assert not Path("-").exists()


@pytest.mark.parametrize("command", EVERY)
def test_no_command_makes_a_folder_named_by_a_dash(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in options_of(command):
        if type(action) is OutputFolder:
            assert "- names no folder" in refused(command, action.option_strings[0], "-", capsys)


def test_a_glob_behind_out_leaves_every_trace_whole(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    before = contents(workplace / "traces")
    first, *others = sorted(map(str, Path("traces").glob("*.h5")))
    for command in ("parse.timeline", "parse.report", "parse.summarize"):
        assert first in refused(command, "--out", first, capsys, *others)
    assert contents(workplace / "traces") == before


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("logs")
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.log").write_text(f"step {name}\n")
    return folder


def test_files_are_compared_by_what_they_are(logs: Path) -> None:
    log = logs / "a.log"
    Path("link").symlink_to(log)
    os.link(log, "hard")
    for out in (log, Path("logs/../logs/a.log"), Path("link"), Path("hard"), log.absolute()):
        assert f"{out} is read by this command" in why_not_written(out, [log])
        assert f"{out} is in logs, which this command reads" in why_not_written(out, [logs])
    assert not why_not_written(Path("new.log"), [logs])
    assert not why_not_written(logs / "new.log", [logs])


def test_a_glob_of_logs_is_refused_by_the_file_beside_the_others(logs: Path) -> None:
    reason = why_not_written(logs / "a.log", [logs / "b.log", logs / "c.log"])
    assert "a shell puts the first of *.log here" in reason
    (logs / "table.txt").write_text("an earlier table")
    assert not why_not_written(logs / "table.txt", [logs / "b.log"])


@pytest.mark.parametrize("begin", ["<!DOCTYPE html>\n", '{\n "schema": "rankwise-history",\n', "<?xml version"])
def test_an_earlier_page_or_export_is_written_anew(begin: str, logs: Path) -> None:
    out = logs / "out.log"
    out.write_text(begin)
    assert not why_not_written(out, [logs, logs / "a.log"])
    assert why_not_written(out, [out])


def test_a_summary_beside_those_that_are_read_is_not_written_over(logs: Path) -> None:
    for name in ("a.json", "b.json"):
        (logs / name).write_text('{\n "schema": "rankwise-summary",\n')
    assert "*.json" in why_not_written(logs / "a.json", [logs / "b.json"])
    assert not why_not_written(logs / "a.json", [logs])


def test_what_is_no_regular_file_is_written(logs: Path) -> None:
    assert not why_not_written(Path("/dev/null"), [logs])


def test_options_that_name_nothing_that_is_there_are_no_inputs(logs: Path) -> None:
    from argparse import Namespace

    options = Namespace(
        out=logs, format="text", empty="", paths=[logs, Path("none")], text="a\0b", number=3, formats=None
    )
    assert inputs_of(options) == [logs]


@pytest.mark.parametrize(
    ("form", "name"),
    [("html", "report.html"), ("latex", "scaling.tex"), ("latex", "scaling.pdf"), ("markdown-report", "scaling.md")],
)
def test_a_report_without_out_is_not_written_over_a_document_that_it_reads(
    form: str, name: str, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text("| GPUs | samples/s |\n")
    with pytest.raises(SystemExit) as ended:
        main_of("parse.report")(["--published", name, "--format", form])
    assert ended.value.code == 2 and f"{name} is read by this command" in capsys.readouterr().err
    assert Path(name).read_text() == "| GPUs | samples/s |\n"


def test_logs_of_ai_rank_are_not_written_over_logs_that_are_read(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "GPUx1.log").write_text("a log\n")
    with pytest.raises(SystemExit) as ended:
        main_of("parse.summarize")([str(logs), "--format", "ai-rank", "--out", str(logs)])
    assert ended.value.code == 2 and "logs/GPUx1.log is in logs" in capsys.readouterr().err
