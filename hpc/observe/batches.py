"""How many samples a batch has, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def nominal_size(loader: Any) -> int | None:
    """The batch size that a loader states, if it states one."""
    for thing in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(thing, "batch_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return None


class Count:
    """Counts the samples of a loader's batches by the rule that its first batch shows.

    The length of the first tensor, where that is the loader's batch size or the loader states none. Else the length of
    the list, or of its first entry, that has this size: loaders of images of unequal sizes. Else nothing is known.
    """

    def __init__(self, nominal: int | None) -> None:
        self._nominal = nominal
        self.samples: Callable[[Any], int] = self._first
        """Those of a batch; 0 where it is not known."""

    def _first(self, batch: Any) -> int:
        self.samples = self._choose(batch)
        return self.samples(batch)

    def _choose(self, batch: Any) -> Callable[[Any], int]:
        rules = (_of_first_tensor, _of_first_entry, _of_list)
        if self._nominal is None:
            return _of_first_tensor
        return next((rule for rule in rules if rule(batch) == self._nominal), _unknown)


def _of_first_tensor(batch: Any) -> int:
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if not isinstance(first, torch.Tensor):
        first = first_tensor(batch)
    shape = () if first is None else first.shape  # one call: len() of a tensor is a Python function
    return shape[0] if shape else 0


def _of_first_entry(batch: Any) -> int:
    entry = batch[0] if isinstance(batch, (list, tuple)) and batch else None
    return len(entry) if isinstance(entry, (list, tuple)) else 0


def _of_list(batch: Any) -> int:
    return len(batch) if isinstance(batch, (list, tuple)) else 0


def _unknown(_: Any) -> int:
    return 0


def first_tensor(thing: Any, depth: int = 4) -> Any:
    """The first tensor in lists, tuples and mappings; None where there is none."""
    if isinstance(thing, torch.Tensor):
        return thing
    inner = thing.values() if hasattr(thing, "values") else thing if isinstance(thing, (list, tuple)) else ()
    if depth:
        for entry in inner:
            tensor = first_tensor(entry, depth - 1)
            if tensor is not None:
                return tensor
    return None
