"""What a release consists of: its files, which install into an empty environment, and what describes it elsewhere."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hpc.system.version import __version__
from tools.release import __main__ as release
from tools.release.__main__ import NO_SUM, PACKAGING, ROOT, TRACE


@pytest.mark.slow
def test_wheel_and_source_archive_install_into_an_empty_environment_and_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On this Python, with what pip resolves; `make release-check` does so on every supported one."""
    assert release.build(tmp_path / "dist", isolation=False) == 0
    printed = capfd.readouterr().out
    assert printed.count("PASSED") == 2 and f"rankwise-{__version__}-py3-none-any.whl" in printed
    files = release.archives(tmp_path / "dist")
    for recipe in ("rankwise-0.4.0-foss-2025b.eb", "spack_repo/rankwise/packages/py_rankwise/package.py"):
        assert hashlib.sha256(files[1].read_bytes()).hexdigest() in (tmp_path / "dist/packaging" / recipe).read_text()
    (tmp_path / "tried").mkdir()
    argv = [sys.executable, ROOT / "tools/release/try_install.py", *files, TRACE, tmp_path / "tried"]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same of wheel and source archive; used" in done.stdout


def test_a_python_that_is_not_here_is_named_and_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (f"rankwise-{__version__}-py3-none-any.whl", f"rankwise-{__version__}.tar.gz"):
        (tmp_path / name).touch()
    monkeypatch.setattr(release, "supported", lambda: ["2.0"])
    assert release.check(tmp_path, [sys.executable]) == 1
    assert "Python 2.0: NOT TRIED, no interpreter of it is here" in capsys.readouterr().out


def test_the_pythons_that_are_tried_are_all_that_the_project_names() -> None:
    assert release.supported() == ["3.11", "3.12", "3.13", "3.14"]
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert release.interpreter(here, [sys.executable]) == sys.executable


SPACK = PACKAGING / "spack_repo/rankwise/packages/py_rankwise/package.py"
EASYBUILD = PACKAGING / f"rankwise-{__version__}-foss-2025b.eb"


def test_what_describes_the_release_elsewhere_is_of_this_version() -> None:
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    day = re.findall(rf"^## \[{re.escape(__version__)}\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [f"date-released: {each}\n" in (ROOT / "CITATION.cff").read_text() for each in day] == [True]
    assert f'version("{__version__}", sha256="{NO_SUM}")' in SPACK.read_text()
    assert f"version = '{__version__}'" in EASYBUILD.read_text() and NO_SUM in EASYBUILD.read_text()
    assert f"WHEEL=rankwise-{__version__}-py3-none-any.whl" in (PACKAGING / "apptainer.def").read_text()


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.citation-file-format", "CITATION.cff"),
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
        ("vendor.github-workflows", "examples/ci/github.yml"),
        ("vendor.gitlab-ci", "examples/ci/gitlab.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml"),
    ],
)
def test_files_that_others_read_keep_their_schemas(schema: str, file: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(ROOT / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()


def test_the_recipes_need_what_pyproject_toml_needs() -> None:
    """Of Spack name and lower bound of each; of EasyBuild, whose versions are a toolchain's, the names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    stated = {tuple(re.split(">=", each.partition(",")[0])) for each in needed}
    calls = [node for node in ast.walk(ast.parse(SPACK.read_text())) if isinstance(node, ast.Call)]
    specs = [ast.literal_eval(each.args[0]) for each in calls if ast.unparse(each.func) == "depends_on"]
    recipe = {tuple(re.findall(r"^py-(.*)@([\d.]+):", each)[0]) for each in specs if each.startswith("py-")}
    assert recipe - {("setuptools", "77")} == stated
    names = {name.lower() for name in re.findall(r"^    \('([\w-]+)', ", EASYBUILD.read_text(), re.MULTILINE)}
    bundled = {"python", "python-bundle-pypi", "scipy-bundle"}
    within = {"jinja2", "numpy", "rich"}
    assert names - bundled | within == {"pytorch" if name == "torch" else name for name, _ in stated}
