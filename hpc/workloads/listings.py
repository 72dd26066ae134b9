"""What lies at the path of a data source, whatever its kind."""

from __future__ import annotations

from typing import Any, Protocol

from hpc.model.data_source import DALI, WEBDATASET, DataSource
from hpc.workloads.image_folder import list_images
from hpc.workloads.tar_shards import list_shards

PACKAGES = {WEBDATASET: "webdataset", DALI: "nvidia.dali"}
"""By kind, the package that reads it besides the framework's own."""
INSTALL = {WEBDATASET: "pip install -e '.[data]'", DALI: "pip install -e '.[dali]'"}
"""By kind, the command that installs it."""


class Listing(Protocol):
    """The samples of a split, whose number is its length."""

    def __len__(self) -> int: ...

    @property
    def sha256(self) -> str:
        """A checksum, equal where ranks find the same."""

    def images_by_part(self) -> dict[str, int]:
        """How many images each class folder, or each shard, has."""

    def facts(self) -> dict[str, Any]:
        """What is recorded of it."""


def listing_of(source: DataSource, split: str) -> Listing:
    """The samples of a split, `train` or `val`.

    Raises NoImages where there are none, OSError where they cannot be read.
    """
    return (list_shards if source.kind == WEBDATASET else list_images)(source.path, split)
