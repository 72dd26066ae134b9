"""`rankwise collectives` on real ranks, with every backend of the table; and within a sweep."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpc.backends import BACKENDS, missing_modules, operations_of
from hpc.model.collective_plan import PAIRS, plan_of
from hpc.model.collective_times import collective_times, pair_times, table
from hpc.model.outcome import Outcome, read_rank_note
from hpc.model.timestamps import BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.recovery.collect import collect
from parse.ledger.standalone import curves
from tests.mpi.attempts import HERE, Ranks
from tests.waiting import LIMIT_S

OF_EACH_CLASS = {entry.collectives.where: name for name, entry in [*BACKENDS.items()][::-1] if entry.collectives}
"""A backend for each class: those of torch's other strategies are those of torch-ddp."""
SMALL = ("--min-bytes", "1K", "--max-bytes", "16K", "--factor", "16", "--iterations", "3", "--gpus-per-node", "0")


def collectives(
    ranks: Ranks, size: int, traces: Path, backend: str, *words: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    argv = ["--backend", backend, "--traces", str(traces), *SMALL, *words]
    return ranks(size, Path("-m"), "hpc.collectives", *argv, check=check)


def only_trace(traces: Path) -> Trace:
    (path,) = traces.glob("*.h5")
    assert len(list(traces.glob("*.h5"))) == len(list(traces.glob("*.begin.json"))) == 1
    return read_trace(path)


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        *(
            pytest.param(name, 2, marks=() if name in ("mpi", "torch-ddp") else pytest.mark.all)
            for name in OF_EACH_CLASS.values()
        ),
        pytest.param("mpi", 4, marks=pytest.mark.all),
    ],
)
def test_every_collective_of_a_backend_gives_what_it_must(
    ranks: Ranks, tmp_path: Path, backend: str, size: int
) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    done = collectives(ranks, size, tmp_path, backend, "--site", "here")
    trace = only_trace(tmp_path)
    operations = [name for name in operations_of(backend, gpus=False) if name != PAIRS]  # of one node
    assert (trace.outcome, trace.run.diagnostic, trace.run.site, trace.evidence) == (
        Outcome.OK,
        "collectives",
        "here",
        "",
    )
    assert (trace.run.nodes, trace.run.ranks_per_node, trace.run.gpus_per_node) == (1, size, 0)

    times = collective_times(trace)
    assert [(call.operation, call.bytes) for call in times] == [(name, n) for name in operations for n in (1024, 16384)]
    assert [(call.wrong, call.iterations) for call in times] == [(0, 3)] * len(times)
    assert all(0 < call.time_ns <= call.slowest_ns for call in times)
    assert set(curves(trace)) == set(operations)
    assert table(trace) in done.stdout
    assert f"# {backend} by {trace.environment['backend']['transport']} on 1 nodes x {size} ranks, CPUs" in done.stdout
    assert trace.environment["software"][BACKENDS[backend].framework]
    stamps_are_those_of_calls(trace)


@pytest.mark.parametrize("backend", ["mpi", pytest.param("torch-ddp", marks=pytest.mark.all)])
def test_every_pair_of_nodes_exchanges_what_it_must(ranks: Ranks, tmp_path: Path, backend: str) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    collectives(ranks, 3, tmp_path, backend, "--simulate-nodes", "3", "--operations", PAIRS)
    trace = only_trace(tmp_path)
    assert {each["wrong"] for each in trace.environment["backend"]["collectives"]} == {0}
    pairs = pair_times(trace)
    assert sorted((pair.nodes, pair.bytes) for pair in pairs) == [
        (nodes, size) for nodes in ((0, 1), (0, 2), (1, 2)) for size in (1024, 16384)
    ]
    assert all(pair.time_ns > 0 for pair in pairs)


def stamps_are_those_of_calls(trace: Trace) -> None:
    """Every step is one call between t3 and t4, back to back inside a block; clocks are synchronised before each."""
    assert trace.blocks.tolist() == trace.run.blocks
    assert len(trace.blocks) == len(plan_of(trace.run))
    taken = trace.stamps[:, :, [BEGIN, BATCH_READY, GRADS_READY, REDUCED, END]]
    assert (np.diff(taken, axis=2) >= 0).all()
    assert (np.diff(trace.stamps[:, :, [GRADS_READY, REDUCED]], axis=2) > 0).all()
    assert (trace.stamps[:, :, FORWARD_END] == np.iinfo(np.int64).min).all()
    for first, stop in trace.blocks:
        inside = slice(first - 4, stop)
        assert (trace.stamps[:, inside, BEGIN] == trace.stamps[:, first - 5 : stop - 1, END]).all()
    # Before the first step, before each block, after the last.
    assert trace.clock_local_ns.shape[1] == len(trace.blocks) + 2
    assert (trace.steps_completed == trace.run.steps).all()


def test_a_wrong_result_ends_the_run_as_invalid(ranks: Ranks, tmp_path: Path) -> None:
    argv = ["--backend", "mpi", "--traces", str(tmp_path), *SMALL]
    done = ranks(2, HERE / "collectives_wrong.py", *argv, check=False)
    assert done.returncode == 3
    note = read_rank_note(next(tmp_path.glob("*.rank*.json")))
    assert note.outcome is Outcome.INVALID
    assert "all-reduce of 1024 bytes by mpi gives wrong results: 1 of 512 elements, on 1 of 2 ranks" in note.message
    assert "first on rank 1" in note.message
    assert not list(tmp_path.glob("*.h5"))
    note_name = next(tmp_path.glob("*.rank*.json")).name
    collect(tmp_path, re.sub(r"\.rank\d+\.json", "", note_name))


