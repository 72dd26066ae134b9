"""Traces that somebody has tampered with: refused with the reason, by every reader, and never a way to other files."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc.model import trace_file
from hpc.model.spec import SpecError
from hpc.model.trace import TraceError
from hpc.model.trace_file import open_trace, read_trace
from parse import summarize
from parse.runs.load import load
from tests.unit.traces import full_trace, make_run, make_trace, put, put_plan, repeats

Edit = Callable[[h5py.File], None]
SECRET = "the key of somebody, 38 characters long"
POINTS = "clock/barrier_exits_ns"


def instead(name: str, make: Callable[[h5py.File, str], object]) -> Edit:
    """Puts something else in the place of a dataset."""

    def edit(file: h5py.File) -> None:
        del file[name]
        make(file, name)

    return edit


def external(path: Path) -> Edit:
    """The evidence of a failed attempt, which is printed, lies in another file."""

    def edit(file: h5py.File) -> None:
        file.attrs["outcome"] = np.bytes_("rank_fail")
        del file["evidence"]
        file.create_dataset("evidence", (1,), f"S{len(SECRET)}", external=[(str(path), 0, len(SECRET))])

    return edit


def virtual(path: Path) -> Edit:
    def make(file: h5py.File, name: str) -> None:
        layout = h5py.VirtualLayout((1, 15), "i4")
        layout[:] = h5py.VirtualSource(str(path), "samples", (1, 15))
        file.create_virtual_dataset(name, layout)

    return instead("samples", make)


def dataset(name: str, **how: Any) -> Edit:
    return instead(name, lambda file, name: file.create_dataset(name, **how))


def link(name: str, target: Any) -> Edit:
    return instead(name, lambda file, name: file.__setitem__(name, target))


def described(**changes: Any) -> Edit:
    """The run's description says something else."""

    def edit(file: h5py.File) -> None:
        text = json.dumps(json.loads(file["run"][()]) | changes)
        dataset("run", data=np.bytes_(text))(file)

    return edit


def attribute(name: str, value: Any, of: str = "/", **how: Any) -> Edit:
    return lambda file: file[of].attrs.create(name, value, **how)


def bomb(file: h5py.File) -> None:
    dataset(POINTS, shape=(1, 10**8), chunks=(1, 10**6), dtype="i8", compression="gzip", fillvalue=7)(file)


def soft_link(file: h5py.File) -> None:
    file.move("evidence", "elsewhere")
    file["evidence"] = h5py.SoftLink("/elsewhere")


def group_link(file: h5py.File) -> None:
    file.move("clock", "elsewhere")
    file["clock"] = h5py.SoftLink("/elsewhere")


HOSTILE: dict[str, tuple[Edit, str]] = {
    "soft link": (soft_link, "evidence is a link to elsewhere"),
    "soft link to a group": (group_link, "clock is a link to elsewhere"),
    "loop of links": (link("script", h5py.SoftLink("/script")), "script is a link to elsewhere"),
    "chunks of 16 PB": (dataset(POINTS, shape=(2, 10**15), chunks=(1, 1024), dtype="i8"), "chunked or compressed"),
    "a bomb": (bomb, "chunked or compressed"),
    "itself as a virtual dataset": (virtual(Path()), "content in other files .a virtual dataset."),
    "more ranks": (dataset("steps_completed", data=np.zeros(9, "i8")), r"claims 9 entries \(rank\)"),
    "more steps": (dataset("losses", data=np.zeros((1, 16))), r"claims 16 entries \(step\)"),
    "never written": (dataset("losses", shape=(1, 15), dtype="f8"), "claims 120 bytes, more than the file has"),
    "many points": (dataset(POINTS, data=np.zeros((1, 100_061), "i8")), r"claims 100061 entries \(barrier\)"),
    "steps beyond all": (dataset("steps_completed", data=np.array([16])), "steps_completed goes beyond 0 to 15"),
    "fewer steps than none": (dataset("steps_completed", data=np.array([-1])), "steps_completed goes beyond 0 to 15"),
    "references": (dataset("evidence", shape=(), dtype=h5py.ref_dtype), "neither numbers nor texts"),
    "a compound": (dataset("samples", shape=(1, 15), dtype=[("a", "i4"), ("b", h5py.ref_dtype)]), "neither numbers"),
    "a text of variable length": (dataset("script", data="a"), "neither numbers nor texts of fixed length"),
    "lists of lists": (dataset("script", shape=(), dtype=h5py.vlen_dtype(np.int64)), "neither numbers nor texts"),
    "a type": (link("script", np.dtype("i8")), "the dataset script is missing"),
    "an attribute of a variable length": (attribute("schema", "rankwise-trace"), "schema holds neither"),
    "an attribute that refers": (attribute("attempt", h5py.Reference(), dtype=h5py.ref_dtype), "attempt holds neither"),
    "a large attribute": (attribute("attempt", np.zeros(1 << 20)), "more than 4194304 bytes"),
    "an attempt that is a list": (attribute("attempt", [1, 2]), "attempt is no whole number"),
    "an attempt of 308 digits": (attribute("attempt", 1e308), "attempt is no whole number"),
    "no version": (attribute("schema_version", np.bytes_("2")), "schema_version is no whole number"),
    "a deep list": (dataset("environment", data=np.bytes_("[" * 500 + "]" * 500)), "more than 64 deep"),
    "a very deep list": (dataset("environment", data=np.bytes_("[" * 100_000)), "more than 64 deep"),
    "a number without end": (dataset("environment", data=np.bytes_('{"a": ' + "1" * 4000 + "}")), "more than 64 bits"),
    "a longer one": (dataset("environment", data=np.bytes_('{"a": ' + "1" * 5000 + "}")), "damaged, or not a trace"),
    "nodes without end": (described(nodes=int("1" * 4000)), "more than 64 bits"),
    "more nodes than there are": (described(nodes=10**12), "nodes is 1000000000000; it can be"),
    "more ranks than there can be": (described(nodes=10**6, ranks_per_node=10**6), "1000000000000 ranks"),
    "blocks without end": (described(measured_steps=10**9, block_steps=1), "1000000000 blocks"),
    "a foreign search": (described(search="foreign"), "search is 'foreign'; it must be batch-size or an option"),
    "options that are no texts": (described(options={"a": [1]}), r"options\.a is \[1\], not a text"),
    "arguments that are no texts": (described(arguments=[{}]), r"arguments\[0\] is {}, not a text"),
}  # fmt: skip


