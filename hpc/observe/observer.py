"""What is known of the script in its process: where events go, and what was put around torch's calls."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import device_clock, flight_record
from . import events as e
from .process_groups import known_roles, of_replicas
from .recording import MAX_CHARACTERS, ObjectNumbers, ProcessRecording, first_tensor

if TYPE_CHECKING:
    from .collectives import AfterImport, StreamWaits

_thread = threading.get_ident


# The models of a script, searched in its process; and whose gradient DDP had last.


def outermost(below: bool = False) -> list[Any]:
    """The modules with something to train that are in no other; with those one below, where these are not called."""
    # issubclass of the type: isinstance calls a proxy's __class__, which can run anything.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    inner = {id(child) for module in modules for child in _children(module)}
    roots = [module for module in modules if id(module) not in inner and _trains(module)]
    return roots + ([child for root in roots for child in _children(root) if _trains(child)] if below else [])


def _children(module: Any) -> list[Any]:
    try:
        return list(module.children())
    except (AttributeError, RuntimeError):  # not yet initialised
        return []


def _trains(module: Any) -> bool:
    try:
        return any(parameter.requires_grad for parameter in module.parameters())
    except (AttributeError, RuntimeError):
        return False


def facts_of(roots: Sequence[Any]) -> dict[str, Any]:
    """What a process has, as its steps need it: classes of models, strategy, device, rank, bytes of the gradients,
    threads."""
    parameters = {id(p): p for root in roots for p in root.parameters() if p.requires_grad}
    joined = dist.is_available() and dist.is_initialized()
    return {
        "roots": sorted({type(root).__name__ for root in roots}),
        "ddp": any(isinstance(root, DistributedDataParallel) for root in _ddps(roots)),
        "ddp_bytes": sum(map(_reduced_bytes, _ddps(roots))),
        "comm_hook": any(getattr(ddp, "_comm_hooks", ()) for ddp in _ddps(roots)),
        "ddp_groups": _unlike(of_replicas(module.process_group) for module in _ddps(roots)) if joined else [],
        "known_roles": known_roles(parameters.values()) if joined else [],
        "compiled": any(_is_compiled(module) for root in roots for module in root.modules()),
        "sharded": any(hasattr(p, "placements") for p in parameters.values()),
        "devices": sorted({kind for kind, _ in devices_of(parameters.values())}),
        "gradient_bytes": _gradient_bytes([p for p in parameters.values() if not hasattr(p, "placements")]),
        "world_size": int(os.environ.get("WORLD_SIZE") or 1),
        "joined": joined,
        "rank": dist.get_rank() if joined else 0,
        "size": dist.get_world_size() if joined else 1,
        "rendezvous": "{MASTER_ADDR}:{MASTER_PORT}".format_map(defaultdict(str, os.environ)) if joined else "",
        "compiled_autograd": bool(
            getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)
        ),
        "compute_threads": torch.get_num_threads(),
        "python_threads": {str(each.native_id): each.name for each in threading.enumerate() if each.native_id},
    }


def _gradient_bytes(parameters: Sequence[Any]) -> int:
    """Of those that have a gradient; of all where none has: torch.autograd.grad returns them."""
    its = [p.grad for p in parameters if p.grad is not None] or parameters
    return sum(each.numel() * each.element_size() for each in its)


def _unlike(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each of these once."""
    different: list[dict[str, Any]] = []
    different += (group for group in groups if group not in different)
    return different


def devices_of(parameters: Iterable[Any]) -> set[tuple[str, int]]:
    """Types and indices of the devices on which these are computed with; sharded ones may lie elsewhere."""
    return {_device_of(parameter) for parameter in parameters}


def _device_of(parameter: Any) -> tuple[str, int]:
    mesh, device = getattr(parameter, "device_mesh", None), parameter.device
    if mesh is not None and mesh.device_type != device.type:  # offloaded to the host
        return mesh.device_type, int(torch.get_device_module(mesh.device_type).current_device())
    return device.type, device.index or 0


def _ddps(roots: Sequence[Any]) -> list[Any]:
    return [module for root in roots for module in root.modules() if isinstance(module, DistributedDataParallel)]


