"""What is put in the place of torch's functions and taken off again; what of it this torch has no place for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

MISSING = object()
_VARIABLE, _NAMED = 0x04, 0x08
"""Flags of a code object: it takes any number of arguments, or any names."""
_SIGNATURE = re.compile(r"\w+\((?P<parameters>.*)\)(?: -> .*)?")
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


class Patch(NamedTuple):
    """The replacement of an attribute; `previous` is MISSING where the owner only inherits it."""

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
    """The replacements of attributes of classes and modules, and handles of torch's own hooks.

    `lacking` has by name the hooks that this torch has no place for: why, and what is not seen without them.
    """

    def __init__(self) -> None:
        self.patches: list[Patch] = []
        self.handles: list[Any] = []
        self.lacking: dict[str, tuple[str, str]] = {}
        self.off = False

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any], shows: str = "") -> None:
        """Puts `make(original)` in the place of an attribute, `Class.method` of a module say.

        Where there is none, or it takes other arguments than its replacement, that is left out: `shows` is what is not
        seen then; empty where a torch may well have no such attribute.
        """
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        original = None if owner is None else getattr(owner, last, None)
        if original is None:
            if shows:
                self.lacks(name, "is not there", shows)
            return
        hook = make(original)
        if not _takes_as(original, hook):
            self.lacks(name, "takes other arguments", shows or "what it does")
            return
        previous = vars(owner).get(last, MISSING)  # a getattr would unwrap pybind's descriptor
        patch = Patch(owner, last, previous, functools.wraps(original)(hook))
        patch.put()
        self.patches.append(patch)

    def register(self, register: str, module: Any, hook: Callable[..., None], shows: str) -> None:
        """Adds a hook by torch's own function of that name."""
        function = getattr(module, register, None)
        if function is None:
            self.lacks(register, "is not there", shows)
        else:
            self.handles.append(function(hook))

    def lacks(self, name: str, reason: str, shows: str) -> None:
        """Keeps that a hook is not there."""
        self.lacking[name] = reason, shows

    def remove(self) -> None:
        """Takes all of it off again."""
        self.off = True
        while self.handles:
            self.handles.pop().remove()
        while self.patches:
            self.patches.pop().take()


def _takes_as(original: Any, hook: Any) -> bool:
    """Whether the hook can be called as the original, as far as both say what they take."""
    theirs, code = _parameters(original), getattr(hook, "__code__", None)
    if theirs is None or code is None or code.co_flags & _VARIABLE:
        return True
    at_most: int = code.co_argcount
    return at_most - len(hook.__defaults__ or ()) <= theirs <= at_most


def _parameters(function: Any) -> int | None:
    """How many arguments a function takes; None where that is not known, or as many as one likes."""
    code = getattr(function, "__code__", None)
    if code is not None:
        if code.co_flags & (_VARIABLE | _NAMED):
            return None
        count: int = code.co_argcount + code.co_kwonlyargcount
        return count - (getattr(function, "__self__", None) is not None)
    described = _SIGNATURE.fullmatch((getattr(function, "__doc__", None) or "").partition("\n")[0])  # pybind's
    if described is None or "*" in described["parameters"] or ":" not in described["parameters"]:
        return None
    parameters, before = described["parameters"], ""
    while parameters != before:
        parameters, before = _IN_BRACKETS.sub("", parameters), parameters
    return parameters.count(",") + 1
