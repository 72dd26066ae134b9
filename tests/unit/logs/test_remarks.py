"""parse.logs.window: the sentence of each oddity."""

from __future__ import annotations

import pytest

from parse.logs.window import SENTENCES, remark

EXPECTED = {
    "of_format": ({"text": "cut off"}, "cut off"),
    "contradiction": (
        {"name": "seed", "value": "1", "other": "2", "byte": 9}, "seed is 1 and 2 (byte 9) in it; the first counts",
    ),
    "stamps_go_back": (
        {"begin": 59, "end": 60}, "time stamps go back between steps 59 and 60: there is no wall clock",
    ),
    "stamps_stand_still": ({}, "time stamps do not advance in the window: there is no wall clock"),
    "coarse_stamps": (
        {"resolution_s": 1.0, "interval_s": 0.3},
        "time stamps of 1 s do not resolve intervals of 0.3 s: there are no step times",
    ),
    "means_of_steps": ({"stride": 2}, "step times are means over 2 printed numbers each"),
    "another_run": (
        {"passed": (0, 299), "to": (-1, 0), "byte": 7},
        "steps go back from 299 of epoch 0 to 0 at byte 7, as where a second run is appended: only steps before it "
        "count",
    ),
    "impossible_lines": ({"lines": 1}, "1 step line with impossible numbers left out"),
    "late_lines": ({"lines": 2}, "2 step lines left out that came long after others of their steps"),
    "unstamped_steps": ({"steps": 2}, "2 printed steps left out that bear no time stamp"),
    "epochs_of_unknown_length": (
        {"ends": 19},
        "the window goes over 19 ends of epochs, but nothing says how many steps an epoch has: only intervals between "
        "printed steps of one epoch count",
    ),
    "more_pauses": ({"more": 47}, "47 more pauses are kept out than are listed"),
    "repeated_steps": (
        {"steps": 1}, "1 step of the window printed more than once: each counts once, with the latest time stamp",
    ),
    "late_first_step": (
        {"first": (-1, 5000), "warmup": 20},
        "the first printed step is 5000, beyond the warm-up of 20: what came before, or that the run was resumed "
        "there, the log does not say",
    ),
    "dropped_records": ({"records": 20, "most": 10}, "20 evaluations and marks beyond the first 10 are not kept"),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_each_oddity_has_its_sentence(name: str) -> None:
    figures, sentence = EXPECTED[name]
    assert remark(name, **figures).text == sentence  # type: ignore[arg-type]
