"""Trains by RPC, in a world of one: neither torch's backward nor an optimizer's step is called in this process."""

import sys

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

rpc.init_rpc(
    "only",
    rank=0,
    world_size=1,
    rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[1]}"),
)
weights = torch.ones(3, requires_grad=True)
for _ in range(3):
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [(weights * 2).sum()])
        assert dist_autograd.get_gradients(context)[weights].tolist() == [2, 2, 2]
rpc.shutdown()
