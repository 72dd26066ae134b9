"""Takes leaves off in a copy of the tree: what remains works without them.

    python -m tests.leaf_removal

For each leaf alone: nothing that remains imports its files, and sweep, summarize and report show their help. For all
leaves at once but two backends: the import contracts hold, and the unit tests of the core pass.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.leaves import LOG_TESTS, PACKAGES, ROOT, Leaf, leaves

COPIED = (*PACKAGES, "rankwise", "sbatch_templates", "tools", "benchmarks", "examples", "docs", "tests",
          "pyproject.toml", "setup.py", "Makefile", "constraints.txt", "README.md", "CHANGELOG.md")  # fmt: skip
DOORS, BACKENDS = Path("hpc/system/leaves.py"), Path("hpc/backends/__init__.py")
KEPT = ("torch-ddp", "mpi")
"""A sweep trains with the first where none is named, and so the core needs it; tests of the core take the other, which
needs no framework."""
WORDS = ('"accept"', '"find-max"', '"--recipe"', '"auto"', '"--forecast"', '"--airank"')
"""Words and options of leaves, as tests name them."""
OF_A_CHECKOUT = "tools.bundle"
"""What makes archives of a checkout by git, which the copy is not."""
CONTRACT = "\n[[tool.importlinter.contracts]]\n"
EMPTY = re.compile(r"(?:containers|modules|importers) = \[\s*\]")
"""Of a contract that was about leaves alone."""
HELPS = ("hpc.sweep", "parse.summarize", "parse.report")


def with_dependents(names: Iterable[str]) -> list[Leaf]:
    """These leaves, and those that stand on them."""
    every, taken = leaves(), {*names}
    while more := {leaf.name for leaf in every if taken.intersection(leaf.stands_on)} - taken:
        taken |= more
    return [leaf for leaf in every if leaf.name in taken]


def without(taken: Sequence[Leaf], tree: Path) -> None:
    """Makes a copy of the tree without these leaves: files, tests, lines in the tables."""
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, tree / name)
    for leaf in taken:
        tests = [path for pattern in leaf.tests for path in tree.glob(pattern)]
        for path in (*(tree / path for path in leaf.paths), *tests):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    modules = gone(taken)
    lines = (tree / DOORS).read_text().splitlines(keepends=True)
    rest = [line for line in lines if not (match := re.search(r': "([\w.]+)",$', line)) or not is_of(match[1], modules)]
    (tree / DOORS).write_text("".join(rest))
    drop_entries(tree / BACKENDS, {leaf.name for leaf in taken})


def drop_entries(path: Path, names: set[str]) -> None:
    """Removes these keys from the dictionary BACKENDS of the file."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    (table,) = (
        node.value for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "BACKENDS"
    )  # fmt: skip
    assert isinstance(table, ast.Dict)
    for key, value in reversed([*zip(table.keys, table.values, strict=True)]):
        if isinstance(key, ast.Constant) and key.value in names:
            del lines[key.lineno - 1 : value.end_lineno]
    path.write_text("".join(lines))


def gone(taken: Iterable[Leaf]) -> set[str]:
    """The modules of the leaves."""
    files = (file.relative_to(ROOT).with_suffix("") for leaf in taken for file in leaf.files() if file.suffix == ".py")
    return {".".join(file.parts).removesuffix(".__init__") for file in files}


def is_of(name: str, modules: set[str]) -> bool:
    """Whether the module is one of these, or a package of one."""
    return name in modules or any(module.startswith(f"{name}.") for module in modules)


def imports(path: Path) -> Iterator[str]:
    """What a file imports, wherever the statement stands, but for the checker of types."""
    tree = ast.parse(path.read_text())
    hidden = {
        each for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body for each in ast.walk(statement)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in hidden:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node not in hidden:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def broken_imports(tree: Path, modules: set[str]) -> list[str]:
    """Files of the product in the copy that import one of these modules."""
    files = [file for package in PACKAGES for file in (tree / package).rglob("*.py")]
    return [f"{file.relative_to(tree)} imports {name}" for file in files for name in imports(file) if name in modules]


def command(tree: Path, *arguments: str) -> list[str]:
    """The last lines that the command prints in the copy where it fails; none where it succeeds."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env={"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [] if done.returncode == 0 else [" ".join(arguments), *(done.stdout + done.stderr).splitlines()[-60:]]


def problems(taken: Sequence[Leaf], tree: Path) -> list[str]:
    """What does not work without these leaves."""
    without(taken, tree)
    faults = broken_imports(tree, gone(taken))
    return [*faults, *(line for module in HELPS for line in command(tree, "-m", module, "--help"))]


def core_tests(tree: Path, taken: Sequence[Leaf]) -> list[str]:
    """The unit tests of the copy that name nothing of the leaves or of a checkout, nor do the helpers, benchmarks and
    tools that they import."""
    modules = gone(taken)
    names_of_leaves = [*(path for leaf in taken for path in leaf.paths), *(f'"{leaf.name}"' for leaf in taken), *WORDS]
    of_logs = LOG_TESTS.replace("/", ".")  # their builders
    named = re.compile("|".join(map(re.escape, [*modules, *names_of_leaves, of_logs, OF_A_CHECKOUT])))
    folders = (tree / name for name in ("tests", "benchmarks", "tools"))
    files = {file: {*imports(file)} for folder in folders for file in sorted(folder.rglob("*.py"))}
    beside = {file for file, its in files.items() if named.search(file.read_text()) or its & modules}
    while True:
        names = {".".join(file.relative_to(tree).with_suffix("").parts) for file in beside}
        if not (more := {file for file, its in files.items() if file not in beside and its & names}):
            break
        beside |= more
    unit = tree / "tests" / "unit"
    chosen = [file for file in files if file.is_relative_to(unit) and file.name.startswith("test_")]
    return [str(file.relative_to(tree)) for file in chosen if file not in beside]


def without_all(tree: Path) -> list[str]:
    """What does not work without any leaf but the backends of KEPT."""
    taken = [leaf for leaf in leaves() if leaf.name not in KEPT]
    faults = problems(taken, tree)
    names = "|".join(re.escape(f'"{module}"') for module in gone(taken))
    project = re.sub(rf"(?:{names}),?[ ]?", "", (tree / "pyproject.toml").read_text())
    contracts = project.split(CONTRACT)
    (tree / "pyproject.toml").write_text(CONTRACT.join(each for each in contracts if not EMPTY.search(each)))
    faults += command(tree, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    tests = core_tests(tree, taken)
    print(f"without all leaves: {len(tests)} files of unit tests of the core", flush=True)
    return faults + command(tree, "-m", "pytest", "-q", "-n", "2", "-m", "not all", *tests)


def main() -> int:
    """1 where anything does not work without a leaf."""
    failed = False
    for name in [*(leaf.name for leaf in leaves()), ""]:
        with tempfile.TemporaryDirectory() as folder:
            faults = problems(with_dependents([name]), Path(folder)) if name else without_all(Path(folder))
        print(
            *[f"without {name or 'all'}: {'works' if not faults else 'does not work'}", *faults], sep="\n", flush=True
        )
        failed = failed or bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
