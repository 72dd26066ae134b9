"""Scripts that start processes, replace themselves, or catch everything."""

import os
import subprocess
import sys

import torch
from torch import nn


def train(steps=6):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "fork":
        child = os.fork()
        train(3 if child else 5)
        if child:
            assert os.waitpid(child, 0)[1] == 0
    elif kind == "subprocess":
        subprocess.run([sys.executable, __file__, "plain"], check=True)
    elif kind == "replaced":
        os.execv(sys.executable, [sys.executable, __file__, "subprocess"])
    elif kind == "exec":
        os.execv(sys.executable, [sys.executable, __file__, "plain"])
    elif kind == "catches":
        try:
            train()
        except BaseException:  # noqa: BLE001 - as such scripts do
            sys.exit(9)
        finally:
            print("cleaned up")
    elif kind == "plain":
        print(rest)
        train()
    else:
        sys.exit(f"no kind {kind}")
