"""Hooks on the collectives and messages that Python calls: a process group's methods, `Work.wait`, DDP's buffers, its
reducer, and the functional ones.

Not seen are those of C++ callers (DDP's buckets) and those in compiled graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import events as e
from .events import BUFFERS, FROM_ONE, NAMES, NEWER, TO_ONE, waits_at_once
from .patches import fits
from .process_groups import collective_of, message_from_any, message_of
from .recording import ObjectNumbers

if TYPE_CHECKING:
    from .device_clock import DeviceClock
    from .events import CollectiveName
    from .observer import Observer

_is_compiling = torch.compiler.is_compiling


SENDER = "_source_rank"
"""Of a message's Work, which names who sent it."""
_OF_RPC = (
    ("torch.distributed.rpc", "init_rpc", "rpc"),
    ("torch.distributed.autograd", "backward", "rpc_backward"),
)
"""Of a script that calls functions of other processes, whose backwards and updates it does not see, or trains so: a
module, its function, and the fact that this was called."""
AfterImport = Callable[[str, Callable[[], None]], None]
"""Has a function called once a module of this name is imported, which it may be already."""


def hook(o: Observer, after_import: AfterImport) -> None:
    """Hooks torch.distributed, where this torch has it."""
    if not dist.is_available():
        return
    calls = Calls(o)
    calls.names_senders = o.look_for(dist.Work, SENDER, lambda work: None, "who sent a message from any rank")
    group = dist.ProcessGroup
    for method, name in NAMES.items():
        is_optional = method in NEWER.values() or hasattr(group, NEWER.get(method, method))
        o.replace(group, method, calls.of_collective(name), "" if is_optional else f"{name} by it")
    if not hasattr(dist.AllreduceOptions, "asyncOp"):
        o.lacks("AllreduceOptions.asyncOp", "is not there", "which caller of a collective waits for it at once")
    o.replace(group, "send", calls.of_message(sends=True), "messages that are sent", {2: "dstRank", 3: "tag"})
    o.replace(group, "recv", calls.of_message(sends=False), "messages that are received", {2: "srcRank", 3: "tag"})
    o.replace(group, "recv_anysource", calls.of_any_message, "messages from any rank")
    o.replace(group, "_start_coalescing", calls.begin_batch, "which messages go on together")
    o.replace(group, "_end_coalescing", calls.end_batch, "which messages go on together")
    o.replace(dist, "Work.wait", calls.wait, "how long a rank waits for a collective")
    o.replace(dist, "_broadcast_coalesced", calls.of_buffers(), "broadcasts of DDP's buffers")
    o.replace(dist, "Reducer.prepare_for_backward", _make_armed(o), "in which backward DDP reduces")
    for module, name, fact in _OF_RPC:
        after_import(module, partial(_hook_rpc, o, module, name, fact))
    after_import(FUNCTIONAL, partial(hook_functional, o))


