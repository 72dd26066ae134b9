"""Decoding and the standard ImageNet augmentation by Pillow."""

from __future__ import annotations

import io
import math
import random

import numpy as np
import numpy.typing as npt
from PIL import Image

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, from 0 to 1; inputs are normalised by them."""
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Share of an image's area, and width over height, of a random crop (torchvision's RandomResizedCrop)."""
_TRIES = 10
_16_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")


class Undecodable(Exception):
    """The bytes are no image that can be decoded; the text has the decoder's reason."""


def decode(content: bytes) -> Image.Image:
    """The image in RGB of 8 bits. Grey and CMYK images are converted, 16 bits cut to their upper 8.

    Raises Undecodable.
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(content))
        image.load()
        if image.mode in _16_BITS:  # `convert` would clip all above 255 to white
            grey = np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8
            image = Image.fromarray(grey.astype(np.uint8))
        return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # decoders raise all kinds of errors for damaged bytes
        reason = " ".join(str(error).split()).partition(" <")[0] or type(error).__name__
        raise Undecodable(reason) from error


def augment(image: Image.Image, size: int, draw: random.Random) -> npt.NDArray[np.uint8]:
    """A random crop, resized to [size, size, 3], a half of them mirrored, as pytorch/examples trains ImageNet."""
    left, top, width, height = _random_box(image.width, image.height, draw)
    part = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if draw.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(part)


def centre(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """The middle of the image, [size, size, 3], as ImageNet is evaluated; the box is of fractions of pixels."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, centre_box(*image.size, size)))


def centre_box(width: int, height: int, size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the middle: that of `size` pixels once the shorter side has 256/224 as many."""
    side = min(width, height) * size / round(size * 256 / 224)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """Left, top, width and height: ten tries, then the largest part in the middle whose ratio is allowed."""
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (width - w) // 2, (height - h) // 2, w, h
