"""Values that no run has, and honest values whose relations contradict one another."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

HOSTILE: Sequence[Any] = (
    None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 1e308, -1e308, 1e-308, float("nan"), float("inf"),
    "", "x", "\0", "\n", "=1+1", "<script>", "../../x", "/", "\ud800", "\x1b[2J", "9" * 4000, "x" * 70_000,
    [], [1], [[]], {}, {"a": {}}, "[" * 200, "batch-size", "ok", "2.5", "-1",
)  # fmt: skip


def spoilt(value: Any, rng: random.Random) -> Any:
    """The value with something hostile in one place of it, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice([*value])
        if rng.random() < 0.1:
            return {**value, str(rng.choice(HOSTILE)): rng.choice(HOSTILE)}
        if rng.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: spoilt(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return rng.choice((value[:at], [*value, *value], [*value[:at], spoilt(value[at], rng), *value[at + 1 :]]))
    return rng.choice(HOSTILE)


def spoilt_json(text: str, rng: random.Random) -> str:
    """A JSON text of another value, or no JSON at all."""
    if rng.random() < 0.1:
        return rng.choice(("[" * 100_000, "[" * 500 + "]" * 500, "{", "NaN", text[: len(text) // 2], '{"a":' * 900))
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = spoil_relation_of_json(value, rng) if rng.random() < 0.4 else spoilt(value, rng)
    return json.dumps(value, default=str)


def spoil_numbers(array: Any, rng: random.Random) -> Any:
    """The array with values that no run has."""
    result = np.array(array)
    if not result.size or result.dtype.kind not in "if":
        return result
    extremes: Sequence[float] = (0, -1, 1, 2**31 - 1)
    if result.dtype.kind == "f":
        extremes = (*extremes, 1e308, -1e308, float("nan"), float("inf"), 1e-320)
    elif result.dtype.itemsize == 8:
        extremes = (*extremes, 2**63 - 1, -(2**63), 2**62)
    flat = result.reshape(-1)
    if rng.random() < 0.3:
        flat[:] = rng.choice(extremes)
    for _ in range(rng.randint(1, 4)):
        flat[rng.randrange(flat.size)] = rng.choice(extremes)
    return result


def spoil_relation(array: Any, rng: random.Random) -> Any:
    """The array with honest values elsewhere: in another order, twice, apart by one, or those of another entry."""
    result = np.array(array)
    if result.ndim == 0 or result.size < 2 or result.dtype.kind not in "if":
        return result
    axis = rng.randrange(result.ndim)
    moved = np.moveaxis(result, axis, 0)
    at, to = rng.randrange(len(moved)), rng.randrange(len(moved))
    kind = rng.choice(("swap", "twice", "reverse", "roll", "later", "earlier", "swap within"))
    if kind == "swap":
        moved[[at, to]] = moved[[to, at]]
    elif kind == "twice":
        moved[at] = moved[to]
    elif kind == "reverse":
        moved[:] = moved[::-1].copy()
    elif kind == "roll":
        moved[:] = np.roll(moved, 1, axis=0)
    elif kind == "swap within":
        flat = result.reshape(-1)
        at, to = rng.randrange(flat.size), rng.randrange(flat.size)
        flat[[at, to]] = flat[[to, at]]
    else:
        moved[at] = moved[at] + rng.choice((1, 2, 5, 10**6)) * (1 if kind == "later" else -1)
    return result


def spoil_relation_of_json(value: Any, rng: random.Random) -> Any:
    """The value where two fields of the same type have each other's content, or the first that of the second."""
    places: dict[type, list[tuple[Any, Any]]] = {}

    def walk(each: Any) -> None:
        for key, inner in each.items() if isinstance(each, dict) else enumerate(each):
            places.setdefault(type(inner), []).append((each, key))
            if isinstance(inner, dict | list):
                walk(inner)

    value = json.loads(json.dumps(value))
    walk([value])
    pairs = [those for those in places.values() if len(those) > 1]
    if pairs:
        (holder, key), (second_holder, second_key) = rng.sample(rng.choice(pairs), 2)
        first, second = json.loads(json.dumps([holder[key], second_holder[second_key]]))
        holder[key] = second
        if rng.random() < 0.5:
            second_holder[second_key] = first
    return value
