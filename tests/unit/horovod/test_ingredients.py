"""What a wheel of Horovod depends on, and the message where something for its build is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from tests.unit.horovod.machine import MPICH, OPEN_MPI, Machine


def change_hook(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hook", "toolchain"):
        (machine.packages / f"horovod-{name}.cmake").write_text("# another")
    monkeypatch.setattr("ingredients.HERE", machine.packages)


CHANGES: dict[str, Callable[[Machine, pytest.MonkeyPatch], None]] = {
    "torch": lambda machine, _: machine.install_torch("2.13.1+cpu"),
    "torch's CUDA": lambda machine, _: machine.install_torch("2.13.0+cu130"),
    "tensorflow": lambda machine, _: machine.install("tensorflow", "2.20.0"),
    "no tensorflow": lambda machine, _: machine.lose("tensorflow"),
    "without tensorflow": lambda _, patch: patch.setenv("HOROVOD_WITHOUT_TENSORFLOW", "1"),
    "MPI's version": lambda machine, _: machine.install_mpi({**OPEN_MPI, "OMPI_RELEASE_VERSION": "5"}),
    "another MPI": lambda machine, _: machine.install_mpi(MPICH),
    "where MPI is": lambda machine, _: machine.install_mpi(OPEN_MPI, "/opt/other/include"),
    "Python": lambda _, patch: patch.setattr(sys, "implementation", SimpleNamespace(cache_tag="cpython-399")),
    "platform": lambda _, patch: patch.setattr("sysconfig.get_platform", lambda: "linux-riscv64"),
    "C library": lambda _, patch: patch.setattr("platform.libc_ver", lambda: ("glibc", "9.99")),
    "NCCL": lambda _, patch: patch.setenv("HOROVOD_NCCL_HOME", "/opt/nccl"),
    "processor": lambda _, patch: patch.setattr("ingredients.arch_flags", lambda: "-mother"),
    "Horovod": lambda _, patch: patch.setattr("ingredients.HOROVOD", "0.29.0"),
    "tools": lambda _, patch: patch.setattr("ingredients.TOOLS", ("cmake==3.30",)),
    "hook": change_hook,
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_ingredient_changes_the_key(
    ingredients: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before = ingredients.find_ingredients()
    assert ingredients.find_ingredients().key == before.key
    CHANGES[change](machine, monkeypatch)
    importlib.invalidate_caches()
    assert ingredients.find_ingredients().key != before.key


def test_gpu_operations_change_the_key(
    ingredients: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.command("nvcc")
    machine.install_torch("2.13.0+cu130")
    machine.install("tensorflow", "2.18.0")
    before = ingredients.find_ingredients()
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    after = ingredients.find_ingredients()
    assert after.key != before.key
    assert after.settings["HOROVOD_GPU_OPERATIONS"] == "NCCL"


def test_settings_of_runs_do_not_change_the_key(ingredients: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ingredients.find_ingredients()
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setenv("HOROVOD_CPU_OPERATIONS", "GLOO")
    assert ingredients.find_ingredients() == before


def test_the_name_version_and_path_of_an_mpi(ingredients: ModuleType, machine: Machine) -> None:
    assert ingredients.find_mpi() == (machine.commands / "mpicxx", "Open MPI 4.1.4", "/opt/mpi/include")
    machine.install_mpi(MPICH)
    assert ingredients.find_mpi()[1] == "MPICH 4.3.0"
    machine.install_mpi({"MPI_VERSION": "4", "MPI_SUBVERSION": "0"})
    assert ingredients.find_mpi()[1] == "MPI 4.0"


# What is missing


def lose_frameworks(machine: Machine, _: pytest.MonkeyPatch) -> None:
    for name in ("torch", "tensorflow"):
        machine.lose(name)


def lose_psutil(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lose("psutil")
    # Another test may have loaded it, and what is loaded counts as installed.
    for name in [name for name in sys.modules if name.partition(".")[0] == "psutil"]:
        monkeypatch.delitem(sys.modules, name)


def want_gpus(*versions: str, nvcc: bool = True) -> Callable[[Machine, pytest.MonkeyPatch], None]:
    def change(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        machine.install_torch(versions[0])
        machine.install("tensorflow", versions[1])
        monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
        monkeypatch.setenv("HOROVOD_CUDA_HOME", "/nowhere")
        if nvcc:
            machine.command("nvcc")

    return change


MISSING = {
    "compiler": (lambda machine, _: (machine.commands / "c++").unlink(), "no C++ compiler (c++): apt-get install g++"),
    "mpicxx": (
        lambda machine, _: (machine.commands / "mpicxx").unlink(),
        "no headers of MPI, for there is no mpicxx: apt-get install libopenmpi-dev",
    ),
    "mpi.h": (
        lambda machine, _: machine.command("mpicxx", "echo 'fatal error: mpi.h: No such file' >&2; exit 1"),
        "mpicxx cannot do #include <mpi.h> (fatal error: mpi.h: No such file): apt-get install libopenmpi-dev",
    ),
    "frameworks": (lose_frameworks, "neither torch nor tensorflow to build it for: pip install -e '.[torch]'"),
    "Python.h": (
        lambda machine, _: (machine.packages.parent / "Python.h").unlink(),
        "Python.h: apt-get install python3-dev",
    ),
    "psutil": (lose_psutil, "psutil not installed here: pip install -e '.[horovod]'"),
    "nvcc": (want_gpus("2.13.0+cu130", "2.18.0", nvcc=False), "nvcc is neither in PATH nor in /nowhere/bin"),
    "CUDA": (want_gpus("2.13.0+cpu", "2.18.0"), "torch 2.13.0+cpu is without CUDA"),
    "TensorFlow": (
        want_gpus("2.13.0+cu130", "2.21.0"),
        "xla_mpi_ops.cc, which the headers of TensorFlow >= 2.19 break; installed is 2.21.0",
    ),
}


@pytest.mark.parametrize("missing", MISSING)
def test_missing_ingredients_are_reported_before_the_build(
    tool: ModuleType,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
) -> None:
    change, text = MISSING[missing]
    change(machine, monkeypatch)
    importlib.invalidate_caches()
    assert tool.main([]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("horovod: not built: ")
    assert text in line
    assert tool.main(["--where-possible"]) == 0
    assert capsys.readouterr().out.splitlines() == [line]
    assert not machine.cache.exists()
