"""Which torch the hooks were tried with; what is said of others, and of a release that cannot be had."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc.observe.remarks import TRIED, untried
from tests.unit.observed_events import Script
from tools.torch_versions import __main__ as tool

ROOT = Path(__file__).resolve().parents[2]


def test_all_tests_run_with_one_of_them() -> None:
    pinned = next(
        line.removeprefix("torch==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "torch==" in line
    )
    assert pinned.rpartition(".")[0] in TRIED


@pytest.mark.parametrize("version", ["2.3.1", "9.9.0+cu999", "3.0.0a0+git12", "a fork"])
def test_another_torch_is_a_remark(version: str) -> None:
    script = Script(torch=version)
    for _ in range(3):
        script.step()
    text = f"hooks were tried with torch {', '.join(TRIED)}; this is {version}: "
    assert [remark.startswith(text) for remark in script.observed().remarks].count(True) == 1


@pytest.mark.parametrize("version", [f"{TRIED[0]}.0", f"{TRIED[-1]}.3+cpu", "2.10.1"])
def test_one_of_them_or_between_them_is_none(version: str) -> None:
    assert untried(version) == ""


@pytest.mark.parametrize(
    ("failing", "installed", "result"),
    [
        ("", False, ""), ("pip", False, "NOT TRIED: it cannot be had: no such wheel"), ("pip", True, ""),
        ("-c", False, "NOT TRIED: what was imported is 1.0"), ("pytest", True, "FAILED: pytest ended with 1"),
    ],
)  # fmt: skip
def test_a_release_that_cannot_be_had_is_named_and_no_success(
    failing: str,
    installed: bool,
    result: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / ".venv-torch-2.4" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-torch-2.4" / "bin" / "python").touch()

    def run(words: list[str], **named: Any) -> Any:
        ran.append(words)
        fails = failing in words if failing else False
        version = "1.0" if fails else "2.4.1"
        return SimpleNamespace(
            returncode=int(fails and failing != "-c"), stdout=f"{version}\n", stderr="x\nno such wheel\n"
        )

    ran: list[list[str]] = []
    if installed:
        site = tmp_path / ".venv-torch-2.4" / Path(sysconfig.get_path("purelib", "venv", {"base": "."}))
        (site / "torch-2.4.1.dist-info").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(Path, "write_text", lambda path, text: len(text))
    monkeypatch.setattr("sys.argv", ["torch-versions", "2.4"])
    assert tool.main() == bool(result)
    assert f"torch 2.4: {result or 'passed'}\n" in capsys.readouterr().out
    assert any("pip" in words for words in ran) is not installed
    assert not any(tool.PIPELINE in words for words in ran)