class Calls:
    """Makes the replacements of a process group's methods and of `Work.wait`, which share what goes on.

    `_works` has of each collective or message that goes on, by the identity of its Work: the place of its record << 17
    | its name << 1 | whether the caller waits at once; several where one Work stands for a batch.
    """

    def __init__(self, o: Observer) -> None:
        self._o = o
        self._works: dict[int, int | list[int]] = {}
        self._from_any: dict[int, Callable[[int], int]] = {}  # by the place of a record: its name, from who sent it
        self._batch: list[int] | None = None  # what is called while a batch is begun
        self._groups = ObjectNumbers()
        self.names_senders = True

    @property
    def going(self) -> int:
        """How many are not yet waited for."""
        return len(self._works)

    def of_collective(self, name: str) -> Any:
        if name in FROM_ONE:
            return self._make(sender_of, lambda group, root: collective_of(name, group, root))
        return self._make(None, lambda group, _: collective_of(name, group, e.UNCLEAR if name in TO_ONE else e.NO_ROOT))

    def of_buffers(self) -> Any:
        """DDP's, whose bytes would take longer to count than all else."""
        return self._make(
            lambda values: values[2] if len(values) > 2 else 0,
            lambda group, root: collective_of(BUFFERS, group, root),
            counts=False,
        )

    def of_message(self, *, sends: bool) -> Any:
        return self._make(lambda values: values[1:], lambda group, its: message_of(group, *its, sends=sends))

    def of_any_message(self, original: Any) -> Any:
        """Its record gets the sender's name when the message is there; until then it is of any rank."""

        def tag_of(values: tuple[Any, ...]) -> int:
            return values[1] if len(values) > 1 else 0

        hooked = self._make(tag_of, message_from_any)(original)
        if not self.names_senders:
            return hooked

        def call(group: Any, *values: Any, **named: Any) -> Any:
            work = hooked(group, *values, **named)
            record = self._works.get(id(work))
            if isinstance(record, int):
                self._from_any[record >> 17] = lambda sender: which_of(
                    self._o, message_of(group, sender, tag_of(values), sends=False)
                )
            return work

        return call

    def _make(
        self, part_of: Callable[[Any], Any] | None, called: Callable[[Any, Any], CollectiveName | None], *,
        counts: bool = True,
    ) -> Any:  # fmt: skip
        """`part_of` returns the part of a call's arguments that `called` needs beside the group, None: none. `counts`:
        the bytes are."""
        o, works, numbers = self._o, self._works, self._groups
        known, whiches = numbers.known, dict[tuple[int, Any], int]()

        def make(original: Any) -> Any:
            def call(group: Any, *values: Any, **named: Any) -> Any:
                if _is_compiling() or o.off or o.is_left_to_thread():
                    return original(group, *values, **named)
                try:
                    part = None if part_of is None else part_of(values)
                    which = whiches.get((known(id(group), 0), part))
                    if which is None:
                        which = which_of(o, called(group, part))
                        if number := numbers.of(group):  # 0: it may share its identity with a later one
                            whiches[number, part] = which
                    if which >= 0:
                        size, at_once = bytes_of(values[0]) if values and counts else 0, waits_at_once(values)
                        at = o.place()
                        o.cells[at + 1] = e.COLLECTIVE_IN | which << 8 | size << 24
                        o.cells[at] = perf_counter_ns()
                        if o.mark is not None:
                            o.mark(at)
                except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
                    o.failed(error)
                    return original(group, *values, **named)
                work = original(group, *values, **named)
                if which < 0:
                    return work
                record = e.place_of(at) << 17 | which << 1 | at_once
                if self._batch is not None:
                    self._batch.append(record)
                elif work is None:
                    o.collective_ended(which, e.place_of(at))
                else:
                    works[id(work)] = record
                return work

            return call

        return make

    def begin_batch(self, original: Any) -> Any:
        """What is called until its end goes on together, and one Work stands for all of it."""

        def start(group: Any, *values: Any) -> Any:
            self._batch = []
            return original(group, *values)

        return start

    def end_batch(self, original: Any) -> Any:
        def end(group: Any, *values: Any) -> Any:
            batch, self._batch = self._batch, None
            work = original(group, *values)
            if work is not None and batch:
                self._works[id(work)] = batch
            elif not self._o.off:
                for record in batch or ():
                    self._o.collective_ended(record >> 1 & 0xFFFF, record >> 17)
            return work

        return end

    def wait(self, original: Any) -> Any:
        o, works = self._o, self._works

        def wait(work: Any, *values: Any, **named: Any) -> Any:
            record = works.pop(id(work), None)
            if record is None or o.off:
                return original(work, *values, **named)
            records = record if isinstance(record, list) else [record]
            for each in records:
                if not each & 1:
                    o.note(e.COLLECTIVE_WAIT, each >> 1 & 0xFFFF, each >> 17)
            result = original(work, *values, **named)
            for each in records:
                o.collective_ended(each >> 1 & 0xFFFF, each >> 17)
            try:
                if self._from_any:
                    self._name_sender(records[0] >> 17, work)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return result

        return wait

    def _name_sender(self, place: int, work: Any) -> None:
        """The message from any rank is there: its record gets the name of one from its sender."""
        name_of = self._from_any.pop(place, None)
        if name_of is not None and (which := name_of(work._source_rank())) >= 0:
            at = e.cell_of(place) + 1
            self._o.cells[at] = self._o.cells[at] & ~(0xFFFF << 8) | which << 8


COLLECTIVE = "_rankwise_collective"
"""Attribute of an event that a script records on a stream: behind which collective that is."""


class StreamWaits:
    """Where the training's stream waits for a collective whose result another of the script's streams has.

    FSDP, ZeRO and others call them, or wait for them, on a stream of their own, on which they record an event; the
    training's stream waits for that event where it needs the result. `Stream.wait_stream` and `wait_event` call
    `Event.wait`, `record_event` calls `Event.record`.
    """

    def __init__(self, o: Observer, device: DeviceClock) -> None:
        self._o, self._device = o, device
        # Of each stream the place << 16 | name of the collective that it is behind; an empty list once that was waited
        # for by the training's stream.
        self._behind: dict[Any, list[int]] = {}

    def ended(self, which: int, place: int) -> None:
        """The current stream has the result of this collective."""
        stream = self._device.current_stream()
        if stream is not self._device.training_stream:
            self._behind[stream] = [place << 16 | which]

    def make_record(self, original: Any) -> Any:
        def record(event: Any, stream: Any = None) -> None:
            if self._behind:
                its = self._device.current_stream() if stream is None else stream
                setattr(event, COLLECTIVE, self._behind.get(its))
            original(event, stream)

        return record

    def make_wait(self, original: Any) -> Any:
        o = self._o

        def wait(event: Any, stream: Any = None) -> None:
            behind = getattr(event, COLLECTIVE, None)
            if not behind or o.off or o.mark is None or o.is_aside():
                original(event, stream)
                return
            current, training = self._device.current_stream(), self._device.training_stream
            waits = current if stream is None else stream
            if waits != training:
                self._behind[waits] = behind
            if not waits == current == training:
                original(event, stream)
                return
            call = behind.pop()
            o.note(e.COLLECTIVE_WAIT, call & 0xFFFF, call >> 16)
            original(event, stream)
            o.note(e.COLLECTIVE_OUT, call & 0xFFFF, call >> 16)

        return wait


