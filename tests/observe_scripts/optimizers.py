"""Loops with other updates: turns as in a GAN, two at once, an outer one, LBFGS, in the backward, by hand, compiled."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
kind = sys.argv[1]
data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
generator, discriminator = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 1))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


if kind == "turns":
    g, d = optimizer(generator), optimizer(discriminator)
    for real in data:
        d.zero_grad()
        (discriminator(generator(real).detach()).mean() - discriminator(real).mean()).backward()
        d.step()
        g.zero_grad()
        discriminator(generator(real)).mean().backward()
        g.step()
elif kind == "both":
    model = nn.Sequential(generator, discriminator)
    g, d = optimizer(generator), optimizer(discriminator)
    for real in data:
        model(real).mean().backward()
        g.step()
        d.step()
elif kind == "outer":
    inner, outer = optimizer(discriminator), optimizer(discriminator)
    for number, real in enumerate(data, 1):
        discriminator(real).mean().backward()
        inner.step()
        if number % 4 == 0:
            outer.step()
        inner.zero_grad()
elif kind == "lbfgs":
    lbfgs = torch.optim.LBFGS(discriminator.parameters(), max_iter=4)
    for real in data:

        def closure(real=real):
            lbfgs.zero_grad()
            loss = (discriminator(real) - 1).square().mean()
            loss.backward()
            return loss

        lbfgs.step(closure)
elif kind == "in-backward":
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in discriminator.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in discriminator.parameters():
        p.register_post_accumulate_grad_hook(update)
    for real in data:
        discriminator(real).mean().backward()
elif kind in ("by-hand", "marked"):
    from hpc.observe import data as watch
    from hpc.observe import step

    for real in watch(iter(data)) if kind == "marked" else data:
        discriminator(real).mean().backward()
        with torch.no_grad():
            for p in discriminator.parameters():
                p.sub_(1e-3 * p.grad)
                p.grad = None
        if kind == "marked":
            step()
elif kind == "never":
    print(generator(torch.ones(8)).sum().item())
elif kind == "compiled-step":
    adam = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    update = torch.compile(adam.step, backend="eager")
    for real in data:
        discriminator(real).mean().backward()
        update()
        adam.zero_grad()
else:
    sys.exit(f"no kind {kind}")
