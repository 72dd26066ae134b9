"""Makes a checkpoint by torch.distributed.checkpoint before step 10, one before step 20 that is written by a thread
while it trains on, and one before step 30 by a thread of its own: checkpoints.py FOLDER."""

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

folder = Path(sys.argv[1])
dist.init_process_group("gloo")


class Slow(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        time.sleep(0.2)
        return super().write_data(plan, planner)


model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
written = thread = None
for step in range(80):
    if step == 10:
        dcp.save({"model": model.state_dict()}, storage_writer=Slow(folder / "first"))
    if step == 20:
        written = dcp.async_save({"model": model.state_dict()}, storage_writer=Slow(folder / "second"))
    if step == 30:
        written.result()
        last = {"storage_writer": Slow(folder / "third")}
        thread = threading.Thread(target=dcp.save, args=({"model": model.state_dict()},), kwargs=last)
        thread.start()
    time.sleep(0.02)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
thread.join()
print("written", *sorted(path.name for path in folder.iterdir()))
