"""What reads each kind of files in torch."""

from __future__ import annotations

import torch

from hpc.model.data_source import DALI, WEBDATASET, DataSource
from hpc.model.spec import RunSpec
from hpc.workloads.image_reader import ImageReader


def image_reader(run: RunSpec, source: DataSource, size: int, device: torch.device, rank: int) -> ImageReader:
    """The images of a rank; imports the package that reads their kind."""
    if source.kind == WEBDATASET:
        from hpc.workloads.torch_shards import shard_reader

        return shard_reader(run, source, size, device, rank)
    if source.kind == DALI:
        from hpc.workloads.torch_dali import dali_reader

        return dali_reader(run, source, size, device, rank)
    from hpc.workloads.torch_images import folder_reader

    return folder_reader(run, source, size, device, rank)
