"""A training on a simulated accelerator with bad habits: each word of its first argument is one.

It writes between which true times of the device each time stamp of a step lies, to the file of its second argument.
"""

import json
import os
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import simulated_torch
import torch
from simulated_torch import device, marked
from torch import nn

STEPS, ODD_FROM = 60, 30
words = sys.argv[1].split("+")
torch.manual_seed(0)
torch.set_num_threads(1)


class Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        device.run(1)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        device.run(2)
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs):
        noted["called"] = marked()
        return Kernels.apply(self.layer(inputs))


def on(stream):
    """Within, the stream is the current one, behind what the one before it has."""
    if stream is None:
        return nullcontext()
    stream.wait_stream(device.current_stream())
    return device.stream(stream)


def train(inputs, stream, graph):
    with on(stream):
        noted["calls"] = marked()
        if graph is not None:
            graph.replay()
        else:
            loss = model(inputs).square().sum()
            noted["backward"] = marked()
            loss.backward()
        noted["returned"] = marked()
        device.run(1)
        noted["updates"] = marked()
        optimizer.step()
        optimizer.zero_grad()
        noted["updated"] = marked()
    if stream is not None and "waits" in words:
        device.current_stream().wait_stream(stream)
    if "synchronizes" in words:
        device.synchronize()
    if "reads" in words:
        value = loss.detach()
        assert float(value) == value.item() == value.tolist() == value.cpu()
        assert int(value * 0) == 0 and value.cpu(memory_format=torch.preserve_format) is not None
        logger = threading.Thread(target=lambda: [value.item(), value.cpu()])
        logger.start()
        logger.join()


begun, ends = threading.Event(), threading.Event()


def capture():
    """Of a graph, by a thread: while a question by any other thread ends it with an error."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    begun.set()
    ends.wait()
    graph.capture_end()


class Elsewhere(nn.Parameter):
    """It says that it lies on another device."""

    @property
    def device(self):
        return torch.device(words[0], 0)


noted, steps, losses = {}, [], 0
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if words[0] in ("mps", "xpu"):
    model.layer.weight, model.layer.bias = Elsewhere(model.layer.weight), Elsewhere(model.layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
simulated_torch.register()
streams = [device.training_stream() for _ in range(3)]
batches = torch.utils.data.DataLoader(torch.randn(4 * STEPS, 8), batch_size=4)
for number, batch in enumerate(batches):
    if steps and not device.fails:
        steps[-1]["requested"] = marked()
    odd = number >= ODD_FROM
    noted = {}
    stream = None
    if "streams" in words:
        stream = streams[number % 3]
    elif "stream" in words and odd:
        stream = streams[0]
    elif "destroys" in words:
        stream = device.training_stream()
    if "moves" in words and odd:
        if number == ODD_FROM:
            before = optimizer
            if "keeps" in words:
                model.layer.weight, model.layer.bias = (
                    nn.Parameter(each.detach().to("meta")) for each in (model.layer.weight, model.layer.bias)
                )
            else:
                model.to("meta")
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batch = batch.to("meta")  # noqa: PLW2901 - as such scripts do
    if "forks" in words and number == ODD_FROM:
        child = os.fork()
        if not child:
            status = 1
            try:
                loss = model(batch).sum()
            except RuntimeError as error:
                status = 0 if "forked" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    if "captures" in words and number == ODD_FROM:
        thread = threading.Thread(target=capture)
        thread.start()
        begun.wait()
    if "captures" in words and number == ODD_FROM + 10:
        ends.set()
        thread.join()
        assert device.lost_captures == 0
    if "fails" in words and number == ODD_FROM:
        device.out_of_memory = True  # nothing new can be made
    if "breaks" in words and number == ODD_FROM:
        device.fails = "unspecified launch failure"  # whatever anybody queues
    try:
        train(batch, stream, torch.cuda.CUDAGraph(9) if "replays" in words and odd else None)
    except BaseException:
        if "catches" not in words:
            raise
        losses += 1
    if stream is not None and "destroys" in words:
        stream.destroy()
    steps.append(noted)
if not device.fails:
    steps[-1]["requested"] = marked()
    device.synchronize()
Path(sys.argv[2]).write_text(json.dumps([{name: event.true_ns for name, event in step.items()} for step in steps]))
print("trained", len(steps), losses)
