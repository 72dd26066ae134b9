"""Reads the image folder of argv[2] by the framework of argv[1], as each rank of three in turn: what each step got.

Every image has one colour, whose red and green are its number; cropping keeps them.
"""

import json
import sys
from typing import Any

from hpc.model.data_source import data_source
from hpc.model.spec import RunSpec

framework, folder, workers, seed, steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
device: Any
if framework == "torch":
    import torch

    from hpc.workloads.torch_images import image_reader

    device = torch.device("cpu")
else:
    import paddle

    from hpc.workloads.paddle_images import image_reader

    device = paddle.CPUPlace()
run = RunSpec(
    nodes=3, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="torch-ddp", workload="resnet50",
    batch_size=4, precision="fp32", scaling="weak", warmup_steps=6, measured_steps=30, repeat=1, seed=seed,
    site="here", data=f"imagefolder:{folder}", options={"workers": workers},
)  # fmt: skip
source = data_source(run.data)
assert source is not None
by_rank = []
for rank in range(3):
    reader = image_reader(run, source, 8, device, rank)
    batches = []
    for step in range(steps):
        images, labels = reader.batch(step)
        assert tuple(images.shape[1:]) == (3, 8, 8)
        assert len(images) == len(labels) == reader.samples((images, labels))
        red, green = (
            ((images.numpy()[:, at, 0, 0] * deviation + mean) * 255).round().astype(int)
            for at, mean, deviation in ((0, 0.485, 0.229), (1, 0.456, 0.224))
        )
        batches.append(list(zip((256 * green + red).tolist(), labels.tolist(), strict=True)))
    by_rank.append({"batches": batches, "input": reader.record.as_json(), "figures": reader.record.figures.tolist()})
print(json.dumps(by_rank))
