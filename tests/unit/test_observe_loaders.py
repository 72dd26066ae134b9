"""The rules by which loaders, and batches, feed the training; as unchanged scripts of others read."""

from __future__ import annotations

import pytest

from hpc.observe import events as e
from tests.unit.observed_events import DDP, TRAIN, Script


def look(script: Script, *, exhausted: bool = False) -> None:
    """`next(iter(loader))`, of which the script wants a shape."""
    script.at(e.ITERATE_IN, TRAIN)
    script.at(e.ITERATE_OUT, TRAIN)
    script.fetch()
    if exhausted:
        script.at(e.FETCH_IN, TRAIN)
        script.at(e.FETCH_END, TRAIN)


@pytest.mark.parametrize("exhausted", [False, True])
def test_a_batch_that_is_only_looked_at_is_no_sample(exhausted: bool) -> None:
    script = Script(**DDP)
    for _ in range(2):
        look(script, exhausted=exhausted)
        script.at(e.ITERATE_IN, TRAIN)
        script.at(e.ITERATE_OUT, TRAIN)
        for _ in range(4):
            script.step()
        script.at(e.FETCH_IN, TRAIN)
        script.at(e.FETCH_END, TRAIN)
    observed = script.observed()
    # A loader that has come to its end may have been read ahead: then all of it is trained.
    first = 16 if exhausted else 8
    assert [step.samples for step in observed.steps] == [first, 8, 8, 8] * 2
    assert [step.fetches for step in observed.steps] == [first // 8, 1, 1, 1] * 2
    stated = "2 times a batch was fetched and its loader restarted: not trained, not counted" in observed.remarks
    assert stated is not exhausted


def test_a_loader_begun_anew_for_each_batch_is_read_so() -> None:
    script = Script(**DDP)
    for _ in range(6):
        look(script)
        look(script)
        script.forward()
        script.backward()
        script.update()
    observed = script.observed()
    assert [step.samples for step in observed.steps] == [16] * 6
    assert not any("begun anew" in remark for remark in observed.remarks)


def test_a_loader_that_is_read_ahead_leaves_the_last_step_without_a_fetch() -> None:
    script = Script(**DDP)
    script.fetch()
    for last in (False, False, False, True):
        if not last:
            script.fetch()
        script.forward()
        script.backward()
        script.update()
    observed = script.observed()
    assert [step.samples for step in observed.steps] == [16, 8, 8, 0]
    assert "1 of the last 2 steps read nothing: batches are read ahead, or used again" in observed.remarks


def test_without_a_loader_samples_are_not_known() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.forward()
        script.backward()
        script.update()
    assert [step.samples for step in script.observed().steps] == [None] * 3