def hook_stream_waits(o: Observer, device: DeviceClock) -> None:
    """Once the device of a script notes events."""
    o.stream_waits = StreamWaits(o, device)
    shows = "where a device waits for collectives of other streams"
    o.replace(device.event_type, "record", o.stream_waits.make_record, shows)
    o.replace(device.event_type, "wait", o.stream_waits.make_wait, shows)


def _make_armed(o: Observer) -> Any:
    """On the call itself: what DDP says of itself at the backward is not exact.

    It decides in each forward, later ones (evaluation, `no_sync`) do not revoke it, and its flags show the last alone.
    """
    models = o.lasts.models

    def make(original: Any) -> Any:
        def prepare_for_backward(reducer: Any, *outputs: Any) -> Any:
            if not o.off:
                model = models.get(id(reducer), 0)
                o.note(e.ARMED | model)
                o.lasts.awaited.add(model >> 8 & 0xFFFF)
            return original(reducer, *outputs)

        return prepare_for_backward

    return make


def which_of(o: Observer, called: CollectiveName | None) -> int:
    """-1 for what is not recorded."""
    return -1 if called is None else o.recorder.name(*called)


def sender_of(values: tuple[Any, ...]) -> int:
    """The rank that sends, by the group's numbers, from the call's options or its last argument."""
    root = getattr(values[-1], "rootRank", values[-1]) if values else None
    return root if isinstance(root, int) else e.UNCLEAR


def bytes_of(thing: Any) -> int:
    """Of a tensor, or of all in a list of tensors or of lists of them."""
    if isinstance(thing, torch.Tensor):
        return thing.numel() * thing.element_size()
    return sum(map(bytes_of, thing)) if isinstance(thing, (list, tuple)) else 0


def _hook_rpc(o: Observer, module: str, name: str, fact: str) -> None:
    """Records, once, that the script calls this function."""
    stated: list[bool] = []

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if not (stated or o.off):
                    stated.append(True)
                    o.recorder.state(**{fact: True})
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return original(*args, **kwargs)

        return call

    o.replace(sys.modules[module], name, make)


# Functional collectives, which DTensor calls: those of tensor parallelism, the norm of sharded gradients.


# Torch hands their results out as tensors that wait when they are first used; who waits is known by the memory of the
# result. Not seen are those in compiled graphs, and those that autograd calls in C++.

FUNCTIONAL = "torch.distributed._functional_collectives"
PLACES = {
    "all_reduce": ("all-reduce", 2),
    "all_gather_single": ("all-gather", 2), "all_gather_tensor": ("all-gather", 2),
    "reduce_scatter_single": ("reduce-scatter", 3), "reduce_scatter_tensor": ("reduce-scatter", 3),
    "all_to_all_single": ("all-to-all", 3), "broadcast": ("broadcast", 2),
}  # fmt: skip
"""Names of its functions in this torch or another: that of the collective, and the place of the group in the call."""


def _makers(o: Observer, module: Any) -> dict[str, Callable[[Any], Any]]:
    """For attributes of torch's module, what makes the replacement of each original."""

    def arrived(name: str, group: tuple[Any, str], tensor: Any) -> int:
        """Records the call; returns its place and name, -1 for what is not recorded."""
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

    is_tracing = module._are_we_tracing
    calls: list[int] = []  # the collective that is being called
    going: dict[int, int] = {}  # of each whose result was not yet waited for, by the memory of the result

    def of_call(name: str, place: int) -> Callable[[Any], Any]:
        """Makes a function that announces the collective of that name; the group is at this place of its arguments."""

        def make(original: Any) -> Any:
            def call(*values: Any, **named: Any) -> Any:
                if calls or is_tracing() or o.is_left_to_thread():
                    return original(*values, **named)
                try:
                    group = named["group"] if "group" in named else values[place]
                    calls.append(arrived(f"functional {name}", mesh_group(group), values[0]))
                except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                    o.failed(error)
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
                if calls and calls[0] >= 0 and not o.is_aside():
                    going[_memory(tensor)] = calls[0]
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            return original(tensor)

        return wrapped

    def make_wait(original: Any) -> Any:
        """Makes a function that says when a result is waited for, and when it is there."""

        def waited(tensor: Any) -> Any:
            number = -1
            try:
                if going and not is_tracing():
                    number = going.pop(_memory(tensor), -1)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)
            if number < 0:
                return original(tensor)
            o.note(e.COLLECTIVE_WAIT, number & 0xFFFF, number >> 16)
            result = original(tensor)
            o.collective_ended(number & 0xFFFF, number >> 16)
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


def hook_functional(o: Observer) -> None:
    """After the import of the module."""
    if o.off:
        return
    module = sys.modules[FUNCTIONAL]
    if reason := why_other(module):
        o.lacks(FUNCTIONAL, reason, "functional collectives, which DTensor calls")
        return
    for name, make in _makers(o, module).items():
        o.replace(module, name, make)