def _reduced_bytes(ddp: Any) -> int:
    """The most that DDP reduces in a backward: all gradients and, where it looks for unused ones, which these are."""
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    unused = 4 * len(parameters) if ddp.find_unused_parameters else 0
    return unused + int(sum(p.numel() * p.element_size() for p in parameters))


def wrapped_by_ddp(roots: Sequence[Any]) -> list[Any]:
    """The modules that DDP wraps, which a script may evaluate by themselves; none where something is compiled, whose
    graphs would be made again for a hook on its classes."""
    modules = [module for root in roots for module in root.modules()]
    if any(map(_is_compiled, modules)):
        return []
    return [module.module for module in modules if isinstance(module, DistributedDataParallel)]


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _discard(ids: set[int], key: int) -> Callable[[object], None]:
    return lambda _: ids.discard(key)


LAST_GRADIENT = "_get_ddp_logging_data"
"""Of DDP, in which it names the parameter of the backward before the last forward that it logged."""
_LOG_EVERY, _MAX_MISSED = 100, 64
"""Iterations of which DDP logs one, as torch has it; so often it is to log the one behind another last gradient."""


class LastGradients:
    """One hook on each parameter whose gradient DDP had last. A hook on all of them takes 0.6 µs each, for ever."""

    def __init__(self) -> None:
        self._roots: list[weakref.ref[Any]] = []
        self._ddps: list[tuple[weakref.ref[Any], list[weakref.ref[Any]]]] = []
        self.hooked: list[int] = []
        self.models: dict[int, int] = {}  # by the identity of a reducer: the number of its model, from 1 on, its bytes
        self.varying: set[int] = set()  # numbers of models that may use other parameters in each step
        self.named = True  # by DDP of this torch
        self.awaited: set[int] = set()  # numbers of models that will reduce, whose last gradient has not come
        self.logging: list[weakref.ref[Any]] = []  # models whose log will have that of the backward before
        self._missed = 0

    @property
    def has_ddp(self) -> bool:
        return self.named and bool(self._ddps)

    @property
    def lacks_names(self) -> bool:
        """Whether a model has not yet named its parameter."""
        return len({key >> 24 for key in self.hooked}) < len(self._ddps)

    def keep(self, roots: Sequence[Any], ids: set[int]) -> None:
        """Remembers models without keeping them alive; `ids` loses those that die."""
        self.drop_dead(roots, ids)
        seen = {id(reference()) for reference, _ in self._ddps}
        for ddp in _ddps(roots):
            if id(ddp) not in seen:
                parameters = getattr(ddp, "_module_parameters", None) or ddp.module.parameters()
                self._ddps.append((weakref.ref(ddp), [weakref.ref(p) for p in parameters if p.requires_grad]))
                self.models[id(ddp.reducer)] = len(self._ddps) << 8 | _reduced_bytes(ddp) << 24
                self.varying |= {len(self._ddps)} if ddp.find_unused_parameters else set()

    def drop_dead(self, modules: Sequence[Any], ids: set[int]) -> None:
        """Removes from `ids` those of these modules that die."""
        known = {id(reference()) for reference in self._roots}
        for module in modules:
            if id(module) not in known:
                self._roots.append(weakref.ref(module, _discard(ids, id(module))))

    def hook(self, make: Callable[[int], Callable[[Any], None]], handles: list[Any]) -> bool:
        """Asks each DDP, and hooks the parameter it names unless that has the hook, by what `make` returns for the
        number of the model; returns whether one was hooked."""
        before = len(self.hooked)
        self._log_every(_LOG_EVERY)
        self.logging = []
        for number, (reference, parameters) in enumerate(self._ddps):
            ddp = reference()
            log: Callable[[], dict[str, str]] = getattr(ddp, LAST_GRADIENT, dict)
            order = log().get("prev_iteration_grad_ready_order_indices", "")
            last = int(order.split(",")[-1]) if order else -1
            key = number << 24 | last
            if 0 <= last < len(parameters) and key not in self.hooked:
                parameter = parameters[last]()
                if parameter is not None:
                    handles.append(parameter.register_post_accumulate_grad_hook(make(number + 1)))
                    self.hooked.append(key)
        return len(self.hooked) > before

    def log_missed(self) -> None:
        """Behind a backward: models of which another gradient came last, as where not all parameters are used, log
        which in their next forward, and are to be asked behind the next backward."""
        missed = self.awaited & {(key >> 24) + 1 for key in self.hooked} if self._missed < _MAX_MISSED else set[int]()
        self.awaited.clear()
        self._missed += bool(missed)
        self.logging = [self._ddps[number - 1][0] for number in missed]
        self._log_every(1)

    def _log_every(self, iterations: int) -> None:
        for reference in self.logging:
            set_rate = getattr(getattr(reference(), "reducer", None), "_set_ddp_runtime_logging_sample_rate", None)
            if set_rate is not None:
                set_rate(iterations)


