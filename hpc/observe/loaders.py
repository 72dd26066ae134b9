"""Hooks on torch's loaders: when a batch is requested and there, of which loader, with how many samples."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader

from . import events as e
from .recording import Count, indices_given, nominal_size

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
        cells, place, fetch_in, fetch_out, fetch_end = o.cells, o.place, e.FETCH_IN, e.FETCH_OUT, e.FETCH_END

        def fetch(iterator: Any) -> Any:
            if o.fetching or o.off or (o.thread and _thread() != o.thread):
                return original(iterator)
            try:
                if o.updated:
                    o.step_completed()
                which = iterators.get(id(iterator), 0)
                at = place()
                cells[at + 1] = fetch_in | which << 8
                cells[at] = perf_counter_ns()
                if o.mark is not None:
                    o.mark(at)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
                return original(iterator)
            o.fetching = True
            kind, number = fetch_end, 0
            try:
                batch = original(iterator)
                kind = fetch_out
            finally:
                ns, o.fetching = perf_counter_ns(), False
                try:
                    if kind == fetch_out and which:
                        number = counts[which].samples(batch) or indices_given(iterator)
                    at = place()
                    cells[at + 1] = kind | which << 8 | number << 24
                    cells[at] = ns
                except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                    o.failed(error)
            return batch

        return fetch
