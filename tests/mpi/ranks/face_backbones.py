"""The embeddings of one batch by the face backbones of torch and Paddle, both in fp64 from the same values: by how much
they and the gradients of the images are apart, relative to the largest, as JSON."""

import json
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import paddle
import torch
from common import run_of

from hpc.workloads import arcface, paddle_arcface, torch_arcface

run = run_of({"workload": "arcface", "options": {"image_size": "32"}, "backend": "torch-ddp"})
values, images = arcface.initial_values(run), np.random.default_rng(0).standard_normal((8, 3, 32, 32))
weights = np.random.default_rng(1).standard_normal((8, arcface.EMBEDDING))

theirs = torch_arcface.FaceBackbone(32, 0.0)
theirs.load_state_dict({**theirs.state_dict(), **{name: torch.from_numpy(value) for name, value in values.items()}})
torch_images = torch.from_numpy(images).requires_grad_()
torch_embeddings = theirs.double()(torch_images)
(torch_embeddings * torch.from_numpy(weights)).sum().backward()

paddle.set_default_dtype("float64")
other = paddle_arcface.FaceBackbone(32, 0.0)
converted = {name: value.astype(np.float64) for name, value in paddle_arcface.paddle_values(values).items()}
other.set_state_dict({**other.state_dict(), **converted})
paddle_images = paddle.to_tensor(images, stop_gradient=False)
paddle_embeddings = other(paddle_images)
(paddle_embeddings * paddle.to_tensor(weights)).sum().backward()


def apart(values, wanted):
    return float(abs(values - wanted).max() / abs(wanted).max())


print(
    json.dumps(
        {
            "embeddings": apart(paddle_embeddings.numpy(), torch_embeddings.detach().numpy()),
            "gradients": apart(paddle_images.grad.numpy(), torch_images.grad.numpy()),
            "parameters": sum(parameter.numel() for parameter in theirs.parameters()),
        }
    )
)
