"""Job scripts of one run, whose launcher is a program of a test."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from hpc.model.spec import RunSpec
from hpc.model.trace_file import write_trace
from launch.jobs.options import RunLimits
from launch.jobs.script import Folders, render_local
from launch.jobs.site import Site
from tests.unit.fake_commands import write_program
from tests.unit.traces import make_trace

RUN = RunSpec(
    nodes=2, ranks_per_node=2, gpus_per_node=2, cpus_per_rank=4, backend="torch-ddp", workload="mlp", batch_size=8,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="golden",
    env={"NCCL_ALGO": "Ring"},
)  # fmt: skip
SITE = Site(
    name="golden", partition="gpu", account="p42", qos="high", constraint="a100", reservation="bench", exclude="node13",
    modules=("CUDA/12.4", "OpenMPI"), gpus_per_node=2,
)  # fmt: skip
FRAMEWORKS = {"torch-ddp": "torch"}


GUARDS = RunLimits()


def write_job(tmp_path: Path, body: str, guards: RunLimits = GUARDS) -> Path:
    """The script of one run, whose launcher does `body`."""
    folders = Folders.under(tmp_path)
    folders.logs.mkdir(parents=True, exist_ok=True)
    folders.traces.mkdir(exist_ok=True)
    job = tmp_path / "job.sh"
    job.write_text(render_local([RUN], [str(write_program(tmp_path, "launcher", body))], folders, guards))
    return job


def outcome_of(tmp_path: Path, body: str, *arguments: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Runs a one-run script whose launcher does `body`; the exit record and what the script printed."""
    argv = ["bash", str(write_job(tmp_path, body)), *arguments]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, **variables})
    records = sorted((tmp_path / "traces").glob("*.exit.json"))
    return (json.loads(records[-1].read_text()) if records else {}), done.stdout


# The launcher's last words are: … RUN.json --traces DIR --simulate-nodes --attempt N --script FILE --copy-s S
STEM = (
    'while [ $# -gt 0 ]; do case "$1" in --traces) t=$2;; --attempt) a=$2;; esac; shift; done; '
    f'stem="$t/{RUN.run_id}.$a"; '
)


def note(rank: int, outcome: str) -> str:
    """Shell commands that leave a rank's note."""
    values = {"rank": rank, "outcome": outcome, "exception": "E", "message": "m", "step": 3, "hostname": "h"}
    return f"""echo '{json.dumps(values)}' >"$stem.rank{rank}.json"; """


def begun(tmp_path: Path, job_id: str, begin_unix_s: int = 5) -> None:
    """An attempt that began in another job and has no record."""
    (tmp_path / "traces").mkdir(exist_ok=True)
    values = {"run_id": RUN.run_id, "attempt": 1, "job_id": job_id, "begin_unix_s": begin_unix_s}
    (tmp_path / "traces" / f"{RUN.run_id}.1.begin.json").write_text(json.dumps(values) + "\n")


def fake_slurm(tmp_path: Path, squeue: str) -> str:
    """A PATH on which `squeue` is a fake, and scontrol does not answer."""
    folder = tmp_path / "bin"
    for name, body in (("squeue", squeue), ("scontrol", "exit 1"), ("sleep", "exit 0")):
        write_program(folder, name, body)
    return f"{folder}:{os.environ['PATH']}"


def in_queue(state: str, name: str = "") -> str:
    """A shell command that prints job 4711 as `squeue -O` does."""
    return f"echo '4711|{state}|node|part|0|1|{name}|None|'"


def whole_trace(tmp_path: Path, **changes: Any) -> str:
    """Shell commands that leave a whole trace of the run, or one with these changes, as rank 0 writes it."""
    path = tmp_path / "whole.h5"
    if not path.exists():
        write_trace(path, make_trace(RUN, **changes))
    return f'cp {path} "$stem.h5.part" && mv "$stem.h5.part" "$stem.h5"; '
