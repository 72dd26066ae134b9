"""A training that does what scripts should not: each word of its first argument is one thing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

words = sys.argv[1].split("+")
rank = int(os.environ.get("RANK", "0"))
if "closes" in words:  # before torch is imported, and after
    os.closerange(3, 1 << 16)
if "moves" in words:
    os.chdir("/")
    os.umask(0o777)
if "path" in words:  # a child that sees none of ours
    os.environ["PYTHONPATH"] = "/nowhere"
    subprocess.run([sys.executable, "-c", "import sys; assert '/nowhere' in sys.path"], check=True)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

torch.manual_seed(0)
torch.set_num_threads(1)
if "closes" in words:
    os.closerange(3, 1 << 16)
if "torchrun" in words:  # as Lightning asks, which else looks for MPI
    assert dist.is_torchelastic_launched()
    assert os.environ["GROUP_RANK"] == "0"
    assert os.environ["GROUP_WORLD_SIZE"] == "1"
if "redirects" in words:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - as such scripts do
if "ignores" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
model: nn.Module = nn.Linear(8, 8)
group = None
if "RANK" in os.environ and "alone" not in words:
    dist.init_process_group("gloo")
    if "groups" in words:  # the model in one, its own reductions in another
        group = dist.new_group([0, 1])
        other = dist.new_group([1])
    model = DistributedDataParallel(model, process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    loss = model(batch).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if group is not None:
        dist.all_reduce(loss.detach())
        if rank == 1:
            dist.all_reduce(torch.ones(1), group=other)


if "compiled" in words:
    step = torch.compile(step, backend="eager")
torch.autograd.set_detect_anomaly("anomaly" in words)
data = torch.utils.data.DataLoader(torch.randn(200, 8), batch_size=4)
for number, inputs in enumerate(data):
    try:
        step(inputs)
        if number == 30 and rank == 1 and "fails" in words:
            os._exit(7)
    except BaseException:
        if "catches" not in words:
            raise
        while True:
            signal.pause()
if "leaves" in words:
    os._exit(0)
print(Path.cwd(), number + 1)
