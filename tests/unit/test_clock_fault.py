"""hpc.model.clock_model: a slewed clock is called slewed, a stepped one stepped, and points that do not tell say so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.model.clock_model import (
    MAX_DRIFT,
    ClockError,
    ClockModel,
    FaultKind,
    SyncPoint,
    clock_fault,
    estimate,
    fault_text,
)
from tests.unit.synthetic_clocks import SECOND_NS, Path, SyntheticClock

SLEWED, STEPPED, UNKNOWN = FaultKind.SLEWED, FaultKind.STEPPED, FaultKind.UNKNOWN
MS = 1_000_000


def points_of(child: SyntheticClock, at_s: Sequence[float], root: SyntheticClock | None = None) -> list[SyncPoint]:
    """Synchronisation points at these true times; messages take 5 µs each way and a little more."""
    root = root or SyntheticClock()
    bursts = [Path().burst(child, root, round(s * SECOND_NS), seed=at)[0] for at, s in enumerate(at_s)]
    return [estimate(*burst, MAX_DRIFT) for burst in bursts]


def slewed(rate: float, since_s: float = 0.0, **more: float) -> SyntheticClock:
    return SyntheticClock(slew=rate, slew_at_ns=since_s * SECOND_NS, **more)


def stepped(ms: float, at_s: float, **more: float) -> SyntheticClock:
    return SyntheticClock(step_ns=round(ms * MS), step_at_ns=at_s * SECOND_NS, **more)


@pytest.mark.parametrize(
    ("child", "at_s", "kind", "moved_ms", "span_s"),
    [
        # The run ends at its second synchronisation, and the clocks are compared once more a second later.
        (slewed(500e-6, since_s=2), (0, 2, 12, 13), SLEWED, -5.5, 11),
        (slewed(500e-6), (0, 0.01, 10, 11), SLEWED, -0.5 * 10.99, 10.99),  # the first two prove nothing
        (stepped(3.0, 7), (0, 2, 12, 13), STEPPED, -3.0, 10),
        (slewed(500e-6), (0, 2), UNKNOWN, -1.0, 2),  # two points
        (stepped(1.0, 1), (0, 2), UNKNOWN, -1.0, 2),
        (stepped(1.0, 1), (0, 2, 2.01), UNKNOWN, -1.0, 2),  # a last interval too short to prove anything
    ],
)  # fmt: skip
def test_what_moved_the_offset(
    child: SyntheticClock, at_s: Sequence[float], kind: FaultKind, moved_ms: float, span_s: float
) -> None:
    points = points_of(child, at_s)
    with pytest.raises(ClockError, match="moved"):
        ClockModel.of(points)
    fault = clock_fault(points)
    assert fault is not None and fault.kind is kind
    assert abs(fault.moved_ns / 1e6 - moved_ms) <= fault.bound_ns / 1e6 + 0.01
    assert fault.span_ns / SECOND_NS == pytest.approx(span_s, rel=0.05)  # by a clock that was stepped
    assert fault.rate == pytest.approx(moved_ms / span_s / 1e3, rel=0.05, abs=20e-6)


@given(st.floats(-190e-6, 190e-6), st.lists(st.floats(0.001, 20), min_size=1, max_size=5))
@settings(deadline=None)
def test_a_clock_that_only_drifts_has_no_fault(drift: float, pauses_s: list[float]) -> None:
    at_s = [sum(pauses_s[:count]) for count in range(len(pauses_s) + 1)]
    assert clock_fault(points_of(SyntheticClock(drift=drift), at_s)) is None


@given(st.sampled_from((-1, 1)), st.floats(320e-6, 500e-6), st.floats(-50e-6, 50e-6), st.floats(1, 60))
@settings(deadline=None)
def test_a_slewed_clock_is_never_called_stepped(sign: int, rate: float, drift: float, pause_s: float) -> None:
    fault = clock_fault(points_of(slewed(sign * rate, drift=drift), (0, pause_s, pause_s + 1)))
    assert fault is not None and fault.kind is SLEWED
    assert fault.rate == pytest.approx(-(sign * rate + drift), abs=1e-6 + fault.bound_ns / fault.span_ns)


@given(st.sampled_from((-1, 1)), st.floats(0.5, 5000), st.floats(-50e-6, 50e-6), st.floats(0.1, 1))
@settings(deadline=None)
def test_a_stepped_clock_is_never_called_slewed(sign: int, ms: float, drift: float, pause_s: float) -> None:
    child = stepped(sign * ms, pause_s / 2, drift=drift)
    fault = clock_fault(points_of(child, (0, pause_s, pause_s + 1)))
    assert fault is not None and fault.kind is STEPPED
    assert abs(abs(fault.moved_ns) / 1e6 - ms) <= fault.bound_ns / 1e6 + 0.05


@pytest.mark.parametrize(
    ("child", "at_s", "text"),
    [
        (slewed(500e-6), (0, 2, 3), "slewed: it gains 500 ppm, 1.500 ms in 3.0 s, and goes on"),
        (slewed(-500e-6), (0, 2, 3), "slewed: it loses 500 ppm"),
        (stepped(500.0, 1), (0, 2, 3), "stepped or suspended: it went ahead by 500.0"),
        (stepped(-50.0, 1), (0, 2, 3), "stepped or suspended, or slewed for a part of that time: it fell back by 50.0"),
        (stepped(1.0, 1), (0, 2), "slewed, so that it gains 50"),
    ],
)  # fmt: skip
def test_the_text_has_the_figures(child: SyntheticClock, at_s: Sequence[float], text: str) -> None:
    fault = clock_fault(points_of(child, at_s))
    assert fault is not None
    assert fault_text(fault).startswith(text)
