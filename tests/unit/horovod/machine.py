"""A made-up machine for the tests of Horovod's build: packages, commands, a cache; nothing of the real one."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools" / "horovod"
OPEN_MPI = {"OMPI_MAJOR_VERSION": "4", "OMPI_MINOR_VERSION": "1", "OMPI_RELEASE_VERSION": "4", "MPI_VERSION": "3"}
MPICH = {"MPICH_VERSION": '"4.3.0"', "MPI_VERSION": "4", "MPI_SUBVERSION": "1"}


class Machine:
    """A made-up interpreter and machine: its packages, its commands, its cache."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packages, self.commands, self.cache = root / "packages", root / "bin", root / "cache"
        self.packages.mkdir()
        self.commands.mkdir()
        (root / "Python.h").touch()
        paths = [path for path in sys.path if not path.endswith(("site-packages", "dist-packages"))]
        monkeypatch.setattr(sys, "path", [str(self.packages), str(TOOLS), *paths])
        monkeypatch.setattr(sys, "executable", str(self.commands / "python"))
        for name in ("torch", "tensorflow", "horovod"):  # what another test imported is not here
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr("sysconfig.get_path", lambda *_: str(root))
        monkeypatch.setenv("PATH", str(self.commands))
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        monkeypatch.delenv("CXX", raising=False)
        for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
            monkeypatch.delenv(name)

    def install(self, module: str, version: str = "1.0", *, package: str = "") -> Path:
        """Puts a package there in place of any other version. Returns its folder."""
        folder = self.packages / module
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("raise SystemExit('imported')")
        for old in self.packages.glob(f"{module}*.dist-info"):
            shutil.rmtree(old)
        facts = self.packages / f"{(package or module).replace('-', '_')}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package or module}\nVersion: {version}\n")
        (facts / "top_level.txt").write_text(f"{module}\n")
        importlib.invalidate_caches()
        return folder

    def lose(self, module: str) -> None:
        shutil.rmtree(self.packages / module)
        importlib.invalidate_caches()

    def install_torch(self, version: str) -> None:
        """torch as it comes: the package's version leaves out what follows the plus of its own."""
        folder = self.install("torch", version.partition("+")[0])
        (folder / "version.py").write_text(f"from typing import Optional\n\n__version__ = '{version}'\n")

    def install_horovod(self, **metadata: object) -> None:
        folder = self.install("horovod", "0.28.1")
        (folder / "metadata.json").write_text(json.dumps({**metadata, "dummy": "none"}))

    def command(self, name: str, text: str = "") -> None:
        (self.commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.commands / name).chmod(0o755)

    def install_mpi(self, macros: dict[str, str], where: str = "/opt/mpi/include") -> None:
        """MPI's compiler, which says what the preprocessor makes of mpi.h."""
        lines = [f'# 1 "{where}/mpi.h" 1', *(f"#define {name} {value}" for name, value in macros.items())]
        self.command("mpicxx", "\n".join(f"echo '{line}'" for line in lines))
