"""Images decoded, cropped and resized by Pillow."""

from __future__ import annotations

import io
import random

import numpy as np
import numpy.typing as npt
from PIL import Image

from hpc.workloads.crops import centre_box, random_box

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
    left, top, width, height = random_box(image.width, image.height, draw)
    part = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if draw.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(part)


def centre(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """The middle of the image, [size, size, 3], as ImageNet is evaluated; the box is of fractions of pixels."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, centre_box(*image.size, size)))
