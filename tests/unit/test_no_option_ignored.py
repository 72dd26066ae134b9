"""An option that is given and has no effect is refused: one that is ignored answers another question than was asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc.model.options import OptionError
from hpc.model.spec import SpecError
from launch.sweep.cli import read_arguments
from launch.sweep.prepare import prepare, with_jobs
from launch.sweep.request import OPTIONS, SUBMISSION
from launch.sweep.submit import FAILURES
from tests.unit.commands import DRY_RUN
from tests.unit.sweep_command import NO_SLURM, sweep

RECIPE = "ngc-pytorch-resnet50"
SLURM = "--site site.toml --nodes 1,2 --steps 120"
CONTEXTS = {
    "local": "--cluster local --nodes 2 --steps 120", "without Slurm": "--nodes 2 --steps 120", "Slurm": SLURM,
    "cases": "--site site.toml --cases 2n8g --steps 120", "script": f"{SLURM} --script train.py",
    "recipe": f"--site site.toml --recipe {RECIPE}", "data": f"{SLURM} --data imagefolder:images",
    "training": f"{SLURM} --data imagefolder:images --epochs 3", "collectives": f"{SLURM} --collectives",
    "auto": f"{SLURM} --repeats auto",
}  # fmt: skip
VALUES = {
    "nodes": "1,3", "ranks_per_node": "4", "cases": "3n2g", "cpus_per_rank": "3", "gpus_per_node": "4",
    "backend": "torch-fsdp", "workload": "mlp", "script": "other.py", "data": "imagefolder:others",
    "data_cache": "device", "batch_size": "16", "precision": "bf16", "scaling": "strong", "timing": "step",
    "telemetry": "off", "option": "bucket_cap_mb=7", "env": "A=b", "recipe": RECIPE, "steps": "77", "warmup": "11",
    "epochs": "2", "target_accuracy": "70", "repeats": "4", "tokens_per_sample": "1024", "seed": "5",
    "placement": "nested", "cluster": "local",
    "site": "other.toml", "partition": "p", "account": "a", "sbatch": "qos=q", "time": "333",
    "minutes_per_run": "7", "out": "o", "copy_s": "3", "start_limit_s": "44", "hang_steps": "5", "hang_extra_s": "9",
}  # fmt: skip
"""A value of each option that is not its default."""
GIVEN_ALREADY = {
    ("script", "no_baseline"), ("recipe", "recipe"), ("recipe", "timing"), ("recipe", "no_baseline"),
    ("collectives", "collectives"),
    ("local", "cluster"), ("without Slurm", "cluster"),
}  # fmt: skip
"""Contexts in which the option says what is so without it."""
ROWS = [row for row in OPTIONS if row.group != SUBMISSION]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", NO_SLURM)
    for name in ("site", "other"):
        (tmp_path / f"{name}.toml").write_text("gpus_per_node = 8\ncpus_per_node = 64\n")
    for name in ("train.py", "other.py"):
        (tmp_path / name).touch()
    for name in ("images", "others"):
        (tmp_path / name).mkdir()
    return tmp_path


def planned(argv: list[str]) -> tuple[Any, ...]:
    """All that follows from a command line: the plan, the text of every job, when runs are added."""
    request = read_arguments(argv)
    prepared = with_jobs(prepare(request))
    texts = [prepared._render(job) for job in prepared.jobs]
    return json.dumps(prepared.plan.to_json()), texts, [(each.ci, each.max_repeats) for each in request.sweeps]


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_option_of_a_sweep_has_an_effect_or_is_refused(context: str, folder: Path) -> None:
    argv = CONTEXTS[context].split()
    without, ignored = planned(argv), []
    for row in ROWS:
        value = [] if row.metavar == "" else [VALUES[row.name]]
        other = list(argv)
        if row.flag in argv and row.metavar:
            del other[argv.index(row.flag) : argv.index(row.flag) + 2]
        try:
            same = planned([*other, row.flag, *value]) == without
        except (SpecError, OptionError, *FAILURES):
            continue
        if same and (context, row.name) not in GIVEN_ALREADY:
            ignored.append(row.flag)
    assert ignored == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--recipe", RECIPE, "--script", "train.py"], "--recipe and --script exclude each other"),
        (["--recipe", RECIPE, "--", "x"], "there is no --script"),
        (["--cluster", "local", "--nodes", "1", "--partition", "p", "--time", "9"], "--partition, --time: of jobs"),
        (["--nodes", "1", "--account", "a"], "Slurm is not installed"),
        (["--cluster", "local", "--nodes", "1", "--max-jobs", "3"], "--max-jobs: of the queue of Slurm"),
        (["--cluster", "local", "--nodes", "1", "--force", "--rerun-if-changed"], "--force runs everything again"),
        (["--cases", "2n8g", "--ranks-per-node", "4"], "--ranks-per-node is for --nodes"),
        (["--nodes", "1", "--target-accuracy", "70"], "are of whole trainings"),
        (["--nodes", "1", "--epochs", "0/2", "--gpus-per-node", "0"], "are of whole trainings"),
        (["find-max", "batch-size", "--nodes", "1", "--repeats", "4"], "leave out --repeats"),
        (["status", "--dry-run"], "status submits nothing: leave out --dry-run"),
    ],
)  # fmt: skip
def test_pairs_of_options_of_a_sweep(argv: list[str], message: str, folder: Path) -> None:
    done = sweep(folder, *argv, path=NO_SLURM)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_the_dry_run_of_other_tests_is_planned(folder: Path) -> None:
    assert planned(list(DRY_RUN[1:]))
