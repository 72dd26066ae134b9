"""What the installed Horovod was built against, from the file that it keeps of that; imports no Horovod."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_NAMES = {"torch": "pytorch", "tensorflow": "tensorflow"}
"""What its own metadata calls a framework."""
_PACKAGES = {"torch": ("torch",), "tensorflow": ("tensorflow", "tensorflow-cpu")}


def built_against() -> dict[str, str]:
    """Versions of torch and tensorflow that Horovod was compiled with; empty where there is none to be read."""
    found = find_spec("horovod")
    if found is None or found.origin is None:
        return {}
    try:
        metadata = json.loads((Path(found.origin).parent / "metadata.json").read_text())
    except (OSError, ValueError):
        return {}
    return {ours: str(metadata[theirs]) for ours, theirs in _NAMES.items() if metadata.get(theirs)}


def build_problem(framework: str) -> str:
    """One line where the installed Horovod does not fit the installed framework; empty where it fits or is absent."""
    if find_spec("horovod") is None or (installed := _installed(framework)) is None:
        return ""
    built = built_against().get(framework)
    if built == installed:
        return ""
    of = f"against {framework} {built}" if built else f"without {framework}"
    return f"Horovod was built {of}, installed is {framework} {installed}: make horovod builds it anew"


def _installed(framework: str) -> str | None:
    for package in _PACKAGES[framework]:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None
