"""Measures a training script that knows nothing of it: hooks on torch in its process, steps made of their events.

Two optional lines for loops that hooks cannot see, in any framework: `for batch in data(loader)` and, after an update,
`step()`. Where nothing observes the script they do nothing. This file imports the standard library alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_PACKAGE = "_rankwise_observe"  # the name under which sitecustomize has this package imported in a script's process


def _recording() -> Any:
    """What records in this process; None where nothing does."""
    folder = os.environ.get("RANKWISE_OBSERVE")
    if not folder or _PACKAGE not in sys.modules:
        return None
    try:
        recording = importlib.import_module(f"{_PACKAGE}.recording").begin(folder)
    except OSError:  # said when this was imported; the script must not end for it
        return None
    return None if recording.off else recording


def data(loader: Iterable[T]) -> Iterable[T]:
    """The loader, or what it yields with its fetches recorded: for loaders that are no torch DataLoader."""
    return loader if _recording() is None else sys.modules[f"{_PACKAGE}.recording"].watched(loader)


def step() -> None:
    """An optimizer step ends here: for updates by hand, inside a compiled graph, or of another framework."""
    recording = _recording()
    if recording is not None:
        recording.step_ended()
