"""What scripts do with a model; prints what comes of each, which observation must not change."""

# ruff: noqa: S301 - what it loads it has just written

import contextlib
import copy
import inspect
import io
import pickle
import subprocess
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Checkpointed(Net):
    def forward(self, x):
        return self.second(checkpoint(lambda y: torch.relu(self.first(y)), x, use_reentrant=True))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    assert b"rankwise" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.ones(3, 4)
for kind in (Net, Checkpointed):
    net = kind()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        net(x.clone().requires_grad_()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
net = Net()
net(x).sum().backward()
does = {
    "deepcopy": lambda: copy.deepcopy(net)(x),
    "pickle": lambda: pickle.loads(pickle.dumps(net))(x),
    "save": lambda: saved(net)(x),
    "pickled functions": lambda: pickle.loads(pickle.dumps((torch.save, torch.autograd.backward)))[0] is torch.save,
    "state": lambda: sorted(net.state_dict()),
    "script": lambda: torch.jit.script(net)(x),
    "trace": lambda: torch.jit.trace(net, x)(x),
    "fx": lambda: torch.fx.symbolic_trace(net)(x),
    "export": lambda: torch.export.export(net, (x,)).module()(x),
    "compile": lambda: torch.compile(net, backend="eager", fullgraph=True)(x),
    "compiled function": lambda: torch.compile(lambda y: net(y).sum(), backend="eager", fullgraph=True)(x),
    "functional": lambda: torch.func.functional_call(net, dict(net.named_parameters()), (x,)),
    "grad": lambda: torch.func.grad(lambda y: net(y).sum())(x),
    "vmap": lambda: torch.func.vmap(net)(x),
    "signature": lambda: str(inspect.signature(torch.save)) + str(inspect.signature(net.__call__)),
    "hooks": lambda: (net._forward_pre_hooks, net._forward_hooks, net._backward_hooks),
}
if "--cloudpickle" in sys.argv:
    import cloudpickle

    LOAD = "import cloudpickle, sys, torch; print(cloudpickle.load(sys.stdin.buffer)(torch.ones(3, 4)))"
    does["by value, elsewhere"] = lambda: (
        subprocess.run(
            [sys.executable, "-I", "-c", LOAD], input=cloudpickle.dumps(net), stdout=subprocess.PIPE, check=True
        ).stdout
    )
for name, do in does.items():
    with contextlib.redirect_stderr(io.StringIO()):
        print(name, do())
