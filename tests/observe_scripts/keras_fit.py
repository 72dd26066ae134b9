"""Keras as people write it: compile and fit, with validation. A callback sleeps 20 ms before each batch."""

import time

import keras
import numpy as np


class Slow(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.02)


images, labels = np.zeros((330, 16), "float32"), np.arange(330) % 4
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(4, activation="softmax")])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    images, labels, batch_size=8, epochs=2, verbose=0, validation_data=(images[:64], labels[:64]), callbacks=[Slow()]
)
