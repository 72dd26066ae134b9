"""Every ```bash block of the README and of docs/start.md runs as printed, in order, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S
from tools.devcluster.daemons import missing_programs

ROOT = Path(__file__).resolve().parents[2]
SLURM = frozenset({"sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"})
DOCUMENTS = ("README.md", "docs/start.md")
PACKAGES = ("hpc", "launch", "parse", "tools", "sbatch_templates", "examples")


def blocks() -> list[str]:
    text = "\n".join((ROOT / document).read_text() for document in DOCUMENTS)
    return re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def without_slurm(folder: Path, path: str) -> str:
    """A PATH with the same programs but Slurm's: a fresh machine, as in the documents until Slurm is installed."""
    folder.mkdir()
    for each in path.split(os.pathsep):
        for program in Path(each).iterdir() if Path(each).is_dir() else ():
            link = folder / program.name
            if program.name not in SLURM and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_readme_has_the_main_job_first() -> None:
    commands = [line.partition("#")[0].strip() for line in blocks()[0].splitlines()]
    assert commands == ["rankwise sweep --nodes 1,2,4", "rankwise summarize traces/ --ledger"]


@pytest.mark.all
def test_every_example_runs_as_printed(tmp_path: Path) -> None:
    if missing := missing_programs():
        pytest.skip(missing)
    checkout = tmp_path / "rankwise"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    python, system = Path(sys.executable).absolute().parent, f"{os.environ['PATH']}:/usr/sbin:/sbin"
    path, fresh = f"{python}:{system}", f"{python}:{without_slurm(tmp_path / 'programs', system)}"
    # A short cache folder: the sockets of a development cluster have short names or none.
    cache = Path(tempfile.mkdtemp(prefix="c-", dir="/var/tmp"))
    env = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(cache), "SLURM_CONF": "/nonexistent"}
    env.pop("PYTHONPATH", None)
    installed = next(at for at, block in enumerate(blocks()) if "rankwise devcluster start" in block)
    before, after = "\n".join(blocks()[:installed]), "\n".join(blocks()[installed:])
    script = f"set -euo pipefail\nPATH='{fresh}'\n{before}\nPATH='{path}'\n{after}"
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=checkout, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    finally:
        stop = [sys.executable, "-m", "launch.devcluster", "stop"]
        subprocess.run(stop, cwd=checkout, env=env, capture_output=True, check=False)
        shutil.rmtree(cache)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "not a scaling result" in done.stdout
    for case in ("1n1g", "2n1g", "4n1g", "2n2g", "4n2g"):
        assert re.search(rf"^{case} .*\b", done.stdout, re.MULTILINE), f"no row for {case}\n{done.stdout}"
    assert '"schema": "rankwise-summary"' in done.stdout
