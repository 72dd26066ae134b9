"""Pieces of the TensorFlow backends by themselves, as JSON: momentum, the loss scale. One process, no ranks."""

import importlib.util
import json
import sys

import numpy as np

from hpc.backends.tensorflow_loop import LossScale
from hpc.workloads.tensorflow_base import Momentum, tf

TAKEN_ALONG = [name for name in ("sklearn", "matplotlib") if name in sys.modules]
FOUND_LATER = [name for name in ("sklearn", "matplotlib") if importlib.util.find_spec(name)]


def momentum():
    """How far three steps are from torch's formula in numpy."""
    random = np.random.default_rng(0)
    values = [random.standard_normal(shape) for shape in ((3, 2), (4,))]
    gradients = [[random.standard_normal(value.shape) for value in values] for _ in range(3)]
    variables = [tf.Variable(value) for value in values]
    optimizer = Momentum(0.1, 0.9, [0.01, 0.0])
    optimizer.build(variables)
    for step_gradients in gradients:
        optimizer.apply([tf.constant(gradient) for gradient in step_gradients], variables)
    for number, decay in enumerate((0.01, 0.0)):
        velocity = 0.0
        for step_gradients in gradients:
            velocity = 0.9 * velocity + step_gradients[number] + decay * values[number]
            values[number] = values[number] - 0.1 * velocity
    return max(float(np.abs(v.numpy() - value).max()) for v, value in zip(variables, values, strict=True))


def scales(static, gradients):
    """The scale and the variable after each step with these gradients of the scaled loss."""
    scale, variable, optimizer = LossScale(static), tf.Variable([1.0, 1.0]), Momentum(0.5, 0.0, [0.0])
    optimizer.build([variable])
    step = tf.function(lambda gradient: scale.apply(optimizer, [gradient], [variable]))
    seen = []
    for gradient in gradients:
        step(tf.constant(gradient))
        seen.append([float(scale.scale), variable.numpy().tolist()])
    return seen


inf, unit = float("inf"), 2.0**16
scale = LossScale(None)
print(
    json.dumps(
        {
            "taken_along": TAKEN_ALONG,
            "found_later": FOUND_LATER,
            "momentum": momentum(),
            "scaled": [float(scale.scaled(tf.constant(0.5))), scale.scaled(tf.constant(0.5, tf.float16)).dtype.name],
            "dynamic": scales(None, [[unit, 0.0], [inf, 0.0], [unit, float("nan")], [unit, 0.0]]),
            "static": scales(8.0, [[8.0, 0.0], [0.0, -inf], [8.0, 0.0]]),
            "grown": [scale for scale, _ in scales(None, [[0.0, 0.0]] * 1999 + [[inf, 0.0]] + [[0.0, 0.0]] * 2001)][
                -3:
            ],
        }
    )
)
