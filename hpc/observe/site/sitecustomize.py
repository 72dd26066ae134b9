"""Every Python below an observed command begins with this: a framework is hooked when its import is done.

RANKWISE_OBSERVE names the folder for the files of events. Frameworks other than torch, and Ray, leave a mark there.
"""

# ruff: noqa: PTH100, PTH120 - pathlib would be one more import in every Python

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec

_SITE = os.path.dirname(os.path.abspath(__file__))
_OBSERVE = os.path.dirname(_SITE)
_PACKAGE = "_rankwise_observe"  # hpc.observe in the process of a script, which need not have the rest of the project
_MARKED = ("jax", "paddle", "ray", "tensorflow")  # hpc.observe.remarks has their names


class _Waits:
    """A finder that has a module imported as always, and calls a function afterwards."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader, the module's alone
        return spec


def _after_import(name: str, then: Callable[[], None]) -> None:
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Waits(name, then))


class _FindsProject:
    """The last finder: `from rankwise.observe import data, step`, or hpc.observe, works where it is not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name not in ("hpc", "rankwise") or path is not None:
            return None
        root = os.path.dirname(os.path.dirname(_OBSERVE))  # the checkout, or rankwise/_src of the wheel
        return importlib.machinery.PathFinder.find_spec(name, [root, os.path.dirname(os.path.dirname(root))])


def _not_measured(error: Exception) -> None:
    print(f"observe: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)


def _hook() -> None:
    """torch is imported; the script runs, whatever comes of this."""
    try:
        hooks = importlib.import_module(f"{_PACKAGE}.hooks")
        hooks.install(os.environ["RANKWISE_OBSERVE"], _after_import)
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
        _not_measured(error)


def _call(module: str, function: str, *arguments: str) -> None:
    """Calls a function of hpc.observe: the script has imported what it is for."""
    try:
        getattr(importlib.import_module(f"{_PACKAGE}.{module}"), function)(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
        _not_measured(error)


def _mark(framework: str) -> None:
    """Says that this process has imported a framework whose steps may have to be marked, or Ray."""
    try:
        os.mknod(f"{os.environ['RANKWISE_OBSERVE']}/{os.getpid()}.{framework}", 0o600)
    except FileExistsError:  # the process has become another program
        pass
    except OSError as error:  # the script runs, whatever comes of this
        print(f"observe: {error}", file=sys.stderr)


def _run_hidden() -> None:
    """Runs the sitecustomize that this file hides, and leaves it under that name."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("RANKWISE_OBSERVE"):
    sys.modules[_PACKAGE] = _package = types.ModuleType(_PACKAGE)
    _package.__path__ = [_OBSERVE]
    for _lines in ("hpc.observe", "rankwise.observe"):
        _after_import(_lines, functools.partial(_call, "recording", "begin", os.environ["RANKWISE_OBSERVE"]))
    _after_import("horovod.torch", functools.partial(_call, "horovod_calls", "hook"))
    _after_import("horovod.tensorflow", functools.partial(_call, "horovod_calls", "hook_tensorflow"))
    _after_import("keras", functools.partial(_call, "keras_fit", "hook"))
    _after_import("ray", functools.partial(_call, "ray_workers", "hook"))
    for _framework in _MARKED:
        _after_import(_framework, functools.partial(_mark, _framework))
    _after_import("torch", _hook)  # the last is the first finder: what others do to torch is below the hooks
    sys.meta_path.append(_FindsProject)
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _SITE]
_run_hidden()
