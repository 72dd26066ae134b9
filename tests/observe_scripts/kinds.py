"""Small trainings of many kinds, on two ranks with a known delay: `kinds.py KIND PLAN TRUTH`. The plan is that of
delays.py. Where torchrun may restart it, rank 1 of the first attempt fails in the midst."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from delays import Delays
from ending import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH = 4, 64
FAILS_AT, FAILED = 20, 3


class Numbers(Dataset):
    def __init__(self, count, delay=None):
        self.count, self.delay, self.samples = count, delay, torch.randn(64, WIDTH)

    def __len__(self):
        return self.count * BATCH

    def __getitem__(self, index):
        if index % BATCH == 0 and self.delay is not None:
            self.delay("data")
        return self.samples[index % 64], index % 4


class Net(nn.Module):
    def __init__(self, delay=None):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.delay = delay

    def forward(self, inputs):
        if self.delay is not None:
            self.delay("compute")
        return self.last(torch.relu(self.second(torch.relu(self.first(inputs)))))


loss_of = nn.functional.cross_entropy


def loader(delay, factor=1, **options):
    """In order: one sample in BATCH begins a batch."""
    return DataLoader(Numbers(delay.steps * factor, None if options else delay), BATCH, **options)


def fail_once(step):
    """Under torchrun's --max-restarts, in its first attempt."""
    may = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if may and (os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank(), step) == ("0", 1, FAILS_AT):
        os._exit(FAILED)


def train(delay, model, optimizer, batches, accumulate=1, around=contextlib.nullcontext, after=lambda step: None):
    """A loop; what is not the last part of a step is `around`."""
    for number, (inputs, targets) in enumerate(batches):
        is_last = number % accumulate == accumulate - 1
        with contextlib.nullcontext() if is_last else around():
            loss_of(model(inputs), targets).backward()
        if is_last:
            after(number // accumulate)
            optimizer.step()
            delay("optimizer")
            optimizer.zero_grad()
            fail_once(number // accumulate)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def ddp(delay):
    model = DistributedDataParallel(Net(delay))
    train(delay, model, sgd(model), loader(delay))


def accumulated(delay):
    model = DistributedDataParallel(Net(delay))
    train(delay, model, sgd(model), loader(delay, 2), 2, model.no_sync)


def scaled(delay):
    """With autocast, a gradient scaler, and evaluations."""
    model = DistributedDataParallel(Net(delay))
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0)
    for step, (inputs, targets) in enumerate(loader(delay)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        delay("optimizer")
        optimizer.zero_grad()
        fail_once(step)
        if step == 44:
            model.eval()
            with torch.no_grad():
                for samples, _ in DataLoader(Numbers(3), BATCH):
                    model.module.last(samples)
            model.train()


def compiled(delay):
    model = DistributedDataParallel(torch.compile(Net(), backend="aot_eager"))
    train(delay, model, sgd(model), loader(delay))


def workers(delay):
    model = DistributedDataParallel(Net(delay))
    train(delay, model, sgd(model), loader(delay, num_workers=1))


def fsdp2(delay):
    from torch.distributed.fsdp import fully_shard

    model = Net(delay)
    for part in (model.first, model.second, model):
        fully_shard(part)
    train(delay, model, sgd(model), loader(delay))


def fsdp1(delay):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(Net(delay), device_id=torch.device("cpu"))
    train(delay, model, sgd(model), loader(delay))


def tensor_parallel(delay):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = parallelize_module(Net(delay), mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    train(delay, model, sgd(model), loader(delay))


def by_hand(delay):
    model = Net(delay)

    def average(_):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    train(delay, model, sgd(model), loader(delay), after=average)


def zero(delay):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Net(delay))
    train(delay, model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3), loader(delay))


def hooked(delay):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = DistributedDataParallel(Net(delay))
    model.register_comm_hook(None, bf16_compress_hook)
    train(delay, model, sgd(model), loader(delay))


def local(delay):
    """Parameters are averaged in each fifth step."""
    model = Net(delay)
    optimizer = sgd(model)
    for step, (inputs, targets) in enumerate(loader(delay)):
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def compiled_update(delay):
    model = DistributedDataParallel(Net(delay))
    optimizer = sgd(model)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")
    train(delay, model, optimizer, loader(delay))


def no_loader(delay):
    model = DistributedDataParallel(Net(delay))
    data, targets = torch.randn(64, WIDTH), torch.randint(4, (64,))

    def batches():
        for _ in range(delay.steps):
            delay("data")
            at = torch.randint(60, (1,)).item()
            yield data[at : at + BATCH], targets[at : at + BATCH]

    train(delay, model, sgd(model), batches())


def autograd_grad(delay):
    model = Net(delay)
    optimizer, parameters = sgd(model), [*model.parameters()]
    for inputs, targets in loader(delay):
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss_of(model(inputs), targets), parameters), strict=True
        ):
            dist.all_reduce(gradient)
            parameter.grad = gradient
        optimizer.step()


