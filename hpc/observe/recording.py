"""What a process of a script records, by whatever hooks and lines: its events, its steps, its end.

Needs no framework: torch's hooks add what they know of it (observer.py). There is one of it in a process.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import runpy
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

from . import events as e
from . import stacks
from .patches import Patches

T = TypeVar("T")
current: ProcessRecording | None = None
"""What records in this process; None where nothing does."""
MAX_CHARACTERS = 2000
"""Of a message that is kept as a fact."""


class ObjectNumbers:
    """Numbers for objects, from 1 on, in the order in which they are first seen; one that has died gives its number to
    none."""

    def __init__(self) -> None:
        self._next = itertools.count(1).__next__
        self._numbers: dict[int, int] = {}
        self.known = self._numbers.get  # by the identity of an object, for hooks of every step
        self._alive: dict[int, weakref.ref[Any]] = {}

    def of(self, thing: Any) -> int:
        """The number of an object; 0 for one that takes no weak references."""
        key = id(thing)
        number = self._numbers.get(key)
        if number is not None:
            return number
        try:
            self._alive[key] = weakref.ref(thing, lambda _: (self._numbers.pop(key, 0), self._alive.pop(key, None)))
        except TypeError:
            return 0
        self._numbers[key] = number = self._next()
        return number


class ProcessRecording(Patches):
    """Records the events of this process, into the file of `earlier` where there is one. Raises OSError where there is
    no room for them."""

    def __init__(self, folder: str, earlier: ProcessRecording | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.recorder: e.Recorder = e.Recorder(folder) if earlier is None else earlier.recorder
        self.cells, self.place = self.recorder.cells, self.recorder.place
        self.fetching = self.in_backward = self.updated = self.in_fit = False
        self.marked: bool = earlier is not None and earlier.marked  # the script, or its trainer, says where steps end
        self.steps: int = 0 if earlier is None else earlier.steps
        self.loaders: ObjectNumbers = ObjectNumbers() if earlier is None else earlier.loaders
        self.mark: Callable[[int], None] | None = (
            None  # has a device note when it gets to a record; None: there is none
        )
        self.elsewhere: dict[str, Any] = {}  # facts that another than torch knows: the rank and size of Horovod
        self.forked: Callable[[], None] = lambda: None  # what is done in a process that this one forks
        if earlier is None:
            _hook_end(self)
            if _collects not in gc.callbacks:  # which a forked process has of the one before it
                gc.callbacks.append(_collects)

    def lacks(self, name: str, reason: str, shows: str) -> None:
        """States that a hook is not there, and what is not seen without it."""
        super().lacks(name, reason, shows)
        self.recorder.state(lacking_hooks=self.lacking)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy by value of a class with a hook (cloudpickle) gets: one that is switched off."""
        return types.SimpleNamespace, (), {"off": True}

    def note(self, kind: int, which: int = 0, number: int = 0, ns: int = 0) -> None:
        """Stores an event, of now or of `ns`; raises nothing."""
        try:
            at = self.place()
            self.cells[at + 1] = kind | which << 8 | number << 24
            self.cells[at] = ns or perf_counter_ns()
            if self.mark is not None and kind in e.MARKED:
                self.mark(at)
        except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Takes all hooks off, and records why; the script goes on unmeasured."""
        if self.off:
            return
        try:
            self.remove()
            self.recorder.state(failed=f"{type(error).__name__}: {error}")
        except Exception as second:  # noqa: BLE001 - the script must not end for a hook
            print(f"observe: recording has ended: {error!r}, {second!r}", file=sys.stderr)

    def step_completed(self) -> None:
        """Counts a step: the optimizer has been stepped, and the script goes on. The parent ends it by this count."""
        self.updated = False
        self.steps += 1
        self.cells[e.STEPS_CELL] = self.steps
        self.make_room()

    def make_room(self) -> bool:
        """For the records of further steps; whether there is any."""
        try:
            has_room = self.recorder.make_room(self.steps)
        except OSError:  # the file ends where it would have been extended, and what is read of it says so
            return True
        self.place = self.recorder.place
        return has_room

    def go_on(self) -> None:
        """The script trains on: counts the step that ends with the update before, if there is one; raises nothing."""
        if self.updated:
            try:
                self.step_completed()
            except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
                self.failed(error)

    def step_ended(self) -> None:
        """An optimizer step ends here, as the script says, or the trainer whose hook this is; nothing else ends one."""
        if not (self.updated or self.marked):
            self.reserve()
        self.go_on()
        self.note(e.STEP_END)
        self.updated = self.marked = True

    def reserve(self) -> None:
        """Takes the room for all records: this process trains."""
        try:
            self.recorder.reserve()
        except OSError as error:  # the script must not end for it
            self.failed(error)

    def look_at_batch(self, batch: Any) -> None:
        """Gets to see the first batch of a loader."""

    def write_record(self) -> None:
        """Writes a framework's own record of collectives, if it has one."""


