"""parse.summarize: each option acts on what was named, or is refused with what it is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parse.summarize import main
from tests.unit.logs import made
from tests.unit.traces import make_run, make_trace, put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace."""
    (tmp_path / "traces").mkdir()
    return put(tmp_path / "traces", make_trace(make_run())).parent


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


def test_files_that_are_no_logs_are_named_beside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.log").write_text("hello\n")
    with pytest.raises(SystemExit):
        main([str(folder), "--warmup", "3"])
    assert f"not read: {folder / 'x.log'}: " in capsys.readouterr().err


def test_an_option_of_logs_acts_on_a_log_beside_traces(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.put(folder.parent / "logs", "1n1g/r50_b128_fp32_1.log", made.ngc_pytorch(made.steps(350, 128), batch=128))
    page = json.loads(
        printed(capsys, folder, folder.parent / "logs", "--format", "json", "--warmup", 10, "--steps", 60)
    )
    assert [run["window"] for each in page["results"] for run in each["runs"] if "window" in run] == [
        "steps 10 to 60 of epoch 0"
    ]


def test_an_option_acts_on_a_log_of_unknown_devices(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.put(folder.parent / "logs", "a.log", made.paddle(made.steps(5600, 16 * 128), batch=16 * 128))
    out = printed(capsys, folder, folder.parent / "logs", "--verbose", "--warmup", "10")
    assert "neither the log nor its names say the batch size and the devices" in " ".join(out.split())


@pytest.mark.parametrize("option", ["--ledger", "--what-if"])
def test_a_ledger_of_logs_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    made.put(tmp_path, "1n1g/r50_b128_fp32_1.log", made.ngc_pytorch(made.steps(350, 128), batch=128))
    with pytest.raises(SystemExit):
        main([str(tmp_path), option])
    message = f"{option}: only traces have the stamps that a ledger is made of, and only logs were read"
    assert message in capsys.readouterr().err
