"""TensorFlow workloads of people's own: one of Keras as it should be, and others that are wrong in one way each."""

import os
import signal
import subprocess

import keras
import numpy as np
import tensorflow as tf

FEATURES, HIDDEN = 4, 8


def joined(run, step):
    """Features and targets of one step, all ranks' together."""
    random = np.random.default_rng(100 + step)
    features = random.standard_normal((run.global_batch_size, FEATURES)).astype(np.float32)
    return features, np.sin(features.sum(axis=1, keepdims=True))


def dense(seed):
    start = keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential([
        keras.Input(shape=(FEATURES,)),
        keras.layers.Dense(HIDDEN, activation="tanh", kernel_initializer=start),
        keras.layers.Dense(1, kernel_initializer=start, dtype="float32"),
    ])  # fmt: skip


class KerasDense:
    def __init__(self, run, device, rank):
        self.run, self.rank = run, rank
        self.model = dense(seed=rank)  # other values on every rank: the backend has to make them rank 0's

    def batch(self, step):
        mine = slice(self.rank * self.run.rank_batch_size, (self.rank + 1) * self.run.rank_batch_size)
        return tuple(tf.constant(values[mine]) for values in joined(self.run, step))

    def loss(self, model, batch):
        features, targets = batch
        return tf.reduce_mean(tf.square(model(features, training=True) - targets))

    def optimizer(self):
        return keras.optimizers.SGD(0.1, momentum=0.9)

    def samples(self, batch):
        return len(batch[0])


class StopsForAWhile(KerasDense):
    """Rank 1 is stopped for 20 s in a step, as on a node that is too busy to answer."""

    def batch(self, step):
        if (self.rank, step) == (1, 7):
            subprocess.Popen(["sh", "-c", f"sleep 20; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().batch(step)


def on_one_rank(run, steps):
    """The parameters that Keras learns in one process from the joined batch, from rank 0's beginning."""
    model, optimizer = dense(seed=0), keras.optimizers.SGD(0.1, momentum=0.9)
    for step in range(steps):
        features, targets = joined(run, step)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, training=True) - targets))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return [variable.numpy() for variable in model.trainable_variables]


class MakesItsOptimizerAtOnce(KerasDense):
    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.made = keras.optimizers.SGD(0.1)

    def optimizer(self):
        return self.made


class IsNotBuilt(KerasDense):
    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.model = keras.Sequential([keras.layers.Dense(1)])


class LeavesAPartOut(KerasDense):
    def loss(self, model, batch):
        return tf.reduce_mean(model.layers[0](batch[0]))


class GivesALossPerSample(KerasDense):
    def loss(self, model, batch):
        features, targets = batch
        return keras.losses.mean_squared_error(targets, model(features))


class IgnoresThePrecision(KerasDense):
    """Its matrix is multiplied in float32 whatever the run asks for."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        self.model = tf.Module()
        self.model.weight = tf.Variable(tf.ones([FEATURES, 1]))

    def loss(self, model, batch):
        features, targets = batch
        return tf.reduce_mean(tf.square(features @ model.weight - targets))


class ChoosesItsOwnPrecision(IgnoresThePrecision):
    def loss(self, model, batch):
        product = tf.cast(batch[0], tf.bfloat16) @ tf.cast(model.weight, tf.bfloat16)
        return tf.reduce_mean(tf.cast(product, tf.float32))


class AsksForTooMuch(IgnoresThePrecision):
    def loss(self, model, batch):
        return tf.reduce_sum(model.weight) * tf.reduce_sum(tf.random.normal([1 << 20, 1 << 20]))


class RaisesAtStep7(KerasDense):
    def batch(self, step):
        if self.rank == 1 and step == 7:
            raise RuntimeError("my data is gone")
        return super().batch(step)


class LacksLossAndSamples:
    def __init__(self, run, device, rank):
        self.model = dense(seed=0)

    def batch(self, step):
        return None

    def optimizer(self):
        return None