_MAX_SEARCHES = 8
"""So often all objects are looked through for an optimizer that no hook sees."""


class Observer(ProcessRecording):
    """Records the events of a process that trains with torch. Raises OSError where there is no room for them."""

    def __init__(self, folder: str, after_import: Callable[..., None], earlier: ProcessRecording | None = None) -> None:
        super().__init__(folder, earlier)
        self.after_import = after_import
        self.forward_seen = self.evaluating = False
        self.thread = threading.main_thread().ident  # that of the last backward, once there is one: it trains
        self.record_after = flight_record.step_to_write()
        self._watched: Callable[[], Any] = lambda: None  # a parameter whose version shows updates that no hook sees
        self._version = -1  # of that, behind the last backward; -1: not watched
        self._guessed = self._searches = 0  # updates that only showed so; looks through all objects for these
        self.backwards = self.looks = self.next_look = self.known_optimizers = 0
        self.look_again = False
        self.optimizers = ObjectNumbers()
        self.roots: set[int] = set()
        self.wrapped: set[int] = set()  # what DDP wraps: its calls count where a script evaluates it by itself
        self.lasts = LastGradients()
        self.device: device_clock.DeviceClock | None = None
        self.on_device = False  # what shows only on a device has its hooks
        self._parameter: Callable[[], Any] = lambda: None  # one that lies on the device
        self._owner: Callable[[], Any] = lambda: None  # the module that has it, and by which name
        self._name = ""
        self._on: tuple[str, int] = ("", 0)
        self.device_facts: dict[str, Any] = {}
        self._called_aside = -1  # the steps that were made when another thread last called a collective
        self.calls: dict[str, int] = {}  # of what has ranks meet beside collectives, by its name
        self.ways: list[str] = []  # those that are stated
        self.stream_waits: StreamWaits | None = None  # None: no device notes events

    def step_completed(self) -> None:
        """Counts a step: the optimizer has been stepped, and the script goes on. The parent ends it by this count.

        On a device a step counts once its times are written.
        """
        self.updated = False
        if self._version >= 0 and not self.known_optimizers and not self._has_changed():
            return
        self.steps += 1
        if not self.steps % LOOK_EVERY:
            look_at_ways(self)
        if self.steps == self.record_after:
            self.write_record()
        if not self.make_room() and self.mark is not None and self.device is not None:
            self.mark = None
            self.state_device(**self.device.facts)
        if self.mark is None or self.device is None:
            self.cells[e.STEPS_CELL] = self.steps
            return
        owner = self._owner()
        parameter = None if owner is None else owner._parameters.get(self._name)
        if parameter is None:  # an optimizer may keep one that its module has no more: so it is asked last
            parameter = self._parameter()
        if parameter is None or _device_of(parameter) != self._on:
            self._follow_model()
        done = self.device.step_completed()
        self.cells[e.STEPS_CELL] = self.steps if self.mark is None else done

    def is_aside(self) -> bool:
        """Whether the caller is a thread of Python's beside the one that trains, as one that writes a checkpoint is;
        one of autograd is none."""
        return self.thread != _thread() and not isinstance(threading.current_thread(), threading._DummyThread)

    def is_left_to_thread(self) -> bool:
        """Whether a collective is that of such a thread: of no step. Steps with any are counted, since ranks meet."""
        aside = self.backwards > 0 and self.is_aside()
        if aside and self.steps != self._called_aside:
            self._called_aside = self.steps
            self.calls[THREADS] = self.calls.get(THREADS, 0) + 1
        return aside

    def collective_ended(self, which: int, place: int) -> None:
        """The result of a collective is there, on a device for the current stream."""
        self.note(e.COLLECTIVE_OUT, which, place)
        if self.stream_waits is not None and self.mark is not None:
            self.stream_waits.ended(which, place)

    def watch_for_updates(self, *, search_anew: bool) -> None:
        """After a backward, while no hook has seen an update: has the next fetch or forward look for one, where there
        is an optimizer."""
        if self.known_optimizers or self.marked or not (search_anew or self.watches):
            return
        parameter = self._watched()
        self._searches += parameter is None
        may_search = parameter is None and self._searches <= _MAX_SEARCHES
        if may_search and any(issubclass(type(thing), torch.optim.Optimizer) for thing in gc.get_objects()):
            its = (p for root in outermost() for p in root.parameters() if p.grad is not None)
            parameter = next((p for p in its if not hasattr(p, "placements")), None)
        if parameter is not None:
            self._watched, self._version, self.updated = weakref.ref(parameter), parameter._version, True

    @property
    def watches(self) -> bool:
        """Whether each backward is to be followed by such a look."""
        return not self.known_optimizers and self._watched() is not None

    def _has_changed(self) -> bool:
        """Whether the parameter that is watched was updated since its backward; notes that."""
        parameter, version = self._watched(), self._version
        self._version = -1
        if parameter is None or parameter._version == version:
            return False
        self.note(e.UPDATE_OUT, 0, e.UNSEEN)
        self._guessed += 1
        return True

    def update_seen(self, which: int) -> None:
        """A hook sees an optimizer for the first time: what was taken for updates without that was none."""
        self.known_optimizers, self.look_again, self.next_look = which, True, 0
        self.steps -= self._guessed
        self._guessed = 0

    def look_at_batch(self, batch: Any) -> None:
        """Records how long the rows of a batch of integers are: where these are tokens, a sample has as many."""
        tensor = first_tensor(batch)
        if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.int64, torch.int32) and tensor.dim() == 2:
            self.recorder.state(integers_per_sample=int(tensor.shape[1]))

    def write_record(self) -> None:
        """Writes torch's own record of collectives, in the warm-up and at the end; raises nothing."""
        if self.off or not dist.is_available():
            return
        try:
            flight_record.write(self.recorder.path, self.steps)
        except Exception as error:  # noqa: BLE001 - the script must not end for it, and all else goes on
            self.recorder.state(collective_record=f"not written: {type(error).__name__}: {error}")

    def _follow_model(self) -> None:
        """The parameter that was looked at has gone or moved: ends the device's events unless another is there."""
        roots = outermost()
        if not self._look_at_one(roots) and self.device is not None:
            parameters = [p for root in roots for p in root.parameters() if p.requires_grad]
            now = ", ".join("{}:{}".format(*device) for device in sorted(devices_of(parameters))) or "no device"
            self.device.leave(device_clock.DeviceError("the model went from {}:{} to {}".format(*self._on, now)))

    def _look_at_one(self, roots: Sequence[Any]) -> bool:
        """Keeps a parameter in sight that lies on the device; whether one does."""
        for module in (module for root in roots for module in root.modules()):
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.requires_grad and _device_of(parameter) == self._on:
                    self._owner, self._name, self._parameter = weakref.ref(module), name, weakref.ref(parameter)
                    return True
        return False

    def start_device(self, roots: Sequence[Any]) -> None:
        """From now on the device on which these models train notes when it gets to events, if that can be had."""
        if self.device is not None or "refused" in self.device_facts:
            return
        parameters = [p for root in roots for p in root.parameters() if p.requires_grad]
        device, refused = device_clock.device_of(devices_of(parameters))
        if refused:
            self.state_device(refused=refused)
        if device is None:
            return
        self._on = device
        self._look_at_one(roots)
        try:
            accelerator = device_clock.ACCELERATORS[device[0]](device[1])
            self.device = device_clock.DeviceClock(self.recorder, accelerator, self._device_failed, steps=self.steps)
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self._device_failed(error)
            return
        self.mark = self.device.mark
        self.state_device(name="{}:{}".format(*device))
        atexit.register(self.end_device)

    @property
    def device_name(self) -> str:
        """`cuda:0`; empty where no device notes events."""
        return str(self.device_facts.get("name", ""))

    def state_device(self, **facts: Any) -> None:
        """Keeps facts about the device's clock."""
        self.device_facts |= facts
        self.recorder.state(device_clock=self.device_facts)

    def _device_failed(self, error: Exception) -> None:
        self.mark = None
        kind = "" if isinstance(error, device_clock.DeviceError) else f"{type(error).__name__}: "
        self.state_device(failed=f"{kind}{error}"[:MAX_CHARACTERS])

    def end_device(self) -> None:
        """The script ends: the last times of the device are written."""
        if self.off or self.mark is None or self.device is None:
            return
        self.cells[e.STEPS_CELL] = self.device.finish()
        self.state_device(**self.device.facts)


