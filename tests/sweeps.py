"""Sweeps as a person asks for them, and the records that they leave: for tests with a scheduler and without."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sweep_argv(*arguments: str) -> list[str]:
    """The command line of a sweep."""
    return [sys.executable, "-m", "hpc.sweep", *arguments]


def with_checkout(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of somebody who has this checkout, and nothing of the folder that they stand in."""
    return {**environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}


def without_modules(folder: Path, *modules: str) -> dict[str, str]:
    """What of the environment makes this a machine without these modules; what does it comes into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        f"util.find_spec = lambda name, *more: None if name in {modules} else real(name, *more)\n"
    )
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def begun(folder: Path) -> list[str]:
    """The attempts that were begun, as `2n1g_…_r1.1`; one whose record is being written is not yet."""
    paths = [path for path in (folder / "traces").glob("*.begin.json") if path.read_text().rstrip().endswith("}")]
    return sorted(path.name.removesuffix(".begin.json") for path in paths)


def outcomes(folder: Path) -> dict[str, str]:
    """Theirs, by attempt."""
    paths = sorted((folder / "traces").glob("*.exit.json"))
    return {path.name.removesuffix(".exit.json"): json.loads(path.read_text())["outcome"] for path in paths}
