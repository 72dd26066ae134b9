"""Numbers for objects, in the order in which they are first seen."""

from __future__ import annotations

import itertools
import weakref
from typing import Any


class Numbers:
    """From 1 on; an object that has died gives its number to none."""

    def __init__(self) -> None:
        self._next = itertools.count(1).__next__
        self._numbers: dict[int, int] = {}
        self.known = self._numbers.get  # by the identity of an object, for hooks of every step
        self._alive: dict[int, weakref.ref[Any]] = {}

    def of(self, thing: Any) -> int:
        """The number of an object; 0 for one that takes no weak references."""
        key = id(thing)
        number = self._numbers.get(key)
        if number is not None:
            return number
        try:
            self._alive[key] = weakref.ref(thing, lambda _: (self._numbers.pop(key, 0), self._alive.pop(key, None)))
        except TypeError:
            return 0
        self._numbers[key] = number = self._next()
        return number
