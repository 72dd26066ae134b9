"""What commands answer that cannot do what was asked: cases of tests/golden/usage."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import GOLDEN
from tests.unit.every_command import main_of, make_workplace

VARYING = re.compile(r" \((choose from|Unable to) .*\)")
"""What differs between versions of Python and of h5py."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workplace(tmp_path_factory.mktemp("workplace"))


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "usage").iterdir()))
def test_what_commands_answer(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cases
) -> None:
    """A command line; its exit status, and the line that says what is wrong."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "200")

    def outcomes(lines: list[str]) -> Iterator[str]:
        command, *words = shlex.split(lines[0])
        try:
            status = main_of(command)(words)
        except SystemExit as ended:
            status = ended.code
        printed = capsys.readouterr()
        answer = (printed.err or printed.out).rpartition("error: ")[2].strip().splitlines()
        reason = next((line for line in answer if "not read" in line), answer[-1]).replace(f"{workplace}/", "")
        yield f"{status}: {VARYING.sub('', ' '.join(reason.split()))}"

    cases(f"usage/{name}", outcomes)
