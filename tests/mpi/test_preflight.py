"""Preflight on real ranks: the checks alone, and at the start of runs."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc.model.findings import CHECKS
from hpc.model.outcome import Outcome
from hpc.recovery.collect import collect
from tests.mpi.attempts import HERE, Attempt, Ranks, spec
from tests.mpi.conftest import ROOT
from tests.waiting import LIMIT_S

ON_CPUS = {"mpi_size", "ranks_per_node", "same_framework", "cores", "load", "host_memory"}
UNBOUND = {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
SPIN = """
import os, time
for _ in range(2):
    os.fork()
if os.getpid() == os.getpgid(0):
    print(os.getpid(), flush=True)
end = time.monotonic() + 900
while time.monotonic() < end:
    pass
"""


@contextmanager
def busy_processes() -> Iterator[None]:
    """Four that are of nobody's job (a session, a parent and an environment of their own) and never rest: however they
    share the cores with two waiting ranks, more than half a core is theirs."""
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}], start_new_session=True)"
    environ = {name: value for name, value in os.environ.items() if not name.endswith("JOB_ID")}
    starter = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    group = int(starter.stdout.readline())
    starter.wait()
    try:
        yield
    finally:
        os.killpg(group, signal.SIGKILL)
        starter.stdout.close()


@contextmanager
def only_on(core: int) -> Iterator[None]:
    """What is started here may run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def attempt(ranks: Ranks, tmp_path: Path) -> Callable[..., Attempt]:
    return lambda run, *words, **how: Attempt(ranks, tmp_path, run, *words, **how)


class Looked:
    """`rankwise hpc.preflight` on real ranks, and the file that it left."""

    def __init__(self, ranks: Ranks, folder: Path, *words: str, size: int = 2, **changes: Any) -> None:
        ranks_env = changes.pop("env_of_ranks", None)
        (folder / "run.json").write_text(json.dumps(spec(**changes).to_json()))
        self.argv = ["--run", str(folder / "run.json"), "--out", str(folder / "report.json"), *words]
        self.done = ranks(size, Path("-m"), "hpc.preflight", *self.argv, check=False, env=ranks_env)
        self.report = json.loads((folder / "report.json").read_text()) if (folder / "report.json").exists() else {}

    def states(self) -> dict[str, str]:
        return {finding["name"]: finding["state"] for finding in self.report["findings"]}


def test_the_checks_alone_look_at_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    looked = Looked(ranks, tmp_path)
    assert looked.done.returncode == 0, looked.done.stderr
    assert set(looked.states()) == ON_CPUS - {"same_framework"}
    assert looked.states()["mpi_size"] == looked.states()["ranks_per_node"] == "ok"
    assert [rank["rank"] for rank in looked.report["ranks"]] == [0, 1]
    first, second = looked.report["ranks"]
    assert first["about_node"]["memory_bytes"] > 0
    assert second["about_node"] is None
    assert "ok mpi_size: MPI sees 2 ranks, as requested" in looked.done.stdout


def test_gpus_that_are_not_there_to_ask_are_unknown(ranks: Ranks, tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver here to ask")
    looked = Looked(ranks, tmp_path, backend="torch-ddp", workload="mlp", gpus_per_node=2)
    assert looked.done.returncode == 0
    assert {name for name, state in looked.states().items() if state == "unknown"} == {
        "gpu_per_rank", "gpus_in_sight", "same_device", "same_driver", "cores_near_gpu", "gpu_idle",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "failed"), [pytest.param("0,1", set(), marks=pytest.mark.all), ("1", {"gpu_per_rank"})]
)
def test_ranks_that_share_a_gpu_end_before_they_touch_it(
    ranks: Ranks, tmp_path: Path, visible: str, failed: set[str]
) -> None:
    """The driver is a FAKE with two GPUs; a launcher that binds both ranks to one of them is not."""
    env = {"PYTHONPATH": f"{HERE / 'fake_driver'}:{ROOT}", "CUDA_VISIBLE_DEVICES": visible}
    looked = Looked(ranks, tmp_path, backend="torch-ddp", workload="mlp", gpus_per_node=2, env_of_ranks=env)
    assert {finding["name"] for finding in fatal(looked)} == failed
    assert looked.done.returncode == (3 if failed else 0)
    assert [len(rank["in_sight"]) for rank in looked.report["ranks"]] == [2, 2]
    drives = [rank["devices"][0][0] for rank in looked.report["ranks"]]
    assert drives == (["1", "1"] if failed else ["0", "1"])
    assert {finding["name"] for finding in looked.report["findings"] if finding["state"] == "unknown"} == {
        "cores_near_gpu"
    }


