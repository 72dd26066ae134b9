"""What commands answer that cannot do what was asked, and what others print: tests/golden/usage and outputs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import GOLDEN
from tests.unit.every_command import main_of, make_workplace

VARYING = re.compile(r" \((choose from|Unable to) .*\)|; known .*")
"""What differs between versions of Python and of h5py, and which sites and settings there are."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workplace(tmp_path_factory.mktemp("workplace"))


def status_of(command_line: str) -> object:
    """The exit status of this command line, in this process."""
    command, *words = shlex.split(command_line)
    try:
        return main_of(command)(words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "usage").iterdir()))
def test_what_commands_answer(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cases
) -> None:
    """A command line; its exit status, and the line that says what is wrong."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "200")

    def outcomes(lines: list[str]) -> Iterator[str]:
        status = status_of(lines[0])
        printed = capsys.readouterr()
        answer = (printed.err or printed.out).rpartition("error: ")[2].strip().splitlines()
        reason = next((line for line in answer if "not read" in line), answer[-1]).replace(f"{workplace}/", "")
        yield f"{status}: {VARYING.sub('', ' '.join(reason.split()))}"

    cases(f"usage/{name}", outcomes)


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "outputs").iterdir()))
def test_what_commands_print(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cases
) -> None:
    """A command line; its exit status, and all that it prints."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "100")

    def outcomes(lines: list[str]) -> Iterator[str]:
        yield f"{status_of(lines[0])}"
        printed = capsys.readouterr()
        yield from f"{printed.out}{printed.err}".replace(str(workplace), "FOLDER").splitlines()

    cases(f"outputs/{name}", outcomes)
