"""Measures a training script that knows nothing of it: hooks on torch in its process, steps made of their events.

Two optional lines for loops that hooks cannot see: `for batch in data(loader)` and, after an update, `step()`. Where
nothing observes the script they do nothing. This file imports the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_HOOKS = "_rankwise_observe.hooks"  # the name under which sitecustomize imports the hooks


def _observer() -> Any:
    observer = getattr(sys.modules.get(_HOOKS), "current", None)
    return None if observer is None or observer.off else observer


def data(loader: Iterable[T]) -> Iterable[T]:
    """The loader, or what it yields with its fetches recorded: for loaders that are no torch DataLoader."""
    observer = _observer()
    return loader if observer is None else sys.modules[_HOOKS].watched(observer, loader)


def step() -> None:
    """An optimizer step ends here: for updates by hand, or inside a compiled graph."""
    observer = _observer()
    if observer is not None:
        sys.modules[_HOOKS].step_ended(observer)
