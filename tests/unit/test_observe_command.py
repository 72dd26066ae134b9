"""What people type behind `hpc.observe --`: python, -m, and launchers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hpc import script
from hpc.model.spec import SpecError
from tests.unit.commands import command

PYTHON = str(Path(sys.executable))


@pytest.mark.parametrize(
    "words",
    [("train.py", "--lr", "1"), (PYTHON, "train.py", "--lr", "1"), (PYTHON, "-u", "train.py", "--lr", "1")],
)
def test_the_script_is_the_same_with_python_before_it(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    assert list(script._script_of(words)) == ["train.py", "--lr", "1"]


def test_another_python_is_not_taken_for_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    with pytest.raises(SpecError, match=rf"runs in the Python of rankwise observe, {re.escape(sys.executable)}"):
        script._script_of([str(other), "train.py"])
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match="python is not on PATH"):
        script._script_of(["python", "train.py"])


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (
            "torchrun --nproc-per-node 2 train.py --lr 3",
            "torchrun --nproc-per-node 2 -m hpc.observe -- train.py --lr 3",
        ),
        ("accelerate launch train.py", "accelerate launch -m hpc.observe -- train.py"),
        ("srun -N2 python train.py", "srun -N2 rankwise observe -- train.py"),
        ("mpiexec -n 4 train.py --token x", "mpiexec -n 4 rankwise observe -- train.py --token '(left out)'"),
    ],
)
def test_a_launcher_goes_before_us(words: str, typed: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"measures in each: {typed}")):
        script._script_of(words.split())


def test_what_no_script_is_named_by_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for given, reason in (
        ([PYTHON], "python names no script"),
        ([PYTHON, "-O", "train.py"], "-O: an option of Python is not passed on"),
        (["train"], "Did you mean train.py?"),
        (["none.py"], "'none.py' is no Python file here"),
        ([], "no script: it follows --"),
    ):
        done = command("hpc.observe", "--", *given, cwd=tmp_path)
        assert done.returncode == 2 and reason in done.stderr, done.stderr


@pytest.mark.parametrize("words", [("--", "-m", "pack.train", "--lr", "1"), ("-m", "pack.train", "--lr", "1")])
def test_the_file_that_is_advised_for_a_module_runs_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train.py").write_text("import sys\nfrom . import part\nprint(__name__, sys.argv[1:])\n")
    (tmp_path / "pack" / "part.py").touch()
    done = command("hpc.observe", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "make run_train.py of these lines, then rankwise observe -- run_train.py --lr 1" in done.stderr
    (tmp_path / "run_train.py").write_text(done.stderr[done.stderr.index("import runpy") :])
    env = {"PYTHONSAFEPATH": ""}  # as a person's shell has it
    made = command("hpc.observe", "--gpus-per-node", "0", "--", "run_train.py", "--lr", "1", cwd=tmp_path, env=env)
    assert "__main__ ['--lr', '1']" in made.stdout
