"""Images that wheels ship: the photographs of scikit-image and scikit-learn with random crops, and its digits."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc.system.import_guard import install_command

if TYPE_CHECKING:
    from PIL import Image

ASPECT = (4, 3)
QUALITY = 97
SHIPPED = {
    "skimage.data": (
        "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "retina.jpg",
        "rocket.jpg",
    ),
    "sklearn.datasets": ("images/china.jpg", "images/flower.jpg"),
}  # fmt: skip
"""By package, the colour photographs in its folder. Others of scikit-image are downloaded when first used."""


class MissingPackage(Exception):
    """A package that ships images is not installed; the text has the command that installs it."""


def photographs() -> dict[str, Image.Image]:
    """Every photograph, RGB, by its name without suffix. Raises MissingPackage."""
    try:
        from PIL import Image

        folders = {name: Path(str(import_module(name).__file__)).parent for name in SHIPPED}
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{error.name} is not installed here: {install_command('data')}") from None
    paths = [folders[package] / name for package, names in SHIPPED.items() for name in names]
    return {path.stem.partition("_")[0]: Image.open(path).convert("RGB") for path in paths}


def crop(photograph: Image.Image, width: int, random_numbers: random.Random) -> bytes:
    """A random part of the photograph as a JPEG of this width, four to three; a half of them mirrored.

    The part is half as wide as the photograph or more, and as large as the JPEG where the photograph allows it.
    """
    from PIL import Image, ImageOps

    height = width * ASPECT[1] // ASPECT[0]
    largest = min(photograph.width, photograph.height * ASPECT[0] // ASPECT[1])
    across = random_numbers.randint(min(largest, max(largest // 2, width)), largest)
    down = across * ASPECT[1] // ASPECT[0]
    left = random_numbers.randint(0, photograph.width - across)
    top = random_numbers.randint(0, photograph.height - down)
    image = photograph.resize((width, height), Image.Resampling.BICUBIC, (left, top, left + across, top + down))
    if random_numbers.random() < 0.5:
        image = ImageOps.mirror(image)
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=QUALITY)
    return encoded.getvalue()


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