def fatal(looked: Looked) -> list[dict[str, Any]]:
    """The findings that end the run."""
    findings = looked.report["findings"]
    return [finding for finding in findings if (finding["severity"], finding["state"]) == ("fatal", "failed")]


def test_what_is_fatal_ends_with_3_and_is_written(ranks: Ranks, tmp_path: Path) -> None:
    looked = Looked(ranks, tmp_path, size=3)
    assert looked.done.returncode == 3
    (finding,) = fatal(looked)
    assert (finding["name"], "2 ranks requested, MPI sees 3" in finding["text"]) == ("mpi_size", True)
    assert finding["fix"]


def test_a_report_that_cannot_be_written_is_named(ranks: Ranks, tmp_path: Path) -> None:
    out = tmp_path / "missing" / "report.json"
    looked = Looked(ranks, tmp_path, "--out", str(out))
    assert looked.done.returncode == 1
    assert f"hpc.preflight: {out}: cannot be written ({os.strerror(errno.ENOENT)})\n" in looked.done.stderr


@pytest.mark.all
def test_singletons_all_write_the_same(ranks: Ranks, tmp_path: Path) -> None:
    looked = Looked(ranks, tmp_path)
    (tmp_path / "report.json").unlink()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM_"))}
    environ |= {"SLURM_NTASKS": "2", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = [sys.executable, "-m", "hpc.preflight", *looked.argv]
    two = [subprocess.Popen(argv, env={**environ, "SLURM_PROCID": str(rank)}, cwd=Path.cwd()) for rank in range(2)]
    assert [process.wait(timeout=LIMIT_S) for process in two] == [3, 3]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["launched"]["size"], report["ranks"]) == (1, [])
    assert [(finding["name"], finding["state"]) for finding in report["findings"]] == [("mpi_size", "failed")]
    assert "pmix or pmi2" in report["findings"][0]["fix"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "run.json"]


# At the start of runs


def test_the_findings_are_in_the_trace(attempt: Callable[..., Attempt]) -> None:
    made = attempt(spec())
    report = made.trace().environment["preflight"]
    assert set(report) == ON_CPUS
    assert {name: finding["severity"] for name, finding in report.items()} == {
        name: CHECKS[name].level for name in ON_CPUS
    }
    assert report["mpi_size"]["state"] == report["same_framework"]["state"] == "ok"
    finding, second = made.trace().ranks
    assert finding["start"]["node"]["memory_free_bytes"] > 0
    assert "start" in second
    assert made.left_nothing_but_its_trace()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing to overlap beside")
def test_ranks_on_one_core_ring(attempt: Callable[..., Attempt]) -> None:
    core = min(os.sched_getaffinity(0))
    with only_on(core):
        trace = attempt(spec(), env=UNBOUND).trace()
    assert trace.environment["preflight"]["cores"]["state"] == "failed"
    assert f"ranks 0-1 have 1 between them (core {core})" in trace.environment["preflight"]["cores"]["text"]


def test_a_load_that_the_site_forbids_ends_the_run_on_all_ranks(attempt: Callable[..., Attempt]) -> None:
    with busy_processes():
        made = attempt(spec(), "--check", "load=fatal", check=False)
    assert made.done.returncode == 3, made.done.stderr
    (note, *_) = made.notes()
    assert note.outcome is Outcome.INVALID
    assert note.message.startswith("load: ")
    assert "other processes keep" in note.message
    assert "exclusive = true in the site" in note.message
    assert not list(made.traces.glob("*.h5"))
    collect(made.traces, made.stem)
