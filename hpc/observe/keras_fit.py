"""Hooks on Keras: steps, batches and evaluations of `fit`, by the list of callbacks that it calls around each.

Of a compiled step nothing else is seen: where TensorFlow or JAX runs it, the fetch of its batch is inside, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from . import events as e
from . import recording
from .patches import Patches


def hook() -> None:
    """After the import of keras. Nothing is recorded before a training or an evaluation begins."""
    hooks = Patches()
    lists = sys.modules.get("keras.src.callbacks.callback_list") or sys.modules.get("keras.src.callbacks")
    hooks.replace(lists, "CallbackList.on_train_begin", _make_begin, "where fit begins")
    hooks.replace(lists, "CallbackList.on_train_end", _make_end)
    hooks.replace(lists, "CallbackList.on_train_batch_begin", _make_batch_begin, "where a step of fit begins")
    hooks.replace(lists, "CallbackList.on_train_batch_end", _make_batch_end, "steps of fit")
    hooks.replace(lists, "CallbackList.on_test_begin", _make_test(e.EVALUATE_IN), "evaluations")
    hooks.replace(lists, "CallbackList.on_test_end", _make_test(e.EVALUATE_OUT), "evaluations")
    for name in ("trainers.epoch_iterator", "backend.tensorflow.trainer"):  # the latter has a method of its own
        for kind in ("EpochIterator", "TFEpochIterator"):
            module = sys.modules.get(f"keras.src.{name}")
            if "__next__" in vars(getattr(module, kind, None) or object):
                hooks.replace(module, f"{kind}.__next__", _make_next)
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


def _make_begin(original: Any) -> Any:
    def facts() -> dict[str, Any]:
        keras = sys.modules["keras"]
        backend = getattr(getattr(keras, "backend", None), "backend", lambda: "tensorflow")()
        return {"keras": [str(getattr(keras, "__version__", "?")), str(backend)]}

    def on_train_begin(*args: Any, **kwargs: Any) -> Any:
        if (o := begin("Keras", _lacking, facts)) is not None:
            o.in_fit = True
        return original(*args, **kwargs)

    return on_train_begin


def _make_end(original: Any) -> Any:
    def on_train_end(*args: Any, **kwargs: Any) -> Any:
        if (o := _active()) is not None:
            o.in_fit = False
        return original(*args, **kwargs)

    return on_train_end


def _make_batch_begin(original: Any) -> Any:
    def on_train_batch_begin(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if (o := _active()) is not None:
            o.note(e.FORWARD_IN)
        return result

    return on_train_batch_begin


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
