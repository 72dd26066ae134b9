"""Made-up machines, and the tool that builds Horovod, loaded from its path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.horovod.machine import OPEN_MPI, Machine


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing."""
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def machine(bare: Machine) -> Machine:
    """A machine that can build Horovod."""
    bare.install_torch("2.13.0+cpu")
    bare.install("tensorflow", "2.21.0", package="tensorflow-cpu")
    for needed in ("cffi", "cloudpickle", "mpi4py", "packaging", "pip", "psutil", "yaml"):
        bare.install(needed)
    bare.command("c++")
    bare.install_mpi(OPEN_MPI)
    return bare


@pytest.fixture
def tool(machine: Machine) -> Iterator[ModuleType]:
    """tools/horovod/build.py; what it depends on is tools/horovod/ingredients.py."""
    before = {name: sys.modules.pop(name, None) for name in ("build", "ingredients")}
    yield importlib.import_module("build")
    for name, module in before.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def ingredients(tool: ModuleType) -> ModuleType:
    return sys.modules["ingredients"]
