"""The standard ImageNet crops in numbers: which part of an image is trained or evaluated on."""

from __future__ import annotations

import math
import random

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, from 0 to 1; inputs are normalised by them."""
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Share of an image's area, and width over height, of a random crop (torchvision's RandomResizedCrop)."""
_TRIES = 10


def centre_box(width: int, height: int, size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the middle: that of `size` pixels once the shorter side has 256/224 as many."""
    side = min(width, height) * size / round(size * 256 / 224)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
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
