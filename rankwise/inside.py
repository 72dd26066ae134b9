"""Calls of what is inside Rankwise, whose packages are `hpc`, `parse` and `launch`, as a guest of somebody's process.

PyPI has others of these names: for the length of a call they mean Rankwise's, and before and after it what the process
has.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from threading import RLock
from typing import Any

from rankwise import SOURCE

OURS = ("hpc", "launch", "parse", "sbatch_templates", "tools")
_lock = RLock()
_imported: dict[str, Any] = {}
"""The modules of ours that the calls have imported."""


class _Finder:
    """A finder of our packages alone."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return PathFinder.find_spec(name, [str(SOURCE)]) if name in OURS else None


def call(function: str, *arguments: Any) -> Any:
    """The result of a function of parse, named as `frames.read`. A process that is Rankwise itself calls its own."""
    with _lock:
        others = {name: sys.modules[name] for name in [*sys.modules] if name.partition(".")[0] in OURS}
        if any(_is_of_us(name, module) for name, module in others.items()):
            return _function(function)(*arguments)
        for name in others:
            del sys.modules[name]
        sys.modules |= _imported
        sys.meta_path.insert(0, _Finder)
        try:
            return _function(function)(*arguments)
        finally:
            sys.meta_path.remove(_Finder)
            of_us = [name for name in sys.modules if name.partition(".")[0] in OURS]
            _imported.update((name, sys.modules.pop(name)) for name in of_us)
            sys.modules |= others


def _function(name: str) -> Any:
    module, _, its = name.partition(".")
    return getattr(import_module(f"parse.{module}"), its)


def _is_of_us(name: str, module: Any) -> bool:
    return name in OURS and any(Path(each).resolve() == SOURCE / name for each in getattr(module, "__path__", ()))
