"""Functional collectives, which DTensor calls: those of tensor parallelism, and the norm of sharded gradients.

torch hands their results out as tensors that wait when they are first used; who waits is known by the memory of the
result. Not seen are those in compiled graphs, and those that autograd calls in C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

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
    arrived: Callable[[str, int, Any], int],
    waits: Callable[[int], None],
    ended: Callable[[int], None],
    failed: Callable[[Exception], None],
) -> Hooks:
    """For attributes of torch's module, what makes of each original what is to stand in its place.

    `arrived` gets the collective's name, the size of its group and the tensor, and returns a number of its own for the
    other two, or -1 for a collective that is not recorded. `failed` gets what this file or they raise.
    """
    if not all(hasattr(module, name) for name in ("_are_we_tracing", "_maybe_wrap_tensor", "wait_tensor")):
        return {}  # of another torch, whose results are not known here
    makers = _Makers(module, arrived, waits, ended, failed)
    of_calls = {name: makers.of_call(*its) for name, its in PLACES.items() if hasattr(module, name)}
    return {**of_calls, "_maybe_wrap_tensor": makers.result, "wait_tensor": makers.wait}


class _Makers:
    """Each makes what stands in the place of an original; the arguments are those of `hooks`."""

    def __init__(
        self,
        module: Any,
        arrived: Callable[[str, int, Any], int],
        waits: Callable[[int], None],
        ended: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._is_tracing = module._are_we_tracing
        self._arrived, self._waits, self._ended, self._failed = arrived, waits, ended, failed
        self._calls: list[int] = []  # the collective that is being called
        self._going: dict[int, int] = {}  # of each whose result nobody has waited for yet, by the memory of the result

    def of_call(self, name: str, place: int) -> Callable[[Any], Any]:
        """Makes a function that announces the collective of that name; the group is at this place of its arguments."""

        def make(original: Any) -> Any:
            def call(*values: Any, **named: Any) -> Any:
                if self._calls or self._is_tracing():
                    return original(*values, **named)
                try:
                    group = named["group"] if "group" in named else values[place]
                    self._calls.append(self._arrived(f"functional {name}", _size(group), values[0]))
                except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                    self._failed(error)
                try:
                    return original(*values, **named)
                finally:
                    self._calls.clear()

            return call

        return make

    def result(self, original: Any) -> Any:
        """Makes a function that keeps in mind whose result the tensor is."""

        def wrapped(tensor: Any) -> Any:
            try:
                if self._calls and self._calls[0] >= 0:
                    self._going[_memory(tensor)] = self._calls[0]
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                self._failed(error)
            return original(tensor)

        return wrapped

    def wait(self, original: Any) -> Any:
        """Makes a function that says when a result is waited for, and when it is there."""

        def waited(tensor: Any) -> Any:
            number = -1
            try:
                if self._going and not self._is_tracing():
                    number = self._going.pop(_memory(tensor), -1)
                if number >= 0:
                    self._waits(number)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                self._failed(error)
            result = original(tensor)
            if number >= 0:
                self._ended(number)
            return result

        return waited


def _memory(tensor: Any) -> int:
    """As torch itself knows whose result a tensor, or a view of it, is."""
    return int(tensor.untyped_storage()._cdata)


def _size(group: Any) -> int:
    """Of whatever torch takes for a group: a mesh, one of its dimensions, a process group, its name, its ranks."""
    if isinstance(group, tuple):
        mesh, dimension = group
        return int(mesh.size(dimension))
    if isinstance(group, str):
        groups: Any = dist.distributed_c10d
        return int(groups._resolve_process_group(group).size())
    if isinstance(group, list):
        return len(group[0] if isinstance(group[0], list) else group)
    return int(group.size())
