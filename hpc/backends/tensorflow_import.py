"""TensorFlow, imported with the variables set that it reads only then; every other file here takes it from this one."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors and warnings: not every library that is looked for
# Keras comes with TensorFlow and would import whichever framework a person's settings name.
os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf

__all__ = ["tf"]