def begin(folder: str) -> ProcessRecording:
    """What records in this process; from now on, where nothing did. Raises OSError."""
    global current  # noqa: PLW0603 - a process has one
    if current is None:
        current = ProcessRecording(folder)
        stacks.register(current.recorder.path.parent)
        current.recorder.state(argv=sys.argv[:1])
    return current


def take_over(later: ProcessRecording) -> None:
    """From now on this one records."""
    global current  # noqa: PLW0603 - a process has one
    current = later


def watched(loader: Any) -> Iterator[Any]:
    """What a script's own loader yields, its fetches recorded: `for batch in data(loader)`."""
    count: Count | None = None
    which, iterator = 0, None
    while True:
        o = current
        if o is None or o.off:
            yield from (loader if iterator is None else iterator)
            return
        if count is None or iterator is None:
            which, count = o.loaders.of(loader), _count(o, loader)
            which = which or o.loaders.of(count)  # a loader that takes no weak references
            o.note(e.ITERATE_IN, which)
            iterator = iter(loader)
            o.note(e.ITERATE_OUT, which)
        try:
            batch = fetched(o, which, partial(next, iterator), count.samples)
        except StopIteration:
            return
        yield batch


def _count(o: ProcessRecording, loader: Any) -> Count:
    try:
        return Count(nominal_size(loader), o.look_at_batch)
    except Exception as error:  # noqa: BLE001 - the loader is the script's, which must not end for a hook
        o.failed(error)
        return Count(None)


def fetched(o: ProcessRecording, which: int, fetch: Callable[[], T], samples: Callable[[T], int]) -> T:
    """What a loader gives next, its fetch recorded; `samples` are those of a batch."""
    o.go_on()
    o.note(e.FETCH_IN, which)
    o.fetching, kind, number, ns = True, e.FETCH_END, 0, 0
    try:
        batch = fetch()
        kind, ns = e.FETCH_OUT, perf_counter_ns()
        try:
            number = samples(batch)
        except Exception as error:  # noqa: BLE001 - the batch is the script's, which must not end for a hook
            o.failed(error)
        return batch
    finally:
        o.fetching = False
        o.note(kind, which, number, ns)


def read_aside(o: ProcessRecording, which: int, fetch: Callable[[], T], samples: Callable[[T], int]) -> T:
    """The same for a thread beside the one that trains: what it reads is no time of the training's."""
    batch = fetch()
    try:
        o.note(e.READ_ASIDE, which, samples(batch))
    except Exception as error:  # noqa: BLE001 - the batch is the script's, which must not end for a hook
        o.failed(error)
    return batch


def _hook_end(first: ProcessRecording) -> None:
    """Records when the script comes to its end, which its connections show to other ranks, and by which exception,
    which its exit status does not name: type and message, before it is shown."""

    def ends() -> None:
        o = current
        if o is not None and not o.off:
            try:
                o.recorder.state(**{e.ENDING: perf_counter_ns()})
            except Exception as failure:  # noqa: BLE001 - whatever it is, the script must not end for it
                o.failed(failure)

    def make(original: Any) -> Any:
        def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            o = current
            try:
                name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
                atexit.unregister(ends)
                if o is not None and not o.off:
                    atexit.unregister(o.write_record)  # whose device may have failed
                    exception = {
                        "type": name,
                        "message": _without_secrets(str(error)[: 8 * MAX_CHARACTERS])[:MAX_CHARACTERS],
                    }
                    o.recorder.state(exception=exception, **{e.ENDING: perf_counter_ns()})
            except Exception as failure:  # noqa: BLE001 - whatever it is, the script's own error is shown
                if o is not None:
                    o.failed(failure)
            original(kind, error, trace)

        return excepthook

    atexit.register(ends)
    first.replace(sys, "excepthook", make)


def _without_secrets(text: str) -> str:
    """As hpc.system.sanitize: by its path, because a script may have an `hpc` of its own."""
    shown: str = runpy.run_path(str(Path(__file__).parents[1] / "system" / "sanitize.py"))["without_secrets"](text)
    return shown


COLLECTED_NS = 1_000_000
"""Shorter collections of garbage are not recorded: there may be many."""
_began_ns = 0


def _collects(phase: str, info: dict[str, int]) -> None:
    """Records a collection of garbage, in which no thread of Python runs; raises nothing."""
    global _began_ns  # noqa: PLW0603 - a process collects once at a time
    o = current
    if o is None or o.off:
        return
    if phase == "start":
        _began_ns = perf_counter_ns()
    elif (took_ns := perf_counter_ns() - _began_ns) >= COLLECTED_NS:
        o.note(e.GARBAGE, info["generation"], took_ns)


def _after_fork() -> None:
    """In a forked process nothing is recorded, unless it trains."""
    global current
    o, current = current, None
    if o is not None and not o.off:
        o.forked()


os.register_at_fork(after_in_child=_after_fork)


# How many samples a batch has, whatever it is made of: tensors of any framework, or numpy's arrays.


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
