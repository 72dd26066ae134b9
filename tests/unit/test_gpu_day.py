"""The logic of `make gpu-day`: whatever becomes of a part, the result says it, and has what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_day, gpu_mps, gpu_parts
from benchmarks.gpu_borders import (
    Border,
    Figures,
    Kernel,
    PartError,
    border_errors_ns,
    check_borders,
    measure_borders,
    put_borders,
    read_kernels,
    simulated_training,
)
from benchmarks.gpu_day import DONE, FAILED, NOT_REACHED, PAST_LIMIT, RUNNING, Day, Outcome, Part, run_parts
from benchmarks.gpu_parts import hooks_against_kernels
from hpc.model.timestamps import ABSENT
from tests.processes import lives
from tests.waiting import until

WRITES = "import json, pathlib, sys; pathlib.Path(sys.argv[2]).write_text(json.dumps({'images/s': 7.5})); "


def part(name: str, code: str, *, limit_s: float = 600) -> Part:
    return Part(name=name, title=f"title of {name}", limit_s=limit_s, command=[sys.executable, "-c", code])


def run_day(
    folder: Path,
    *parts: Part,
    deadline_s: float = 3600,
    clock: Callable[[], float] = lambda: 0.0,
    rehearse: bool = False,
) -> dict[str, Any]:
    """The JSON of a day of these parts."""
    folder.mkdir(exist_ok=True)
    outcomes = [Outcome(name=each.name, title=each.title, limit_s=each.limit_s) for each in parts]
    day = Day(out=folder, rehearse=rehearse, facts={"begun": "today"}, outcomes=outcomes)
    run_parts(parts, day, folder / "parts", deadline_s, clock)
    value: dict[str, Any] = json.loads((folder / "gpu-day.json").read_text())
    return value


def test_what_a_part_has_measured_is_there_however_it_ends(tmp_path: Path) -> None:
    fails = part("fails", WRITES + "print('one'); print('the reason'); sys.exit(3)")
    dies = part("dies", WRITES + "import os; os.kill(os.getpid(), 9)")
    result = run_day(tmp_path, part("works", WRITES), fails, dies, part("silent", "raise SystemExit(4)"))
    works, fails_, dies_, silent = result["parts"]
    assert (works["state"], works["figures"]) == (DONE, {"images/s": 7.5})
    assert "reason" not in works
    assert (fails_["state"], fails_["figures"], fails_["reason"]) == (FAILED, {"images/s": 7.5}, "one\nthe reason")
    assert (dies_["state"], dies_["reason"]) == (FAILED, "exit status -9, and no output")
    assert (silent["state"], "figures" in silent) == (FAILED, False)
    assert result["ended"]
    page = (tmp_path / "gpu-day.md").read_text()
    assert "| title of fails | failed |" in page
    assert "* images/s: 7.5" in page
    assert "the reason" in page
    assert "one\nthe reason" in (tmp_path / "gpu-day.log").read_text()


def test_a_part_past_its_limit_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Its child has a process group of its own, as a rank has, and ignores SIGTERM."""
    note = tmp_path / "child"
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    code = WRITES + (
        "import subprocess, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], process_group=0, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "print('still at it', flush=True)\n"
        "time.sleep(600)\n"
    )
    # Time passes once the child is there.
    result = run_day(tmp_path, part("slow", code, limit_s=100), clock=lambda: 101.0 if note.exists() else 0.0)
    (slow,) = result["parts"]
    assert (slow["state"], slow["figures"]) == (PAST_LIMIT, {"images/s": 7.5})
    assert slow["reason"].splitlines() == ["ended after 100 s", "still at it"]
    until(lambda: not lives(int(note.read_text())), "the child has ended")


def test_parts_that_the_day_has_no_time_for_are_not_reached_and_have_no_figure(tmp_path: Path) -> None:
    times = iter([0.0] * 3 + [96.0] * 9)
    result = run_day(tmp_path, part("first", "pass"), part("late", WRITES), deadline_s=100, clock=lambda: next(times))
    first, late = result["parts"]
    assert first["state"] == DONE
    assert (late["state"], late["reason"]) == (NOT_REACHED, "4 s were left")
    assert "figures" not in late
    assert "seconds" not in late


def test_a_machine_that_is_taken_away_in_a_part_leaves_its_figures_so_far(tmp_path: Path) -> None:
    """The part ends only once the result of its first figure is seen."""
    code = WRITES + (
        "import time\n"
        f"path = pathlib.Path({str(tmp_path)!r}, 'gpu-day.json')\n"
        "while not (text := path.read_text()).count('images/s'): time.sleep(0.01)\n"
        f"pathlib.Path({str(tmp_path)!r}, 'seen').write_text(text)\n"
    )
    run_day(tmp_path, part("first", code), part("second", "pass"))
    seen = json.loads((tmp_path / "seen").read_text())
    assert not seen["ended"]
    assert [each["state"] for each in seen["parts"]] == [RUNNING, NOT_REACHED]
    assert seen["parts"][0]["figures"] == {"images/s": 7.5}


