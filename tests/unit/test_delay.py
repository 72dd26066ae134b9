"""The sleeps that are requested of `delay`: when, on which rank, how long, and what was written down of them."""

from __future__ import annotations

from math import log
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.options import OptionError
from hpc.model.timestamps import ABSENT
from hpc.workloads.delay import PHASES, Sleeper, sleeps_of
from hpc.workloads.delays import Delay, parse_delays
from tests.unit.traces import make_run


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("0", [Delay(duration_ms=0)]),
        ("2.5", [Delay(duration_ms=2.5)]),
        ("20@rank=1", [Delay(duration_ms=20, rank=1)]),
        ("5@every=10;from=3", [Delay(duration_ms=5, every=10, first_step=3)]),
        ("50@scatter=0.1", [Delay(duration_ms=50, scatter=0.1)]),
        ("1+4@rank=rotate", [Delay(duration_ms=1), Delay(duration_ms=4, rank="rotate")]),
    ],
)
def test_delays_are_read_as_the_documentation_says(text: str, delays: list[Delay]) -> None:
    assert parse_delays(text) == delays


_NO_DELAYS = [
    "", "soon", "-1", "inf", "nan", "1@rank=x", "1@rank", "1@every=0", "1@colour=2", "1+", "1@rank=0,every=2",
    "1@scatter=-0.1", "1@scatter=nan",
]  # fmt: skip


@pytest.mark.parametrize("text", _NO_DELAYS)
def test_a_malformed_delay_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(OptionError, match="MS@rank=R;every=N;from=S"):
        parse_delays(text)


@given(st.integers(0, 7), st.integers(0, 50), st.integers(1, 5), st.integers(0, 9))
def test_a_delay_for_one_rank_at_an_interval(rank: int, step: int, every: int, first_step: int) -> None:
    due = step >= first_step and (step - first_step) % every == 0
    at_all = Delay(duration_ms=3, every=every, first_step=first_step)
    assert at_all.at(rank, step, 8) == (3 if due else 0)
    on_one = Delay(duration_ms=3, rank=2, every=every, first_step=first_step)
    assert on_one.at(rank, step, 8) == (3 if due and rank == 2 else 0)
    rotating = Delay(duration_ms=3, rank="rotate", every=every, first_step=first_step)
    assert sum(rotating.at(r, step, 8) for r in range(8)) == (3 if due else 0)


def test_a_scattered_delay_has_its_mean_and_deviation_and_is_the_same_again() -> None:
    delay = Delay(duration_ms=50, scatter=0.1)
    drawn = [delay.at(rank, step, 4, "0 1") for rank in range(4) for step in range(500)]
    assert drawn == [delay.at(rank, step, 4, "0 1") for rank in range(4) for step in range(500)]
    assert len({*drawn, *(delay.at(0, step, ranks, "0 2") for step in range(500) for ranks in (2, 4))}) == 3000
    assert mean(drawn) == pytest.approx(50, abs=0.5) and stdev(map(log, drawn)) == pytest.approx(0.1, rel=0.1)
    sleepers = [Sleeper.of(make_run(options={"compute_ms": "50@scatter=0.1"}, repeat=repeat), 0) for repeat in (1, 2)]
    assert sleepers[0]._sleeps_s != sleepers[1]._sleeps_s


def test_requested_sleeps_are_made_and_recorded() -> None:
    slept: list[float] = []
    options = {"data_ms": "1+2@rank=0", "compute_ms": "10", "transfer_ms": "0", "update_ms": "7@rank=1"}
    sleeper = Sleeper(options, rank=0, ranks=2, steps=2, sleep=slept.append)
    sleeper.sleep("data", 1)
    sleeper.sleep("compute", 1, share=0.5)
    first_half = int(sleeper.injected_ns[1, 1])
    sleeper.sleep("compute", 1, share=0.5)
    sleeper.sleep("update", 1)
    assert slept == [0.003, 0.005, 0.005]
    assert sleeper.injected_ns[1, 1] > first_half > 0
    assert sleeper.injected_ns[1, 3] >= 0
    assert sleeper.injected_ns[1, 2] == ABSENT
    assert (sleeper.injected_ns[0] == ABSENT).all()


def test_a_missing_rank_is_refused_but_ignored_in_the_baseline() -> None:
    options = {f"{phase}_ms": "0" for phase in PHASES} | {"compute_ms": "10+30@rank=1"}
    with pytest.raises(OptionError, match="compute_ms: rank 5 is none of the 2 ranks"):
        Sleeper({**options, "compute_ms": "30@rank=5"}, 0, 2, 1)
    slept: list[float] = []
    for rank, ranks in ((0, 1), (1, 2)):
        Sleeper(options, rank, ranks, 1, slept.append).sleep("compute", 0)
    assert slept == [0.01, 0.04]


def test_a_no_sync_run_has_no_sleep_of_the_reduction() -> None:
    options = {f"{phase}_ms": "3" for phase in PHASES}
    assert sleeps_of(make_run(options=options)) == options
    assert sleeps_of(make_run(options=options, reduction="off")) == {**options, "transfer_ms": "0"}
