"""`find-max`: doubling and bisection, what is an answer, what makes no search."""

from __future__ import annotations

import dataclasses
import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.spec import SpecError
from launch.sweep import find_max
from launch.sweep.cli import main as hpc_sweep
from launch.sweep.cli import read_arguments
from launch.sweep.find_max import RESOLUTION, Bounds, Search
from launch.sweep.request import SweepOptions
from launch.sweep.spec import SweepSpec
from parse.summarize import main as summarize
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan

Capture = pytest.CaptureFixture[str]


def searched(capacity: int, first: int, minimum: int = 1, maximum: int = 2**31 - 1) -> tuple[Bounds, list[int]]:
    """Bounds and tries of a search where `capacity` is the largest value that fits; 0: none."""
    bounds, tries = Bounds(), []
    while (value := bounds.next(first, minimum, maximum)) is not None:
        tries.append(value)
        change: dict[str, Any] = {"fits": value} if value <= capacity else {"too_large": value}
        bounds = dataclasses.replace(bounds, **change)
    return bounds, tries


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(10**9 + 1, 2**31 - 1))
def test_the_search_ends_at_the_largest_value_that_fits(capacity: int, first: int, maximum: int) -> None:
    bounds, tries = searched(capacity, first, maximum=maximum)
    assert len(tries) == len({*tries}) <= 80
    assert all(1 <= value <= maximum for value in tries)
    if capacity == 0:
        assert (bounds.fits, bounds.too_large) == (None, 1)
        return
    assert bounds.fits is not None and bounds.too_large is not None
    assert bounds.fits <= capacity < bounds.too_large
    assert bounds.too_large - bounds.fits <= max(1, RESOLUTION * bounds.fits)


def test_small_numbers_are_exact_and_the_maximum_ends_the_search() -> None:
    assert searched(9, 4)[1] == [4, 8, 16, 12, 10, 9]
    assert searched(3, 16)[1] == [16, 8, 4, 2, 3]
    assert searched(10**9, 30, maximum=100) == (Bounds(fits=100), [30, 60, 100])
    assert searched(0, 8, minimum=3) == (Bounds(too_large=3), [8, 4, 3])


def test_a_try_has_the_value_and_says_what_is_sought() -> None:
    run = make_run(backend="torch-ddp", workload="arcface", options={"classes": "1000"})
    classes, batch = Search("classes", run), Search("batch-size", run)
    assert classes.next_try() == (1000, dataclasses.replace(run, search="classes"))
    classes.answer(1000, Outcome.OK, "")
    assert classes.next_try() == (2000, dataclasses.replace(run, search="classes", options={"classes": "2000"}))
    assert batch.next_try() == (4, dataclasses.replace(run, search="batch-size"))
    assert Search("classes", make_run(backend="torch-ddp", workload="arcface")).next_try() == (
        85_742, make_run(backend="torch-ddp", workload="arcface", search="classes", options={"classes": "85742"}),
    )  # fmt: skip
    assert {make_run().diagnostic, make_run(search="batch-size").diagnostic} == {"", "find-max"}
    assert make_run(search="").point_id != make_run(search="batch-size").point_id


def test_only_ok_and_oom_are_answers() -> None:
    search = Search("batch-size", make_run(batch_size=8))
    search.answer(8, Outcome.OK, "")
    search.answer(16, Outcome.TIMEOUT, "the job's limit")
    assert search.next_try() is None
    assert search.result == (
        "batch-size=16 ended as timeout, which does not say whether it fits (the job's limit); 8 fits"
    )
    search = Search("batch-size", make_run(batch_size=1))
    search.answer(1, Outcome.OOM, "")
    assert (search.next_try(), search.result) == (None, "no value of batch-size fits, not even 1")
    search = Search("batch-size", make_run(batch_size=1))
    search.answer(1, None, "")
    assert search.result == "batch-size=1 never ran, which does not say whether it fits"


@pytest.mark.parametrize(
    ("name", "spec", "options", "message"),
    [
        ("batch-size", {"repeats": 3, "no_sync": True}, {}, "leave out --no-sync, --repeats"),
        ("batch-size", {"collectives": True}, {"detach": True}, "leave out --collectives, --detach"),
        ("batch-size", {"scaling": ("weak", "strong")}, {}, "with weak scaling alone"),
        ("batch-size", {"batch_size": (4, 8)}, {}, "batch-size has 2 values: find-max begins with one"),
        ("classes", {"option": {"classes": ("4", "8", "9")}}, {}, "classes has 3 values: find-max begins with one"),
    ],
)
def test_what_makes_no_search_is_refused(
    name: str, spec: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        find_max._as_tries(name, SweepSpec(nodes=(1,), **spec), SweepOptions(**options))


@pytest.mark.parametrize("name", ["margin", "sample_ratio", "channels_last", "nonsense"])
def test_only_whole_numbers_are_sought(name: str) -> None:
    takes = "is no whole number of backend torch-ddp and workload arcface: find-max takes batch-size, .*classes"
    with pytest.raises(SpecError, match=f"{name} {takes}"):
        Search(name, make_run(backend="torch-ddp", workload="arcface"))


def test_the_command_line_names_what_is_sought(capsys: Capture) -> None:
    request = read_arguments(["find-max", "classes", "--nodes", "1,2"])
    assert (request.subcommand, request.sought, request.sweeps) == ("find-max", "classes", (SweepSpec(nodes=(1, 2)),))
    assert hpc_sweep(["find-max", "--nodes", "1"]) == 2
    assert "no setting is named: find-max batch-size, or an option" in capsys.readouterr().err


def test_on_this_machine_a_limit_of_memory_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
    words = ["--cluster", "local", "--gpus-per-node", "0", "--nodes", "1", "--out", str(tmp_path)]
    assert hpc_sweep(["find-max", "batch-size", *words]) == 1
    assert "limit the memory of a process first, for example by `ulimit -v 8000000` (KiB)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def put_tries(folder: Path, ends: dict[int, Outcome], **changes: Any) -> None:
    for value, outcome in ends.items():
        run = make_run(workload="arcface", search="classes", options={"classes": str(value)}, **changes)
        put_plan(folder, [run])
        if outcome is Outcome.OK:
            put(folder, make_trace(run))
        put_exit_record(folder, run, outcome)


def test_tries_are_no_points_of_the_summary(tmp_path: Path, capsys: Capture) -> None:
    ok, oom = Outcome.OK, Outcome.OOM
    put_tries(tmp_path, {1000: ok, 2000: ok, 4000: oom, 3000: oom})
    run = make_run(nodes=4)
    put_plan(tmp_path, [run])
    put(tmp_path, make_trace(run))
    put_exit_record(tmp_path, run, ok)
    assert summarize([str(tmp_path), "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "4 runs of find-max" in out
    assert "\n4n1g " in out and "beside the points" not in out and "oom" not in out


def test_a_search_is_no_measurement(tmp_path: Path, capsys: Capture) -> None:
    """A try at the point's own value is none of its runs."""
    run = make_run(workload="arcface", options={"classes": "1000"})
    put(tmp_path, make_trace(run, step_s=0.1))
    put_exit_record(tmp_path, run, Outcome.OK)
    put_tries(tmp_path, {1000: Outcome.OK})
    assert summarize([str(tmp_path), "--format", "json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["runs_ok"] == 1 and np.isclose(result["median_speed"], 40)
