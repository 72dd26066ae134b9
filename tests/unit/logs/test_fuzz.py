"""Mutated logs, a small part of `make fuzz`; and that each of its checks fires."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parse.logs.formats import recognise
from tests.fuzz import fuzz_logs
from tests.fuzz.fuzz_logs import COUNT, check, input_of, run
from tests.fuzz.samples import SAMPLES_OF_ALL
from tests.fuzz.trials import Defect

pytestmark = pytest.mark.all

PART = 300
WITHOUT_SPEED = ("ai-rank", "keras")
"""Formats whose samples have no speed: marks alone, and bars of whole epochs."""
BY_NAME = {sample.name: sample for sample in SAMPLES_OF_ALL}


@pytest.fixture
def path(tmp_path):
    log = tmp_path / "1n8g" / "r50_b128_fp32_1.log"
    log.parent.mkdir()
    return log


def sound(name="ngc-pytorch", text=None):
    sample = BY_NAME[name]
    return dataclasses.replace(
        input_of(0), sample=sample, text=sample.text(20) if text is None else text, forced=False,
        protocol=fuzz_logs.Protocol(warmup=2, total=8),
    )  # fmt: skip


@pytest.mark.parametrize("first", [0, COUNT])
def test_mutated_logs_are_read_or_refused(tmp_path, first, capsys):
    assert run(first, PART, tmp_path) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", BY_NAME)
def test_each_sample_has_its_format(path, name):
    mutant = sound(name)
    wanted = "no speed" if mutant.sample.log_format in WITHOUT_SPEED else "speed"
    assert check(mutant, path) == wanted
    assert recognise(path).name == mutant.sample.log_format


def test_a_time_that_makes_no_number_is_none(path):
    text = BY_NAME["nanochat"].text(20).replace(b"dt: 310.00ms", b"dt: 1e-320ms")
    assert check(sound("nanochat", text), path) == "no speed"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"begin": 1_000_000}, "not in its line|ends first"),
        ({"end": 1_000_000}, "end 1000000 is not in its line"),
        ({"end_offset": 0}, "pass in"),
        ({"steps": 0}, "a window of 0 steps"),
        ({"rate": 5.0}, "printed .* is not among"),
        ({"seconds": 1e-9}, "pass in"),
        ({"seconds": float("nan")}, "is nan|pass in|steps take"),
        ({"step_s": np.array([-1.0])}, "steps take"),
    ],
)
def test_a_number_from_nothing_is_detected(path, monkeypatch, changed, message):
    read_log = fuzz_logs.read_log

    def wrong(*arguments):
        reading = read_log(*arguments)
        return dataclasses.replace(reading, window=dataclasses.replace(reading.window, **changed))

    monkeypatch.setattr(fuzz_logs, "read_log", wrong)
    with pytest.raises(Defect, match=message):
        check(sound(), path)
