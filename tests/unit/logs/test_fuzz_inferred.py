"""Mutated logs of no declared format, a small part of `make fuzz`; and that its check fires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzz_inferred import COUNT, SAMPLES, UnknownInput, UnknownSample, check, run
from tests.fuzz.trials import Defect

pytestmark = pytest.mark.all

PART = 150


@pytest.mark.parametrize("first", [0, COUNT])
def test_mutated_logs_of_no_format_are_read_or_refused(
    tmp_path: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(first, PART, tmp_path) == 0, capsys.readouterr().out


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_each_sample_has_a_number(tmp_path: Path, sample: UnknownSample) -> None:
    lines = f"{sample.heading}\n" + "".join(f"{sample.line(step)}\n" for step in range(1, 50))
    assert check(UnknownInput(sample=sample, text=lines.encode()), tmp_path / "run_1n8g_b4.log") == "speed"


def test_fields_that_contradict_each_other_are_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of a log whose seconds and rates say something else."""
    sample = SAMPLES[0]
    sound = "".join(f"{sample.line(step)}\n" for step in range(1, 50))
    spoilt = sound.replace("Tokens/s/device: 2", "Tokens/s/device: 9").encode()
    monkeypatch.setattr(Path, "write_bytes", lambda path, text: path.write_text(sound))
    with pytest.raises(Defect, match="their fields say"):
        check(UnknownInput(sample=sample, text=spoilt), tmp_path / "run_1n8g_b4.log")
