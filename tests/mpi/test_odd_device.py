"""Scripts with bad habits on a simulated accelerator: none hangs or ends for the hooks, and no time is a wrong one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT, BATCH_READY, GRADS_READY
from hpc.observe import events as e
from hpc.observe.device_times import DeviceTimes, with_device_times
from tests.mpi.conftest import further
from tests.mpi.observed import Ended, run

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))

STEPS, ODD_FROM = 60, 30
BETWEEN = {
    e.FORWARD_IN: ("calls", "called"),
    e.BACKWARD_IN: ("called", "returned"),
    e.BACKWARD_OUT: ("backward", "updates"),
    e.UPDATE_OUT: ("updates", "updated"),
}
"""Of a step, the true times of the device's stream between which the device got to events of these kinds."""


def run_odd(folder: Path, words: str) -> tuple[Ended, list[dict[str, int]]]:
    ended = run(folder, "odd_device.py", words, str(folder / "truth.json"))
    assert ended.statuses == [0], ended.errors
    return ended, json.loads((folder / "truth.json").read_text())


def placed(times: DeviceTimes, truth: list[dict[str, int]]) -> Iterator[tuple[int, int, float, float]]:
    """(kind, step, ns too early, ns too late) of each event that the device timed; the last of a kind is of the last
    step, since models are known from the first backward on."""
    for kind, (begin, end) in BETWEEN.items():
        places = [at for at, event in enumerate(times.events) if event.kind == kind]
        for step, at in zip(range(len(truth) - len(places), len(truth)), places, strict=True):
            if at in times.bounds_ns and {begin, end} <= truth[step].keys():
                ns, bound = times.events[at].done_ns, times.bounds_ns[at]
                yield kind, step, truth[step][begin] - ns - bound, ns - truth[step][end] - bound


@pytest.mark.parametrize(
    "words", ["streams+waits", *further("captures", "forks", "synchronizes", "streams", "destroys", "fails")]
)
def test_times_are_true_and_all_there(tmp_path: Path, words: str) -> None:
    """It synchronises each step; has streams for everything; destroys the stream of each step; forks; has no memory; a
    thread of it captures a graph."""
    ended, truth = run_odd(tmp_path, words)
    times = with_device_times(ended.recorded[0])
    judged = list(placed(times, truth))
    assert len(judged) >= len(BETWEEN) * (STEPS - 3)
    assert [each for each in judged if max(each[2:]) > 0] == []
    assert times.remarks == ()


@pytest.mark.parametrize("words", [*further("moves", "moves+keeps")])
def test_a_model_that_moves_away_has_the_times_before_that_and_none_from_then_on(tmp_path: Path, words: str) -> None:
    """Its parameters move, or others take their place and an optimizer keeps these."""
    ended, truth = run_odd(tmp_path, words)
    times = with_device_times(ended.recorded[0])
    judged = list(placed(times, truth))
    assert [each for each in judged if max(each[2:]) > 0] == []
    assert {step for _, step, *_ in judged} == {*range(1, ODD_FROM)} | {0}
    assert any("went from cpu:0 to meta:0" in reason for reason in times.reasons.values())


@pytest.mark.all
def test_a_device_without_events_is_refused_in_words(tmp_path: Path) -> None:
    ended, _ = run_odd(tmp_path, "xpu")
    (observed,) = ended.observed
    assert len(observed.steps) == STEPS
    reasons = {reason for step in observed.steps[1:] for reason in step.absent.values()}
    assert any("no events of xpu are known (of CUDA and ROCm they are)" in reason for reason in reasons)
    assert all(step.stamps[GRADS_READY] == ABSENT for step in observed.steps[1:])


# tests/unit/test_observe_device.py has what is known of a stream.
@pytest.mark.all
@pytest.mark.parametrize(("words", "known"), [("stream", True), ("streams", False)])
def test_how_far_the_host_paces_a_stream_of_the_script(tmp_path: Path, words: str, known: bool) -> None:
    """On a stream that the script begins to use behind the first steps it is known; on three by turns it is not."""
    ended, _ = run_odd(tmp_path, words)
    (observed,) = ended.observed
    assert {bool(step.host_bound_ns) for step in observed.steps[ODD_FROM + 1 : -1]} == {known}


def test_what_has_the_host_wait_for_the_device_is_counted(tmp_path: Path) -> None:
    """item, tolist, cpu twice, float, int, and bool of each comparison with a tensor; not those of a thread."""
    ended, _ = run_odd(tmp_path, "reads")
    (observed,) = ended.observed
    assert {step.syncs for step in observed.steps[ODD_FROM:-1]} == {7}


def test_replays_of_graphs_are_steps_with_one_term_of_compute(tmp_path: Path) -> None:
    """From a step on it replays a graph of 9 ms in place of its forward and backward."""
    ended, truth = run_odd(tmp_path, "replays")
    (observed,) = ended.observed
    assert len(observed.steps) == STEPS
    for number, step in enumerate(observed.steps[ODD_FROM:-1], ODD_FROM):
        begin, end = step.stamps[BATCH_READY], step.stamps[GRADS_READY]
        bound, its = step.bound_ns, truth[number]
        assert truth[number - 1]["requested"] - bound <= begin <= its["returned"] - 9e6 + bound
        assert 9e6 - 2 * bound <= end - begin
        assert its["calls"] + 9e6 - bound <= end <= its["updates"] - 1e6 + bound


def test_a_device_that_fails_under_a_script_that_catches_everything(tmp_path: Path) -> None:
    """The hooks end with the device's error in words, and the script goes on."""
    ended, truth = run_odd(tmp_path, "breaks+catches")
    assert ended.output == ["trained 60 30\n"]
    times = with_device_times(ended.recorded[0])
    assert [each for each in placed(times, truth) if max(each[2:]) > 0] == []
    assert any("unspecified launch failure" in reason for reason in times.reasons.values())


@pytest.mark.parametrize(
    "parallel", ["fsdp2", pytest.param("fsdp1", marks=pytest.mark.all), pytest.param("gathered", marks=pytest.mark.all)]
)
def test_what_a_stream_waits_for_is_no_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: str) -> None:
    """Kernels of 240 ms a step, collectives of 10 ms, some of which overlap: FSDP itself queues on the streams."""
    monkeypatch.setenv("SIMULATED_DEVICE", json.dumps({"collective_ms": 10}))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"steps": 12, "windows": [None]}))
    words = ("--parallel", parallel, "--forward-ms", "20", "--plan", str(plan), "--truth", str(tmp_path / "truth"))
    ended = run(tmp_path, "on_device.py", *words, ranks=2)
    assert ended.statuses == [0, 0], ended.errors
    for observed in ended.observed:
        steps = [step for step in observed.steps[3:12] if not step.absent]
        assert len(steps) >= 6
        for step in steps:
            ready, grads = step.stamps[BATCH_READY], step.stamps[GRADS_READY]
            waits = [(max(call.waits_ns, ready), min(call.ends_ns, grads)) for call in step.collectives]
            waited = sum(max(end - begin, 0) for begin, end in waits)
            assert abs((grads - ready - waited) / 1e6 - 240) < 4
