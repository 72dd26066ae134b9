"""The wheel, in an environment of its own without the checkout: its files, and its commands from an empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.system.command_line import SUBCOMMANDS
from launch.scheduler.local import what_is_missing
from tests.sweeps import ROOT
from tests.unit.page_folders import put_sweep
from tools.bundle.archive import checkout_files

PACKAGES = ("rankwise/", "hpc/", "launch/", "parse/", "sbatch_templates/", "tools/__init__.py", "tools/devcluster/")
SWEEP = ("sweep", "--cluster", "local", "--nodes", "1", "--ranks-per-node", "2", "--backend", "mpi", "--workload",
         "delay", "--option", "compute_ms=1", "--steps", "8", "--warmup", "5", "--repeats", "1")  # fmt: skip
FOREIGN = "raise ImportError('the foreign package {name} was imported')\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the files that the checkout tracks, without network."""
    source, out = tmp_path_factory.mktemp("source") / "rankwise", tmp_path_factory.mktemp("wheel")
    for name in checkout_files(ROOT):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (path,) = out.glob("rankwise-*.whl")
    return path


def pip(*arguments: str, python: Path | None = None) -> None:
    where = ["--python", str(python)] if python is not None else []
    argv = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", *where, *arguments, "--no-index"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the wheel, and the packages of this environment without what .pth files add to them: the checkout."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip("install", "--no-deps", str(wheel), python=folder / "bin" / "python")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages(folder) / "others.pth").write_text("\n".join(others) + "\n")
    return folder


def packages(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def rankwise(environment: Path, *arguments: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """The installed command, of an environment that is not activated."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [environment / "bin" / "rankwise", *arguments], cwd=cwd, env=env | ({"PYTHONPATH": path} if path else {}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_wheel_has_every_file_of_the_packages_and_no_other_below_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (top_level,) = (name for name in archive.namelist() if name.endswith(".dist-info/top_level.txt"))
        assert archive.read(top_level) == b"rankwise\n"
    tracked = {str(name) for name in checkout_files(ROOT)}
    packaged = {name for name in tracked if name.startswith(PACKAGES)}
    assert names == {name if name.startswith("rankwise/") else f"rankwise/_src/{name}" for name in packaged}


@pytest.mark.parametrize(
    "subcommand",
    [None, "sweep", *(pytest.param(name, marks=pytest.mark.all) for name in SUBCOMMANDS if name != "sweep")],
)
def test_every_command_answers_from_an_empty_folder(environment: Path, subcommand: str | None, tmp_path: Path) -> None:
    arguments = ("--version",) if subcommand is None else (subcommand, "--help")
    done = rankwise(environment, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: rankwise {subcommand}" if subcommand else "Rankwise ")
    assert list(tmp_path.iterdir()) == []


def test_its_data_is_there(environment: Path, tmp_path: Path) -> None:
    shown = rankwise(environment, "sweep", "list", cwd=tmp_path).stdout
    inside = str(packages(environment).resolve())
    for name in ("sites/example.toml", "references/plsc-arcface.toml"):
        assert re.search(rf"{re.escape(inside)}\S*/{name}", shown), shown
    assert str(ROOT) not in shown


@pytest.mark.parametrize(
    "foreign",
    [pytest.param(each, marks=pytest.mark.all) for each in ("none", "before", "same folder")],
)
def test_a_sweep_runs_and_is_read_beside_foreign_packages(
    environment: Path, wheel: Path, foreign: str, tmp_path: Path
) -> None:
    """Real ranks, whose job script imports Rankwise from the installation, and nothing foreign of its names."""
    if missing := what_is_missing():
        pytest.skip("; ".join(missing))
    if foreign == "same folder":
        environment = shutil.copytree(environment, tmp_path / "venv", symlinks=True)
        for script in (environment / "bin").glob("rankwise"):
            script.write_text(f"#!{environment}/bin/python\n" + script.read_text().partition("\n")[2])
        for name in ("hpc", "launch", "parse", "tools"):
            (packages(environment) / name).mkdir()
            (packages(environment) / name / "__init__.py").write_text(FOREIGN.format(name=name))
        # As PyPI's argparse 1.4.0, which old packages bring: site-packages on PYTHONPATH would hide Python's own.
        (packages(environment) / "argparse.py").write_text(FOREIGN.format(name="argparse"))
    folder = tmp_path / "empty"
    folder.mkdir()
    others = tmp_path / "others"
    for name in ("launch", "parse", "tools"):
        (others / name).mkdir(parents=True)
        (others / name / "__init__.py").write_text(FOREIGN.format(name=name))
    path = str(others) if foreign == "before" else ""

    done = rankwise(environment, *SWEEP, cwd=folder, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"rankwise summarize {folder}/traces"
    script = (folder / "jobs" / "1n.sh").read_text()
    (imports,) = re.findall(r"^export PYTHONPATH=(\S+?)\"", script, re.MULTILINE)
    assert Path(imports) == (packages(environment) / "rankwise" / "_src").resolve()
    assert {path.name for path in Path(imports).iterdir()} == {"hpc", "launch", "parse", "sbatch_templates", "tools"}
    assert str(ROOT) not in script and f"python={environment}/bin/python" in script

    done = rankwise(environment, "summarize", "traces", "--format", "json", cwd=folder, path=path)
    assert done.returncode == 0, done.stderr
    assert {point["case"] for point in json.loads(done.stdout)["results"]} == {"1n1g", "1n2g"}
    done = rankwise(environment, "report", "traces", cwd=folder, path=path)
    assert done.returncode == 0 and "<script" in (folder / "report.html").read_text(), done.stderr
    done = rankwise(environment, *SWEEP, cwd=folder, path=path)
    assert done.returncode == 0 and "every run is final" in done.stdout
    done = rankwise(environment, "sweep", "retry", "rank_fail", cwd=folder, path=path)
    assert done.returncode == 2 and "2 ok" in done.stderr


def test_a_notebook_loads_and_has_none_of_our_packages(environment: Path, tmp_path: Path) -> None:
    put_sweep(tmp_path / "traces", nodes=(1, 2), count=2)
    code = (
        "import rankwise; measurement = rankwise.load('traces')\n"
        "import importlib.util, polars\n"
        "assert importlib.util.find_spec('parse') is None\n"
        "print(rankwise.SOURCE, len(polars.DataFrame(measurement.points)), measurement.findings[0].kind)\n"
    )
    done = subprocess.run([environment / "bin" / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    source = (packages(environment) / "rankwise" / "_src").resolve()
    assert done.stdout == f"{source} 2 straggler\n", done.stderr


def test_a_script_has_the_two_lines_and_none_of_our_packages(environment: Path, tmp_path: Path) -> None:
    """Observed by the installed command and bare, without the environment's `hpc` or `parse`."""
    if missing := missing_modules(SCRIPT):
        pytest.skip("; ".join(missing))
    (tmp_path / "trains.py").write_text(
        "import importlib.util, sys\n"
        "from rankwise.observe import data, step\n"
        "assert importlib.util.find_spec('parse') is None\n"
        "for _ in data(range(40)): step()\n"
        "print('trained', any('_src' in path and not path.endswith('site') for path in sys.path))\n"
    )
    bare = subprocess.run([environment / "bin" / "python", "trains.py"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert bare.stdout == "trained False\n", bare.stderr
    done = rankwise(environment, "observe", "--warmup", "5", "--", "trains.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained False\n") and "read it: rankwise summarize" in done.stdout
