"""What is known of the script in its process: where events go, and what was put around torch's calls."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from . import events as e
from .models import LastGradients
from .numbers import Numbers

MISSING = object()


class Patch(NamedTuple):
    """What stands in the place of an attribute; `previous` is MISSING where the owner only inherits it."""

    owner: Any
    name: str
    previous: Any
    hook: Any

    def put(self) -> None:
        """Has the hook called."""
        setattr(self.owner, self.name, self.hook)

    def take(self) -> None:
        """Has the original called again."""
        if self.previous is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.previous)


class Patches:
    """What stands in the place of attributes of classes and modules, and handles of torch's own hooks."""

    def __init__(self) -> None:
        self.patches: list[Patch] = []
        self.handles: list[Any] = []
        self.off = False

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Puts `make(original)` in the place of an attribute, if there is one."""
        original = getattr(owner, name, None)
        if original is None:
            return
        previous = vars(owner).get(name, MISSING)  # a getattr would unwrap pybind's descriptor
        patch = Patch(owner, name, previous, functools.wraps(original)(make(original)))
        patch.put()
        self.patches.append(patch)

    def remove(self) -> None:
        """Takes all of it off again."""
        self.off = True
        while self.handles:
            self.handles.pop().remove()
        while self.patches:
            self.patches.pop().take()


class Observer(Patches):
    """Records the events of this process. Raises OSError where there is no room for them."""

    def __init__(self, folder: str, after_import: Callable[..., None]) -> None:
        super().__init__()
        self.folder, self.after_import = folder, after_import
        self.recorder = e.Recorder(folder)
        self.cells, self.place = self.recorder.cells, self.recorder.place
        self.fetching = self.in_backward = self.updated = self.forward_seen = False
        self.closures = False  # an optimizer was stepped with arguments
        self.marked = False  # the script calls step(), which alone ends steps
        self.thread = 0  # that of the first backward: it trains
        self.steps = self.backwards = self.looks = self.next_look = self.known_optimizers = 0
        self.look_again = False
        self.optimizers, self.loaders = Numbers(), Numbers()
        self.roots: set[int] = set()
        self.lasts = LastGradients()

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy by value of a class with a hook (cloudpickle) gets: an observer that is switched off."""
        return types.SimpleNamespace, (), {"off": True}

    def note(self, kind: int, which: int = 0, number: int = 0) -> None:
        """Stores an event, now; raises nothing. Hooks of every step store it themselves: a call costs more."""
        try:
            at = self.place()
            self.cells[at + 1] = kind | which << 8 | number << 24
            self.cells[at] = perf_counter_ns()
        except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Takes all hooks off, and records why; the script goes on unmeasured."""
        if self.off:
            return
        full = isinstance(error, IndexError) and self.place() >= len(self.cells)
        try:
            self.remove()
            self.recorder.state(**({"full": True} if full else {"failed": f"{type(error).__name__}: {error}"}))
        except Exception as second:  # noqa: BLE001 - the script must not end for a hook
            print(f"observe: recording has ended: {error!r}, {second!r}", file=sys.stderr)

    def step_completed(self) -> None:
        """Counts a step: the optimizer has been stepped, and the script goes on. The parent ends it by this count."""
        self.updated = False
        self.steps += 1
        self.cells[e.STEPS_CELL] = self.steps
