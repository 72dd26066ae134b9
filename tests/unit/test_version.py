"""hpc.system.version: the text of --version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.system import environment
from hpc.system.version import WRITTEN_BY, __version__, code_version, version_line
from tests.sweeps import ROOT


@pytest.mark.parametrize("module", ["hpc.sweep", "parse.summarize"])
def test_version_is_shown(module: str) -> None:
    argv = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"Rankwise {re.escape(__version__)}( \(commit .+\))?\n", done.stdout)


@pytest.mark.parametrize(
    ("project", "shown"),
    [
        ({}, ""), ({"problem": "git: broken"}, " (commit unknown: git: broken)"),
        ({"commit": "0123456789abcdef", "dirty": False}, " (commit 0123456789)"),
        ({"commit": "0123456789abcdef", "dirty": True}, " (commit 0123456789, with changes)"),
    ],
)  # fmt: skip
def test_a_checkout_has_its_commit_and_its_changes(
    monkeypatch: pytest.MonkeyPatch, project: dict[str, object], shown: str
) -> None:
    monkeypatch.setattr(environment, "describe_project", lambda root: project)
    assert version_line() == f"Rankwise {__version__}{shown}"


def test_the_newest_release_of_the_changelog_and_the_archive_in_the_documents_have_this_version() -> None:
    heading = re.search(r"^## \[(\d.*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None and heading[1] == __version__
    assert {*re.findall(r"rankwise-(\d+\.\d+\.\d+)-", (ROOT / "docs/start.md").read_text())} == {__version__}


def test_setup_py_reads_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "No module named" in done.stderr:
        pytest.skip("no setuptools here")
    assert done.stdout.splitlines()[-1] == __version__


def test_the_code_that_runs_on_nodes_has_a_digest_of_its_modules(tmp_path: Path) -> None:
    assert re.fullmatch(rf"{re.escape(__version__)}\+[0-9a-f]{{12}}", code_version())
    versions = []
    for folder, name, text in (("a", "x.py", "1"), ("b", "x.py", "1"), ("c", "x.py", "2"), ("d", "y.py", "1")):
        (tmp_path / folder / "below").mkdir(parents=True)
        (tmp_path / folder / "below" / name).write_text(text)
        (tmp_path / folder / "below" / "x.pyc").write_text(folder)
        versions.append(code_version(tmp_path / folder))
    assert versions[0] == versions[1] and len(set(versions)) == 3


def test_the_code_that_wrote_a_script_is_read_from_it() -> None:
    [name] = WRITTEN_BY.findall(b"#!/bin/bash\n# A Rankwise 0.2.0+0123456789ab job: `sbatch THIS_FILE` runs\n# more\n")
    assert name == b"0.2.0+0123456789ab"
