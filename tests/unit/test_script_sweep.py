"""A sweep over a script of one's own: planned, identified, rendered. Nothing here runs it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.model.run_fields import RunFields
from hpc.model.spec import SCRIPT, SCRIPT_STEPS, UNKNOWN, RunSpec, SpecError
from launch.sweep.text import describe_base
from tests.mpi.file_checks import holding
from tests.secret_forms import HARMLESS_FORMS, SECRET_FORMS
from tests.unit.sweep_command import plan_of, sweep

SHELLCHECK = Path(sys.executable).parent / "shellcheck"
HOSTILE = ["--name", 'it\'s "quoted" $(touch hacked) `id`; exit 3', "", "two  spaces", "*", "-x\ty", "é"]


def run(**changes: object) -> RunSpec:
    described = RunSpec(
        nodes=1, ranks_per_node=2, gpus_per_node=0, cpus_per_rank=1, backend=SCRIPT, workload="/x/train.py",
        batch_size=0, precision=UNKNOWN, scaling="weak", warmup_steps=20, measured_steps=80, repeat=1, seed=0,
        site="local", arguments=("--lr", "0.1"),
    )  # fmt: skip
    return dataclasses.replace(described, **changes)  # type: ignore[arg-type] # names are checked by replace itself


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import torch\nimport model\n")
    (tmp_path / "model.py").write_text("WIDTH = 8\n")
    return tmp_path


def planned(folder: Path, *arguments: str) -> list[RunSpec]:
    done = sweep(folder, "--nodes", "1,2", "--repeats", "1", "--cluster", "local", "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    plan = plan_of(folder)
    for path in folder.glob("*/plan.*.json"):
        path.unlink()
    return [RunSpec.from_json(run) for run in plan["runs"]]


def test_script_and_arguments_are_planned_as_they_were_given(folder: Path) -> None:
    runs = planned(folder, "--script", "train.py", "--", *HOSTILE)
    assert [run.nodes for run in runs] == [1, 2]
    for run in runs:
        assert (run.backend, run.workload, list(run.arguments)) == (SCRIPT, str(folder / "train.py"), HOSTILE)
        assert run.steps == SCRIPT_STEPS
        assert run.precision == run.data == UNKNOWN


def test_no_run_on_one_rank_is_added_to_a_script(folder: Path) -> None:
    cases = [run.case for run in planned(folder, "--script", "train.py", "--ranks-per-node", "2")]
    assert cases == ["1n2g", "2n2g"]
    requested = planned(folder, "--script", "train.py", "--ranks-per-node", "2", "--cases", "1n1g")
    assert [run.case for run in requested] == ["1n1g", "1n2g", "2n2g"]
    (folder / "sweep.toml").write_text("no-baseline = false\n")
    from_file = planned(folder, "--script", "train.py", "--ranks-per-node", "2", "--config", "sweep.toml")
    assert [run.case for run in from_file] == ["1n1g", "1n2g", "2n2g"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--nodes", "1,2", "--ranks-per-node", "2"), "speedup will be against 1n1g"),
        (
            ("--nodes", "1,2", "--ranks-per-node", "2", "--no-baseline"),
            "speedup will be against 1n2g, the smallest case",
        ),
        (("--cases", "4n1g,1n4g,2n4g", "--no-baseline"), "speedup will be against 1n4g, the smallest case"),
        (
            ("--script", "train.py", "--nodes", "1,2", "--ranks-per-node", "2"),
            "speedup will be against 1n2g, the smallest case",
        ),
        (("--script", "train.py", "--nodes", "1", "--ranks-per-node", "2"), ""),
    ],
)
def test_a_dry_run_says_which_case_speedup_will_be_against(folder: Path, arguments: tuple[str, ...], line: str) -> None:
    done = sweep(folder, *arguments, "--repeats", "1", "--cluster", "local", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [each for each in done.stdout.splitlines() if "speedup" in each] == ([line] if line else [])


def test_settings_with_different_smallest_cases_are_told_apart() -> None:
    others = [run(arguments=("--lr", "0.2"), nodes=nodes) for nodes in (2, 4)]
    line = "speedup will be against 1n2g or 2n2g, the smallest case of each setting"
    assert describe_base([run(), run(nodes=2), *others]) == line


def test_steps_end_a_run(folder: Path) -> None:
    (first, _) = planned(folder, "--script", "train.py", "--steps", "60")
    assert first.steps == 60
    assert first.warmup_steps == 15


def test_a_point_is_another_with_other_arguments_or_another_text_of_what_it_imports(folder: Path) -> None:
    before = planned(folder, "--script", "train.py", "--", "--lr", "0.1")[0]
    assert planned(folder, "--script", "train.py", "--", "--lr", "0.1")[0].run_id == before.run_id
    assert planned(folder, "--script", "train.py", "--", "--lr", "0.2")[0].run_id != before.run_id
    assert planned(folder, "--script", "train.py", "--", "--lr 0.1")[0].run_id != before.run_id
    (folder / "model.py").write_text("WIDTH = 9\n")
    assert planned(folder, "--script", "train.py", "--", "--lr", "0.1")[0].run_id != before.run_id


def test_only_a_script_has_no_batch_size_and_no_precision() -> None:
    with pytest.raises(SpecError, match="batch_size is 0"):
        run(backend="torch-ddp", precision="fp32")
    with pytest.raises(SpecError, match="precision 'unknown'"):
        run(backend="torch-ddp", batch_size=1)
    with pytest.raises(SpecError, match="precision 'fp32' is not one of unknown"):
        run(precision="fp32")
    assert RunFields.of(run()).batch_size is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--script", "none.py"), "there is no file"),
        (("--script", "train.sh"), "no path of a Python file"),
        (
            ("--script", "train.py", "--backend", "mpi", "--seed", "4"),
            "--backend, --seed and --script exclude",
        ),
        (("--script", "train.py", "--option", "a=b"), "--option and --script exclude"),
        (("--", "--lr", "0.1"), "there is no --script"),
        (("--script", "train.py", "--", "--hub-token=hf_0123456789abcdefghijABCDEFGHIJ"), "looks like a secret"),
        (("--backend", "script"), "request it by --script"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = sweep(folder, "--nodes", "1", "--cluster", "local", "--dry-run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder / "jobs").exists()


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_secrets_of_a_script_are_refused_in_one_line_and_written_nowhere(folder: Path, words: tuple[str, ...]) -> None:
    secrets = [argument for form in SECRET_FORMS for argument in form]
    done = sweep(folder, "--nodes", "1", "--cluster", "local", *words, "--script", "train.py", "--", *secrets)
    assert done.returncode == 2
    assert "--hf-token (left out), --hf_token=(left out)" in done.stderr
    assert "from a variable that you export where you start the sweep" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "hush" not in done.stdout + done.stderr
    assert holding("hush", folder) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--script", "train.py", "--password", "hush"),
        ("--password=hush",),
        ("--", "--token=hush"),
        ("--env", "HF_TOKEN=hush", "--env", "HF_TOKEN=hush2"),
        ("--option", "hub_token=hush"),
    ],
)
def test_an_error_shows_no_secret(folder: Path, words: tuple[str, ...]) -> None:
    done = sweep(folder, "--nodes", "1", "--cluster", "local", "--dry-run", *words)
    assert done.returncode == 2
    assert "hush" not in done.stdout + done.stderr


def test_what_only_looks_like_a_secret_is_an_argument(folder: Path) -> None:
    arguments = shlex.split(" ".join(HARMLESS_FORMS))
    assert {tuple(run.arguments) for run in planned(folder, "--script", "train.py", "--", *arguments)} == {
        tuple(arguments)
    }


def test_a_batch_size_may_be_stated(folder: Path) -> None:
    assert {run.batch_size for run in planned(folder, "--script", "train.py")} == {0}
    (first, _) = planned(folder, "--script", "train.py", "--batch-size", "32")
    assert first.batch_size == RunFields.of(first).batch_size == 32


def test_nothing_is_sought_in_a_script(folder: Path) -> None:
    done = sweep(folder, "find-max", "batch-size", "--nodes", "1", "--script", "train.py")
    assert done.returncode == 2
    assert "decides its settings by itself" in done.stderr


def test_the_job_script_has_no_word_of_the_arguments(folder: Path) -> None:
    """They are in RUN.json alone, so no shell reads them."""
    planned(folder, "--script", "train.py", "--", *HOSTILE)
    scripts = list((folder / "jobs").glob("*.sh"))
    assert scripts
    for script in scripts:
        assert not any(text in script.read_text() for text in ("hacked", "quoted", shlex.quote(HOSTILE[1])))
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        if SHELLCHECK.exists():
            done = subprocess.run([str(SHELLCHECK), str(script)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout
    stored = [json.loads(path.read_text())["arguments"] for path in (folder / "jobs" / "runs").glob("*.json")]
    assert stored == [HOSTILE, HOSTILE]
