"""The versions that the installed Horovod was built against, from its metadata file; imports no framework."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_NAMES = {"torch": "pytorch", "tensorflow": "tensorflow"}
"""Frameworks by their names in Horovod's metadata."""


def installed_version(framework: str) -> str | None:
    """The version of an installed framework, read without importing it; None where it is not installed.

    torch's is read from its version.py: the version of its package lacks the CUDA build (2.13.0, not 2.13.0+cu130).
    """
    if (folder := _folder(framework)) is None:
        return None
    if framework == "torch":
        match = re.search(r"^__version__ = '(.+)'$", (folder / "version.py").read_text(), re.MULTILINE)
        return match[1] if match else version(framework)
    for package in (framework, f"{framework}-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    others = packages_distributions().get(framework, ())  # slow; tensorflow-rocm and tf-nightly are such
    return next((version(package) for package in others), None)


def built_for() -> dict[str, str | None]:
    """The ingredients of the installed Horovod as recorded by `make horovod`; empty if it was built otherwise."""
    return dict(_metadata().get("built_for", {}))


def built_against() -> dict[str, str]:
    """Versions of torch, tensorflow and MPI that Horovod was compiled with, as far as its metadata has them."""
    metadata = _metadata()
    versions = {framework: str(metadata[name]) for framework, name in _NAMES.items() if metadata.get(name)}
    mpi = built_for().get("mpi")
    return {**versions, "mpi": mpi} if mpi else versions


def build_problem(framework: str) -> str:
    """One line where the installed Horovod does not fit the installed framework; empty where it fits or is absent."""
    if _folder("horovod") is None or (installed := installed_version(framework)) is None:
        return ""
    built = built_against().get(framework)
    if built == installed:
        return ""
    target = f"against {framework} {built}" if built else f"without {framework}"
    return f"Horovod was built {target}, installed is {framework} {installed}: make horovod builds it anew"


def _metadata() -> dict[str, Any]:
    if (folder := _folder("horovod")) is None:
        return {}
    try:
        return dict(json.loads((folder / "metadata.json").read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _folder(package: str) -> Path | None:
    """The folder of an installed package; None where only a leftover folder of it exists, or nothing."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
