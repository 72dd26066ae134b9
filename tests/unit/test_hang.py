"""When a run hangs: the judgement, look after look, in a time that the test tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.recovery.progress import name_ranks
from launch.jobs.options import RunLimits
from launch.step.hang import Hang, HangWatch, Phase, Seen, by_steps

LIMITS = RunLimits(start_limit_s=600, hang_steps=10, hang_extra_s=60, copy_s=10)
EVERY_S = 5.0


class Watched:
    """A HangWatch whose looks are taken every five seconds of a time that the test tells."""

    def __init__(self, limits: RunLimits = LIMITS) -> None:
        self.said: list[str] = []
        self.now_s = 1000.0
        self._watch = HangWatch(limits, self.now_s, self.said.append)

    def look(self, seen: Seen, late_s: float = 0.0) -> Hang | None:
        self.now_s += EVERY_S + late_s
        return self._watch.look(self.now_s, EVERY_S, seen)

    def until_hang(self, see: Callable[[int], Seen], limit_s: float = 5000) -> tuple[Hang | None, float]:
        """Looks until there is a hang or the time is over; with how long that took."""
        begin_s = self.now_s
        beat = 0
        while self.now_s - begin_s < limit_s:
            beat += 1
            if hang := self.look(see(beat)):
                return hang, self.now_s - begin_s
        return None, limit_s


def at_step(*completed: int, median_step_s: float | None = 1.0, steps: int = 120, **others: object) -> Seen:
    return Seen(completed=dict(enumerate(completed)), steps=steps, median_step_s=median_step_s, **others)  # type: ignore[arg-type]  # passed on


def test_no_first_step_within_the_limit_of_the_start_is_a_hang() -> None:
    hang, after_s = Watched().until_hang(lambda _: Seen())
    assert hang is not None and hang.phase is Phase.START
    assert 610 < after_s <= 610 + EVERY_S
    assert hang.text.startswith("the run hangs: since its start no rank has completed a step for 615 s")
    assert hang.text.endswith("(limit 610 s: 600 s, 10 s between copies)")


def test_ten_median_steps_and_a_minute_without_a_step_are_a_hang() -> None:
    watched = Watched()
    assert watched.look(at_step(11, 11, 11, 12, local=True)) is None
    hang, after_s = watched.until_hang(lambda _: at_step(12, 13, 13, 13, median_step_s=2.0, local=True))
    assert hang is not None and hang.phase is Phase.STEPS
    assert 90 < after_s <= 90 + 2 * EVERY_S
    assert hang.limit_s == 10 * 2 + 60 + 10 and hang.median_step_s == 2.0
    assert "(limit 90 s: 10 times the median step of 2 s and 60 s, 10 s between copies)" in hang.text
    assert hang.text.endswith("rank 0 completed 12 of 120, ranks 1-3 completed 13 of 120 steps")


@pytest.mark.parametrize("seconds_per_step", [1, 60])
def test_a_run_that_makes_steps_never_hangs_however_long_they_take(seconds_per_step: int) -> None:
    watched = Watched()

    def see(look: int) -> Seen:
        done = int(look * EVERY_S / seconds_per_step) // 10 * 10  # seen in bursts, as copies come
        return at_step(done, done, median_step_s=float(seconds_per_step), steps=10**6, local=True)

    assert watched.until_hang(see, limit_s=20000)[0] is None
    assert watched.said == []


def test_the_pace_is_what_was_seen_while_stamps_are_on_a_device() -> None:
    watched = Watched()
    for step in range(1, 21):  # a step in ten seconds
        assert watched.look(at_step(step // 2 + 1, median_step_s=None, local=True)) is None
    hang, _ = watched.until_hang(lambda _: at_step(11, median_step_s=None, local=True))
    assert hang is not None and hang.median_step_s is not None
    assert 8 < hang.median_step_s < 12
    assert hang.limit_s == pytest.approx(10 * hang.median_step_s + 60 + 10)


def test_the_end_has_the_limit_of_the_start() -> None:
    for seen in (at_step(120, 120, local=True), Seen(trace=True)):
        watched = Watched()
        watched.look(at_step(119, 120, local=True))
        hang, after_s = watched.until_hang(lambda _, seen=seen: seen)  # type: ignore[misc]  # bound now
        assert hang is not None and hang.phase is Phase.END
        assert 610 < after_s <= 610 + 2 * EVERY_S
        assert "all steps are completed, and the ranks have not ended" in hang.text


def test_time_in_which_this_process_was_stopped_does_not_count() -> None:
    """SIGSTOP of the whole job, scontrol suspend, a machine that slept: the look comes late."""
    watched = Watched()
    stuck = at_step(5, local=True)
    watched.look(stuck)
    while watched.now_s < 1000 + 60:
        assert watched.look(stuck) is None
    assert watched.look(stuck, late_s=4000) is None
    assert watched.said == ["was stopped for 4000 s: the wait starts anew"]
    hang, after_s = watched.until_hang(lambda _: stuck)
    assert hang is not None and 80 < after_s <= 80 + 2 * EVERY_S


def test_time_in_which_the_traces_cannot_be_read_does_not_count() -> None:
    watched = Watched()
    stuck, gone = at_step(5, local=True), Seen(unreadable="/traces cannot be read (Stale file handle)")
    watched.look(stuck)
    assert watched.until_hang(lambda _: gone)[0] is None
    assert watched.said == [
        "/traces cannot be read (Stale file handle): until that changes, time does not count against the run"
    ]
    hang, after_s = watched.until_hang(lambda _: stuck)
    assert hang is not None and 60 < after_s <= 80 + 2 * EVERY_S


def test_time_without_copies_does_not_count_and_with_copies_does() -> None:
    watched = Watched()
    watched.look(at_step(5, beats={"node1": 1, "node2": 1}))
    assert watched.until_hang(lambda _: at_step(5, beats={"node1": 1, "node2": 1}))[0] is None
    assert watched.said == ["no node's copies come any more: until that changes, time does not count against the run"]
    hang, _ = watched.until_hang(lambda look: at_step(5, beats={"node1": 1 + look, "node2": 1 + look}))
    assert hang is not None and hang.silent_nodes == ()


def test_a_silent_node_leaves_the_scheduler_time_to_say_that_it_is_lost() -> None:
    watched = Watched()
    watched.look(at_step(5, beats={"node1": 1, "node2": 1}))
    hang, after_s = watched.until_hang(lambda look: at_step(5, beats={"node1": 1 + look, "node2": 1}))
    assert hang is not None and hang.silent_nodes == ("node2",)
    assert 600 + 80 < after_s <= 600 + 80 + 2 * EVERY_S
    assert hang.text.endswith("nothing is heard of node2 any more")


def test_without_copies_and_without_ranks_here_nothing_is_known_and_nothing_ended() -> None:
    watched = Watched(RunLimits(copy_s=0))
    assert watched.until_hang(lambda _: Seen())[0] is None
    assert len(watched.said) == 1 and "copies are off" in watched.said[0]
    assert Watched(RunLimits(copy_s=0)).until_hang(lambda _: Seen(local=True))[0] is not None


@given(st.lists(st.integers(0, 40), unique=True, min_size=1).map(sorted))
def test_ranks_named_in_spans_are_these_ranks(ranks: list[int]) -> None:
    spans = [span.split("-") for span in name_ranks(ranks).split(" ", 1)[1].split(", ")]
    assert [rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)] == ranks


def test_ranks_are_grouped_by_their_steps_the_fewest_first() -> None:
    assert by_steps({0: 13, 1: 13, 2: 12, 3: 13}) == {12: "rank 2", 13: "ranks 0-1, 3"}
