"""Images in class folders, as torchvision's ImageFolder lists them: every class a folder, sorted by name."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hpc.system.text import first_of

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those that torchvision's ImageFolder takes for images."""


KINDS = {"train": "training images", "val": "held-out images"}
"""What the folders of a set hold."""


class NoImages(Exception):
    """There is no image set at the path; the text has what is there."""


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder: `names` as CLASS/FILE, each with the number of its class in `labels`.

    `ignored` counts the files in class folders that have no suffix of an image.
    """

    group = "class"

    folder: Path
    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]
    ignored: int

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sha256(self) -> str:
        """The checksum over all names; the files' contents are not in it."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(os.fsencode(name) + b"\0")
        return digest.hexdigest()

    def facts(self) -> dict[str, Any]:
        return {
            "images": len(self),
            "classes": len(self.classes),
            "ignored_files": self.ignored,
            "listing_sha256": self.sha256,
        }

    def shown_name(self, number: int) -> str:
        """The name of an image in messages: as in `names`, with its folder where that is not the training images'."""
        return self.names[number] if self.folder.name == "train" else f"{self.folder.name}/{self.names[number]}"

    def images_by_group(self) -> dict[str, int]:
        """How many images each class has."""
        counts = Counter(self.labels)
        return {name: counts[label] for label, name in enumerate(self.classes)}


@cache
def list_images(path: str, split: str = "train") -> ImageListing:
    """The images of PATH/train, or those of PATH/val, whose classes are numbered as in PATH/train.

    Raises NoImages where there are none or a class is not in PATH/train, OSError where a folder cannot be read.
    """
    folder = Path(path) / split
    if not folder.is_dir():
        raise NoImages(f"{folder} is no folder; class folders of {KINDS[split]} belong there ({split}/CLASS/*.jpg)")
    folders = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()))
    if not folders:
        raise NoImages(f"{folder} has no class folder")
    classes = folders if split == "train" else list_images(path).classes
    if unknown := sorted({*folders} - {*classes}):
        raise NoImages(f"{folder} has class folders that {Path(path) / 'train'} has not: {first_of(unknown, 3)}")
    names: list[str] = []
    labels: list[int] = []
    ignored = 0
    for label, name in enumerate(classes):
        if name not in folders:
            continue
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
