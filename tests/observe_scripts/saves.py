"""Trains until a signal comes, then makes a checkpoint, which takes until somebody lets it: `go` beside its files.

    saves.py FOLDER [HOW…]

HOW: `status=7` its exit status, `default` handles no signal, `once` a second signal of a kind ends it with 99,
`fails=N` ends rank N with 3 once a signal has come to it, `requeue` asks for another attempt before it ends.
Files in FOLDER: rank<k>.runs, rank<k>.got (a line for each signal), rank<k>.saved.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

folder, words = Path(sys.argv[1]), sys.argv[2:]
how = {each.partition("=")[0]: each.partition("=")[2] for each in words}
rank, got = os.environ["RANK"], list[int]()


def signalled(number: int, _: object) -> None:
    if "once" in how and number in got:
        os._exit(99)
    got.append(number)
    with (folder / f"rank{rank}.got").open("a") as file:
        file.write(f"{signal.Signals(number).name}\n")


if "default" not in how:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signalled)
if os.environ["WORLD_SIZE"] != "1":
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
stop, made = torch.zeros(1), 0
while not stop.item():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    made += 1
    stop.fill_(float(bool(got)))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stop)
    if made == 60:
        (folder / f"rank{rank}.runs").touch()
    time.sleep(0.005)
if how.get("fails") == rank:
    while not got:  # that of another rank may have ended the loop of all
        time.sleep(0.02)
    os._exit(3)
while not (folder / "go").exists():
    time.sleep(0.02)
(folder / f"rank{rank}.saved").write_text(str(made))
if "requeue" in how and rank == "0":
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
sys.exit(int(how.get("status", "0")))
