"""Traces are read back as written; files that are none are refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, END, STAMPS
from hpc.model.trace import Trace, TraceError, run_of
from hpc.model.trace_file import SCHEMA_VERSION, read_trace
from tests.unit.traces import OFFSET_NS, cut_short, full_trace, make_run, make_trace, put

LISTS = (
    "clock_domains", "injected_phases", "meeting_names", "meeting_roots", "input_names", "host_bound_phases",
)  # fmt: skip
"""Read back as lists."""
GOLDEN = Path(__file__).parents[1] / "golden"


def assert_equal(loaded: Trace, expected: Trace) -> None:
    for field in dataclasses.fields(Trace):
        a, b = getattr(loaded, field.name), getattr(expected, field.name)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        elif field.name in LISTS:
            assert list(a) == list(b)
        else:
            assert a == b, field.name


def test_every_field_is_read_back(tmp_path):
    expected = full_trace()
    assert_equal(read_trace(put(tmp_path, expected)), expected)


def test_unix_time_is_absent_where_no_clock_was_compared(tmp_path):
    expected = full_trace()
    path = put(tmp_path, expected)
    with h5py.File(path, "r+") as file:
        del file["clock/unix_offset_ns"], file["clock/unix_bound_ns"]
    assert_equal(read_trace(path), dataclasses.replace(expected, unix_offset_ns=None, unix_bound_ns=None))


@pytest.mark.parametrize("name", ["unix_offset_ns", "unix_bound_ns"])
def test_unix_time_comes_with_its_bound(name):
    with pytest.raises(TraceError, match=f"{name} is missing"):
        dataclasses.replace(full_trace(), **{name: None})
    with pytest.raises(TraceError, match=f"{name} is int64"):
        dataclasses.replace(full_trace(), **{name: np.zeros((4, 3), np.int64)})


def test_moments_of_one_rank_are_converted_as_those_of_all():
    trace = full_trace()
    moments = trace.stamps[:, :, END]
    for rank in range(4):
        global_ns, bounds_ns = trace.rank_globally(rank, moments[rank])
        assert global_ns.tolist() == trace.globally(moments)[rank].tolist()
        assert bounds_ns.tolist() == trace.bounds_of(moments)[rank].tolist()


def test_an_attempt_that_died_in_warm_up_is_read_back(tmp_path):
    expected = cut_short(make_trace(), 2, Outcome.RANK_FAIL)
    expected = dataclasses.replace(
        expected, clock_local_ns=np.empty((1, 0), np.int64), clock_offset_ns=np.empty((1, 0)),
        clock_bound_ns=np.empty((1, 0)), barrier_exits_ns=np.empty((1, 0), np.int64),
    )  # fmt: skip
    loaded = read_trace(put(tmp_path, expected))
    assert_equal(loaded, expected)
    assert loaded.stamps[0, 2, END] == ABSENT


@given(evidence=st.text(), host=st.text())
def test_outside_text_of_any_kind_can_be_stored(tmp_path_factory, evidence, host):
    folder = tmp_path_factory.mktemp("any")
    trace = make_trace(evidence=evidence, environment={"host": host})
    loaded = read_trace(put(folder, trace))
    assert loaded.environment == {"host": host}
    assert len(loaded.evidence) == len(evidence)


def test_values_that_a_file_cannot_hold_are_replaced_by_text(tmp_path):
    trace = make_trace(evidence="a\0b\udcffc", script="\0", environment={"folder": Path("/data")})
    loaded = read_trace(put(tmp_path, trace))
    assert (loaded.evidence, loaded.environment) == ("a\ufffdb?c", {"folder": "/data"})


def test_stamps_are_converted_to_the_global_clock():
    trace = make_trace(make_run(nodes=2))
    ends = trace.to_global(END)
    assert trace.stamps[0, 3, END] - trace.stamps[1, 3, END] == OFFSET_NS
    np.testing.assert_array_equal(ends[0], ends[1])


def test_ranks_of_one_clock_need_no_synchronisation_and_others_do():
    run = make_run(nodes=2)
    none = np.empty((2, 0))
    unsynchronised = {
        "clock_local_ns": none.astype(np.int64), "clock_offset_ns": none, "clock_bound_ns": none,
        "barrier_exits_ns": none.astype(np.int64),
    }  # fmt: skip
    shared = make_trace(run, clock_domains=["one", "one"], **unsynchronised)
    np.testing.assert_array_equal(shared.to_global(END), shared.stamps[:, :, END])
    with pytest.raises(TraceError, match="never synchronised"):
        make_trace(run, **unsynchronised).to_global(END)


# What the file says of itself


def test_units_and_absence_stand_in_attributes(tmp_path):
    with h5py.File(put(tmp_path, full_trace())) as file:
        assert file.attrs["schema"] == b"rankwise-trace"
        assert file.attrs["schema_version"] == SCHEMA_VERSION
        assert file["stamps"].attrs["absent"] == ABSENT
        assert [name.decode() for name in file["stamps"].attrs["stamps"]] == list(STAMPS)
        arrays = []
        file.visititems(
            lambda name, item: arrays.append(item) if getattr(item, "ndim", 0) and "domains" not in name else None
        )
        assert len(arrays) == 15
        assert all(array.attrs["unit"] and array.attrs["axes"] for array in arrays)
        assert all(array.chunks is None for array in arrays)
        assert json.loads(file["run"][()])["nodes"] == 2


def test_the_format_page_names_everything_in_the_file(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    with h5py.File(put(tmp_path, full_trace())) as file:
        names = list(file.attrs)
        file.visititems(lambda name, item: names.extend([name] if isinstance(item, h5py.Dataset) else []))
    assert [name for name in names if f"`{name}`" not in page and f"`/{name}`" not in page] == []


# Whole or not at all


def test_the_name_appears_only_after_the_content_is_on_the_disk(tmp_path, monkeypatch):
    events = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("folder synced" if is_folder else "file synced")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        assert self.name.startswith(".")
        events.append("renamed")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    put(tmp_path, make_trace())
    assert events == ["file synced", "renamed", "folder synced"]


# What is refused


def refused(path: Path, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_traces_are_refused(tmp_path):
    (tmp_path / "text.h5").write_text("step time\n" * 1000)
    (tmp_path / "empty.h5").touch()
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["model_weights"] = np.ones(3)
    refused(tmp_path / "text.h5", "not an HDF5 file")
    refused(tmp_path / "empty.h5", "is empty")
    refused(tmp_path / "foreign.h5", "not a trace of ours")
    refused(tmp_path / "no.h5", "no such file")
    refused(tmp_path, "is a folder")
    os.mkfifo(tmp_path / "pipe.h5")
    refused(tmp_path / "pipe.h5", "no regular file")


@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.all)])
def test_a_file_cut_off_anywhere_is_refused_or_whole(tmp_path, stride):
    """Between its first and its last bytes at every 29th, since the size in the superblock refuses all of these."""
    expected = full_trace()
    content = put(tmp_path, expected).read_bytes()
    path = tmp_path / "cut.h5"
    whole = 0
    for offset in (*range(256), *range(256, len(content) - 64, stride), *range(len(content) - 64, len(content))):
        path.write_bytes(content[:offset])
        try:
            loaded = read_trace(path)
        except TraceError as error:
            assert str(path) in str(error)
        else:
            assert_equal(loaded, expected)
            whole += 1
    assert whole < 40


def test_a_file_with_overwritten_bytes_raises_nothing_else(tmp_path):
    content = put(tmp_path, make_trace()).read_bytes()
    path = tmp_path / "hit.h5"
    refusals = 0
    for offset in range(0, len(content), 53):
        path.write_bytes(content[:offset] + b"\xff" * 8 + content[offset + 8 :])
        try:
            read_trace(path)
        except TraceError:
            refusals += 1
    assert refusals > 10


def change(path: Path, edit) -> Path:
    with h5py.File(path, "a") as file:
        edit(file)
    return path


def replace(name: str, **dataset: object):
    """Puts another dataset in the place of one; a text is of fixed length."""
    if isinstance(dataset.get("data"), str):
        dataset["data"] = np.bytes_(dataset["data"])

    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **dataset)

    return edit


def put_group(file: h5py.File) -> None:
    del file["run"]
    file.create_group("run")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            lambda file: file.attrs.__setitem__("schema_version", SCHEMA_VERSION + 1),
            "a trace of schema 3; this version reads schema 2",
        ),
        (
            lambda file: file.attrs.__setitem__("schema_version", SCHEMA_VERSION - 1),
            "a trace of schema 1; this version reads schema 2",
        ),
        (lambda file: file.attrs.__delitem__("schema_version"), "schema_version is no whole number"),
        (lambda file: file.attrs.__setitem__("outcome", np.bytes_("splendid")), "splendid"),
        (lambda file: file.__delitem__("stamps"), "dataset stamps is missing"),
        (lambda file: file.__delitem__("clock"), "dataset clock/local_ns is missing"),
        (replace("samples", data=np.ones((1, 3), np.int32)), r"samples is int32 \[1, 3\]; it must be int32 \[1, 15\]"),
        (replace("samples", data=np.ones((1, 15), np.float32)), r"samples is float32 \[1, 15\]"),
        (replace("stamps", shape=(2**20, 2**20, 6), dtype=np.int64), r"claims 1048576 entries \(rank\)"),
        (replace("stamps", shape=(1, 15, 6), dtype=np.int64), "claims 720 bytes, more than the file has"),
        (put_group, "dataset run is missing"),
        (replace("run", data="{"), "damaged"),
        (replace("run", data="[]"), "no JSON dict"),
        (replace("ranks", data="[]"), "ranks has 0 entries for 1 ranks"),
        (lambda file: file["blocks"].__setitem__((0, 1), 99), "are not inside"),
        (lambda file: file["blocks"].__setitem__((0, 0), 0), "are not inside"),
    ],
)
def test_an_incomplete_trace_is_refused(tmp_path, edit, reason):
    refused(change(put(tmp_path, make_trace()), edit), reason)


# Any age of schema


def described(**changes):
    return json.loads(json.dumps(make_run().to_json())) | changes


def test_an_unknown_field_is_stored_apart(tmp_path):
    text = json.dumps(described(fabric="ib", run_id="old_r1"))
    loaded = read_trace(change(put(tmp_path, make_trace()), replace("run", data=text)))
    assert (loaded.run, loaded.run_extra, loaded.run_id) == (make_run(), {"fabric": "ib"}, "old_r1")


def test_a_field_that_did_not_exist_yet_takes_its_default():
    old = described()
    for name in ("container", "data", "env"):
        del old[name]
    assert run_of(old) == (make_run(), {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes": "two"}, "nodes is 'two'"),
        ({"nodes": 0}, "impossible: nodes is 0"), ({"env": []}, "env must be a table"),
        ({"nodes": None}, "nodes is missing"), ({"backend": "simulated"}, "drawn by a release up to 0.2, not measured"),
    ],
)  # fmt: skip
def test_an_impossible_description_is_refused(changes, reason):
    with pytest.raises(TraceError, match=reason):
        run_of({name: value for name, value in described(**changes).items() if value is not None})


def test_a_trace_of_this_schema_stays_readable():
    loaded = read_trace(GOLDEN / f"trace_v{SCHEMA_VERSION}.h5")
    assert loaded.run_id == "2n1g_mpi_delay_b4_fp32_" + loaded.run_id.split("_")[-2] + "_r2"
    assert (loaded.run.nodes, loaded.run.env, loaded.attempt) == (2, {"NCCL_ALGO": "Ring"}, 1)
    assert (loaded.outcome, loaded.evidence) == (Outcome.OK, "the launcher returned 0")
    assert loaded.script == "#!/bin/bash\ntrue\n"
    assert loaded.stamps.shape == (2, 8, 6)
    ends_ms = [900_700, 900_720, 900_740, 900_760, 900_780, 900_800]
    expected = [ABSENT if stamp == 2 else end_ms * 1_000_000 for stamp, end_ms in enumerate(ends_ms)]
    assert loaded.stamps[1, 7].tolist() == expected
    np.testing.assert_array_equal(loaded.to_global(END)[0], loaded.to_global(END)[1])
    assert loaded.samples.sum() == 64
    assert loaded.losses[0, 0] == 7.0
    assert np.isnan(loaded.losses[1, 7])
    assert loaded.blocks.tolist() == [[5, 8]]
    assert loaded.clock_domains == ["boot-a", "boot-b"]
    assert loaded.injected_phases == ["data_ms"]
    assert loaded.injected_ns is not None
    assert loaded.injected_ns[1, 3, 0] == 3_000_000
    assert [fact["hostname"] for fact in loaded.ranks] == ["a", "b"]
    assert loaded.environment == {"versions": {"numpy": "2.0"}}