# Ways by which the ranks of a script may meet that no hook on collectives sees, as far as its process shows them.


LOOK_EVERY = 8
"""Steps between two looks."""
OFTEN = 0.1
"""A store, or another thread, counts as a way to meet from this share of the steps on: fewer queries share settings."""
MODULES = {
    "cupyx.distributed": "cupyx.distributed", "deep_ep": "DeepEP", "mpi4py.MPI": "mpi4py", "nvshmem": "NVSHMEM",
    "pplx_kernels": "pplx-kernels", "ray.util.collective": "ray.util.collective", "torchcomms": "torchcomms",
    "triton_dist": "Triton-distributed", "uccl": "UCCL", "ucp": "UCX (ucp)", "ucxx": "UCX (ucxx)",
    "transformer_engine.pytorch.module.base": "userbuffers of Transformer Engine",
}  # fmt: skip
"""Modules whose functions have ranks wait for one another, and what they are called; torch imports none of them."""
STORE, THREADS = "a store of torch.distributed", "collectives of another thread"
SYMMETRIC = "torch.distributed._symmetric_memory"
_SCHEDULED = Path("/proc/thread-self/schedstat")
_STORE_CALLS = ("get", "wait", "check", "add", "compare_set", "multi_get")
_SYMMETRIC_CALLS = ("rendezvous", "get_symm_mem_workspace")


