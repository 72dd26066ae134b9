"""Steps of a script whose device noted its events, in virtual time: stamps are the device's, and host-bound time."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED
from hpc.observe import device_clock
from hpc.observe import events as e
from hpc.observe.device_clock import DeviceClock
from hpc.observe.events import ProcessEvents, Recorder, read_events
from hpc.observe.stamps import NO_TIMES, HostSpans, ObservedStep, ObservedSteps
from hpc.observe.steps import steps_of
from hpc.run.script_steps import clock_contradiction
from tests.unit.virtual_device import Stream, VirtualDevice, VirtualEvent

MS = 1_000_000
NEAR = 20_000  # ns


class Training:
    """A script that trains on a virtual device by DDP, its hooks' events and when the device really was there."""

    def __init__(self, folder: Path, **device: Any) -> None:
        self.device, self.recorder = VirtualDevice(**device), Recorder(str(folder))
        self.errors: list[Exception] = []
        self.clock: DeviceClock | None = None
        self.true_ns: dict[int, int] = {}
        self.kinds: dict[int, list[int]] = {}  # by kind, when the device was there
        self.facts: dict[str, Any] = {"ddp": True, "size": 2, "joined": True, "devices": ["cuda"]}

    def event(self, kind: int, which: int = 0, number: int = 0) -> int:
        place = self.recorder.note(self.device.clock(), kind, which, number)
        if kind == e.BACKWARD_IN and self.clock is None:
            self.clock = DeviceClock(
                self.recorder, self.device, self.errors.append, self.device.clock, self.device.clock
            )
        if self.clock is not None and kind in e.MARKED:
            pending = len(self.clock._events)
            self.clock.mark(e.cell_of(place))
            if len(self.clock._events) > pending:
                event = self.clock._events[-1][0]
                assert isinstance(event, VirtualEvent) and event.done_ns is not None
                self.true_ns[place] = event.done_ns
                self.kinds.setdefault(kind, []).append(event.done_ns)
        return place

    def fetch(self, ms: float) -> None:
        self.event(e.FETCH_IN, 1)
        self.device.host(ms)
        self.event(e.FETCH_OUT, 1, 8)

    def logged(self, ms: float) -> None:
        """The script waits for its device behind the update, and has something else to do before its next batch."""
        self.event(e.SYNC_IN)
        self.device.wait()
        self.device.host(ms)

    def step(
        self, *, fetch: float = 0.2, python: float = 0.5, kernels: float = 3.0, item: bool = False,
        between: float = 0.0,
    ) -> None:  # fmt: skip
        """Python of a phase, in ms, and the kernels of one; the backward has twice as many. Python `between` two halves
        of a forward's kernels."""
        self.fetch(fetch)
        self.event(e.FORWARD_IN)
        self.event(e.ARMED)
        self.device.work(kernels / 2)
        self.device.host(between)
        self.device.work(kernels / 2)
        self.device.host(python)
        if item:
            self.event(e.SYNC_IN)
            self.device.wait()
        self.event(e.BACKWARD_IN)
        self.device.work(2 * kernels)
        self.device.host(python)
        self.event(e.GRADIENT)
        self.device.work(1)  # what of the reduction is not hidden
        self.event(e.BACKWARD_OUT)
        self.device.host(python)
        self.event(e.UPDATE_IN, 1)
        self.device.work(1)
        self.event(e.UPDATE_OUT, 1)
        if self.clock is not None:
            self.clock.step_completed()

    def train(self, steps: int, **step: Any) -> None:
        """So many steps."""
        for _ in range(steps):
            self.step(**step)

    def replay(self, *, fetch: float = 0.2, kernels: float = 9.0) -> None:
        """A step whose forward and backward are the replay of a graph."""
        self.fetch(fetch)
        self.event(e.REPLAY)
        self.device.work(kernels)
        self.event(e.REPLAY_OUT)
        self.device.host(0.1)
        self.event(e.UPDATE_IN, 1)
        self.device.work(1)
        self.event(e.UPDATE_OUT, 1)
        if self.clock is not None:
            self.clock.step_completed()

    def recorded(self) -> ProcessEvents:
        assert self.clock is not None
        clock = {"name": "cuda:0", "launch_ns": self.clock.launch_ns, **self.clock.facts}
        return read_events(self.recorder.path)._replace(facts={"device_clock": clock, **self.facts})

    def observed(self, *, ended: bool = True) -> ObservedSteps:
        assert self.clock is not None
        if ended:
            self.device.wait()
            self.clock.finish()
        return steps_of(self.recorded())


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def part(step: ObservedStep, first: int, last: int) -> float:
    """Between two stamps, ms."""
    assert ABSENT not in (step.stamps[first], step.stamps[last])
    return (step.stamps[last] - step.stamps[first]) / MS


