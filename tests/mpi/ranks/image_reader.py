"""Reads image folders by a framework as each rank in turn, as the JSON list of requests in argv[1] says: what each
step got, a line for each request. All are of one framework.

Every image has one colour, whose red and green are its number; cropping keeps them. In a whole training (`epochs`) that
many epochs of `steps` are read, each followed by an evaluation. Of `tfrecord` data the class folders become TFRecord
files first.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.options import data_source
from hpc.model.spec import RunSpec

requests = json.loads(sys.argv[1])
(framework,) = {request["framework"] for request in requests}
device: Any
if framework == "torch":
    import torch

    from hpc.workloads.torch_models import image_reader

    device = torch.device("cpu")
elif framework == "paddle":
    import paddle

    from hpc.workloads.paddle_images import image_reader

    device = paddle.CPUPlace()
else:
    from hpc.workloads.tensorflow_models import image_reader

    device = "/CPU:0"


def seen(batch: tuple[Any, Any]) -> list[tuple[int, int]]:
    """Number and label of each image of a batch."""
    images, labels = (np.asarray(values.numpy()) for values in batch)
    if framework == "tensorflow":
        images = images.transpose(0, 3, 1, 2)
    assert images.shape[1:] == (3, 8, 8) and len(images) == len(labels)
    red, green = (
        ((images[:, at].mean((1, 2)) * deviation + mean) * 255).round().astype(int)
        for at, mean, deviation in ((0, 0.485, 0.229), (1, 0.456, 0.224))
    )
    return list(zip((256 * green + red).tolist(), labels.tolist(), strict=True))


def read(request: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank got."""
    epochs, ranks = request["epochs"], request["ranks"]
    run = RunSpec(
        nodes=ranks, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="torch-ddp", workload="resnet50",
        batch_size=4, precision="fp32", scaling="weak", warmup_steps=6, measured_steps=30, repeat=1,
        seed=request["seed"], site="here", data=request["data"], epochs=epochs, options=request["options"],
    )  # fmt: skip
    source = data_source(run.data)
    assert source is not None
    if source.kind == "tfrecord":
        from records import as_records  # the file beside this one

        as_records(Path(source.path))
    by_rank = []
    for rank in range(ranks):
        reader = image_reader(run, source, 8, device, rank)
        batches, evaluations = [], []
        for epoch in range(epochs or 1):
            if epochs:
                reader.begin_epoch(epoch)
            for step in range(request["steps"] or reader.steps_per_epoch):
                batch = reader.batch(step + epoch * reader.steps_per_epoch)
                batches.append(seen(batch))
                assert len(batches[-1]) == reader.samples(batch)
            if epochs:
                evaluations.append([seen(batch) for batch in reader.evaluation()])
        by_rank.append(
            {
                "batches": batches,
                "evaluations": evaluations,
                "steps_per_epoch": reader.steps_per_epoch,
                "input": reader.record.as_json(),
                "figures": reader.record.figures.tolist(),
            }
        )
    return by_rank


for request in requests:
    print(json.dumps(read(request)))
