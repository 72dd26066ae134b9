"""The commands of docs/logs.md, typed as printed in a folder that has what they name."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from parse import airank, summarize
from tests.unit.logs import made
from tests.unit.traces import make_run, point, put

DOCUMENT = Path(__file__).parents[3] / "docs/logs.md"
COMMANDS = {"parse.summarize": summarize.main, "parse.summarize --airank": airank.main}
TABLE = """\
| GPUs | img/s   |
| ---- | ------- |
| 1    | 366.14  |
| 8    | 2802.14 |
"""


def commands():
    lines = DOCUMENT.read_text().split("```console\n")[1].split("```")[0].splitlines()
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for devices in (1, 8):
        text = made.paddle(made.steps(350.0 * devices, 128 * devices), batch=128 * devices)
        made.put(tmp_path, f"logs/paddle/bz128/1n{devices}g/r50_b128_fp32_1.log", text)
        text = made.ngc_pytorch(made.steps(366.0 * devices, 128 * devices), batch=128, devices=devices)
        made.put(tmp_path, f"GPUx{devices}.log", text)
    (tmp_path / "traces").mkdir()
    for trace in point(make_run(), [40.0, 41.0]):
        put(tmp_path / "traces", trace)
    made.put(tmp_path, "report.md", TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_document_has_six_commands():
    assert len(commands()) == 6


@pytest.mark.parametrize("number", range(6))
def test_runs_as_printed(folder, capsys, number):
    program, subcommand, *arguments = commands()[number]
    assert program == "rankwise"
    assert COMMANDS[f"parse.{subcommand}"](arguments) == 0
    out = capsys.readouterr().out
    assert out or (folder / "bz128_result.json").is_file()


def test_a_log_of_a_known_format_is_read_without_what_it_does_not_need(folder: Path) -> None:
    program = (
        "import sys; from parse.summarize import main; main(sys.argv[1:]); "
        "print({*sys.modules} & {'parse.ledger', 'parse.logs.infer.inferred', 'concurrent.futures'}, file=sys.stderr)"
    )
    command, root = [sys.executable, "-c", program, str(folder / "GPUx8.log")], DOCUMENT.parents[1]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stderr == "set()\n"
