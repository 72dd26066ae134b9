"""Makes a checkpoint by torch.distributed.checkpoint before step 10, and one before step 20 that is written by a thread
while it trains on: checkpoints.py FOLDER."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

folder = Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)


class Slow(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        time.sleep(0.2)
        return super().write_data(plan, planner)


model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
written = None
for step in range(40):
    if step == 10:
        dcp.save({"model": model.state_dict()}, storage_writer=Slow(folder / "first"))
    if step == 20:
        written = dcp.async_save({"model": model.state_dict()}, storage_writer=Slow(folder / "second"))
    time.sleep(0.02)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
written.result()
print("written", *sorted(path.name for path in folder.iterdir() if path.is_dir()))
