"""Hooks on the collectives that Python calls: a process group's methods, `Work.wait`, DDP's buffers and its reducer.

Beside them the functional collectives, once the script has imported them. Not seen are those of C++ callers (DDP's
buckets) and those in compiled graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import events as e
from . import functional
from .collective_names import BUFFERS, FROM_ONE, NAMES, TO_ONE, waits_at_once
from .numbers import Numbers

if TYPE_CHECKING:
    from .observer import Observer

_is_compiling = torch.compiler.is_compiling


AfterImport = Callable[[str, Callable[[], None]], None]
"""Has a function called once a module of this name is imported, which it may be already."""


def hook(o: Observer, after_import: AfterImport) -> None:
    """Hooks torch.distributed, where this torch has it."""
    if not dist.is_available():
        return
    works: dict[int, int] = {}  # of each collective that goes on, by the identity of its Work: see _make_collective
    for method, name in NAMES.items():
        o.replace(dist.ProcessGroup, method, _make_collective(o, name, works))
    o.replace(dist.Work, "wait", _make_wait(o, works))
    o.replace(dist, "_broadcast_coalesced", _make_buffers(o))
    if hasattr(dist, "Reducer"):
        o.replace(dist.Reducer, "prepare_for_backward", _make_armed(o))
    after_import(functional.MODULE, lambda: _hook_functional(o))


def _hook_functional(o: Observer) -> None:
    if o.off:
        return

    def arrived(name: str, size: int, tensor: Any) -> int:
        if o.off or not dist.is_initialized():
            return -1
        which = _which(o, name, size, e.UNCLEAR if name.endswith(FROM_ONE) else e.NO_ROOT)
        return o.recorder.note(perf_counter_ns(), e.COLLECTIVE_IN, which, _bytes(tensor)) << 16 | which

    def waits(number: int) -> None:
        o.note(e.COLLECTIVE_WAIT, number & 0xFFFF, number >> 16)

    def ended(number: int) -> None:
        o.note(e.COLLECTIVE_OUT, number & 0xFFFF, number >> 16)

    module = sys.modules[functional.MODULE]
    for name, make in functional.hooks(module, arrived, waits, ended, o.failed).items():
        o.replace(module, name, make)


def _make_collective(o: Observer, name: str, works: dict[int, int]) -> Any:
    """`works` gets the place of the record << 17 | its name << 1 | whether the caller waits at once."""
    whiches: dict[tuple[int, int], int] = {}

    def make(original: Any) -> Any:
        def call(group: Any, *values: Any, **named: Any) -> Any:
            if _is_compiling() or o.off:
                return original(group, *values, **named)
            try:
                key = (group.size(), _root(name, values))
                which = whiches.get(key)
                if which is None:
                    which = whiches[key] = _which(o, name, *key)
                size, at_once = _bytes(values[0]) if values else 0, waits_at_once(values)
                at = o.place()
                o.cells[at + 1] = e.COLLECTIVE_IN | which << 8 | size << 24
                o.cells[at] = perf_counter_ns()
            except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
                o.failed(error)
                return original(group, *values, **named)
            work = original(group, *values, **named)
            if work is None:
                o.note(e.COLLECTIVE_OUT, which, e.place_of(at))
            else:
                works[id(work)] = e.place_of(at) << 17 | which << 1 | at_once
            return work

        return call

    return make


def _make_wait(o: Observer, works: dict[int, int]) -> Any:
    def make(original: Any) -> Any:
        def wait(work: Any, *values: Any, **named: Any) -> Any:
            record = works.pop(id(work), None)
            if record is None or o.off:
                return original(work, *values, **named)
            code = (record >> 1 & 0xFFFF) << 8 | record >> 17 << 24
            try:
                if not record & 1:
                    at = o.place()
                    o.cells[at + 1] = e.COLLECTIVE_WAIT | code
                    o.cells[at] = perf_counter_ns()
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            result = original(work, *values, **named)
            try:
                at = o.place()
                o.cells[at] = perf_counter_ns()
                o.cells[at + 1] = e.COLLECTIVE_OUT | code
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return result

        return wait

    return make


def _make_buffers(o: Observer) -> Any:
    whiches: dict[tuple[int, int], int] = {}  # of a group, by its number, and a root
    groups, cells, place, call, end = Numbers(), o.cells, o.place, e.COLLECTIVE_IN, e.COLLECTIVE_OUT
    known, first = groups.known, e.FIRST_CELL

    def make(original: Any) -> Any:
        def broadcast(group: Any, tensors: Any, size: int, root: int = 0) -> Any:
            if o.off:
                return original(group, tensors, size, root)
            try:
                which = whiches.get((known(id(group), 0), root))
                if which is None:
                    which = _which(o, BUFFERS, group.size(), root)
                    if number := groups.of(group):  # 0: it may share its identity with a later one
                        whiches[number, root] = which
                begin = place()
                cells[begin + 1] = call | which << 8  # their bytes would take longer to count than all else
                cells[begin] = perf_counter_ns()
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
                return original(group, tensors, size, root)
            result = original(group, tensors, size, root)
            try:
                at = place()
                cells[at] = perf_counter_ns()
                cells[at + 1] = end | which << 8 | (begin - first) << 23  # a record has two cells
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return result

        return broadcast

    return make


def _make_armed(o: Observer) -> Any:
    """On the call itself: what DDP says of itself at the backward is not exact.

    It decides in each forward, later ones (evaluation, `no_sync`) do not revoke it, and its flags show the last alone.
    """
    cells, place, armed = o.cells, o.place, e.ARMED

    def make(original: Any) -> Any:
        def prepare_for_backward(reducer: Any, outputs: Any) -> Any:
            try:
                if not o.off:
                    at = place()
                    cells[at + 1] = armed
                    cells[at] = perf_counter_ns()
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return original(reducer, outputs)

        return prepare_for_backward

    return make


def _which(o: Observer, name: str, size: int, root: int) -> int:
    if size == dist.get_world_size():
        return o.recorder.name(name, root)
    return o.recorder.name(f"{name} in a group of {size}", e.UNCLEAR)


def _root(name: str, values: tuple[Any, ...]) -> int:
    """The rank that sends, from the call's options or its last argument."""
    if name not in FROM_ONE:
        return e.UNCLEAR if name in TO_ONE else e.NO_ROOT
    root = getattr(values[-1], "rootRank", values[-1]) if values else None
    return root if isinstance(root, int) else e.UNCLEAR


def _bytes(thing: Any) -> int:
    """Of a tensor, or of all in a list of tensors or of lists of them."""
    if isinstance(thing, torch.Tensor):
        return thing.numel() * thing.element_size()
    return sum(map(_bytes, thing)) if isinstance(thing, (list, tuple)) else 0
