"""A trace's stamps on the global clock, with the bound of each rank and step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.clock_model import MAX_DRIFT, WANDER, SyncPoint, estimate
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import open_trace
from tests.unit.synthetic_clocks import SECOND_NS, Path
from tests.unit.traces import make_ranks, make_run, make_trace, put


@dataclass(frozen=True)
class WanderingClock:
    """Runs at another rate in each segment of time; no rate is further than WANDER from the mean of any others."""

    offset_ns: int
    drift: float
    segment_ns: int
    wander: tuple[float, ...]  # of each segment by turns, −1 … 1

    def read(self, true_ns: int) -> int:
        full_segments, rest_ns = divmod(true_ns, self.segment_ns)
        rounds, rest = divmod(full_segments, len(self.wander))
        turns = rounds * sum(self.wander) + sum(self.wander[:rest])
        gained = turns * self.segment_ns + self.wander[rest] * rest_ns
        return true_ns + self.offset_ns + round(true_ns * self.drift + gained * WANDER / 2)


clocks = st.builds(
    WanderingClock,
    offset_ns=st.integers(-1000 * SECOND_NS, 1000 * SECOND_NS),
    drift=st.floats(-50e-6, 50e-6),
    segment_ns=st.integers(SECOND_NS // 10, 30 * SECOND_NS),
    wander=st.lists(st.floats(-1, 1), min_size=1, max_size=5).map(tuple),
)
paths = st.builds(
    Path, out_ns=st.integers(0, 300_000), back_ns=st.integers(0, 300_000), jitter_ns=st.integers(0, 50_000)
)


def trace_of(
    seen: list[WanderingClock | None], path: Path, blocks_s: list[float], seed: int, own_ns: float = 0.0
) -> tuple[Trace, np.ndarray]:
    """A run whose clocks are compared at every border of its blocks, and the truth: [rank, step, stamp] of rank 0.

    `None` is a clock that is rank 0's. Stamps lie anywhere in the run, and a little before and after it.
    """
    rng = np.random.default_rng(seed)
    run = make_run(nodes=len(seen), measured_steps=25)
    borders_ns = np.rint(np.cumsum([1.0, *blocks_s]) * SECOND_NS).astype(np.int64).tolist()
    true_ns = rng.integers(borders_ns[0] - SECOND_NS, borders_ns[-1] + SECOND_NS, (run.ranks, run.steps, len(STAMPS)))
    true_ns.sort(axis=1)
    root = seen[0]
    points, stamps = [], np.empty_like(true_ns)
    for rank, other in enumerate(seen):
        clock = other or root
        stamps[rank] = [[clock.read(int(t)) for t in step] for step in true_ns[rank]]
        if other is None or rank == 0:
            points.append([SyncPoint(clock.read(t), 0.0, 0.0) for t in borders_ns])
        else:
            bursts = [path.burst(clock, root, t, pings=4, seed=seed + rank)[0] for t in borders_ns]
            points.append([estimate(*burst, MAX_DRIFT) for burst in bursts])
    stamps[-1, 3, 2] = ABSENT
    trace = make_trace(
        run,
        stamps=stamps,
        clock_local_ns=np.array([[p.local_ns for p in of_rank] for of_rank in points]),
        clock_offset_ns=np.array([[p.offset_ns for p in of_rank] for of_rank in points]),
        clock_bound_ns=np.array([[p.bound_ns for p in of_rank] for of_rank in points]),
        barrier_exits_ns=np.zeros((run.ranks, 0), np.int64),
        ranks=make_ranks(run, stamp_bound_ns=own_ns),
    )
    truth_ns = np.array([[[root.read(int(t)) for t in step] for step in rank] for rank in true_ns])
    return trace, np.where(stamps == ABSENT, ABSENT, truth_ns)


@given(
    st.lists(clocks, min_size=1, max_size=3),
    paths,
    st.lists(st.floats(0.5, 600), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_every_stamp_of_a_run_in_blocks_is_inside_its_bound(others, path, blocks_s, seed):
    root = WanderingClock(offset_ns=123, drift=0.0, segment_ns=SECOND_NS, wander=(0.0,))
    trace, truth_ns = trace_of([root, *others, None], path, blocks_s, seed)
    ranks, steps, stamps = trace.stamps.shape
    global_ns = trace.global_stamps(0, steps)
    bound_ns = trace.bounds_of(trace.stamps.reshape(ranks, -1)).reshape(trace.stamps.shape)
    present = truth_ns != ABSENT
    assert (np.abs(global_ns - truth_ns)[present] <= bound_ns[present]).all()
    assert (global_ns[~present] == ABSENT).all()
    assert np.isnan(bound_ns[~present]).all()
    assert (bound_ns[0] == 0).all()
    assert (bound_ns[1:-1][present[1:-1]] > 0).all()
    # Piece by piece, stamp by stamp: the same.
    np.testing.assert_array_equal(trace.global_stamps(3, 9), global_ns[:, 3:9])
    for stamp in range(stamps):
        np.testing.assert_array_equal(trace.to_global(stamp), global_ns[:, :, stamp])
        chosen = np.array([4, steps - 1])
        np.testing.assert_array_equal(trace.bounds_ns(stamp, chosen), bound_ns[:, chosen, stamp])


DRIFTING = WanderingClock(offset_ns=10**12, drift=40e-6, segment_ns=SECOND_NS, wander=(0.0,))


def test_the_bound_of_device_stamps_is_added():
    bare, _ = trace_of([DRIFTING, DRIFTING], Path(), [3.0], 0)
    device, _ = trace_of([DRIFTING, DRIFTING], Path(), [3.0], 0, own_ns=700.0)
    local_ns = bare.stamps[:, :, 5]
    assert device.bounds_of(local_ns) == pytest.approx(bare.bounds_of(local_ns) + 700)
    single_rank = make_trace(
        make_run(),
        ranks=make_ranks(make_run(), stamp_bound_ns=40.0),
        clock_local_ns=np.empty((1, 0), np.int64),
        clock_offset_ns=np.empty((1, 0)),
        clock_bound_ns=np.empty((1, 0)),
    )
    bound_ns = single_rank.bounds_of(np.array([[5, ABSENT]]))
    assert bound_ns[0, 0] == 40
    assert np.isnan(bound_ns[0, 1])


def test_the_trace_itself_stays_as_it_was_taken():
    trace, _ = trace_of([DRIFTING, WanderingClock(0, 0.0, SECOND_NS, (0.0,))], Path(), [3.0], 0)
    before = trace.stamps.copy()
    single = make_trace(
        stamps=np.ascontiguousarray(before[:1, :15]),
        clock_offset_ns=np.full((1, 2), 5.0),
        clock_bound_ns=np.ones((1, 2)),
    )
    for whole in (trace, single):
        taken = whole.stamps.copy()
        global_ns = whole.global_stamps(0, taken.shape[1])
        assert (global_ns != taken).any()
        np.testing.assert_array_equal(whole.stamps, taken)


def test_a_trace_in_its_file_gives_the_same_times(tmp_path):
    trace, _ = trace_of([DRIFTING, WanderingClock(0, 0.0, SECOND_NS, (0.0,))], Path(), [3.0, 4.0], 0)
    with open_trace(put(tmp_path, trace)) as lazy:
        np.testing.assert_array_equal(lazy.global_stamps(2, 9), trace.global_stamps(2, 9))
        grads_ready = lazy.stamps[:, 2:9][:, :, 3]
        np.testing.assert_array_equal(lazy.bounds_of(grads_ready), trace.bounds_ns(3, np.arange(2, 9)))


def test_clocks_that_contradict_themselves_name_the_run_and_the_rank():
    trace = make_trace(make_run(nodes=2), clock_offset_ns=np.array([[0.0, 0.0], [0.0, 1e12]]))
    with pytest.raises(TraceError, match=rf"{trace.run_id}: the offset moved .*\(rank 1\)"):
        trace.bounds_of(trace.stamps[:, :, 3])
