"""Hooks on torch's loaders: when a batch is requested and there, of which loader, with how many samples."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

from . import events as e
from .recording import Count, fetched, indices_given, nominal_size

if TYPE_CHECKING:
    from .observer import Observer

_thread = threading.get_ident


def hook(o: Observer) -> None:
    """Hooks the classes of loaders and of their iterators."""
    hooks = _Hooks(o)
    o.replace(dataloader, "DataLoader.__iter__", hooks.iterate, "when a loader is begun")
    o.replace(
        dataloader,
        "_BaseDataLoaderIter.__init__",
        hooks.begin,
        "a loader with an __iter__ of its own",
        {1: "loader"},
    )
    o.replace(
        dataloader, "_BaseDataLoaderIter.__next__", hooks.fetch, "when a batch is requested and there, its samples"
    )


class _Hooks:
    """Each method makes the replacement of an original."""

    def __init__(self, o: Observer) -> None:
        self._o = o
        self._iterators: dict[int, int] = {}  # of each iterator, by its identity, the number of its loader
        self._counts: dict[int, Count] = {}
        self._iterating = False

    def _number_of(self, loader: Any) -> int:
        which = self._o.loaders.of(loader)
        if which not in self._counts:
            try:
                self._counts[which] = Count(nominal_size(loader), self._o.look_at_batch)
            except Exception as error:  # noqa: BLE001 - the loader is the script's, which must not end for a hook
                self._o.failed(error)
        return which

    def iterate(self, original: Any) -> Any:
        o = self._o

        def iterate(loader: Any) -> Any:
            if o.fetching or o.off:
                return original(loader)
            which = self._number_of(loader)
            o.note(e.ITERATE_IN, which)
            self._iterating = True
            try:
                iterator = original(loader)
            finally:
                self._iterating = False
            self._iterators[id(iterator)] = which
            o.note(e.ITERATE_OUT, which)
            return iterator

        return iterate

    def begin(self, original: Any) -> Any:
        """Of a loader with an `__iter__` of its own, as torchdata's StatefulDataLoader, which calls no other."""
        o = self._o

        def begin(iterator: Any, loader: Any, *values: Any, **named: Any) -> None:
            if not (self._iterating or o.fetching or o.off):
                which = self._iterators[id(iterator)] = self._number_of(loader)
                o.note(e.ITERATE_IN, which)
            original(iterator, loader, *values, **named)

        return begin

    def fetch(self, original: Any) -> Any:
        o, iterators, counts = self._o, self._iterators, self._counts

        def fetch(iterator: Any) -> Any:
            if o.fetching or o.off or (o.thread and _thread() != o.thread):
                return original(iterator)
            which = iterators.get(id(iterator), 0)

            def samples(batch: Any) -> int:
                return (counts[which].samples(batch) or indices_given(iterator)) if which else 0

            return fetched(o, which, partial(original, iterator), samples)

        return fetch