def test_the_stamps_are_the_devices_however_far_the_host_is_ahead(training: Training) -> None:
    training.train(60)
    steps = training.observed().steps
    assert len(steps) == 60 and not any(step.absent for step in steps[1:])
    for number, step in enumerate(steps[1:], 1):
        true = [training.kinds[kind] for kind in (e.FETCH_IN, e.FORWARD_IN, e.BACKWARD_IN, e.GRADIENT, e.BACKWARD_OUT)]
        # The first fetch and forward came before the device's clock.
        expected = [true[0][number - 1], true[1][number - 1], *(its[number] for its in true[2:])]
        assert all(abs(a - b) <= step.bound_ns for a, b in zip(step.stamps[:END], expected, strict=True))
        assert 0 < step.bound_ns < NEAR
    late = steps[30]
    fetches = [event.ns for event in training.recorded().events if event.kind == e.FETCH_IN]
    assert late.called_ns == (fetches[30], fetches[31])  # far ahead of its stamps
    assert late.called_ns[1] < late.stamps[BEGIN] - 100 * MS
    assert part(late, BEGIN, BATCH_READY) < 0.02
    assert part(late, BATCH_READY, FORWARD_END) == pytest.approx(3, abs=0.03)
    assert part(late, FORWARD_END, GRADS_READY) == pytest.approx(6, abs=0.03)
    assert part(late, GRADS_READY, REDUCED) == pytest.approx(1, abs=0.03)
    assert part(late, REDUCED, END) == pytest.approx(1, abs=0.03)
    assert late.loader_ns < 0.02 * MS  # the device does not idle for the loader


def test_a_slow_loader_is_data_once_the_host_is_no_longer_ahead(training: Training) -> None:
    training.train(30, fetch=20)
    step = training.observed().steps[20]
    data = part(step, BEGIN, BATCH_READY)
    # The host fetches for 20 ms; meanwhile the device still works for 9.5.
    assert data == pytest.approx(10.5, abs=0.1)
    assert step.loader_ns / MS == pytest.approx(10.5, abs=0.1) and step.loader_ns <= data * MS + 1


def test_steps_that_the_device_was_not_seen_to_end_are_no_steps(training: Training) -> None:
    training.train(40)
    observed = training.observed(ended=False)  # killed
    assert training.clock is not None
    assert 0 < len(observed.steps) < 30
    assert not any(step.absent or step.pause for step in observed.steps[1:])


def test_where_events_ran_out_whole_steps_are_in_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_clock, "MAX_EVENTS", 512)
    training = Training(tmp_path, ahead_ms=1e6)
    training.train(110, kernels=100)
    training.device.wait()
    training.train(60, python=10)
    observed = training.observed()
    without = [number for number, step in enumerate(observed.steps) if step.absent]
    assert without and without == list(range(without[0], without[-1] + 1))
    paused = [number for number, step in enumerate(observed.steps) if step.pause is not None]
    assert paused == [*without, without[-1] + 1]
    assert {step.pause.kind for step in observed.steps if step.pause} == {NO_TIMES}
    for step in observed.steps:
        stamps = [stamp for stamp in step.stamps if stamp != ABSENT]
        assert stamps == sorted(stamps)
    assert any("pool of device events was used up" in remark for remark in observed.remarks)


