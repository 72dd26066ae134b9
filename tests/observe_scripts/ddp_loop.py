"""A training loop as tutorials have it: DDP, epochs, evaluation, checkpoints, accumulation, a gradient scaler."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from ending import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():  # noqa: PLR0915 - as such scripts are
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--no-sync", choices=("around", "late"))
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--evaluate-alone-every", type=int, default=0)
    parser.add_argument("--metric-every", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--overflow-every", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--exit-at", type=int, default=0)
    args = parser.parse_args()

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    if args.compile:
        model = torch.compile(model, backend="aot_eager")
    if world_size > 1:
        dist.init_process_group("gloo")
        model = DDP(model)
    train_set = TensorDataset(torch.randn(args.samples, 16), torch.randint(4, (args.samples,)))
    val_set = TensorDataset(torch.randn(24, 16), torch.randint(4, (24,)))
    sampler = DistributedSampler(train_set, shuffle=False) if world_size > 1 else None
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, num_workers=args.workers)
    val_loader = DataLoader(val_set, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cpu", enabled=args.overflow_every > 0, init_scale=2.0)

    step = micro = seen = 0
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, targets in train_loader:
            micro += 1
            seen += len(inputs)
            last = micro % args.accumulate == 0
            quiet = args.no_sync == "around" and world_size > 1 and not last
            with model.no_sync() if quiet else contextlib.nullcontext():
                loss = criterion(model(inputs), targets) / args.accumulate
                if args.no_sync == "late" and world_size > 1:
                    model.require_backward_grad_sync = last  # a mistake: DDP has decided in the forward
                if args.overflow_every and (step + 1) % args.overflow_every == 0:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
            if not last:
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1
            print(f"rank {rank} step {step} loss {loss.item().hex()}", flush=True)
            if args.metric_every and step % args.metric_every == 0:
                dist.all_reduce(loss.detach().clone())
            if args.evaluate_every and step % args.evaluate_every == 0:
                model.eval()
                with torch.no_grad():
                    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
                model.train()
                print(f"rank {rank} correct {correct}")
            if args.evaluate_alone_every and step % args.evaluate_alone_every == 0 and rank == 0:
                with torch.no_grad():
                    model.module(val_set.tensors[0])
            if args.save_every and step % args.save_every == 0 and rank == 0:
                torch.save(model.state_dict(), os.devnull)
            if args.exit_at and step == args.exit_at and rank == world_size - 1:
                os._exit(7)
    print(f"rank {rank} made {step} steps of {seen} samples")
    if world_size > 1:
        leave()


if __name__ == "__main__":
    main()
