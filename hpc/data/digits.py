"""The handwritten digits that scikit-learn ships in its wheel: 1,797 grey images of 8 × 8 pixels in ten classes."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from hpc.data.photographs import MissingPackage
from hpc.system.import_guard import install_command

CLASSES, SIZE = 10, 8
LEVELS = 16
"""The brightest pixel; the darkest is 0."""
HELD_OUT = 5
"""One of so many images is for validation."""


def digits() -> tuple[Any, Any]:
    """Pixels [N, 8, 8] from 0 to 16 and digits [N]. Raises MissingPackage."""
    try:
        loaded = import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{error.name} is not installed here: {install_command('data')}") from None
    return loaded.images, loaded.target


def split_digits(labels: Any, split: str, seed: int) -> Iterator[int]:
    """The numbers of the digits of a split, class after class.

    Each class is shuffled by the seed; of all digits in that order every fifth is for validation, so that every class
    has a fifth of its digits there.
    """
    order = []
    for label in range(CLASSES):
        of_class = np.flatnonzero(labels == label).tolist()
        random.Random(f"{seed} {label}").shuffle(of_class)
        order += of_class
    for place, number in enumerate(order):
        if (place % HELD_OUT == 0) == (split == "val"):
            yield number


def encoded(pixels: Any) -> bytes:
    """A digit as a grey PNG of 8 bits."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.rint(pixels * (255 / LEVELS)).astype(np.uint8)).save(content, "PNG")
    return content.getvalue()
