from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpc.model.spec import RunSpec
from launch.jobs import script
from launch.jobs.options import RunLimits
from launch.jobs.plan import plan_jobs
from launch.jobs.script import Folders, ScriptHead, render_job, render_local
from launch.jobs.site import Site
from launch.scheduler.protocol import SubmitError
from launch.scheduler.slurm import Slurm
from tests.conftest import GOLDEN
from tests.unit.fake_commands import write_program
from tests.unit.job_scripts import FRAMEWORKS, RUN, SITE
from tests.unit.traces import make_run
from tests.waiting import LIMIT_S

SHELLCHECK = Path(sys.executable).parent / "shellcheck"
HOSTILE = ["a'; touch pwned #", "two words", "$(touch pwned)", "`touch pwned`", 'q"; touch pwned; "', "new\nline",
           "a\\b"]  # fmt: skip

HEAD = ScriptHead(text="#!/bin/bash\n", submit="sbatch", warning_s=60)


def rendered(runs: Sequence[RunSpec], site: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts of the jobs of these runs, of a checkout in /opt and a sweep in /scratch."""
    monkeypatch.setattr(script, "CHECKOUT", Path("/opt/rankwise"))
    monkeypatch.setattr(script, "here_python", lambda: "/opt/rankwise/.venv/bin/python")
    folders = Folders(jobs=Path("/scratch/sweep/jobs"), traces=Path("/scratch/sweep/traces"))
    if site is LOCAL:
        return [render_local(runs, ["mpiexec"], folders)]
    jobs = plan_jobs(runs, site, minutes_per_run=10, time_min=None)
    return [render_job(job.runs, Slurm().header(job, folders), site, folders, FRAMEWORKS, job.subsets) for job in jobs]


LOCAL = dataclasses.replace(SITE, name="local")
CONTAINER = dataclasses.replace(SITE, container="apptainer", images={"torch": "/images/pytorch.sif"})
ONE_POINT = [dataclasses.replace(RUN, repeat=repeat) for repeat in range(1, 6)]
TEN_POINTS = [dataclasses.replace(run, batch_size=size) for run in ONE_POINT for size in range(8, 88, 8)]
NESTED = [
    dataclasses.replace(RUN, nodes=nodes, repeat=repeat, placement="nested")
    for repeat in range(1, 6)
    for nodes in (1, 2, 4)
]
SCRIPTS = {
    "2n.sh": (ONE_POINT, SITE, 60),
    "2n-ten-points.sh": (TEN_POINTS, SITE, 160),
    "4n-nested.sh": (NESTED, SITE, 82),
    "2n-container.sh": ([dataclasses.replace(r, container="/images/pytorch.sif") for r in ONE_POINT], CONTAINER, 64),
    "2n-mpirun.sh": (ONE_POINT, dataclasses.replace(SITE, launcher="mpirun", mpi="openmpi"), 60),
    "local.sh": (ONE_POINT, LOCAL, 60),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_equals_its_golden_file_and_fits_a_screen(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    runs, site, max_lines = SCRIPTS[name]
    monkeypatch.setattr("launch.jobs.script.code_version", lambda: "0.2.0+0123456789ab")
    [text] = rendered(runs, site, monkeypatch)
    golden(name, text)
    assert len(text.splitlines()) <= max_lines
    assert all(len(line) <= 130 for line in text.splitlines())


def test_a_script_says_which_variables_a_person_set_and_not_what_the_site_gives_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = dataclasses.replace(SITE, env={"NCCL_IB_HCA": "mlx5_0", "OMP_PROC_BIND": "close"})
    run = dataclasses.replace(RUN, env={**site.env, "OMP_PROC_BIND": "false", "NCCL_ALGO": "Ring"})
    [text] = rendered([run], site, monkeypatch)
    [line] = [line for line in text.splitlines() if line.startswith(f"# {run.backend} ")]
    assert "OMP_PROC_BIND=false" in line and "NCCL_ALGO=Ring" in line and "NCCL_IB_HCA" not in line


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_clean_by_bash_and_shellcheck(name: str) -> None:
    """SC1091 alone is left out: /etc/profile is the cluster's."""
    path = GOLDEN / name
    for argv in (["bash", "-n", str(path)], [str(SHELLCHECK), "--severity=style", "--exclude=SC1091", str(path)]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_module_system_may_read_unset_variables(tmp_path: Path) -> None:
    folders = Folders.under(tmp_path)
    text = render_job([RUN], HEAD, SITE, folders, FRAMEWORKS)
    until_modules, load, _ = text.partition("before 'module load OpenMPI'\n")
    assert text.index("set -u") > text.index("before 'module load OpenMPI'")
    module = "module() { echo $NOBODY_SET_IT loaded $2; }"
    done = subprocess.run(
        ["bash", "-c", f"{module}\n{until_modules}{load}echo went on; }}"], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["loaded CUDA/12.4", "loaded OpenMPI", "went on"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("names", [HOSTILE, *(pytest.param([name], marks=pytest.mark.all) for name in HOSTILE)])
def test_hostile_names_reach_the_run_unchanged_and_run_nothing(tmp_path: Path, names: list[str]) -> None:
    """The script is really run by bash; a program in place of mpiexec writes down what reached it."""
    out = tmp_path.joinpath(*names)
    name = " ".join(names)
    folders = Folders.under(out)
    folders.logs.mkdir(parents=True)
    folders.traces.mkdir()
    seen = tmp_path / "seen.json"
    spy = tmp_path / "spy"
    spy.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], os.environ['HOSTILE']], open({str(seen)!r}, 'w'))\n"
    )
    spy.chmod(0o755)
    run = dataclasses.replace(RUN, env={"HOSTILE": name})
    job = tmp_path / "job.sh"
    job.write_text(render_local([run], [str(spy)], folders))
    subprocess.run(["bash", str(job)], cwd=tmp_path, check=False, capture_output=True)
    argv, value = json.loads(seen.read_text())
    assert value == name
    assert argv[argv.index("hpc.rank") + 1] == str(folders.run_file(run))
    assert argv[argv.index("--traces") + 1] == str(folders.traces)
    assert not list(tmp_path.rglob("pwned"))
    assert json.loads((folders.traces / f"{run.run_id}.1.exit.json").read_text())["outcome"] == "launch_fail"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_cannot_leave_their_header_line(tmp_path: Path, name: str) -> None:
    folders = Folders.under(tmp_path / name)
    [job] = plan_jobs([RUN], dataclasses.replace(SITE, partition="p'; touch pwned #"), 10, None)
    if "\n" in name or "\\" in name:
        with pytest.raises(SubmitError, match="Slurm cannot write a job's output"):
            Slurm().header(job, folders)
    else:
        lines = Slurm().header(job, folders).text.splitlines()
        assert all(line == "" or line.startswith("#") for line in lines)


