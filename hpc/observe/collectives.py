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
from .collective_names import BUFFERS, FROM_ONE, NAMES, TO_ONE, waits_at_once
from .observer import ObjectNumbers

if TYPE_CHECKING:
    from .observer import Observer

# Functional collectives, which DTensor calls: those of tensor parallelism, and the norm of sharded gradients.
#
# torch hands their results out as tensors that wait when they are first used; who waits is known by the memory of the
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
    arrived: Callable[[str, int, Any], int],
    waits: Callable[[int], None],
    ended: Callable[[int], None],
    failed: Callable[[Exception], None],
) -> Hooks:
    """For attributes of torch's module, what makes the replacement of each original.

    `arrived` gets the collective's name, the size of its group and the tensor, and returns a number of its own for the
    other two, or -1 for a collective that is not recorded. `failed` gets what this file or they raise.
    """
    if not all(hasattr(module, name) for name in ("_are_we_tracing", "_maybe_wrap_tensor", "wait_tensor")):
        return {}  # of another torch, whose results are not known here
    makers = _Makers(module, arrived, waits, ended, failed)
    of_calls = {name: makers.of_call(*its) for name, its in PLACES.items() if hasattr(module, name)}
    return {**of_calls, "_maybe_wrap_tensor": makers.result, "wait_tensor": makers.wait}


class _Makers:
    """Each makes the replacement of an original; the arguments are those of `hooks`."""

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
        self._going: dict[int, int] = {}  # of each whose result was not yet waited for, by the memory of the result

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
    after_import(MODULE, lambda: _hook_functional(o))


def _hook_functional(o: Observer) -> None:
    if o.off:
        return

    def arrived(name: str, size: int, tensor: Any) -> int:
        if o.off or not dist.is_initialized():
            return -1
        which = _which(o, name, size, e.UNCLEAR if name.endswith(FROM_ONE) else e.NO_ROOT)
        place = o.recorder.note(perf_counter_ns(), e.COLLECTIVE_IN, which, _bytes(tensor))
        if o.mark is not None:
            o.mark(e.cell_of(place))
        return place << 16 | which

    def waits(number: int) -> None:
        o.note(e.COLLECTIVE_WAIT, number & 0xFFFF, number >> 16)

    def ended(number: int) -> None:
        o.note(e.COLLECTIVE_OUT, number & 0xFFFF, number >> 16)

    module = sys.modules[MODULE]
    for name, make in hooks(module, arrived, waits, ended, o.failed).items():
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
                if o.mark is not None:
                    o.mark(at)
            except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
                o.failed(error)
                return original(group, *values, **named)
            work = original(group, *values, **named)
            if work is None:
                o.note(e.COLLECTIVE_OUT, which, e.place_of(at))
            else:
                works[id(work)] = e.place_of(at) << 17 | which << 1 | at_once
            o.last_collective = e.place_of(at) << 16 | which
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
                    if o.mark is not None:
                        o.mark(at)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            result = original(work, *values, **named)
            try:
                at = o.place()
                o.cells[at] = perf_counter_ns()
                o.cells[at + 1] = e.COLLECTIVE_OUT | code
                if o.mark is not None:
                    o.mark(at)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return result

        return wait

    return make


def _make_buffers(o: Observer) -> Any:
    whiches: dict[tuple[int, int], int] = {}  # of a group, by its number, and a root
    groups, cells, place, call, end = ObjectNumbers(), o.cells, o.place, e.COLLECTIVE_IN, e.COLLECTIVE_OUT
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
                if o.mark is not None:
                    o.mark(begin)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
                return original(group, tensors, size, root)
            result = original(group, tensors, size, root)
            try:
                at = place()
                cells[at] = perf_counter_ns()
                cells[at + 1] = end | which << 8 | (begin - first) << 23  # a record has two cells
                if o.mark is not None:
                    o.mark(at)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return result

        return broadcast

    return make


FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


def hook_unshard(o: Observer) -> None:
    """Where FSDP2 has the training's stream wait for a collective, which went on on a stream of its own.

    For an all-gather where its parameters are needed; for a reduce-scatter where the next one is begun, or its group is
    finalized: torch finalizes the root before a first block is reduced whose input has no gradient.
    """
    groups: Any = getattr(sys.modules.get(FSDP), "FSDPParamGroup", None)
    if groups is None:
        return
    gathered: dict[int, int] = {}  # of each group of parameters, by its identity, its all-gather
    scattered: list[int] = []  # the last reduce-scatter, until it is waited for

    def make_unshard(original: Any) -> Any:
        def unshard(group: Any, *values: Any, **named: Any) -> Any:
            o.last_collective = -1
            result = original(group, *values, **named)
            if o.last_collective >= 0:
                gathered[id(group)] = o.last_collective
            return result

        return unshard

    def make_wait(original: Any) -> Any:
        def wait_for_unshard(group: Any, *values: Any, **named: Any) -> Any:
            call = gathered.pop(id(group), -1)
            if call < 0 or o.mark is None or o.off:
                return original(group, *values, **named)
            o.note(e.UNSHARD_IN, call & 0xFFFF, call >> 16)
            result = original(group, *values, **named)
            o.note(e.UNSHARD_OUT, call & 0xFFFF, call >> 16)
            return result

        return wait_for_unshard

    def make_reduce(original: Any) -> Any:
        def reduce(group: Any, *values: Any, **named: Any) -> Any:
            call, o.last_collective = -1, -1
            if scattered and o.mark is not None and not o.off and _waits_for_reduction(group):
                call = scattered.pop()
                o.note(e.UNSHARD_IN, call & 0xFFFF, call >> 16)
            result = original(group, *values, **named)
            if call >= 0:
                o.note(e.UNSHARD_OUT, call & 0xFFFF, call >> 16)
            if o.last_collective >= 0:
                scattered[:] = [o.last_collective]
            return result

        return reduce

    o.replace(groups, "unshard", make_unshard)
    o.replace(groups, "wait_for_unshard", make_wait)
    o.replace(groups, "post_backward", make_reduce)
    o.replace(groups, "finalize_backward", make_reduce)


def _waits_for_reduction(group: Any) -> bool:
    """Whether FSDP2 of this torch or an older one now has the training's stream wait for a reduce-scatter."""
    names = ("reduce_scatter_states", "reduce_scatter_state", "_last_post_reduce_events")
    return any(getattr(group.comm_ctx, name, None) for name in names) or bool(
        getattr(group, "_post_reduce_event", None)
    )


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
