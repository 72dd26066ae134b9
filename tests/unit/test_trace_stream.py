"""open_trace: the stamps stay in the file, and ranges of steps equal those of the whole trace."""

from __future__ import annotations

import errno
import tracemalloc

import h5py
import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, END, GRADS_READY
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import open_trace, read_trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.verdicts import verdict
from parse.runs.load import load
from tests.unit.simulated import draw_clocks, equal_ranks, simulate
from tests.unit.test_trace import assert_equal
from tests.unit.traces import make_run, make_trace, put


def drawn_trace(steps: int = 60, absent: float = 0.01) -> Trace:
    generator = np.random.default_rng(0)
    run = make_run(nodes=3, ranks_per_node=2, measured_steps=steps - 10, block_steps=25, warmup_steps=10)
    missing = generator.random((run.ranks, run.steps, 6)) < absent
    durations = equal_ranks(generator, run.ranks, run.steps)
    return simulate(run, durations, draw_clocks(generator, 3), generator, absent=missing).trace


def test_all_is_there_as_in_a_trace_that_is_read(tmp_path):
    path = put(tmp_path, drawn_trace())
    whole = read_trace(path)
    with open_trace(path) as opened:
        assert opened.stamps.shape == whole.stamps.shape
        assert opened.stamps.dtype == np.int64
        for name in ("stamps", "samples", "losses"):
            object.__setattr__(opened, name, getattr(opened, name)[:, :])
        assert_equal(opened, whole)


@pytest.mark.parametrize("pieces", [[(0, 1)], [(0, 65)], [(64, 65)], [(3, 20), (20, 64)], [(7, 7)], [(60, 1000)]])
def test_a_range_of_steps_equals_that_of_the_whole_trace(tmp_path, pieces):
    path = put(tmp_path, drawn_trace())
    whole = read_trace(path)
    assert whole.stamps.shape[1] == 65
    with open_trace(path) as opened:
        for first, stop in pieces:
            np.testing.assert_array_equal(opened.stamps[:, first:stop], whole.stamps[:, first:stop])
            np.testing.assert_array_equal(opened.stamps[:, first:stop, END], whole.stamps[:, first:stop, END])
            np.testing.assert_array_equal(opened.global_stamps(first, stop), whole.global_stamps(first, stop))


def test_stamps_that_are_not_requested_are_absent(tmp_path):
    trace = drawn_trace()
    which = [range(stamp, stamp + 1) for stamp in (GRADS_READY, END)]
    some_ns, all_ns = trace.stamps_globally(trace.stamps, which), trace.global_stamps(0, 65)
    for stamp in range(6):
        expected = all_ns[..., stamp] if stamp in (GRADS_READY, END) else ABSENT
        assert (some_ns[..., stamp] == expected).all()
    np.testing.assert_array_equal(trace.stamps, drawn_trace().stamps)


def unreadable(*_: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(("read", "words"), [(lambda *_: 0, "cut off inside"), (unreadable, "cannot be read")])
def test_a_trace_that_fails_while_it_is_loaded_is_refused_by_name(tmp_path, monkeypatch, read, words):
    path = put(tmp_path, drawn_trace())
    monkeypatch.setattr("hpc.model.trace_file.os.preadv", read)
    loaded = load([path])
    assert not loaded.attempts
    assert any(path.name in refusal and words in refusal for refusal in loaded.refusals)


def test_ranges_of_meetings_are_read_from_the_file(tmp_path):
    run = make_run(ranks_per_node=2)
    meetings = np.arange(2 * run.steps * 9, dtype=np.int64).reshape(2, run.steps, 3, 3)
    names = ["features", "maximum", "sums"]
    trace = make_trace(run, meetings=meetings, meeting_names=names, meeting_roots=[-1] * 3)
    with open_trace(put(tmp_path, trace)) as opened:
        assert opened.meetings is not None
        assert opened.meetings.shape == meetings.shape and opened.meeting_names == trace.meeting_names
        np.testing.assert_array_equal(opened.meetings[:, 3:9], meetings[:, 3:9])


def test_the_ledger_of_a_trace_in_its_file_equals_that_of_the_whole(tmp_path):
    trace = drawn_trace(steps=200, absent=0.0)
    whole = step_breakdown(trace)
    with open_trace(put(tmp_path, trace)) as opened:
        breakdown = step_breakdown(opened)
    assert verdict(breakdown) == verdict(whole)
    np.testing.assert_array_equal(breakdown.rank_ns, whole.rank_ns)
    np.testing.assert_array_equal(breakdown.piece_ns, whole.piece_ns)


def test_a_piece_is_written_to_without_harm_to_the_file(tmp_path):
    path = put(tmp_path, drawn_trace())
    with open_trace(path) as opened:
        opened.stamps[:, 5:9][:] = 0
        np.testing.assert_array_equal(opened.stamps[:, 5:9], read_trace(path).stamps[:, 5:9])


def test_other_pieces_than_ranges_of_steps_are_refused(tmp_path):
    path = put(tmp_path, make_trace())
    with open_trace(path) as opened:
        for index in ((0, slice(None)), (slice(None), slice(0, 9, 2)), (slice(1), slice(9)), (slice(None),) * 3):
            with pytest.raises(IndexError, match=r"\[:, first:stop\]"):
                opened.stamps[index]


def test_only_requested_steps_are_in_memory(tmp_path):
    path = put(tmp_path, drawn_trace(steps=3000))
    whole_bytes = read_trace(path).stamps.nbytes
    tracemalloc.start()
    try:
        with open_trace(path) as opened:
            before_bytes = tracemalloc.get_traced_memory()[0]
            for first in range(0, 3000, 30):
                opened.global_stamps(first, first + 30)
            peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes - before_bytes < whole_bytes / 10


def test_stamps_that_another_tool_has_compressed_are_refused_with_what_to_do(tmp_path):
    expected = drawn_trace()
    path = put(tmp_path, expected)
    with h5py.File(path, "r+") as file:
        del file["stamps"]
        file.create_dataset("stamps", data=expected.stamps, chunks=(2, 10, 6), compression="gzip")
    with (
        pytest.raises(TraceError, match=r"stamps is chunked or compressed.*h5repack -l CONTI -f NONE"),
        open_trace(path),
    ):
        pass


def test_a_file_that_is_no_trace_or_is_cut_is_refused_by_name(tmp_path):
    path = put(tmp_path, drawn_trace())
    with h5py.File(path) as file:
        stamps_begin = file["stamps"].id.get_offset()
    for length, words in ((0, "is empty"), (100, "damaged|HDF5|cut off"), (stamps_begin + 1000, "cut off|truncated")):
        cut = tmp_path / f"cut-{length}.h5"
        cut.write_bytes(path.read_bytes()[:length])
        with pytest.raises(TraceError, match=rf"cut-{length}\.h5: .*({words})"), open_trace(cut) as opened:
            opened.stamps[:, 0:65]


def test_a_file_cut_while_it_is_open_is_an_error_and_no_numbers(tmp_path):
    path = put(tmp_path, drawn_trace())
    with pytest.raises(TraceError, match="cut off inside what rank"), open_trace(path) as opened:
        with path.open("r+b") as file:
            file.truncate(10_000)
        opened.stamps[:, :]