def test_a_rehearsal_says_so_and_its_parts_know(tmp_path: Path) -> None:
    code = "import sys; sys.exit('--rehearse' not in sys.argv)"
    result = run_day(tmp_path / "rehearsal", part("only", code), rehearse=True)
    assert result["rehearsal"]
    assert result["parts"][0]["state"] == DONE
    assert (tmp_path / "rehearsal" / "gpu-day.md").read_text().startswith("# Rehearsal without a GPU")
    real = run_day(tmp_path / "real", part("only", code))
    assert (real["rehearsal"], real["parts"][0]["state"]) == (False, FAILED)


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "why_no_gpu", lambda: "torch sees no GPU here")
    assert gpu_day.main(["--out", str(tmp_path / "day")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu-day: torch sees no GPU here: nothing was measured")
    assert not (tmp_path / "day").exists()


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        ("class version:\n cuda = hip = None\n", "this torch was built without CUDA"),
        ("class version:\n cuda, hip = '13.0', None\nclass cuda:\n device_count = staticmethod(lambda: 0)\n",
         "torch sees no GPU here"),
        ("class version:\n cuda, hip = None, '6.4'\nclass cuda:\n device_count = staticmethod(lambda: 1)\n", ""),
        ("raise ImportError('libtorch.so: cannot open')\n", "cannot open"),
    ],
)  # fmt: skip
def test_why_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, reason: str) -> None:
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = gpu_day.why_no_gpu()
    assert answer.endswith(reason)
    assert bool(answer) == bool(reason)


