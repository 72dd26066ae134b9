"""The images that a source of data names, whatever their kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from hpc.model.data_source import DALI, TFRECORD, WEBDATASET, DataSource
from hpc.workloads.image_folder import list_images
from hpc.workloads.record_files import list_records
from hpc.workloads.tar_shards import list_shards

PACKAGES = {
    WEBDATASET: ("webdataset", "pip install -e '.[data]'"),
    DALI: ("nvidia.dali", "pip install -e '.[dali]'"),
}
"""By kind, the package that reads it besides the framework's own, and what installs it."""


class Listing(Protocol):
    """The images of a split. `group` is what they are counted by: class or file."""

    @property
    def group(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def sha256(self) -> str: ...

    def __len__(self) -> int: ...

    def facts(self) -> dict[str, Any]:
        """What is recorded of it."""

    def images_by_group(self) -> dict[str, int]: ...

    def shown_name(self, number: int) -> str:
        """The name of an image in messages."""


def list_source(source: DataSource, split: str = "train") -> Listing:
    """The images of a split, `train` or `val`. Raises NoImages, OSError where something cannot be read."""
    if source.kind == TFRECORD:
        return list_records(source.path, split)
    return list_shards(source.path, split) if source.kind == WEBDATASET else list_images(source.path, split)
