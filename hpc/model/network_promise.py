"""What a site promises of the network between two of its nodes, as it is written: `latency_us=5`."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

PROMISES = {
    "bandwidth_gbit": "Gbit/s of a node each way",
    "latency_us": "one-way latency of a small message in µs",
}
"""By name: what the number is."""


class PromiseError(ValueError):
    """A promise is malformed; the text lists what is known."""


def read_promises(texts: Iterable[str]) -> dict[str, float]:
    """The promises in texts of the form NAME=NUMBER, by name. Raises PromiseError."""
    promises = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in PROMISES:
            known = "; ".join(f"{known}: {meaning}" for known, meaning in PROMISES.items())
            raise PromiseError(f"unknown {name!r}; known: {known}")
        try:
            promises[name] = float(value)
        except ValueError:
            raise PromiseError(f"{name} is {value!r}, not a number") from None
        if not 0 < promises[name] < inf:
            raise PromiseError(f"{name} is {value}; it must be above 0")
    return promises
