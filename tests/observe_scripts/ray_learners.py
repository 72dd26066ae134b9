"""Learners that are actors of a Ray cluster, which was there before: one of them reads slowly."""

import argparse
import time

import ray


@ray.remote(num_cpus=1)
class Learner:
    def train(self, rank, args):
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        dist.init_process_group("gloo", init_method=f"file://{args.group}", rank=rank, world_size=2)
        model = DistributedDataParallel(torch.nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        samples = 8 * args.steps
        data = TensorDataset(torch.randn(samples, 64), torch.randint(0, 8, (samples,)))
        for inputs, targets in DataLoader(data, 8):
            time.sleep(args.sleep_ms / 1e3 if rank == 1 else 0)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("group", help="file by which the learners meet")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sleep-ms", type=float, default=20)
    options = parser.parse_args()
    ray.init()
    ray.get([learner.train.remote(rank, options) for rank, learner in enumerate([Learner.remote(), Learner.remote()])])