def test_collectives_on_a_stream_aside_are_exposed_where_the_training_waits(training: Training) -> None:
    training.facts |= {"ddp": False, "sharded": True}
    gather, scatter = training.recorder.name("all-gather"), training.recorder.name("reduce-scatter")
    training.device.stream = compute = Stream()
    aside = Stream()
    device = training.device

    def collective(which: int, ms: float) -> int:
        """On a stream of its own, which waits for the compute stream and for the result."""
        aside.free_ns = max(aside.free_ns, compute.free_ns)
        device.stream = aside
        place = training.event(e.COLLECTIVE_IN, which, 64)
        device.work(ms)
        training.event(e.COLLECTIVE_OUT, which, place)
        device.stream = compute
        return place

    for _ in range(30):
        training.fetch(0.1)
        training.event(e.FORWARD_IN)
        place = collective(gather, 4)
        device.work(1)
        training.event(e.COLLECTIVE_WAIT, gather, place)
        compute.free_ns = max(compute.free_ns, aside.free_ns)
        training.event(e.COLLECTIVE_OUT, gather, place)
        device.work(5)
        training.event(e.BACKWARD_IN)
        device.work(10)
        collective(scatter, 3)
        device.work(1)
        compute.free_ns = max(compute.free_ns, aside.free_ns)
        training.event(e.BACKWARD_OUT)
        training.event(e.UPDATE_OUT, 1)
        if training.clock is not None:
            training.clock.step_completed()
    step = training.observed().steps[20]
    gathered, scattered = step.collectives
    assert (gathered.ends_ns - gathered.waits_ns) / MS == pytest.approx(3, abs=0.1)
    assert gathered.arrives_ns == pytest.approx(step.stamps[BATCH_READY], abs=NEAR)
    assert scattered.waits_ns == scattered.ends_ns == ABSENT
    assert step.stamps[GRADS_READY] == scattered.arrives_ns
    assert part(step, GRADS_READY, REDUCED) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("clock", "text"),
    [
        ({"refused": "no events of mps are known"}, "not when it was done: no events of mps are known"),
        ({"failed": "RuntimeError: no"}, "not when it was done: RuntimeError: no"),
        ({}, "not when it was done"),
    ],
)
def test_a_device_without_events_is_refused_by_name(training: Training, clock: dict[str, str], text: str) -> None:
    training.train(5)
    recorded = training.recorded()
    observed = steps_of(recorded._replace(device=(), facts={**training.facts, "device_clock": clock}))
    assert all(reason.endswith(text) for step in observed.steps[1:] for reason in step.absent.values())
    assert set(observed.absent) == {"forward_end", "grads_ready", "reduced"}


def test_a_device_that_is_lost_leaves_the_steps_before_that(training: Training) -> None:
    for number in range(60):
        if number == 40 and training.clock is not None:
            training.clock.fail(RuntimeError("CUDA error: an illegal memory access"))
        training.step(python=6)
    facts = training.recorded().facts
    training.facts["device_clock"] = {**facts["device_clock"], "failed": "RuntimeError: CUDA error"}
    observed = training.observed(ended=False)
    assert len(observed.steps) == 60
    assert not any(step.absent for step in observed.steps[1:38])
    assert all("RuntimeError: CUDA error" in step.absent["reduced"] for step in observed.steps[40:])


def paced(step: ObservedStep) -> list[float]:
    """How long the host set the pace, by phase, ms."""
    return [ns / MS for ns in step.host_bound_ns]


def test_a_device_that_is_always_busy_waits_for_no_host(training: Training) -> None:
    training.train(40)
    for step in training.observed().steps[3:30]:
        assert sum(paced(step)) < 0.1


def test_python_that_takes_longer_than_its_kernels_paces_the_step(training: Training) -> None:
    training.train(40, python=10, kernels=1)
    step = training.observed().steps[30]
    data, compute, reduction, optimizer = paced(step)
    assert data == pytest.approx(part(step, BEGIN, BATCH_READY), abs=0.05)
    assert compute == pytest.approx(10 + 10, abs=1.1)  # less what the device still has of the update
    assert reduction < 0.1
    assert optimizer == pytest.approx(10 - 1, abs=1.1)  # less the update itself


def test_python_with_kernels_queued_behind_it_may_be_what_the_device_waits_for(training: Training) -> None:
    def late_forward() -> None:
        training.fetch(0.1)
        training.event(e.FORWARD_IN)
        training.event(e.ARMED)
        training.device.work(0.5)
        training.device.host(10)  # nothing is recorded here
        training.device.work(5)
        for kind in (e.BACKWARD_IN, e.GRADIENT, e.BACKWARD_OUT, e.UPDATE_OUT):
            training.event(kind, 1 if kind == e.UPDATE_OUT else 0)
        if training.clock is not None:
            training.clock.step_completed()

    for _ in range(40):
        late_forward()
    step = training.observed().steps[30]
    assert sum(spans(training).idle_ns) / MS == pytest.approx(5, abs=0.2)
    assert sum(step.host_bound_ns) < NEAR


def test_a_host_under_load_paces_its_device_as_before(training: Training) -> None:
    """From then on it mostly takes ten times as long until the device gets to see what is queued, sometimes not."""
    for number in range(400):
        if number == 100:
            training.device.launches_ns = cycle([80_000, 80_000, 80_000, 80_000, 6_000])
        training.step(python=10, kernels=1)
    early, late = (paced(training.observed().steps[number]) for number in (90, 390))
    assert sum(late) == pytest.approx(sum(early), rel=0.05)


def test_kernels_that_the_script_waits_for_are_not_the_hosts(training: Training) -> None:
    training.train(40, kernels=20, item=True)
    step = training.observed().steps[30]
    data, compute, _, _ = paced(step)
    assert part(step, BATCH_READY, FORWARD_END) == pytest.approx(20, abs=0.6)
    assert data + compute < 1.2  # the device idles while Python runs behind `.item()`
    assert step.syncs == 1