def hostile(folder: Path, edit: Edit) -> Path:
    """A trace beside two good ones of the same point that was tampered with."""
    good = [put(folder, make_trace(run)) for run in repeats(make_run(), 3)]
    with h5py.File(good[2], "r+", libver=("v108", "latest")) as file:
        edit(file)
    return good[2]


def assert_refused(path: Path, reason: str) -> None:
    for read in (read_trace, lambda path: open_trace(path).__enter__()):
        with pytest.raises(TraceError, match=reason) as caught:
            read(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    loaded = load([path.parent])
    assert len(loaded.attempts) == 2, "the good runs beside it are shown"
    assert any(path.name in refusal for refusal in loaded.refusals)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_trace_has_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    edit, reason = HOSTILE[name]
    path = hostile(tmp_path, edit)
    tracemalloc.start()
    try:
        assert_refused(path, reason)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["file", "pipe"])
@pytest.mark.parametrize("how", ["external storage", "external link", "virtual dataset"])
def test_a_trace_is_never_a_way_to_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, kind: str
) -> None:
    other, traces = tmp_path / "other", tmp_path / "traces"
    traces.mkdir()
    os.mkfifo(other) if kind == "pipe" else other.write_text(SECRET)
    edit = {
        "external storage": external(other),
        "external link": link("blocks", h5py.ExternalLink(str(other), "/blocks")),
        "virtual dataset": virtual(other),
    }[how]
    path = hostile(traces, edit)
    assert_refused(path, "in other files|a link to elsewhere")
    for form in ("table", "json", "csv", "markdown"):
        assert summarize.main([str(traces), "--format", form]) == 0
    printed = "".join(capsys.readouterr())
    assert SECRET not in printed and path.name in printed


@pytest.mark.parametrize("error", [MemoryError("14 PiB"), OverflowError("too large"), RecursionError()])
def test_what_goes_beyond_all_limits_later_is_the_fault_of_that_file(tmp_path: Path, error: Exception) -> None:
    path = put(tmp_path, make_trace())
    with pytest.raises(TraceError, match=r"r1\.1\.h5: its content goes beyond all"), open_trace(path):
        raise error


@pytest.mark.parametrize(
    ("name", "value"),
    [("names", np.zeros((3, 3))), ("names", np.zeros(3)), ("roots", np.array([b"a"] * 3)), ("roots", 1)],
)
def test_attributes_of_meetings_are_lists(tmp_path: Path, name: str, value: Any) -> None:
    path = put(tmp_path, full_trace())
    with h5py.File(path, "r+") as file:
        file["meetings"].attrs[name] = value
    with pytest.raises(TraceError, match=f"the attribute {name} of meetings is no list of"):
        read_trace(path)


def test_a_plan_with_a_run_that_cannot_be_is_refused(tmp_path: Path) -> None:
    plan = put_plan(tmp_path, [make_run()])
    for changes in ({"nodes": int("1" * 4000)}, {"search": "foreign"}, {"nodes": "2"}):
        values = json.loads(plan.read_text())
        values["runs"][0] |= changes
        plan.write_text(json.dumps(values))
        assert any(plan.name in refusal for refusal in load([tmp_path]).refusals)


def test_every_search_that_is_made_is_accepted() -> None:
    dataclasses.replace(make_run(), search="batch-size")
    dataclasses.replace(make_run(), search="layers", options={"layers": "12"})
    for options in ({}, {"layers": "many"}, {"layers": "1" * 4000}):
        with pytest.raises(SpecError, match="search is 'layers'"):
            dataclasses.replace(make_run(), search="layers", options=options)


def test_a_trace_that_may_not_be_read_is_no_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without rights; root may read each file."""
    path = tmp_path / "run.h5"
    path.write_bytes(b"")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(trace_file, "open_regular", refuse)
    with pytest.raises(TraceError, match=rf"^{re.escape(str(path))}: cannot be read \(Permission denied\)$"):
        read_trace(path)
