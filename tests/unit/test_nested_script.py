"""The nested job script, run by bash; fakes of scontrol and srun write their arguments to a file."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from launch.jobs.plan import plan_jobs
from launch.jobs.script import Folders, render_job
from launch.jobs.site import Site
from tests.unit.fake_commands import write_program
from tests.unit.traces import make_run
from tests.waiting import LIMIT_S

RUNS = [make_run(nodes=nodes, repeat=repeat, placement="nested") for repeat in (1, 2) for nodes in (1, 2, 4)]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """FAKES: scontrol knows four nodes, one of a name that would do harm unquoted; srun keeps its words and fails."""
    folder = tmp_path / "programs"
    fakes = {
        "scontrol": 'case "$*" in "show hostnames "*) for n in $FAKE_NODES; do echo "$n"; done;; *) exit 1;; esac',
        "srun": 'printf "%s\\n" "$*" >>"$FAKE_SEEN"; exit 9',
    }
    for name, body in fakes.items():
        write_program(folder, name, body)
    return folder


def run_script(tmp_path: Path, programs: Path, nodes: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """The arguments of each srun, and the ended script."""
    folders = Folders.under(tmp_path / "sweep")
    folders.logs.mkdir(parents=True)
    folders.traces.mkdir()
    [job] = plan_jobs(RUNS, Site(name="s"), 10, None)
    script = tmp_path / "job.sh"
    script.write_text(render_job(job.runs, "#!/bin/bash\n", Site(name="s"), folders, {"mpi": "numpy"}, job.subsets))
    seen = tmp_path / "seen"
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FAKE_NODES": nodes, "FAKE_SEEN": str(seen),
           "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "whatever"}  # fmt: skip
    done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return seen.read_text().splitlines() if seen.exists() else [], done


def test_steps_of_smaller_cases_run_on_nodes_of_the_larger_ones(tmp_path: Path, programs: Path) -> None:
    steps, done = run_script(tmp_path, programs, "a b $(id) d")
    placed = [(int(match[1]), match[2].split(",")) for line in steps if (match := _SIZES.search(line))]
    assert len(placed) == len(steps) and steps, done.stderr
    assert all(len(nodes) == count for count, nodes in placed)
    ranks = [(re.search(r"_r(\d)\.json", line), nodes) for line, (_, nodes) in zip(steps, placed, strict=True)]
    blocks = {repeat: [set(nodes) for match, nodes in ranks if match and match[1] == repeat] for repeat in "12"}
    for single, pair, all_nodes in blocks.values():
        assert single < pair < all_nodes == {"a", "b", "$(id)", "d"}
    assert blocks["1"][0] != blocks["2"][0]


_SIZES = re.compile(r"--nodes=(\d+).* --nodelist=(\S+)")


def test_a_job_with_too_few_nodes_runs_nothing(tmp_path: Path, programs: Path) -> None:
    steps, done = run_script(tmp_path, programs, "a b")
    assert (steps, done.returncode) == ([], 1)
    assert "these runs need 4 nodes: a b" in done.stderr
