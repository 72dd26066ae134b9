"""Every Python below an observed command begins with this: torch is hooked when its import is done, nothing else is.

RANKWISE_OBSERVE names the folder for the files of events.
"""

# ruff: noqa: PTH100, PTH120 - pathlib would be one more import in every Python

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

_SITE = os.path.dirname(os.path.abspath(__file__))
_OBSERVE = os.path.dirname(_SITE)


class _WaitsForTorch:
    """A finder that has torch imported as always, and hooks it afterwards; the script runs, whatever comes of that."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, cls)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                if cls in sys.meta_path:
                    sys.meta_path.remove(cls)
                    _hook()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader, which is torch's alone
        return spec


class _FindsProject:
    """The last finder: `from hpc.observe import data, step` works where the project is not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name != "hpc" or path is not None:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(os.path.dirname(_OBSERVE))])


def _hook() -> None:
    try:
        package = types.ModuleType("_rankwise_observe")
        package.__path__ = [_OBSERVE]
        sys.modules["_rankwise_observe"] = package
        hooks = importlib.import_module("_rankwise_observe.hooks")
        hooks.install(os.environ["RANKWISE_OBSERVE"])
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
        print(f"observe: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)


def _run_hidden() -> None:
    """Runs the sitecustomize that this file hides, and leaves it under that name."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("RANKWISE_OBSERVE"):
    if "torch" in sys.modules:
        _hook()
    else:
        sys.meta_path.insert(0, _WaitsForTorch)
    sys.meta_path.append(_FindsProject)
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _SITE]
_run_hidden()
