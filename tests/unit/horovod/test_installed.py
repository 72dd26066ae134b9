"""What the installed Horovod was built against, and the message where that does not fit."""

from __future__ import annotations

import pytest

from hpc.backends.horovod_group import build_problem, built_against, built_for, installed_version
from tests.unit.horovod.machine import Machine


def test_a_horovod_that_fits_is_no_problem(machine: Machine) -> None:
    machine.install_horovod(pytorch="2.13.0+cpu", tensorflow="2.21.0", built_for={"mpi": "Open MPI 4.1.4"})
    assert built_against() == {"torch": "2.13.0+cpu", "tensorflow": "2.21.0", "mpi": "Open MPI 4.1.4"}
    assert build_problem("torch") == build_problem("tensorflow") == ""


def test_another_version_is_named_with_the_fix(machine: Machine) -> None:
    machine.install_horovod(pytorch="2.12.0+cpu", tensorflow="2.21.0")
    assert build_problem("torch") == (
        "Horovod was built against torch 2.12.0+cpu, installed is torch 2.13.0+cpu: rebuild it by make horovod"
    )
    assert build_problem("tensorflow") == ""


def test_a_framework_that_it_was_built_without_is_named(machine: Machine) -> None:
    machine.install_horovod(pytorch="2.13.0+cpu")
    assert "Horovod was built without tensorflow, installed is tensorflow 2.21.0" in build_problem("tensorflow")


def test_a_missing_horovod_or_framework_is_no_build_problem(bare: Machine) -> None:
    bare.install_torch("2.13.0")
    assert (built_against(), built_for(), build_problem("torch")) == ({}, {}, "")
    bare.install_horovod(pytorch="2.13.0")
    assert build_problem("tensorflow") == ""


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow-cpu", "tensorflow-rocm"])
def test_tensorflow_is_known_under_the_names_of_its_packages(bare: Machine, package: str) -> None:
    bare.install("tensorflow", "2.21.0", package=package)
    assert installed_version("tensorflow") == "2.21.0"


def test_a_leftover_folder_is_no_framework(bare: Machine) -> None:
    (bare.packages / "torch" / "lib").mkdir(parents=True)
    assert installed_version("torch") is None