def test_a_folder_that_cannot_be_written_ends_all_ranks_with_one_line(ranks: Ranks, tmp_path: Path) -> None:
    (traces := tmp_path / "file").write_text("")
    done = collectives(ranks, 2, traces, "mpi", check=False)
    assert done.returncode == 5
    lines = [line for line in done.stderr.splitlines() if line.startswith("rankwise collectives: ")]
    assert len(lines) == 1, done.stderr
    assert f"--traces {traces} cannot be written (" in lines[0] and "Traceback" not in done.stderr


def test_a_variable_that_one_rank_lacks_ends_all_with_one_line(ranks: Ranks, tmp_path: Path) -> None:
    words = ["--backend", "mpi", "--traces", str(tmp_path), *SMALL, "--env", "NCCL_ALGO"]
    done = ranks(2, HERE / "collectives_alone.py", *words, check=False, env={"NCCL_ALGO": "Ring"})
    assert done.returncode == 2, done.stderr
    assert "rankwise collectives: rank 1: --env NCCL_ALGO: not set here" in done.stderr


def test_a_rank_that_fails_before_the_run_ends_all(ranks: Ranks, tmp_path: Path) -> None:
    done = ranks(2, HERE / "collectives_alone.py", "--backend", "mpi", "--traces", str(tmp_path), *SMALL, check=False)
    assert done.returncode != 0
    assert "my driver is gone" in done.stderr


REFUSED = [
    (["--backend", "jax"], "unknown backend 'jax'; known: torch-ddp"),
    (["--simulate-nodes", "3"], "2 ranks do not make 3 nodes"),
    (["--env", "NCCL_HUSH"], "--env NCCL_HUSH: not set here"),
    (["--backend", "torch-ddp", "--option", "sgd=fused"], "unknown option sgd"),
    (["--option", "cycle"], "--option 'cycle' is not of the form NAME=VALUE"),
]


def test_what_cannot_be_measured_is_one_line_each(ranks: Ranks, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    commands = [["--backend", "mpi", "--traces", str(traces), *SMALL, *words] for words, _ in REFUSED]
    done = ranks(2, HERE / "collectives_refused.py", json.dumps(commands))
    assert json.loads(done.stdout) == [2] * len(REFUSED)
    lines = [line for line in done.stderr.splitlines() if line.startswith("rankwise collectives: ")]
    assert len(lines) == len(REFUSED), done.stderr
    for line, (_, says) in zip(lines, REFUSED, strict=True):
        assert says in line
    assert not traces.exists()


def test_one_rank_has_nobody_to_talk_to(ranks: Ranks, tmp_path: Path) -> None:
    done = collectives(ranks, 1, tmp_path, "mpi", check=False)
    assert done.returncode != 0
    assert "MPI sees one rank, and nothing goes from rank to rank: start several" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_launch_by_hand_keeps_the_promises_that_it_is_given(ranks: Ranks, tmp_path: Path) -> None:
    collectives(ranks, 2, tmp_path, "mpi", "--operations", "all-reduce", "--check", "load=off", "--check",
                "same_framework=alarm")  # fmt: skip
    checks = only_trace(tmp_path).environment["preflight"]
    assert "load" not in checks
    assert checks["same_framework"]["severity"] == "alarm"
    refused = collectives(ranks, 2, tmp_path, "mpi", "--check", "load=deadly", check=False)
    assert refused.returncode != 0
    assert "check load: level 'deadly' is not one of fatal, alarm, off" in refused.stderr


def test_what_a_launch_asks_for_is_in_its_name_and_again_is_another_run(ranks: Ranks, tmp_path: Path) -> None:
    words = ("--operations", "all-reduce,broadcast", "--simulate-nodes", "2", "--cpus-per-rank", "3", "--env", "HOME")
    for _ in range(2):
        collectives(ranks, 2, tmp_path, "mpi", *words)
    first, second = (read_trace(path) for path in sorted(tmp_path.glob("*.h5")))
    assert (first.attempt, second.attempt) == (1, 1)
    assert (first.run.repeat, second.run.repeat) == (1, 2) and first.point_id == second.point_id
    run = first.run
    assert (run.nodes, run.ranks_per_node, run.cpus_per_rank, list(run.env)) == (2, 1, 3, ["HOME"])
    assert run.options["operations"] == "all-reduce+broadcast"
    assert {rank["nodes_simulated"] for rank in first.ranks} == {True}


def test_a_sweep_measures_them_beside_its_trainings(tmp_path: Path) -> None:
    from launch.scheduler.local import what_is_missing

    if lacking := what_is_missing():
        pytest.skip("; ".join(lacking))
    argv = [sys.executable, "-m", "hpc.sweep", "--cluster", "local", "--gpus-per-node", "0", "--repeats", "1"]
    argv += ["--backend", "mpi", "--workload", "delay", "--option", "compute_ms=1", "--steps", "8", "--warmup", "5"]
    argv += ["--nodes", "2", "--no-baseline", "--collectives", "--option", "max_bytes=4K", "--option", "iterations=3"]
    root = Path(__file__).resolve().parents[2]
    for says in ("2 ok", "every run is final"):
        done = subprocess.run(
            argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"},
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert says in done.stdout
    (path,) = (tmp_path / "traces").glob("*collectives*.h5")
    trace = read_trace(path)
    assert [(call.operation, call.bytes) for call in collective_times(trace)][:2] == [
        ("all-reduce", 1024),
        ("all-reduce", 4096),
    ]
    assert "hpc.rank" in trace.script
    record = json.loads((path.parent / f"{trace.run_id}.1.exit.json").read_text())
    assert record["outcome"] == "ok"
    assert not re.search(r"_collectives_.*samples/s", done.stdout)
