"""Telemetry in a trace: read back as it was written, refused with wrong shapes or types."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Telemetry, TraceError
from hpc.model.trace_file import read_trace
from tests.unit.traces import make_run, make_trace, put


def telemetry(**changes):
    content = {
        "ranks": np.array([0, 2]), "local_ns": np.array([[5, 6, 7], [8, 9, ABSENT]]),
        "values": np.arange(12.0).reshape(2, 3, 2), "series": ("gpu0.power_w", "net.ä.sent_bytes"),
    }  # fmt: skip
    return Telemetry(**(content | changes))


def trace_with(telemetry):
    return make_trace(make_run(nodes=2, ranks_per_node=2), telemetry=telemetry)


def test_telemetry_is_read_back(tmp_path):
    values = np.array([[[1.5, np.nan]] * 3] * 2)
    expected = telemetry(values=values)
    loaded = read_trace(put(tmp_path, trace_with(expected))).telemetry
    assert loaded is not None
    np.testing.assert_array_equal(loaded.ranks, expected.ranks)
    np.testing.assert_array_equal(loaded.local_ns, expected.local_ns)
    np.testing.assert_array_equal(loaded.values, values)
    assert tuple(loaded.series) == expected.series


def test_units_axes_and_absent_values_stand_in_attributes(tmp_path):
    with h5py.File(put(tmp_path, trace_with(telemetry())), "r") as file:
        group = file["telemetry"]
        assert set(group) == {"ranks", "local_ns", "values", "series"}
        assert group["local_ns"].attrs["unit"] == b"ns"
        assert group["local_ns"].attrs["axes"] == b"node, sample"
        assert group["local_ns"].attrs["absent"] == ABSENT
        assert group["values"].attrs["axes"] == b"node, sample, series"
        assert group["values"].attrs["absent"] == b"NaN"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"values": np.zeros((2, 3, 1))}, "2 series has shapes"),
        ({"local_ns": np.zeros((1, 3), np.int64)}, "2 nodes"),
        ({"local_ns": np.zeros((2, 3))}, "float64"),
        ({"values": np.zeros((2, 3, 2), np.float32)}, "float32"),
        ({"ranks": np.array([0.0, 1.0])}, "float64"),
    ],
)
def test_telemetry_of_a_wrong_shape_or_type_is_refused(changes, reason):
    with pytest.raises(TraceError, match=reason):
        telemetry(**changes)


@pytest.mark.parametrize("ranks", [[0, 4], [-1, 0]])
def test_telemetry_of_ranks_that_there_are_not_is_refused(ranks):
    with pytest.raises(TraceError, match=r"telemetry is of ranks"):
        trace_with(telemetry(ranks=np.array(ranks)))