def spans(training: Training) -> HostSpans:
    its = training.observed().steps[30].host_spans
    assert its is not None
    return its


def test_python_between_kernels_shows_in_how_long_the_device_can_have_idled(training: Training) -> None:
    training.train(40, kernels=4, between=20)  # a step of 22 ms, of which the device has 14 ms to do
    its = spans(training)
    assert paced(training.observed().steps[30])[1] < 0.1
    assert its.host_ns[1] / MS == pytest.approx(21.1, abs=0.3)
    assert 8 <= its.idle_ns[1] / MS < 8 + 3
    assert its.ahead_ns[1] / MS == pytest.approx(1.5, abs=0.1)


def test_a_host_that_a_full_queue_holds_back_never_has_its_device_wait(tmp_path: Path) -> None:
    training = Training(tmp_path, ahead_ms=40)
    training.train(40, kernels=5)
    its = spans(training)
    assert sum(its.idle_ns) == 0
    assert sum(its.host_ns) / MS == pytest.approx(17, abs=0.5)  # as long as the device takes
    assert min(its.ahead_ns[1:]) / MS > 20


def test_what_a_script_does_behind_its_update_is_of_the_step_that_it_ends(training: Training) -> None:
    for _ in range(40):
        training.step(kernels=5)
        training.logged(8)
    step = training.observed().steps[30]
    assert step.syncs == 1
    assert paced(step)[3] == pytest.approx(8, abs=0.1)
    assert step.host_spans is not None and step.host_spans.host_ns[3] / MS == pytest.approx(8 + 0.5, abs=0.1)


def test_compiled_autograd_and_replays_of_graphs_are_refused_by_name(training: Training) -> None:
    training.train(5)
    training.facts["compiled_autograd"] = True
    assert {*training.observed().absent.values()} == {"compiled autograd calls no hook where a gradient is complete"}
    replays = [e.HookEvent(at, e.REPLAY) for at in range(1, 4)]
    reason = steps_of(ProcessEvents(process=1, events=replays, facts={}, names=())).reason
    assert reason.startswith("3 replays of CUDA graphs were seen")


@pytest.mark.parametrize("ahead_ms", [0.0, 100.0])
def test_the_replay_of_a_graph_is_a_step_of_which_compute_is_one_term(tmp_path: Path, ahead_ms: float) -> None:
    training = Training(tmp_path, ahead_ms=ahead_ms)
    training.facts |= {"ddp": False, "size": 1}
    for number in range(40):
        if number < 5:
            training.step()
        else:
            training.replay()
    observed = training.observed()
    assert len(observed.steps) == 40
    for step in observed.steps[6:39]:
        assert step.absent == {"forward_end": "forward and backward are replays of CUDA graphs"}
        assert step.samples == 8
        assert part(step, BATCH_READY, GRADS_READY) == pytest.approx(9, abs=0.1)
        assert step.stamps[REDUCED] == step.stamps[GRADS_READY]
        assert part(step, REDUCED, END) == pytest.approx(1, abs=0.3)


def test_of_several_ranks_a_replayed_graph_reduces_the_gradients_itself(training: Training) -> None:
    for number in range(20):
        if number < 5:
            training.step()
        else:
            training.replay()
    for step in training.observed().steps[6:19]:
        assert {*step.absent} == {"forward_end", "grads_ready"}
        assert step.absent["grads_ready"].endswith(", which reduce the gradients, too")
        assert part(step, BATCH_READY, REDUCED) == pytest.approx(9, abs=0.1)


def test_without_a_step_that_the_device_ended_the_reason_is_the_devices(tmp_path: Path) -> None:
    training = Training(tmp_path, ahead_ms=1e6)
    training.train(3, kernels=1000)
    observed = training.observed(ended=False)
    assert observed.steps == () and observed.reason == "the device was not seen to end a step"


@pytest.mark.parametrize("by_ns", [-(10**11), 3 * MS, -3 * MS])
def test_steps_that_a_jump_of_the_devices_clock_leaves_without_times_are_counted(
    training: Training, by_ns: int
) -> None:
    for number in range(200):
        if number == 100:
            training.device.jumped_ns = by_ns
        training.step(python=5)
    observed = training.observed()
    its = clock_contradiction(observed)
    assert its is not None and its["off_ns"] == pytest.approx(abs(by_ns), abs=max(0.3 * MS, 0.01 * abs(by_ns)))
    if by_ns < -1000 * MS:
        assert observed.steps == () and "contradict each other" in observed.reason
    else:
        assert 0 < its["steps"] < its["of_steps"] == len(observed.steps)
