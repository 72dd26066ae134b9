"""hpc.workloads.user_code: what counts as the code of a person's own workload, and what its file defines."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from hpc.model.spec import SpecError
from hpc.workloads import code_digest, load_factory
from hpc.workloads.user_code import check_factory, code_files, files_newer_than


def put(folder: Path, files: dict[str, str] | None = None, **more: str) -> None:
    """Writes each text as the `.py` file of that name."""
    for name, text in {**(files or {}), **more}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names_of(folder: Path, main: str = "main.py") -> list[str]:
    return [path.relative_to(folder).as_posix() for path in code_files(f"{folder / main}:F")]


def test_a_file_without_imports_from_its_folder_keeps_the_digest_of_earlier_versions(tmp_path: Path) -> None:
    put(tmp_path, main="import torch, json\nfrom numpy import random\nclass F: pass\n", other="x = 1\n")
    workload = f"{tmp_path}/main.py:F"
    assert code_digest(workload) == hashlib.sha256((tmp_path / "main.py").read_bytes()).hexdigest()[:12]
    assert code_digest("resnet50") == ""


@pytest.mark.parametrize(
    ("statement", "files"),
    [
        ("import helper", ["helper.py"]),
        ("import package.deep.leaf", ["package/__init__.py", "package/deep/__init__.py", "package/deep/leaf.py"]),
        ("from package import leaf", ["package/__init__.py", "package/leaf.py"]),
        ("from package import attribute", ["package/__init__.py"]),
        ("from package import *", ["package/__init__.py", "package/leaf.py"]),
        ("from namespace import leaf", ["namespace/leaf.py"]),
        ("from helper import *", ["helper.py"]),
        ("def f():\n    import helper", ["helper.py"]),
        ("try:\n    import helper\nexcept ImportError:\n    pass", ["helper.py"]),
        ("import importlib\nimportlib.import_module('package.leaf')", ["package/__init__.py", "package/leaf.py"]),
        ("__import__('helper')", ["helper.py"]),
        ("from package import up", ["helper2.py", "package/__init__.py", "package/deep/__init__.py", "package/up.py"]),
        ("import fast", ["fast.cpython-311-x86_64-linux-gnu.so"]),
        ("import hpc.model.spec", []),
        ("import main", []),
    ],
)
def test_imports_from_the_folder_are_listed(tmp_path: Path, statement: str, files: list[str]) -> None:
    empty = ("package/leaf", "package/deep/__init__", "package/deep/leaf", "namespace/leaf", "hpc/__init__", "hpc/spec")
    put(tmp_path, dict.fromkeys(empty, ""), helper="", helper2="", main=f"{statement}\n")
    put(tmp_path, {"package/__init__": "__all__ = ['leaf']\nattribute = 1\n"})
    put(tmp_path, {"package/up": "from . import deep\nfrom .. import helper2\n"})
    (tmp_path / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    assert names_of(tmp_path) == ["main.py", *files]


def test_indirect_and_cyclic_imports_count(tmp_path: Path) -> None:
    put(tmp_path, main="import a\n", a="import b\n", b="import a, c\n", c="x = 1\n", unused="y = 1\n")
    assert names_of(tmp_path) == ["main.py", "a.py", "b.py", "c.py"]
    workload = f"{tmp_path}/main.py:F"
    before = code_digest(workload)
    put(tmp_path, unused="y = 2\n")
    assert code_digest(workload) == before
    put(tmp_path, c="x = 2\n")
    assert code_digest(workload) != before
    put(tmp_path, c="x = 1\n")
    assert code_digest(workload) == before


def test_the_digest_does_not_depend_on_where_the_folder_is(tmp_path: Path) -> None:
    for name in ("one", "two"):
        put(tmp_path / name, main="import a\n", a="")
    (tmp_path / "link.py").symlink_to(tmp_path / "one" / "main.py")
    digests = {code_digest(f"{tmp_path}/{file}:F") for file in ("one/main.py", "two/main.py", "link.py")}
    assert len(digests) == 1


def test_a_link_to_a_parent_folder_ends(tmp_path: Path) -> None:
    put(tmp_path, {"main": "import package\n", "package/__init__": "from .package import x\n"})
    (tmp_path / "package" / "package").symlink_to(tmp_path / "package")
    assert names_of(tmp_path) == ["main.py", "package/__init__.py"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("main", "class F(:\n", "main.py, line 1: "),
        ("a", "x = 1\ny = (\n", "a.py, line 2: "),
        ("a", "x = '\0'\n", "a.py"),
    ],
)
def test_a_file_that_python_cannot_parse_is_named_with_the_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    put(tmp_path, **{"main": "import a\n", "a": "", name: text})
    with pytest.raises(SpecError, match=message):
        code_digest(f"{tmp_path}/main.py:F")


def test_newer_files_are_named(tmp_path: Path) -> None:
    put(tmp_path, main="import a, b\n", a="", b="")
    now_s = max((tmp_path / f"{name}.py").stat().st_ctime for name in ("main", "a", "b"))
    assert files_newer_than(f"{tmp_path}/main.py:F", now_s) == []
    os.utime(tmp_path / "b.py", (now_s + 100, now_s + 100))
    assert files_newer_than(f"{tmp_path}/main.py:F", now_s + 50) == ["b.py"]


def test_a_missing_factory_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    put(tmp_path, main="import torch\nclass MyTraining: pass\n_private = 1\n")
    check_factory(f"{tmp_path}/main.py:MyTraining")
    with pytest.raises(SpecError, match=r"has no MyTrainin; it defines MyTraining\. Did you mean MyTraining\?"):
        check_factory(f"{tmp_path}/main.py:MyTrainin")
    put(tmp_path, main="from elsewhere import *\n")
    check_factory(f"{tmp_path}/main.py:Anything")


def test_a_persons_file_may_define_dataclasses_whose_annotations_are_text(tmp_path: Path) -> None:
    """Which look for their module among those that are loaded."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Mine:\n    size: int = 3\n"
    )
    assert load_factory(f"{file}:Mine", "torch")().size == 3
