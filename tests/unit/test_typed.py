"""Values of files, read as the types of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from hpc.model.typed import TypeMismatchError, read_fields


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    ratio: float = 0.0
    is_set: bool = False
    limit: int | None = None
    texts: tuple[str, ...] = ()
    parts: Sequence[Inner] = ()
    table: Mapping[str, str] = field(default_factory=dict)


def read(later: bool = False, **values: Any) -> Outer:
    return Outer(**read_fields(Outer, {"name": "n", **values}, later=later))


def test_values_become_those_of_the_fields() -> None:
    read_back = read(
        colour="red", kind="b", ratio=1, is_set=True, limit=None, texts=["x"], parts=[{"count": 3}], table={"k": "v"}
    )
    assert read_back == Outer(
        name="n", kind="b", ratio=1, is_set=True, texts=("x",), parts=(Inner(count=3),), table={"k": "v"}
    )
    assert read(limit=2).limit == 2 and read(later=True, new=1) == Outer(name="n")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"name": 1}, "name is 1, not a text"),
        ({"ratio": True}, "ratio is True, not a number"),
        ({"limit": 1.5}, "limit is 1.5, not a whole number"),
        ({"is_set": 1}, "is_set is 1, not true or false"),
        ({"colour": "rod"}, "colour 'rod' is not one of red. Did you mean red?"),
        ({"colour": ["red"]}, "colour ['red'] is not one of red"),
        ({"kind": "c"}, "kind 'c' is not one of a, b"),
        ({"texts": "x"}, "texts must be a list, not 'x'"),
        ({"texts": [None]}, "texts[0] is None, not a text"),
        ({"parts": [3]}, "parts[0] is 3, not a table"),
        ({"parts": [{}]}, "count is missing"),
        ({"table": []}, "table must be a table (a line [table], then KEY = VALUE), not []"),
        ({"table": {"k": 1}}, "table.k is 1, not a text"),
        ({"tables": {}}, "unknown key tables; valid keys: name, colour, kind, ratio, is_set, limit, texts, parts, "
                         "table. Did you mean table?"),
    ],
)  # fmt: skip
def test_others_are_refused(values: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeMismatchError) as caught:
        read(**values)
    assert str(caught.value) == error


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeMismatchError, match="name is missing"):
        read_fields(Outer, {})
    with pytest.raises(TypeMismatchError, match="the site is 3, not a table"):
        read_fields(Outer, 3, "the site")