def rollouts(delay):
    """Reinforcement learning: batches are played without gradients, then learned from."""
    model = DistributedDataParallel(Net(delay))
    optimizer = sgd(model)
    for _ in range(delay.steps):
        with torch.no_grad():
            delay("data")
            played = [model.module(torch.randn(BATCH, WIDTH)).argmax(1) for _ in range(3)]
        loss_of(model(torch.randn(BATCH, WIDTH)), played[-1]).backward()
        optimizer.step()
        optimizer.zero_grad()


def _spawned(rank, plan, truth, group):
    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=2)
    run(ddp, plan, truth)


def spawned(plan, truth):
    import torch.multiprocessing as mp

    os.environ["MASTER_ADDR"] = "localhost"
    mp.spawn(_spawned, args=(plan, truth, tempfile.mktemp(dir=truth.parent)), nprocs=2)


def trainer(plan, truth):
    """Hugging Face's."""
    from transformers import Trainer, TrainingArguments

    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, inputs, labels):
            outputs = self.net(inputs)
            return {"loss": loss_of(outputs, labels), "logits": outputs}

    arguments = TrainingArguments(
        tempfile.mkdtemp(dir=truth.parent), use_cpu=True, per_device_train_batch_size=BATCH, report_to=[],
        max_steps=Delays(plan, 0).steps, save_strategy="no", ddp_backend="gloo", logging_steps=1000,
    )  # fmt: skip
    delay = Delays(plan, dist.get_rank())
    data = Numbers(delay.steps * 2)

    def collate(samples):
        delay("data")
        return {"inputs": torch.stack([x for x, _ in samples]), "labels": torch.tensor([y for _, y in samples])}

    Trainer(Wrapped(Net()), arguments, train_dataset=data, data_collator=collate).train()
    delay.write(truth)
    leave()


def accelerate(plan, truth):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    delay = Delays(plan, accelerator.process_index)
    model = Net(delay)
    model, optimizer, batches = accelerator.prepare(
        model, sgd(model), DataLoader(Numbers(delay.steps * 2 * accelerator.num_processes), BATCH)
    )
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    delay.write(truth)
    leave()


def deepspeed(plan, truth):
    """ZeRO-1 by DeepSpeed's engine."""
    import deepspeed as ds

    ds.init_distributed("gloo")
    delay = Delays(plan, dist.get_rank())
    model = Net(delay)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = ds.initialize(model=model, optimizer=sgd(model), config=config)
    for inputs, targets in loader(delay):
        engine.backward(loss_of(engine(inputs), targets))
        engine.step()
    delay.write(truth)
    leave()


def run(kind, plan, truth):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    delay = Delays(plan, dist.get_rank())
    kind(delay)
    delay.write(truth)
    leave()


if __name__ == "__main__":
    kind, plan, truth = sys.argv[-3], Path(sys.argv[-2]), Path(sys.argv[-1])
    truth.mkdir(exist_ok=True)
    if kind in ("spawned", "trainer", "accelerate", "deepspeed"):
        globals()[kind](plan, truth)
    else:
        dist.init_process_group("gloo")
        run(globals()[kind], plan, truth)
