"""How `python -m hpc.sweep` ends that is interrupted, or that nobody reads; what it says of scripts changed by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc import sweep
from hpc.sweeps import status

ROOT = Path(__file__).resolve().parents[2]
PLANNED = ("--cluster", "local", "--nodes", "1", "--backend", "mpi", "--workload", "delay", "--dry-run")


def test_ctrl_c_ends_it_with_a_word_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C comes while --cancel waits, as a fake that raises what Python then raises."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "cancel", interrupted)
    assert sweep.main(["--cancel"]) == 130
    assert capsys.readouterr().err == "hpc.sweep: interrupted\n"


@pytest.mark.parametrize("arguments", [("--list",), PLANNED])
def test_a_reader_that_has_gone_is_no_error_to_be_shown(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "hpc.sweep", *arguments]
    done = subprocess.run(argv, cwd=tmp_path, env=env, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


def test_numbers_are_written_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([*PLANNED, "--max-jobs", "²"]) == 2
    assert "--max-jobs '²' is no number of jobs" in capsys.readouterr().err


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([*PLANNED, "--out", f"{tmp_path}/b\udcff"]) == 2
    assert "b\\udcff/jobs' has a name that is not UTF-8" in capsys.readouterr().err


def test_a_script_changed_by_hand_is_kept_and_it_is_said_that_it_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([*PLANNED, "--out", str(tmp_path)]) == 0
    assert "which has these runs" not in capsys.readouterr().out
    script = tmp_path / "jobs" / "1n.sh"
    script.write_text(script.read_text().replace("start_limit_s=600", "start_limit_s=1200"))
    assert sweep.main([*PLANNED, "--out", str(tmp_path)]) == 0
    assert "not 1n.sh, which has these runs and another text (changed by hand," in capsys.readouterr().out
    assert "start_limit_s=1200" in script.read_text()
