"""What is read of a script that runs, look by look: what is new, and as the whole of it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from hpc.model.spec import SCRIPT, UNKNOWN
from hpc.model.timestamps import ABSENT
from hpc.model.trace import RankReport
from hpc.observe.events import STEPS_CELL, ProcessEvents, Recorder, read_events
from hpc.observe.stamps import ObservedStep
from hpc.recovery.journal import Journal
from hpc.run import script, script_steps
from hpc.run.live_steps import CONTEXT_RECORDS, CONTEXT_STEPS, MIN_CONTEXT, WIDER, LiveSteps
from hpc.run.script import ScriptRun
from hpc.run.script_steps import pauses_of, read_steps, write_steps
from tests.unit.observed_events import DDP, OTHER, Script
from tests.unit.test_observe_device import Training
from tests.unit.traces import make_run

Move = Callable[[Script, int], object]


class Running:
    """A script whose events go to a file, and the looks at them: `read` is how many events each look read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script, self.recorder, self.live = Script(**DDP), Recorder(str(folder)), LiveSteps(folder)
        self.recorder.state(**DDP)
        self.read: list[int] = []
        self._steps = self._noted = 0

        def counted(path: Path, first: int = 0) -> ProcessEvents:
            recorded = read_events(path, first)
            self.read.append(len(recorded.events))
            return recorded

        monkeypatch.setattr(script_steps, "read_events", counted)

    def train(self, steps: int, move: Move) -> int:
        """So many further steps; how many events they are."""
        for number in range(self._steps, self._steps + steps):
            move(self.script, number)
        self._steps += steps
        new = self.script.events[self._noted :]
        for name in self.script.names:
            self.recorder.name(*name)
        for event in new:
            self.recorder.note(*event[:4])
        self._noted += len(new)
        self.recorder.cells[STEPS_CELL] = self._steps
        return len(new)


def plain(script: Script, number: int) -> None:
    script.collective("all-gather")
    script.step()


def evaluates_at_times(script: Script, number: int) -> None:
    if number in (7, 70, 71, 250):
        script.evaluate()
    script.step()


def rolls_out(script: Script, number: int) -> None:
    if number % 9 == 8:
        script.evaluate(loader=OTHER)
    script.step()


def takes_turns(script: Script, number: int) -> None:
    script.step(optimizer=1)
    script.step(optimizer=2)


def changes(script: Script, number: int) -> None:
    """From step 100 on each has two backwards and another loader."""
    if number >= 100:
        script.micro(OTHER, armed=False)
    script.step()


@pytest.mark.parametrize("move", [plain, evaluates_at_times, rolls_out, takes_turns, changes])
def test_all_looks_together_have_the_steps_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: Move
) -> None:
    running, live = Running(tmp_path, monkeypatch), None
    journal = Journal(tmp_path / "traces", "script_live.1", 0, 500)
    run = make_run(backend=SCRIPT, workload="train.py", batch_size=0, precision=UNKNOWN)
    try:
        for steps in (1, 2, 30, 3, 100, 1, 0, 60, 60):
            running.train(steps, move)
            live = running.live
            live.look()
            first, new = live.new
            count = write_steps(journal, new, run, first=first)
            whole = read_steps(tmp_path).steps
            assert count == max(0, len(whole) - 1)
            assert journal.samples[:count].tolist() == [step.samples for step in whole[:-1]]
            assert journal.samples[count] == ABSENT
            assert journal.stamps[: 6 * count].tolist() == [ns for step in whole[:-1] for ns in step.stamps]
            facts = live.facts(20, 2)
            assert [facts["pauses"], facts["phases"]] == [pauses_of(whole), pauses_of(whole, "phase")]
            assert live.evaluated == len(read_steps(tmp_path).evaluated)
    finally:
        journal.remove()


def test_a_look_reads_what_is_new_and_a_few_steps_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(tmp_path, monkeypatch)
    for _ in range(20):
        new = running.train(100, lambda script, number: script.step())
        running.live.look()
    assert running.read == [new] + 19 * [new + (CONTEXT_STEPS + 1) * new // 100]


def test_of_steps_with_many_events_few_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(script: Script, number: int) -> None:
        for _ in range(CONTEXT_RECORDS // 6):
            script.micro(armed=False)
        script.update()

    running = Running(tmp_path, monkeypatch)
    new = running.train(MIN_CONTEXT * WIDER + 1, move)
    running.live.look()
    running.train(1, move)
    running.live.look()
    assert running.read == [new, (MIN_CONTEXT + 2) * new // (MIN_CONTEXT * WIDER + 1)]


def test_where_too_few_steps_show_what_a_step_is_all_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout before one of nine steps is known as one by four of them."""
    running, looks = Running(tmp_path, monkeypatch), 30
    total = 0
    for _ in range(looks):
        total += running.train(9 * 5, rolls_out)
        running.live.look()
    wide = WIDER * CONTEXT_STEPS * total // (looks * 9 * 5)
    assert sum(running.read) < 2 * total + looks * (wide + total // looks)


def test_a_part_of_what_a_device_noted_is_placed_as_in_the_whole(tmp_path: Path) -> None:
    training, live, steps, read = Training(tmp_path), LiveSteps(tmp_path), list[ObservedStep](), list[int]()
    for part in range(12):
        training.train(60)
        training.recorder.cells[STEPS_CELL] = 60 * (part + 1)
        assert training.clock is not None
        clock = {"name": "cuda:0", "launch_ns": training.clock.launch_ns, **training.clock.facts}
        training.recorder.state(device_clock=clock, **training.facts)
        live.look()
        first, new = live.new
        steps[first:] = new
        read.append(len(live.recorded.steps))
    whole = read_steps(tmp_path).steps
    assert 600 < len(steps) == len(whole) - 1 and max(read[2:]) < 2 * 60
    for live_step, step in zip(steps, whole, strict=False):
        assert (live_step.called_ns, live_step.absent) == (step.called_ns, step.absent)
        bound_ns = live_step.bound_ns + step.bound_ns
        assert all(abs(a - b) <= bound_ns for a, b in zip(live_step.stamps, step.stamps, strict=True))
    assert {live_step.pause for live_step in steps[1:]} == {None}


@pytest.mark.parametrize(("took_s", "steps", "rest_s"), [(0.1, 9, 10), (1, 9, 20), (60, 9, 30), (60, 0, 1200)])
def test_the_journal_of_a_script_that_trains_is_never_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, steps: int, rest_s: float
) -> None:
    running, run = Running(tmp_path, monkeypatch), ScriptRun.__new__(ScriptRun)
    running.train(steps, lambda script, number: script.step())
    run._live, run._report, run._known_unmeasurable = running.live, RankReport(), set()
    run._journal, run._comm = cast("Any", SimpleNamespace(unmeasured=[0])), cast("Any", SimpleNamespace(size=2))
    run._run = make_run(backend=SCRIPT, workload="train.py", batch_size=0, precision=UNKNOWN)
    monkeypatch.setattr(run, "_write", lambda recorded, steps, first: None)
    monkeypatch.setattr(script, "time", SimpleNamespace(monotonic=Mock(side_effect=[1000.0, 1000.0 + took_s])))
    run._store()
    assert run._journal_due_s == pytest.approx(1000 + took_s + rest_s)