def test_limits_reach_launch_step(tmp_path: Path) -> None:
    text = render_local([RUN], ["mpiexec"], Folders.under(tmp_path), RunLimits(copy_s=1, hang_steps=2.5))
    assert "--copy-s 1 --start-limit-s 600 --hang-steps 2.5 --hang-extra-s 60 " in text


def test_what_a_site_expects_reaches_the_ranks(tmp_path: Path) -> None:
    site = dataclasses.replace(
        SITE,
        expect_transport="ib",
        preflight={"load": "fatal", "cores": "off"},
        network={"latency_us": "3", "bandwidth_gbit": "200"},
    )
    text = render_job([RUN], HEAD, site, Folders.under(tmp_path), FRAMEWORKS)
    expected = "--expect-transport ib --check cores=off --check load=fatal --expect-network bandwidth_gbit=200 "
    assert f"{expected}--expect-network latency_us=3" in " ".join(text.replace("\\\n", " ").split())
    assert "--check" not in render_job([RUN], HEAD, SITE, Folders.under(tmp_path), FRAMEWORKS)


# Of nested runs, run by bash; fakes of scontrol and srun write their arguments to a file.

NESTED_RUNS = [make_run(nodes=nodes, repeat=repeat, placement="nested") for repeat in (1, 2) for nodes in (1, 2, 4)]


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
    [job] = plan_jobs(NESTED_RUNS, Site(name="s"), 10, None)
    script = tmp_path / "job.sh"
    script.write_text(render_job(job.runs, HEAD, Site(name="s"), folders, {"mpi": "numpy"}, job.subsets))
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