def hook_unseen_ways(o: Observer, after_import: AfterImport) -> None:
    """Counts what a script asks of a store in its steps, and what it maps into the memory of other ranks."""
    if not dist.is_available():
        return

    def counted(way: str) -> Any:
        def make(original: Any) -> Any:
            def call(*values: Any, **named: Any) -> Any:
                if o.steps or way != STORE:  # groups of torch find one another by it before
                    o.calls[way] = o.calls.get(way, 0) + 1
                return original(*values, **named)

            return call

        return make

    for name in _STORE_CALLS:
        o.replace(dist, f"Store.{name}", counted(STORE))

    def hook_symmetric() -> None:
        for name in _SYMMETRIC_CALLS:
            o.replace(sys.modules[SYMMETRIC], name, counted(SYMMETRIC))

    after_import(SYMMETRIC, hook_symmetric)


def look_at_ways(o: Observer) -> None:
    """Records how long the thread that trains was awake so far, and by which ways it may have met other ranks."""
    try:
        ready_ns = int(_SCHEDULED.read_text().split()[1])
    except (OSError, ValueError, IndexError):  # a kernel that does not count it
        ready_ns = -1
    if ready_ns >= 0 and o.mark is None:  # else it may sleep until the device has done its work
        awake_ns = time.thread_time_ns() + ready_ns
        if torch.get_num_threads() > 1:  # while the others compute it may sleep
            awake_ns += time.process_time_ns() - time.thread_time_ns()
        o.note(e.AWAKE, 0, awake_ns // 1000)
    ways = sorted({name for module, name in MODULES.items() if _joins_ranks(module)} | {
        way for way, count in o.calls.items() if way == SYMMETRIC or count >= OFTEN * o.steps
    })  # fmt: skip
    if ways != o.ways:
        o.ways = ways
        o.recorder.state(unseen_ways=ways)


def _joins_ranks(name: str) -> bool:
    """Whether a module is there, and what it needs to join ranks, where that shows."""
    module = sys.modules.get(name)
    if module is None:
        return False
    if name == "mpi4py.MPI":
        return bool(module.Is_initialized() and not module.Is_finalized() and module.COMM_WORLD.Get_size() > 1)
    if name.startswith("transformer_engine."):
        return bool(getattr(module, "_ub_communicators", None))
    return True
