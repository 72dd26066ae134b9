"""The house keeps its floors, its doors and its names."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hpc.system.import_guard import install_command

ROOT = Path(__file__).resolve().parents[2]


FRAMEWORK_FILE = re.compile(r"^(hpc/(?:backends|workloads)/)(?:torch|tensorflow|paddle)_")


def shared_type_names(root: Path) -> dict[str, list[str]]:
    """The files of every public name of a class that several have, or a class and a type that stands for another.

    The same file of several frameworks counts as one, as do types that stand for the same.
    """
    files: dict[str, dict[str, str]] = {}
    for package in ("hpc", "launch", "parse"):
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files.setdefault(node.name, {})[FRAMEWORK_FILE.sub(r"\1", name)] = name
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    alias, value = node.targets[0].id, ast.unparse(node.value).replace("npt.", "")
                    if alias[0].isupper() and not alias.isupper():
                        files.setdefault(alias, {})[value] = name
    return {name: list(of.values()) for name, of in files.items() if len(of) > 1}


def test_no_two_types_share_a_name() -> None:
    assert shared_type_names(ROOT) == {}


HEAVY = {"torch", "mpi4py", "tensorflow", "paddle", "horovod"}


@pytest.mark.parametrize(
    "module", ["hpc.sweep", "launch.sweep.submit", "launch.sweep.prepare", "parse.summarize", "launch.scheduler.slurm"]
)
def test_a_login_node_needs_neither_torch_nor_mpi(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "module"), [("torch", "torch_models"), pytest.param("paddle", "paddle_models", marks=pytest.mark.all)]
)
def test_synthetic_images_do_without_what_reads_files(framework: str, module: str) -> None:
    """The extras of the frameworks do not bring Pillow; that of reading files does."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    code = f"import sys, hpc.workloads.{module}; print(*(name for name in sys.modules if name.startswith('hpc.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert f"hpc.workloads.{module}" in loaded and "hpc.workloads.image_batches" not in loaded
    assert "hpc.workloads.image_batches" not in loaded


def test_no_dependency_brings_a_foreign_parse_or_launch() -> None:
    """Walks what our requirements, all extras included, require in turn, as far as it is installed here."""
    names, seen = ["rankwise"], set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in wanted:
            requirement = Requirement(text)
            if name == "rankwise" or requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names.append(requirement.name.lower())
    assert {"torch", "submitit", "h5py", "sympy"} <= seen
    assert not {"parse", "launch"} & seen


def test_hints_install_the_project_as_it_is_here() -> None:
    assert install_command("torch", Path("/x/rankwise/_src")) == "pip install 'rankwise[torch]'"
    assert install_command(root=Path("/x/rankwise/_src")) == "pip install rankwise"
    assert install_command("torch", Path("/x/rankwise")) == "pip install -e '.[torch]'"
    assert install_command(root=Path("/x/rankwise")) == "pip install -e /x/rankwise"
    sources = [path for name in ("hpc", "launch", "parse") for path in (ROOT / name).rglob("*.py")]
    assert [path.name for path in sources if "pip install -e" in path.read_text()] == ["import_guard.py"]
