"""Batches of Keras' `fit` that hooks see: when JAX has fetched one, and how many samples it has in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc.observe import events as e
from hpc.observe import keras_fit


def test_on_jax_a_step_computes_from_where_its_batch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[tuple[int, int, int]] = []
    o = SimpleNamespace(
        in_fit=True, begun=False, updated=False, fetching=False, loaders=SimpleNamespace(of=lambda _: 1)
    )
    o.note = lambda kind, which=0, number=0: notes.append((kind, which, number))
    monkeypatch.setattr(keras_fit, "_active", lambda: o)
    request = keras_fit._make_request(lambda epoch: None)
    begin = keras_fit._make_batch_begin(fetches=True)(lambda: None)
    batches = keras_fit._make_batches(lambda epoch: [(np.zeros((4, 2)), None)] * 2)("epoch")
    request("epoch")
    begin()
    next(batches)
    assert notes == [(e.FETCH_IN, 1, 0), (e.FETCH_IN, 1, 0), (e.FETCH_OUT, 1, 4), (e.FORWARD_IN, 0, 0)]
    next(batches)  # of an evaluation, say: no step has begun
    assert notes[-1] == (e.FETCH_OUT, 1, 4)


def test_an_array_of_jax_over_processes_has_the_rows_of_this_one() -> None:
    shards = [SimpleNamespace(index=(slice(at, at + 4),), data=np.zeros((4, 2))) for at in (8, 12, 8)]
    assert keras_fit._rows((SimpleNamespace(shape=(32, 2), dtype="f4", addressable_shards=shards), None)) == 8


@pytest.mark.parametrize(("replicas", "here", "samples"), [(1, 0, [8, 8, 2]), (2, 1, [4, 4, 1]), (4, 1, [2, 2, 0])])
def test_tf_keras_samples_are_those_of_this_process(replicas: int, here: int, samples: list[int]) -> None:
    adapter = SimpleNamespace(
        batch_size=lambda: 8, has_partial_batch=lambda: True, partial_batch_size=lambda: 2, get_size=lambda: 3
    )
    strategy: Any = SimpleNamespace(num_replicas_in_sync=replicas, extended=SimpleNamespace(worker_devices=[0] * here))
    model = SimpleNamespace(distribute_strategy=strategy)
    handler = SimpleNamespace(_adapter=adapter, step_increment=0, _model=model)
    assert [keras_fit._of_handler(handler, step) for step in range(3)] == samples


def test_batches_of_tf_data_have_a_size_where_all_are_alike() -> None:
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices(np.zeros((96, 2), "float32"))
    alike = (
        rows.repeat().shuffle(10).batch(36).prefetch(2),
        rows.batch(32).repeat(),
        rows.batch(36, drop_remainder=True),
    )
    assert [keras_fit._size_of_all(each) for each in alike] == [36, 32, 36]
    unlike = rows.batch(36), rows.batch(32).map(lambda x: x[:5]), rows.filter(lambda x: True).batch(32)
    assert [keras_fit._size_of_all(each) for each in unlike] == [0, 0, 0]
