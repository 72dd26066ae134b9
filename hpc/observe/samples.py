"""How many samples a batch has, whatever it is made of: tensors of any framework, or numpy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def nominal_size(loader: Any) -> int | None:
    """The batch size that a loader states, if it states one."""
    for thing in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(thing, "batch_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def indices_given(iterator: Any) -> int:
    """The samples of the batch that an iterator of torch's DataLoader gave last, by its sampler; 0: not known.

    The last batch of an epoch has the rest, where the sampler states how many there are.
    """
    batches: Any = getattr(iterator, "_index_sampler", None)
    if type(batches).__name__ != "BatchSampler":  # one of another kind may give a part of what it states
        return 0
    size = nominal_size(batches) or 0
    try:
        rest = len(batches.sampler) - (iterator._num_yielded - 1) * size
    except (TypeError, AttributeError, NotImplementedError):  # a sampler without an end
        return size
    return min(size, rest) if rest > 0 else size


class Count:
    """Counts the samples of a loader's batches by the rule that its first batch shows, which `look` gets to see.

    The length of the first tensor, where that is the loader's batch size or the loader states none. Else the length of
    the list, or of its first entry, that has this size: loaders of images of unequal sizes. Else the batch shows
    none, as where samples are concatenated.
    """

    def __init__(self, nominal: int | None, look: Callable[[Any], None] = lambda batch: None) -> None:
        self._nominal, self._look = nominal, look
        self.samples: Callable[[Any], int] = self._first
        """Those of a batch; 0 where it is not known."""

    def _first(self, batch: Any) -> int:
        self.samples = self._choose(batch)
        self._look(batch)
        return self.samples(batch)

    def _choose(self, batch: Any) -> Callable[[Any], int]:
        rules = (_of_first_tensor, _of_first_entry, _of_list)
        if self._nominal is None:
            return _of_first_tensor
        return next((rule for rule in rules if rule(batch) == self._nominal), _unknown)


def _of_first_tensor(batch: Any) -> int:
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if not _is_tensor(first):
        first = first_tensor(batch)
    shape: Any = () if first is None else first.shape  # one call: len() of a tensor is a Python function
    length = shape[0] if len(shape) else 0
    return length if isinstance(length, int) else 0


def _of_first_entry(batch: Any) -> int:
    entry = batch[0] if isinstance(batch, (list, tuple)) and batch else None
    return len(entry) if isinstance(entry, (list, tuple)) else 0


def _of_list(batch: Any) -> int:
    return len(batch) if isinstance(batch, (list, tuple)) else 0


def _unknown(_: Any) -> int:
    return 0


def _is_tensor(thing: Any) -> bool:
    return hasattr(thing, "shape") and hasattr(thing, "dtype")


def first_tensor(thing: Any, depth: int = 4) -> Any:
    """The first tensor in lists, tuples and mappings; None where there is none."""
    if _is_tensor(thing):
        return thing
    values = getattr(thing, "values", None)
    inner = values() if callable(values) else thing if isinstance(thing, (list, tuple)) else ()
    if depth:
        for entry in inner:
            tensor = first_tensor(entry, depth - 1)
            if tensor is not None:
                return tensor
    return None
