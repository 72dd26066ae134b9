"""HangWatch, look after look, at times that the test sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.recovery.journal import name_ranks
from hpc.run import rank_state
from launch.jobs.options import RunLimits
from launch.step.watch import TRACE_PATIENCE_S, Hang, HangWatch, RunPhase, RunProgress, describe_hang

LIMITS = RunLimits(start_limit_s=600, hang_steps=10, hang_extra_s=60, copy_s=10)
EVERY_S = 5.0


class Watched:
    """A HangWatch that looks every five seconds; `messages` is what it shows."""

    def __init__(self, limits: RunLimits = LIMITS) -> None:
        self.messages: list[str] = []
        self.now_s = 1000.0
        self._watch = HangWatch(limits, self.now_s, self.messages.append)

    def look(self, seen: RunProgress, late_s: float = 0.0) -> Hang | None:
        self.now_s += EVERY_S + late_s
        return self._watch.look(self.now_s, EVERY_S, seen)

    def until_hang(self, see: Callable[[int], RunProgress], limit_s: float = 5000) -> tuple[Hang | None, float]:
        """Looks until there is a hang or the time is over; with how long that took."""
        begin_s = self.now_s
        beat = 0
        while self.now_s - begin_s < limit_s:
            beat += 1
            if hang := self.look(see(beat)):
                return hang, self.now_s - begin_s
        return None, limit_s


def at_step(*completed: int, median_step_s: float | None = 1.0, steps: int = 120, **others: object) -> RunProgress:
    return RunProgress(completed=dict(enumerate(completed)), steps=steps, median_step_s=median_step_s, **others)  # type: ignore[arg-type]  # passed on


def test_a_late_first_step_is_a_hang() -> None:
    hang, after_s = Watched().until_hang(lambda _: RunProgress())
    assert hang is not None and hang.phase is RunPhase.START
    assert 610 < after_s <= 610 + EVERY_S
    assert (hang.waited_s, hang.limit_s) == (615, 610)


def test_waiting_for_a_step_is_not_the_runs_time() -> None:
    """srun says after a minute that its step is not created, and after an hour that it is."""
    watched = Watched()
    awaited = RunProgress(awaited="Job 7 step creation still disabled, retrying (Requested nodes are busy)")
    for _ in range(12):
        assert watched.look(RunProgress()) is None
    hang, _ = watched.until_hang(lambda _: awaited, limit_s=3600)
    assert hang is None
    hang, after_s = watched.until_hang(lambda _: RunProgress())
    assert hang is not None and 610 < after_s <= 610 + 2 * EVERY_S
    assert watched.messages == [
        "the scheduler has not created the step of this run yet (Job 7 step creation still disabled, retrying "
        "(Requested nodes are busy)): until that changes, time does not count against the run"
    ]


def test_a_late_step_is_a_hang() -> None:
    watched = Watched()
    assert watched.look(at_step(11, 11, 11, 12, local=True)) is None
    hang, after_s = watched.until_hang(lambda _: at_step(12, 13, 13, 13, median_step_s=2.0, local=True))
    assert hang is not None and hang.phase is RunPhase.STEPS
    assert 90 < after_s <= 90 + 2 * EVERY_S
    assert hang.limit_s == 10 * 2 + 60 + 10 and hang.median_step_s == 2.0
    assert (hang.completed, hang.steps) == ({0: 12, 1: 13, 2: 13, 3: 13}, 120)


@pytest.mark.parametrize("seconds_per_step", [1, 60])
def test_a_slow_run_does_not_hang(seconds_per_step: int) -> None:
    watched = Watched()

    def see(look: int) -> RunProgress:
        done = int(look * EVERY_S / seconds_per_step) // 10 * 10  # seen in bursts, as copies come
        return at_step(done, done, median_step_s=float(seconds_per_step), steps=10**6, local=True)

    assert watched.until_hang(see, limit_s=20000)[0] is None
    assert watched.messages == []


def test_the_pace_comes_from_looks_while_stamps_are_on_a_device() -> None:
    watched = Watched()
    for step in range(1, 21):  # a step in ten seconds
        assert watched.look(at_step(step // 2 + 1, median_step_s=None, local=True)) is None
    hang, _ = watched.until_hang(lambda _: at_step(11, median_step_s=None, local=True))
    assert hang is not None and hang.median_step_s is not None
    assert 8 < hang.median_step_s < 12
    assert hang.limit_s == pytest.approx(10 * hang.median_step_s + 60 + 10)


def test_the_end_has_the_limit_of_the_start_until_the_trace_is_written() -> None:
    for seen, limit_s in ((at_step(120, 120, local=True), 610), (RunProgress(trace=True), TRACE_PATIENCE_S + 10)):
        watched = Watched()
        watched.look(at_step(119, 120, local=True))
        hang, after_s = watched.until_hang(lambda _, seen=seen: seen)  # type: ignore[misc]  # bound now
        assert hang is not None and hang.phase is RunPhase.END
        assert limit_s < after_s <= limit_s + 2 * EVERY_S
        assert f"(limit {limit_s:g} s: {limit_s - 10:g} s, 10 s between copies)" in describe_hang(hang, LIMITS)
    watched = Watched()
    ended = at_step(120, 120, local=True)
    assert watched.until_hang(lambda _: ended, limit_s=500)[0] is None  # the trace is being written
    assert watched.until_hang(lambda _: RunProgress(trace=True), limit_s=TRACE_PATIENCE_S)[0] is None
    assert rank_state.EXIT_LIMIT_S + rank_state._OTHERS_END_S < TRACE_PATIENCE_S  # no rank can be alive then


def test_time_while_this_process_was_stopped_does_not_count() -> None:
    """SIGSTOP of the whole job, scontrol suspend, a machine that slept: the look comes late."""
    watched = Watched()
    stuck = at_step(5, local=True)
    watched.look(stuck)
    while watched.now_s < 1000 + 60:
        assert watched.look(stuck) is None
    assert watched.look(stuck, late_s=4000) is None
    assert watched.messages == ["was stopped for 4000 s: the wait restarts"]
    hang, after_s = watched.until_hang(lambda _: stuck)
    assert hang is not None and 80 < after_s <= 80 + 2 * EVERY_S


def test_time_while_the_traces_are_unreadable_does_not_count() -> None:
    watched = Watched()
    stuck, gone = at_step(5, local=True), RunProgress(unreadable="/traces cannot be read (Stale file handle)")
    watched.look(stuck)
    assert watched.until_hang(lambda _: gone)[0] is None
    assert watched.messages == [
        "/traces cannot be read (Stale file handle): until that changes, time does not count against the run"
    ]
    hang, after_s = watched.until_hang(lambda _: stuck)
    assert hang is not None and 60 < after_s <= 80 + 2 * EVERY_S


def test_time_counts_only_while_copies_come() -> None:
    watched = Watched()
    watched.look(at_step(5, beats={"node1": 1, "node2": 1}))
    assert watched.until_hang(lambda _: at_step(5, beats={"node1": 1, "node2": 1}))[0] is None
    assert watched.messages == [
        "no copies come from any node any more: until that changes, time does not count against the run"
    ]
    hang, _ = watched.until_hang(lambda look: at_step(5, beats={"node1": 1 + look, "node2": 1 + look}))
    assert hang is not None and hang.silent_nodes == ()


def test_a_silent_node_extends_the_limit() -> None:
    watched = Watched()
    watched.look(at_step(5, beats={"node1": 1, "node2": 1}))
    hang, after_s = watched.until_hang(lambda look: at_step(5, beats={"node1": 1 + look, "node2": 1}))
    assert hang is not None and hang.silent_nodes == ("node2",)
    assert 600 + 80 < after_s <= 600 + 80 + 2 * EVERY_S


def test_an_invisible_run_does_not_hang() -> None:
    watched = Watched(RunLimits(copy_s=0))
    assert watched.until_hang(lambda _: RunProgress())[0] is None
    assert len(watched.messages) == 1 and "copies are off" in watched.messages[0]
    assert Watched(RunLimits(copy_s=0)).until_hang(lambda _: RunProgress(local=True))[0] is not None


@given(st.lists(st.integers(0, 40), unique=True, min_size=1).map(sorted))
def test_rank_spans_name_every_rank(ranks: list[int]) -> None:
    spans = [span.split("-") for span in name_ranks(ranks).split(" ", 1)[1].split(", ")]
    assert [rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)] == ranks


def test_the_sentence_has_every_figure() -> None:
    hang = Hang(
        phase=RunPhase.STEPS, waited_s=695, limit_s=690, median_step_s=2.0, completed={0: 12, 1: 13, 2: 13}, steps=120,
        silent_nodes=("node2",),
    )  # fmt: skip
    assert describe_hang(hang, LIMITS) == (
        "the run hangs: no rank has completed a step for 695 s (limit 690 s: 10 times the median step of 2 s and 60 s, "
        "10 s between copies, 600 s for a node that may be lost); rank 0 completed 12 of 120, ranks 1-2 completed 13 "
        "of 120 steps; no copies from node2 any more"
    )
    hang = Hang(
        phase=RunPhase.START, waited_s=615, limit_s=610, median_step_s=None, completed={}, steps=0, silent_nodes=()
    )
    assert describe_hang(hang, LIMITS) == (
        "the run hangs: since its start no rank has completed a step for 615 s (limit 610 s: 600 s, 10 s between "
        "copies)"
    )
