"""The photographs that scikit-image and scikit-learn ship in their wheels, and random crops of them."""

from __future__ import annotations

import io
import random
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

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
