"""Values of JSON and TOML, read as the types of a dataclass's fields: what a file holds may come from anywhere.

The standard library alone: ranks import this, in images that have torch and no further packages (msgspec, cattrs).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hpc.system.text import nearest


class TypeMismatchError(ValueError):
    """A value is of another type than its field, is missing, or has no field; the text names it."""


_SCALARS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float, Decimal), "a number"),
    str: ((str,), "a text"),
}
"""By the type of a field: the types that a value may have, and how they are called."""


def read_fields(
    kind: type, values: object, what: str = "it", *, later: bool = False, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The arguments of the dataclass `kind`, each of its field's type, from a table by their names.

    `what` is what an error calls a value that is no table. Unknown names are refused, or with `later` left out, as
    those of a later version. `names` has the names of fields in files where these are others. Raises TypeMismatchError.
    """
    if not isinstance(values, Mapping):
        raise TypeMismatchError(f"{what} is {values!r:.99}, not a table")
    fields = _fields(kind)
    known = {(names or {}).get(name, name): (name, field_kind) for name, (field_kind, _) in fields.items()}
    if not later and not values.keys() <= known.keys():
        unknown = sorted(values.keys() - known.keys())
        near = _did_you_mean(unknown[0], known)
        raise TypeMismatchError(f"unknown key {', '.join(unknown)}; valid keys: {', '.join(known)}{near}")
    if missing := [key for key, (name, _) in known.items() if key not in values and fields[name][1]]:
        raise TypeMismatchError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return {name: read_as(each, values[key], key) for key, (name, each) in known.items() if key in values}


def read_as(kind: Any, value: object, name: str) -> Any:
    """The value as one of this type: a scalar, a Literal, an Enum, a dataclass, a sequence or mapping of such, a union
    with None, or `object` for any. Numbers stay whole where they are, True is no number. Raises TypeMismatchError,
    which calls the value by `name`."""
    if kind in _SCALARS:
        accepted, description = _SCALARS[kind]
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise TypeMismatchError(f"{name} is {value!r:.99}, not {description}")
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # with None, as fields have it
        (kind,) = (each for each in inner if each is not type(None))
        return None if value is None else read_as(kind, value, name)
    if origin in (tuple, Sequence, Mapping):
        return _read_each(origin, inner, value, name)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**read_fields(kind, value, name))
    if origin is Literal or (kind is not object and issubclass(kind, Enum)):
        valid = inner if origin is Literal else tuple(each.value for each in kind)
        if value not in valid:
            near = _did_you_mean(value, valid) if isinstance(value, str) else ""
            raise TypeMismatchError(f"{name} {value!r:.99} is not one of {', '.join(map(str, valid))}{near}")
        return value if origin is Literal else kind(value)
    return value


def _read_each(origin: Any, inner: tuple[Any, ...], value: object, name: str) -> Any:
    """A list as a tuple of one type, a table as a dict."""
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise TypeMismatchError(f"{name} must be a table (a line [{name}], then KEY = VALUE), not {value!r:.99}")
        return {read_as(inner[0], key, name): read_as(inner[1], each, f"{name}.{key}") for key, each in value.items()}
    if not isinstance(value, list | tuple):
        raise TypeMismatchError(f"{name} must be a list, not {value!r:.99}")
    return tuple(read_as(inner[0], each, f"{name}[{at}]") for at, each in enumerate(value))


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f". Did you mean {near}?" if near else ""


@cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """By name: the type of each field that a value is given for, and whether it has no default."""
    hints, absent = get_type_hints(kind), dataclasses.MISSING
    return {
        each.name: (hints[each.name], each.default is absent and each.default_factory is absent)
        for each in dataclasses.fields(kind) if each.init
    }  # fmt: skip
