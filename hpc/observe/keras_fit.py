"""Hooks on Keras: steps, batches and evaluations of `fit`, by the list of callbacks that it calls around each.

Of a compiled step nothing else is seen: where TensorFlow runs it, the fetch of its batch is inside, too. Where JAX
does, the batch is fetched behind the callbacks, and the compiled step begins when it is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from . import events as e
from . import recording
from .patches import Patches
from .recording import first_tensor

PACKAGES = ("keras", "tf_keras")
"""Keras, and its second version beside it."""
T = TypeVar("T")


def hook(package: str) -> None:
    """After the import of one of PACKAGES. Nothing is recorded before a training or an evaluation begins."""
    hooks = Patches()
    lists = sys.modules.get(f"{package}.src.callbacks.callback_list") or sys.modules.get(f"{package}.src.callbacks")
    hooks.replace(lists, "CallbackList.on_train_begin", _make_begin(package), "where fit begins")
    hooks.replace(lists, "CallbackList.on_train_end", _make_end)
    jax = sys.modules.get(f"{package}.src.backend.jax.trainer")
    begins = _make_batch_begin(fetches=jax is not None)
    hooks.replace(lists, "CallbackList.on_train_batch_begin", begins, "where a step of fit begins")
    hooks.replace(lists, "CallbackList.on_train_batch_end", _make_batch_end, "steps of fit")
    hooks.replace(lists, "CallbackList.on_test_begin", _make_test(e.EVALUATE_IN), "evaluations")
    hooks.replace(lists, "CallbackList.on_test_end", _make_test(e.EVALUATE_OUT), "evaluations")
    for name in ("trainers.epoch_iterator", "backend.tensorflow.trainer"):  # the latter has a method of its own
        for kind in ("EpochIterator", "TFEpochIterator"):
            module = sys.modules.get(f"{package}.src.{name}")
            if "__next__" in vars(getattr(module, kind, None) or object):
                hooks.replace(module, f"{kind}.__next__", _make_next)
    if jax is not None:
        hooks.replace(jax, "JAXEpochIterator.__next__", _make_request, "when fit requests a batch")
        hooks.replace(jax, "JAXEpochIterator._get_iterator", _make_batches, "when fit has a batch, its samples")
    if (handlers := sys.modules.get(f"{package}.src.engine.data_adapter")) is not None:  # of tf_keras
        hooks.replace(handlers, "DataHandler.steps", _make_steps, "samples of fit")
    _lacking.update(hooks.lacking)


_lacking: dict[str, tuple[str, str]] = {}


def _active() -> recording.ProcessRecording | None:
    o = recording.current
    return None if o is None or o.off else o


def begin(
    what: str, lacking: Mapping[str, tuple[str, str]], facts: Callable[[], dict[str, Any]] = dict
) -> recording.ProcessRecording | None:
    """What records in this process, with facts and the hooks that `what` has no place for; None where nothing can."""
    try:
        o = recording.begin(os.environ["RANKWISE_OBSERVE"])
        if not o.off:
            o.recorder.state(**facts())
        for name, (reason, shows) in {} if o.off else lacking.items():
            o.lacks(name, reason, shows)
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must not end for it
        print(f"observe: {what} is not measured: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return None if o.off else o


def _make_begin(package: str) -> Any:
    def make(original: Any) -> Any:
        def facts() -> dict[str, Any]:
            keras = sys.modules[package]
            backend = getattr(getattr(keras, "backend", None), "backend", lambda: "tensorflow")()
            return {"keras": [str(getattr(keras, "__version__", "?")), str(backend)]}

        def on_train_begin(*args: Any, **kwargs: Any) -> Any:
            if (o := begin("Keras", _lacking, facts)) is not None:
                o.in_fit = True
            return original(*args, **kwargs)

        return on_train_begin

    return make


def _make_end(original: Any) -> Any:
    def on_train_end(*args: Any, **kwargs: Any) -> Any:
        if (o := _active()) is not None:
            o.in_fit = False
        return original(*args, **kwargs)

    return on_train_end


def _make_batch_begin(*, fetches: bool) -> Any:
    """`fetches`: whether the step fetches its batch before it computes."""

    def make(original: Any) -> Any:
        def on_train_batch_begin(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if (o := _active()) is not None:
                o.begun = fetches
                if not fetches:
                    o.note(e.FORWARD_IN)
            return result

        return on_train_batch_begin

    return make


def _make_batch_end(original: Any) -> Any:
    def on_train_batch_end(*args: Any, **kwargs: Any) -> Any:
        if (o := _active()) is not None:
            o.step_ended()
        return original(*args, **kwargs)

    return on_train_batch_end


def _make_test(kind: int) -> Any:
    def make(original: Any) -> Any:
        def on_test(*args: Any, **kwargs: Any) -> Any:
            if (o := _active()) is not None:
                o.note(kind)
            return original(*args, **kwargs)

        return on_test

    return make


def _make_next(original: Any) -> Any:
    def fetch(iterator: Any) -> Any:
        o = _active()
        if o is None or o.fetching:
            return original(iterator)
        samples = partial(_samples, iterator)
        return recording.fetched(o, o.loaders.of(iterator), partial(original, iterator), samples)

    return fetch


def _make_request(original: Any) -> Any:
    def request(epoch: Any) -> Any:
        o = _active()
        if o is None or not o.in_fit:
            return original(epoch)
        o.note(e.FETCH_IN, which := o.loaders.of(epoch))
        try:
            return original(epoch)
        except StopIteration:
            o.note(e.FETCH_END, which)
            raise

    return request


def _make_batches(original: Any) -> Any:
    def get_iterator(epoch: Any) -> Any:
        for batch in _recorded(epoch, original(epoch), _rows):
            if (o := _active()) is not None and o.begun:
                o.begun = False
                o.note(e.FORWARD_IN)
            yield batch

    return get_iterator


def _make_steps(original: Any) -> Any:
    def steps(handler: Any) -> Any:
        return _recorded(handler, original(handler), partial(_of_handler, handler))

    return steps


def _recorded(source: Any, items: Iterable[T], samples: Callable[[T], int]) -> Iterator[T]:
    """What a source of batches gives to `fit`, each fetch recorded."""
    fetch = partial(next, iter(items))
    while True:
        o = _active()
        try:
            item = recording.fetched(o, o.loaders.of(source), fetch, samples) if o is not None and o.in_fit else fetch()
        except StopIteration:
            return
        yield item


def _rows(batch: Any) -> int:
    """Those of this process, where JAX spreads a batch over several."""
    first = first_tensor(batch)
    if first is None or not first.shape:
        return 0
    shards = getattr(first, "addressable_shards", ())
    return sum({each.index[0].start: len(each.data) for each in shards}.values()) or int(first.shape[0])


def _of_handler(handler: Any, first: int) -> int:
    """Samples of a step of tf_keras on this process; 0 where its adapter does not know them, or they may be uneven."""
    try:
        adapter, count, strategy = handler._adapter, handler.step_increment + 1, handler._model.distribute_strategy
        size = adapter.batch_size() or _size_of_all(getattr(adapter, "_dataset", None))
        is_last = adapter.has_partial_batch() and first + count >= adapter.get_size()
        samples: int = size * (count - is_last) + (adapter.partial_batch_size() or 0) * is_last
        if (replicas := strategy.num_replicas_in_sync) == 1:
            return samples
        here = samples * len(strategy.extended.worker_devices)
        return 0 if here % replicas else here // replicas
    except Exception:  # noqa: BLE001 - an adapter of the script's own may raise anything
        return 0


_KEEP_BATCHES = (
    "_PrefetchDataset",
    "_OptionsDataset",
    "_RepeatDataset",
    "_CacheDataset",
    "_TakeDataset",
    "_SkipDataset",
)


def _size_of_all(dataset: Any) -> int:
    """Of the batches of a tf.data dataset, where all are alike; else 0."""
    while type(dataset).__name__ in _KEEP_BATCHES:
        dataset = dataset._input_dataset
    if type(dataset).__name__ not in ("_BatchDataset", "_ParallelBatchDataset"):
        return 0
    size, rows = int(dataset._batch_size), int(dataset._input_dataset.cardinality())
    return size if rows == -1 or (rows > 0 and not rows % size) or dataset._drop_remainder else 0


def _samples(iterator: Any, fetched: Any) -> int:
    """Those of the batches that an iterator gives a step; 0 where its adapter does not know them."""
    try:
        adapter, (first, last, *_) = iterator.data_adapter, fetched
        size, count = adapter.batch_size or _size_of_all(getattr(adapter, "_dataset", None)), adapter.num_batches
        of_last = adapter.partial_batch_size if count and last + 1 >= count and adapter.has_partial_batch else size
        samples: int = size * (last - first) + (of_last or 0)
        return samples
    except Exception:  # noqa: BLE001 - an adapter of the script's own may raise anything
        return 0
