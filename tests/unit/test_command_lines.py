"""The entry that all commands share, in real processes: Ctrl-C, missing packages, output that cannot be written."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from hpc.system.command_line import COMMANDS, INTERRUPTED, PROGRAMS, REQUIREMENTS, called
from tests.sweeps import ROOT
from tests.unit.commands import DRY_RUN, SLURM_DRY_RUN, command, process, sitecustomize, when_imported
from tests.unit.traces import make_run, make_trace, put


@pytest.fixture
def traces(traces: Path) -> Path:
    """A folder with one trace."""
    put(traces, make_trace(make_run()))
    return traces


# --- which modules are commands ---


def guarded_modules() -> dict[str, str]:
    """Every module that does something when it is run by `python -m`, with its last statement."""
    statements = {}
    for package in ("hpc", "launch", "parse"):
        for path in (ROOT / package).rglob("*.py"):
            statement = ast.parse(path.read_text()).body[-1:]
            if statement and isinstance(statement[0], ast.If) and "__name__" in ast.unparse(statement[0].test):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                statements[name.removesuffix(".__main__")] = ast.unparse(statement[0])
    return statements


def test_every_module_that_runs_is_in_the_tables() -> None:
    guarded = guarded_modules()
    assert set(guarded) == {*COMMANDS, *PROGRAMS}
    for name in COMMANDS:
        assert f"sys.exit(run(main, '{name}'" in guarded[name], name


def test_the_required_packages_are_those_of_pyproject_toml() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert tuple(sorted(re.split("[<>=]", each)[0] for each in required)) == REQUIREMENTS


@pytest.mark.parametrize("module", [*PROGRAMS, "hpc.recovery.__main__"])
def test_programs_and_packages_run_as_before(module: str, tmp_path: Path) -> None:
    done = command(module, "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout[:7]) == (0, "usage: "), done.stderr


def test_other_modules_that_import_ours_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import parse.report.summary, launch.scheduler.slurm, hpc.model.spec\nprint('done')\n"
    )
    done = command("mine", cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_an_import_outside_of_a_command_changes_nothing_in_the_process(tmp_path: Path) -> None:
    code = (
        "import signal, sys; streams = sys.stdout, sys.stderr; import parse.summarize, hpc.sweep, launch.doctor;"
        "assert (sys.stdout, sys.stderr) == streams; assert sys.excepthook is sys.__excepthook__;"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    done = process([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["hpc.sweep", "parse.summarize", "launch.doctor"])
def test_an_old_python_is_refused_with_the_version_needed(module: str, tmp_path: Path) -> None:
    """By a version that Python claims: the statement that looks at it is the first of the package."""
    env = sitecustomize(tmp_path / "site", "import sys\nsys.version_info = (3, 9, 18)\nsys.version = '3.9.18 (main)'\n")
    done = command(module, "--help", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert done.stderr == f"Rankwise needs Python 3.11 or newer; {sys.executable} is 3.9.18\n"


def test_the_package_can_be_parsed_by_an_old_python() -> None:
    ast.parse((ROOT / "hpc" / "__init__.py").read_text(), feature_version=(3, 6))


# --- a bare checkout ---


@pytest.mark.parametrize(
    "argv",
    [
        ("hpc.sweep", "--nodes", "1", "--dry-run"), ("hpc.sweep", "status"), ("parse.summarize", "."),
        ("parse.summarize", "--explain", "x.log"), ("parse.summarize", "--airank", "."), ("hpc.sweep", "recover", "."),
        ("launch.doctor", "--cluster", "local"),
    ],
)  # fmt: skip
def test_a_bare_checkout_names_the_fix(argv: tuple[str, ...], tmp_path: Path) -> None:
    """By an interpreter that looks for no packages at all."""
    done = command(argv[0], *argv[1:], cwd=tmp_path, options=("-S",))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{called(argv[0])}: ")
    assert re.search(rf": ({'|'.join(REQUIREMENTS)}) is not installed for {re.escape(sys.executable)}: run `", line)
    assert f"-m pip install -e {ROOT}`" in line


@pytest.mark.parametrize("argv", [("launch.devcluster", "status", "--root", "/nonexistent"), ("launch.catalog",)])
def test_a_command_that_needs_no_package_runs_without(argv: tuple[str, ...], tmp_path: Path) -> None:
    done = command(argv[0], *argv[1:], cwd=tmp_path, options=("-S",))
    assert (done.stderr, "Traceback" in done.stdout) == ("", False)


@pytest.mark.parametrize("package", REQUIREMENTS)
def test_each_missing_package_is_named(package: str, traces: Path, tmp_path: Path) -> None:
    missing = f"raise ModuleNotFoundError('no ' + {package!r}, name={package!r})"
    summarize = ("parse.summarize", str(traces))
    argv = {"h5py": summarize, "rich": summarize, "submitit": SLURM_DRY_RUN}.get(package, DRY_RUN)
    done = command(*argv, cwd=tmp_path, env=when_imported(tmp_path / "site", package, missing))
    assert done.returncode == 1, done.stdout
    assert f"{package} is not installed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error", ["ModuleNotFoundError('no mine', name='mine')", "ImportError('numpy is broken', name='numpy')"]
)
def test_an_import_error_that_is_a_bug_shows_its_traceback(error: str, tmp_path: Path) -> None:
    for module in ("jinja2", "argparse"):  # inside of main; and before it
        env = when_imported(tmp_path / module, module, f"raise {error}")
        done = command(*DRY_RUN, cwd=tmp_path, env=env)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "is not installed" not in done.stderr


# --- Ctrl-C ---


@pytest.mark.parametrize(
    ("module", "argv"),
    [
        # Before main, and at an import inside of it.
        ("argparse", DRY_RUN), ("numpy", DRY_RUN), ("launch.sweep.status", DRY_RUN),
        ("parse.runs.load", ("parse.summarize", ".")), ("jinja2", ("launch.doctor", "--cluster", "local")),
        ("hpc.rank", ("hpc.collectives",)),
        ("parse.ledger.point", ("parse.summarize", "traces", "--ledger")),  # while files are read
    ],
)  # fmt: skip
@pytest.mark.usefixtures("traces")
def test_ctrl_c_is_one_line(module: str, argv: tuple[str, ...], tmp_path: Path) -> None:
    env = when_imported(tmp_path / "site", module, "os.kill(os.getpid(), signal.SIGINT)")
    done = command(argv[0], *argv[1:], cwd=tmp_path, env=env)
    assert done.returncode == INTERRUPTED == 130
    assert done.stdout == ""
    assert done.stderr == f"{called(argv[0])}: interrupted\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site", "traces"]
