"""What is put in the place of torch's functions and taken off again; what of it this torch has no place for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
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

    def replace(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        shows: str = "",
        reads: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Puts `make(original)` in the place of an attribute, `Class.method` of a module say.

        Where there is none, or it takes other arguments than its replacement, that is left out: `shows` is what is not
        seen then; empty where a torch may well have no such attribute. `reads` has, by their places, the names of
        arguments that the replacement looks at.
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
        if not fits(original, hook, reads):
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
        elif not fits(function, lambda hook: None):
            self.lacks(register, "takes other arguments", shows)
        else:
            self.handles.append(function(hook))

    def look_for(self, kind: type, name: str, takes: Callable[..., Any], shows: str) -> bool:
        """Whether a class has a method that can be called as `takes`, for hooks that call it; states where not."""
        method = getattr(kind, name, None)
        if method is not None and fits(method, takes):
            return True
        self.lacks(f"{kind.__name__}.{name}", "is not there" if method is None else "takes other arguments", shows)
        return False

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


def fits(original: Any, hook: Any, reads: Mapping[int, str] = MappingProxyType({})) -> bool:
    """Whether the hook can be called as the original, and reads what it means to, as far as both say what they take."""
    code, (names, is_open) = getattr(hook, "__code__", None), _parameters(original)
    if any(names[place] != name if place < len(names) else not is_open for place, name in reads.items()):
        return False
    if code is None or is_open:
        return True
    least: int = code.co_argcount - len(hook.__defaults__ or ())
    return least <= len(names) and (bool(code.co_flags & _VARIABLE) or len(names) <= code.co_argcount)


def _parameters(function: Any) -> tuple[list[str], bool]:
    """The names of the arguments of a function that says them, and whether it may take others."""
    code = getattr(function, "__code__", None)
    if code is not None:
        names: list[str] = [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
        return names[getattr(function, "__self__", None) is not None :], bool(code.co_flags & (_VARIABLE | _NAMED))
    described = _SIGNATURE.fullmatch((getattr(function, "__doc__", None) or "").partition("\n")[0])  # pybind's
    if described is None or "*" in described["parameters"] or ":" not in described["parameters"]:
        return [], True
    parameters, before = described["parameters"], ""
    while parameters != before:
        parameters, before = _IN_BRACKETS.sub("", parameters), parameters
    return [each.partition(":")[0].strip() for each in parameters.split(",")], False
