"""Logs whose first step is number 0: a whole run of the protocol ends one number short of it."""

from __future__ import annotations

import pytest

from parse.logs.formats import format_named
from parse.logs.window import Protocol, read_log
from tests.unit.logs import made


def read(tmp_path, name, text):
    path = tmp_path / "x.log"
    path.write_text(text)
    return read_log(path, format_named(name), Protocol())


def test_120_steps_from_0_are_the_protocol_s(tmp_path):
    reading = read(tmp_path, "paddle-resnet50", made.paddle([1.0] * 19 + [0.4] * 101, batch=128))
    window = reading.window
    assert (window.begin, window.end, window.steps, window.printed) == (19, 119, 100, 100)
    assert window.seconds == pytest.approx(40.0, abs=2e-3)
    assert window.in_steps_done


def test_where_the_log_goes_on_printed_numbers_stand(tmp_path):
    reading = read(tmp_path, "paddle-resnet50", made.paddle([0.4] * 121, batch=128))
    assert (reading.window.begin, reading.window.end) == (20, 120)
    assert not reading.window.in_steps_done


def test_119_steps_are_too_few(tmp_path):
    reading = read(tmp_path, "paddle-resnet50", made.paddle([0.4] * 119, batch=128))
    assert reading.window is None and "118" in reading.reason and "120" in reading.reason


def test_every_twentieth_line_shows_where_numbers_begin(tmp_path):
    lines = [
        f"INFO:root:Epoch[0] Batch [{step}]\tSpeed: 84.39 samples/sec\taccuracy=0.1\n" for step in range(19, 120, 20)
    ]
    window = read(tmp_path, "ngc-mxnet", "".join(lines)).window
    assert (window.begin, window.end, window.printed) == (19, 119, 5)


def test_a_log_that_drops_its_own_warm_up_has_one_step_less(tmp_path):
    lines = [
        f"DLL 2020-09-01 06:41:{number // 10:02d}.{number % 10}84949 - (0, {number}) imgs_per_sec : 1146.85  loss : 3\n"
        for number in range(20, 120)
    ]
    window = read(tmp_path, "ngc-tensorflow", "".join(lines)).window
    assert (window.begin, window.end, window.steps) == (20, 119, 99)
