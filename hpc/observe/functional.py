"""Hooks on functional collectives, which DTensor calls: those of tensor parallelism, the norm of sharded gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from . import events as e
from .collectives import bytes_of, which_of
from .events import FROM_ONE
from .patches import fits
from .process_groups import collective_of

if TYPE_CHECKING:
    from .collectives import AfterImport
    from .observer import Observer

# Torch hands their results out as tensors that wait when they are first used; who waits is known by the memory of the
# result. Not seen are those in compiled graphs, and those that autograd calls in C++.

MODULE = "torch.distributed._functional_collectives"
PLACES = {
    "all_reduce": ("all-reduce", 2),
    "all_gather_single": ("all-gather", 2), "all_gather_tensor": ("all-gather", 2),
    "reduce_scatter_single": ("reduce-scatter", 3), "reduce_scatter_tensor": ("reduce-scatter", 3),
    "all_to_all_single": ("all-to-all", 3), "broadcast": ("broadcast", 2),
}  # fmt: skip
"""Names of its functions in this torch or another: that of the collective, and the place of the group in the call."""

Hooks = dict[str, Callable[[Any], Any]]


def hooks(
    module: Any,
    arrived: Callable[[str, tuple[Any, str], Any], int],
    waits: Callable[[int], None],
    ended: Callable[[int], None],
    failed: Callable[[Exception], None],
) -> Hooks:
    """For attributes of torch's module, what makes the replacement of each original.

    `arrived` gets the collective's name, its process group with the dimension, and the tensor, and returns a number of
    its own for the other two, or -1 for a collective that is not recorded. `failed` gets what this file or they raise.
    """
    if why_other(module):
        return {}
    is_tracing = module._are_we_tracing
    calls: list[int] = []  # the collective that is being called
    going: dict[int, int] = {}  # of each whose result was not yet waited for, by the memory of the result

    def of_call(name: str, place: int) -> Callable[[Any], Any]:
        """Makes a function that announces the collective of that name; the group is at this place of its arguments."""

        def make(original: Any) -> Any:
            def call(*values: Any, **named: Any) -> Any:
                if calls or is_tracing():
                    return original(*values, **named)
                try:
                    group = named["group"] if "group" in named else values[place]
                    calls.append(arrived(f"functional {name}", mesh_group(group), values[0]))
                except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                    failed(error)
                try:
                    return original(*values, **named)
                finally:
                    calls.clear()

            return call

        return make

    def make_result(original: Any) -> Any:
        """Makes a function that keeps in mind whose result the tensor is."""

        def wrapped(tensor: Any) -> Any:
            try:
                if calls and calls[0] >= 0:
                    going[_memory(tensor)] = calls[0]
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                failed(error)
            return original(tensor)

        return wrapped

    def make_wait(original: Any) -> Any:
        """Makes a function that says when a result is waited for, and when it is there."""

        def waited(tensor: Any) -> Any:
            number = -1
            try:
                if going and not is_tracing():
                    number = going.pop(_memory(tensor), -1)
                if number >= 0:
                    waits(number)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                failed(error)
            result = original(tensor)
            if number >= 0:
                ended(number)
            return result

        return waited

    of_calls = {name: of_call(*its) for name, its in PLACES.items() if hasattr(module, name)}
    return {**of_calls, "_maybe_wrap_tensor": make_result, "wait_tensor": make_wait}


def why_other(module: Any) -> str:
    """In which way torch's module is another one than is known here, so that none of it is hooked; empty: it is not."""
    here = {name: its for name, its in PLACES.items() if hasattr(module, name)}
    missing = {name for name, _ in PLACES.values()} - {name for name, _ in here.values()}
    missing |= {name for name in _NEEDED if not hasattr(module, name)}
    if missing:
        return f"has no {min(missing)}"
    other = [
        *(name for name, takes in _NEEDED.items() if not fits(getattr(module, name), takes)),
        *(name for name, its in here.items() if not fits(getattr(module, name), _takes_any, {its[1]: "group"})),
    ]
    return f"has another {other[0]}" if other else ""


_NEEDED: dict[str, Any] = {
    "_are_we_tracing": lambda: None, "_maybe_wrap_tensor": lambda tensor: None, "wait_tensor": lambda tensor: None,
}  # fmt: skip
"""By their names, functions that take what these take."""


def _takes_any(tensor: Any, *values: Any) -> None:
    """As a functional collective is called."""


def _memory(tensor: Any) -> int:
    """As torch itself knows whose result a tensor, or a view of it, is."""
    return int(tensor.untyped_storage()._cdata)


def mesh_group(group: Any) -> tuple[Any, str]:
    """The process group of whatever torch takes for one: a mesh, one of its dimensions, a process group, its name, its
    ranks; and the name of that dimension of a mesh, empty: none."""
    if isinstance(group, tuple) or hasattr(group, "mesh_dim_names"):
        mesh, dimension = group if isinstance(group, tuple) else (group, 0)
        return mesh.get_group(dimension), (mesh.mesh_dim_names or {dimension: ""})[dimension]
    return _process_group(group), ""


def _process_group(group: Any) -> Any:
    if isinstance(group, dist.ProcessGroup):
        return group
    groups: Any = dist.distributed_c10d
    if isinstance(group, list):
        known = [dist.get_rank() in ranks for ranks in group] if group and isinstance(group[0], list) else []
        ranks = group[known.index(True)] if known else group
        return next(its for its in groups._world.pg_map if dist.get_process_group_ranks(its) == ranks)
    return groups._resolve_process_group(group)


def hook(o: Observer, after_import: AfterImport) -> None:
    """Hooks them once a script imports them."""
    if dist.is_available():
        after_import(MODULE, lambda: _hook(o))


def _hook(o: Observer) -> None:
    if o.off:
        return

    def arrived(name: str, group: tuple[Any, str], tensor: Any) -> int:
        if o.off or not dist.is_initialized():
            return -1
        process_group, dimension = group
        root = e.UNCLEAR if name.endswith(FROM_ONE) else e.NO_ROOT
        which = which_of(o, collective_of(name, process_group, root, dimension))
        if which < 0:
            return -1
        place = o.recorder.note(perf_counter_ns(), e.COLLECTIVE_IN, which, bytes_of(tensor))
        if o.mark is not None:
            o.mark(e.cell_of(place))
        return place << 16 | which

    def waits(number: int) -> None:
        o.note(e.COLLECTIVE_WAIT, number & 0xFFFF, number >> 16)

    def ended(number: int) -> None:
        o.note(e.COLLECTIVE_OUT, number & 0xFFFF, number >> 16)

    module = sys.modules[MODULE]
    if reason := why_other(module):
        o.lacks(MODULE, reason, "functional collectives, which DTensor calls")
    for name, make in hooks(module, arrived, waits, ended, o.failed).items():
        o.replace(module, name, make)
