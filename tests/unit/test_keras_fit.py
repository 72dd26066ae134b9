"""How many samples the batches of Keras' `fit` have, as hooks see them."""

from __future__ import annotations

import numpy as np
import pytest

from hpc.observe import keras_fit


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
