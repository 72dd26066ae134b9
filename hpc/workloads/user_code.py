"""A user's own workload file: its imports from its own folder, the digest of all these files, the names it defines.

The files are parsed and never executed. The search covers modules and packages below the folder of the workload file,
which is the first folder of the import path of a run (hpc.rank). It misses modules whose names are computed at run
time, data files, and files outside that folder.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc.model.options import did_you_mean
from hpc.model.spec import SpecError, is_user_code
from hpc.system.regular_file import read_whole

_ANY_NAME = r"import +\*|__getattr__|\bexec\(|\bglobals\(|\bsetattr\("
"""What may give a file names that its text does not show."""
_LOADED_BEFORE = "hpc"
"""The package of this project: a rank has loaded it before any workload, so no folder of that name is looked at."""


def code_digest(workload: str) -> str:
    """Digest of a user's own file and of its imports from its folder; empty for a workload of this project.

    A file without such imports has the digest of its own bytes. Raises SpecError where a file cannot be read or parsed.
    """
    if not is_user_code(workload):
        return ""
    main, *imported = code_files(workload)
    digest = _digest(main)
    if imported:
        root = main.parent
        parts = [f"{path.relative_to(root).as_posix()}\0{_digest(path)}\n" for path in imported]
        digest = hashlib.sha256("".join([f"{digest}\n", *parts]).encode("utf-8", "surrogateescape")).hexdigest()
    return digest[:12]


def code_files(workload: str) -> list[Path]:
    """The workload's file, then the files that it imports from its folder, directly or not, in the order of their
    names. Raises SpecError where one cannot be read or parsed."""
    main = _path(workload).resolve()
    files = {main: main}  # by resolved path, so that a link to a folder above it makes no endless tree
    pending = [main]
    while pending:
        if (path := pending.pop()).suffix != ".py":
            continue
        for file in sorted(file for name in _imports(path, main.parent) for file in _files_of(name, main.parent)):
            if file.resolve() not in files:
                files[file.resolve()] = file
                pending.append(file)
    return [main, *sorted(file for file in files.values() if file != main)]


def imported_packages(workload: str) -> set[str]:
    """The names of all packages that the workload's files import. Raises SpecError as code_files."""
    main = _path(workload).resolve().parent
    sources = [path for path in code_files(workload) if path.suffix == ".py"]
    return {name.module.partition(".")[0] for path in sources for name in _imports(path, main)}


def files_newer_than(workload: str, since_s: float) -> list[str]:
    """Those of the workload's files, by their names in its folder, that were written after that time (Unix, seconds).

    Raises SpecError as code_files.
    """
    main, *imported = code_files(workload)
    return [
        path.relative_to(main.parent).as_posix()
        for path in (main, *imported)
        if max(path.stat().st_mtime, path.stat().st_ctime) > since_s
    ]


def check_factory(workload: str) -> None:
    """Raises SpecError where the workload's file is not there, cannot be parsed, or lacks the factory that is named."""
    path, _, factory = workload.partition(":")
    if not factory:
        raise SpecError(f"workload {workload!r}: say which factory of the file, as {path}:FACTORY")
    if not Path(path).is_file():
        raise SpecError(f"workload {workload!r}: there is no file {Path(path).absolute()}")
    module = _parsed(_path(workload))
    source = read_whole(_path(workload)).decode(errors="replace")
    if not re.search(rf"\b{re.escape(factory)}\b|{_ANY_NAME}", source):
        classes = [node.name for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        known = ", ".join(name for name in classes if not name.startswith("_")) or "nothing"
        raise SpecError(
            f"workload {workload!r}: the file has no {factory}; it defines {known}{did_you_mean(factory, classes)}"
        )


@dataclass(frozen=True)
class _Name:
    """The target of one import statement: a module by its dotted name, searched in `base`, and members of it, some of
    which may be modules.

    `star` is `from module import *`: the names in `__all__` of a package.
    """

    base: Path
    module: str
    members: tuple[str, ...] = ()
    star: bool = False


def _imports(path: Path, root: Path) -> Iterator[_Name]:
    """Every import of a file, also inside functions, and `import_module` and `__import__` of a literal name."""
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield _Name(root, alias.name)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = root if level == 0 else path.parent.joinpath(*[".."] * (level - 1)).resolve()
                if base.is_relative_to(root):
                    names = tuple(alias.name for alias in aliases if alias.name != "*")
                    yield _Name(base, module or "", names, star=len(names) < len(aliases))
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
                if called in ("import_module", "__import__") and not name.startswith("."):
                    yield _Name(root, name)


def _files_of(name: _Name, root: Path) -> Iterator[Path]:
    """The files below `root` that importing this runs: of each package on the way its `__init__.py`, and the module."""
    folder: Path | None = name.base
    parts = name.module.split(".") if name.module else []
    if parts and name.base == root and parts[0] == _LOADED_BEFORE:
        return
    for part in parts:
        if folder is None:
            return
        yield from (files := _module_files(folder, part))
        folder = folder / part if not files or files[0].name == "__init__.py" else None
    if folder is None or not folder.is_dir():
        return
    members = list(name.members)
    if not parts:  # `from . import x` inside a package, whose `__init__.py` is on the way
        yield from (path for path in [folder / "__init__.py"] if folder != root and path.is_file())
    if name.star and (folder / "__init__.py").is_file():
        members += _listed_in_all(folder / "__init__.py")
    for member in members:
        yield from _module_files(folder, member)


def _module_files(folder: Path, name: str) -> list[Path]:
    """The files that importing that name from a folder may load: a package's `__init__.py`, else compiled modules and
    the source (which of them depends on the interpreter of the run); none for a namespace package."""
    if (package := folder / name / "__init__.py").is_file():
        return [package]
    candidates = [*sorted(folder.glob(f"{name}.*so")), folder / f"{name}.py"]
    return [path for path in candidates if path.is_file()]


def _listed_in_all(package: Path) -> list[str]:
    """The texts in what a module assigns to `__all__`."""
    return [
        constant.value
        for node in _parsed(package).body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        for constant in ast.walk(node.value)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    ]


def _parsed(path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import itself, in the run, shows a file's warnings
            return ast.parse(read_whole(path), filename=str(path))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        where = path if error.lineno is None else f"{path}, line {error.lineno}"
        reason = "it is no UTF-8, and its first lines name no other encoding" if "codec" in error.msg else error.msg
        raise SpecError(f"{where}: {reason}: Python cannot import the file") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nesting beyond the parser
        raise SpecError(f"{path}: Python cannot parse the file: {error}") from None


def _path(workload: str) -> Path:
    return Path(workload.partition(":")[0])


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_whole(path)).hexdigest()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
