"""Images in class folders, as torchvision's ImageFolder lists them: every class a folder, sorted by name."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those that torchvision's ImageFolder takes for images."""


class NoImages(Exception):
    """There is no image set at the path; the text has what was found there."""


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder: `names` as CLASS/FILE, each with the number of its class in `labels`.

    `ignored` counts the files in class folders that have no suffix of an image.
    """

    folder: Path
    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]
    ignored: int

    @cached_property
    def sha256(self) -> str:
        """The checksum over all names; the files' contents are not in it."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(os.fsencode(name) + b"\0")
        return digest.hexdigest()

    def images_by_class(self) -> dict[str, int]:
        counts = Counter(self.labels)
        return {name: counts[label] for label, name in enumerate(self.classes)}


@cache
def list_images(path: str) -> ImageListing:
    """The training images of PATH/train. Raises NoImages where there are none, OSError where it cannot be read."""
    folder = Path(path) / "train"
    if not folder.is_dir():
        raise NoImages(f"{folder} is no folder; class folders of training images belong there (train/CLASS/*.jpg)")
    classes = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))
    if not classes:
        raise NoImages(f"{folder} has no class folder")
    names: list[str] = []
    labels: list[int] = []
    ignored = 0
    for label, name in enumerate(classes):
        files = _files(folder, name)
        images = [file for file in files if file.lower().endswith(SUFFIXES)]
        if not images:
            raise NoImages(f"the class folder {folder / name} has no image ({', '.join(SUFFIXES)})")
        ignored += len(files) - len(images)
        names += images
        labels += [label] * len(images)
    return ImageListing(folder, classes, tuple(names), tuple(labels), ignored)


def _files(folder: Path, name: str) -> list[str]:
    """All files below a class folder, CLASS/…/FILE, sorted. Raises OSError where a folder cannot be read."""

    def stop(error: OSError) -> None:
        raise error

    below = os.walk(folder / name, onerror=stop, followlinks=True)
    return sorted(os.path.relpath(os.path.join(parent, file), folder) for parent, _, files in below for file in files)  # noqa: PTH118 - a million names