def test_what_is_missing_is_named_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "MODULES", ("json", "no_such_module"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert gpu_day.main(["--rehearse", "--out", str(tmp_path / "day")]) == 2
    assert "not here: no_such_module, mpiexec: make gpu-wheels" in capsys.readouterr().err


def test_an_environment_has_what_is_here_and_only_the_wheels_that_are_not(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with pytest.raises(SystemExit, match="no wheel lies there"):
        gpu_day.environment_with(wheels, tmp_path / "none")
    for name in ("brought_along", "numpy"):  # numpy is here: a wheel that pip would refuse is left alone
        with zipfile.ZipFile(wheels / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}.py", "")
            archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(
                f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    python, installed = gpu_day.environment_with(wheels, tmp_path / "environment")
    assert installed == ["brought_along-1.0-py3-none-any.whl"]
    code = "import brought_along, numpy, pytest; print(numpy.__version__)"
    shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.strip() == np.__version__


KERNELS = (Kernel(100, 1000, 2000), Kernel(200, 2000, 3000), Kernel(400, 5000, 6000))


@pytest.mark.parametrize(
    ("recorded", "stamp", "errors"),
    [
        (300, 3000, [0]),  # right at the end of the last kernel before it
        (300, 5000, [0]),
        (300, 2900, [-100]),
        (300, 5200, [200]),
        (150, 2100, [100]),  # a gap of nothing
        (50, 900, []),  # no kernel before it
        (500, 6100, []),  # none after it
    ],
)
def test_a_stamp_belongs_between_the_kernels_on_both_sides_of_its_record(
    recorded: int, stamp: int, errors: list[int]
) -> None:
    assert border_errors_ns([Border(recorded, stamp)], KERNELS) == errors


def test_borders_off_by_more_than_the_goal_fail_the_part(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures.json")
    put_borders(figures, "borders", [0, -15_000, 25_000])
    value = gpu_day.read_figures(tmp_path / "figures.json")["borders"]
    assert (value["borders"], value["within 20 µs"], value["between their kernels"]) == (3, 2, 1)
    assert value["largest µs outside"] == 25.0
    check_borders([0, -20_000])
    with pytest.raises(PartError, match="1 of 3 borders"):
        check_borders([0, -15_000, 25_000])
    with pytest.raises(PartError, match="no border"):
        put_borders(figures, "none", [])


def test_stamps_of_a_device_lie_between_its_kernels_unless_its_clock_jumps(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures.json")
    measure_borders(figures, simulated_training())
    value = gpu_day.read_figures(tmp_path / "figures.json")
    assert value["kernels"] == 80
    assert value["borders of own backends' steps"]["within 20 µs"] == 79  # behind the last is no kernel
    jumps = [(1_120_000_000, 100_000)]  # between the anchors of the second segment, by 100 µs
    with pytest.raises(PartError, match="borders are off"):
        measure_borders(figures, simulated_training(jumps=jumps))


def test_kernels_of_a_profile_with_the_time_of_their_launch(tmp_path: Path) -> None:
    def event(cat: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": cat, "ts": ts, "dur": dur, "args": args}

    events = [
        event("cuda_runtime", 1.5, 1, correlation=7), event("cuda_runtime", 3, 1, correlation=8),
        event("kernel", 10, 2.5, correlation=7, stream=7), event("gpu_memcpy", 13, 1, correlation=8, stream=7),
        event("kernel", 14, 1, correlation=8, stream=20), event("kernel", 15, 1, correlation=99, stream=7),
        event("cpu_op", 0, 1),
    ]  # fmt: skip
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 1_000_000, "traceEvents": events}))
    assert read_kernels(path) == [
        Kernel(1_001_500, 1_010_000, 1_012_500), Kernel(1_003_000, 1_013_000, 1_014_000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("daemon", "reason"),
    [
        (None, "time slices, without MPS: [Errno 2]"),
        ('case "$1" in -f) exec sleep 60;; *) read line; echo 4711;; esac', ""),
        ('case "$1" in -f) exit 1;; *) echo "Cannot find MPS control daemon" >&2;; esac', "has no server; Cannot find"),
    ],
)
def test_whether_two_ranks_share_a_gpu_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: str | None, reason: str
) -> None:
    if daemon is not None:
        (tmp_path / gpu_mps.MPS).write_text(f"#!/bin/sh\n{daemon}\n")
        (tmp_path / gpu_mps.MPS).chmod(0o755)
    monkeypatch.setattr(gpu_mps, "MPS", str(tmp_path / gpu_mps.MPS))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with gpu_mps.side_by_side(tmp_path / "mps") as time_slices:
        assert reason in time_slices() and bool(reason) == bool(time_slices())
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "mps")


def test_in_time_slices_a_delay_of_the_device_is_no_rank_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window names nobody: of the host's delay that is wrong, of the device's only side by side."""
    delays = ("none", "host-data", "device-forward")
    nobody = types.SimpleNamespace(stragglers=(), verdict=types.SimpleNamespace(ranks=()))
    monkeypatch.setattr("tests.truth.windows.cut", lambda *_, **__: [None] * 3)
    monkeypatch.setattr("tests.truth.windows.ledger_of", lambda *_: nobody)
    monkeypatch.setattr("tests.truth.delays.describe_all", lambda _: "nobody")
    trace = types.SimpleNamespace(run=types.SimpleNamespace(ranks=2))
    for reason, wrong in (("", ["host-data", "device-forward"]), ("time slices", ["host-data"])):
        job = gpu_parts.Job(Figures(tmp_path / "figures.json"), tmp_path, False, lambda reason=reason: reason)
        texts = gpu_parts._wrongly_named(job, "ddp", trace, delays, 30, tmp_path)
        assert [text.partition(":")[0] for text in texts] == wrong


def test_stamps_of_hooks_beside_the_kernels_of_the_profiled_steps(tmp_path: Path) -> None:
    """Three steps, of which the last two are profiled: a kernel each for forward, backward, update, 100 µs long."""
    offset, us = 1_000_000_000, 1_000
    stamps = np.full((3, 6), ABSENT)
    events: list[dict[str, Any]] = []
    marks: dict[str, list[int]] = {"forward": [], "reduced": [], "end": []}
    for step in (1, 2):
        for place, (name, column) in enumerate({"forward": 1, "reduced": 4, "end": 5}.items()):
            kernel, begin = 10 * step + place, (1000 * step + 200 * place) * us
            its = {"correlation": kernel, "stream": 7}
            events += [
                {"ph": "X", "cat": "cuda_runtime", "ts": (begin - 20 * us) / us, "dur": 1, "args": its},
                {"ph": "X", "cat": "kernel", "ts": begin / us, "dur": 100, "args": its},
            ]
            marks[name].append(begin - 10 * us)
            stamps[step, column] = begin + 101 * us
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": offset, "traceEvents": events}))
    beside = {"steps": 3, "profiled": 2, "unix_offset_ns": offset, "marks": marks}
    path.with_suffix(".marks").write_text(json.dumps(beside))
    figures = Figures(tmp_path / "figures.json")
    hooks_against_kernels(figures, stamps, path)
    value = gpu_day.read_figures(tmp_path / "figures.json")
    assert value["ddp, kernels of the profiled steps"] == 6
    assert value["ddp, borders of the hooks"]["between their kernels"] == 5  # behind the last is no kernel
    stamps[1, 4] += 150 * us  # into the next kernel
    with pytest.raises(PartError, match="1 of 5 borders"):
        hooks_against_kernels(figures, stamps, path)
    with pytest.raises(PartError, match="no border"):
        hooks_against_kernels(figures, np.full((3, 6), ABSENT), path)
