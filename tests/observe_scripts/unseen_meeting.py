"""DDP of two ranks that also meet in each forward by a way of which hooks on collectives see nothing: `--way`.

`--late RANK MS`: that rank works so much longer before that meeting; `--burn`: on its core, else it sleeps.
"""

import argparse
import mmap
import os
import socket
import sys
import threading
import time
import types
from multiprocessing import shared_memory
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

BATCH, WIDTH = 16, 64


class Counters:
    """Each rank counts up its own, and waits until the other has counted as far."""

    def __init__(self, buffer, *, spins=False):
        self.cells, self.spins, self.count = memoryview(buffer).cast("q"), spins, 0

    def meet(self):
        rank = dist.get_rank()
        self.count += 1
        self.cells[rank * 8] = self.count
        while self.cells[(1 - rank) * 8] < self.count:
            time.sleep(0 if self.spins else 0.0002)


def mapped(path, *, spins=False):
    """The file as memory, which both ranks share."""
    if dist.get_rank() == 0:
        path.write_bytes(bytes(4096))
    dist.barrier()
    with path.open("r+b") as file:
        counters = Counters(mmap.mmap(file.fileno(), 4096), spins=spins)
    dist.barrier()
    if path.parent == Path("/dev/shm") and dist.get_rank() == 0:
        path.unlink()
    return counters.meet


def by_named_memory(folder):
    name = f"rw_unseen_{folder.name}"
    if dist.get_rank() == 0:
        by_named_memory.memory = shared_memory.SharedMemory(name, create=True, size=4096)
    dist.barrier()
    if dist.get_rank() == 1:
        by_named_memory.memory = shared_memory.SharedMemory(name)
    dist.barrier()
    if dist.get_rank() == 0:
        by_named_memory.memory.unlink()
    return Counters(by_named_memory.memory.buf).meet


def by_store(folder, *, polls=False):
    store = dist.distributed_c10d._get_default_store()
    counts = iter(range(1 << 30))

    def meet():
        step, rank = next(counts), dist.get_rank()
        store.set(f"step{step}.{rank}", "here")
        key = f"step{step}.{1 - rank}"
        while polls and not store.check([key]):
            time.sleep(0.0005)
        if not polls:
            store.wait([key])

    return meet


def by_file(folder):
    counts = iter(range(1 << 30))

    def meet():
        step, rank = next(counts), dist.get_rank()
        (folder / f"step{step}.{rank}").touch()
        while not (folder / f"step{step}.{1 - rank}").exists():
            time.sleep(0.0005)

    return meet


def connection(folder):
    path = str(folder / "socket")
    if dist.get_rank() == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            dist.barrier()
            return listener.accept()[0]
    dist.barrier()
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    return link


def by_socket(folder):
    link = connection(folder)

    def meet():
        link.sendall(b"x")
        assert link.recv(1) == b"x"

    return meet


def by_stand_in(folder):
    """A library of its own name, as DeepEP is: it waits on its core."""
    library = types.ModuleType("deep_ep")
    library.dispatch = mapped(folder / "buffer", spins=True)
    sys.modules["deep_ep"] = library
    return library.dispatch


def by_mpi(folder):
    from mpi4py import MPI

    return MPI.COMM_WORLD.Barrier


def here():
    return None


def by_rpc(folder):
    from torch.distributed import rpc

    rank = dist.get_rank()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    files = by_file(folder)

    def meet():
        rpc.rpc_sync(f"rank{1 - rank}", here)
        files()

    return meet


def by_thread(folder):
    """A group of its own, in which a thread calls and the main thread waits for the thread."""
    group = dist.new_group(backend="gloo")

    def meet():
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.zeros(1), group=group))
        thread.start()
        thread.join()

    return meet


def by_operator(folder):
    """A collective that C++ calls, as an extension does."""
    name = dist.group.WORLD.group_name
    operators = torch.ops._c10d_functional
    return lambda: operators.wait_tensor(operators.all_reduce(torch.zeros(8), "sum", name))


def by_graph(folder):
    import torch.distributed._functional_collectives as functional

    @torch.compile(backend="aot_eager")
    def mix(values):
        return functional.wait_tensor(functional.all_reduce(values * 2, "sum", dist.group.WORLD)) + 1

    return lambda: mix(torch.zeros(1024))


WAYS = {
    "named memory": by_named_memory,
    "file as memory": lambda folder: mapped(folder / "memory"),
    "unlinked memory": lambda folder: mapped(Path("/dev/shm") / f"rw_unlinked_{folder.name}"),
    "anonymous memory": lambda folder: Counters(SHARED).meet,
    "store": by_store,
    "polled store": lambda folder: by_store(folder, polls=True),
    "file": by_file,
    "socket": by_socket,
    "stand-in": by_stand_in,
    "mpi": by_mpi,
    "rpc": by_rpc,
    "thread": by_thread,
    "operator": by_operator,
    "graph": by_graph,
    "none": lambda folder: lambda: None,
}
SHARED = mmap.mmap(-1, 4096)


class Model(torch.nn.Module):
    def __init__(self, meet, work):
        super().__init__()
        self.inner, self.last, self.meet, self.work = (
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.Linear(WIDTH, 8),
            meet,
            work,
        )

    def forward(self, inputs):
        hidden = self.inner(inputs)
        self.work()
        self.meet()
        return self.last(hidden)


def work_for(args):
    rank, ms = int(args.late[0]), float(args.late[1])

    def work():
        if dist.get_rank() != rank:
            return
        if not args.burn:
            time.sleep(ms / 1e3)
            return
        until = time.thread_time() + ms / 1e3
        while time.thread_time() < until:
            sum(range(1000))

    return work


def train(rank, args):
    if args.spawn:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(args.folder)
    model = torch.nn.parallel.DistributedDataParallel(Model(WAYS[args.way](folder), work_for(args)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(args.steps * BATCH, WIDTH), torch.randint(0, 8, (args.steps * BATCH,)))
    for inputs, targets in DataLoader(data, BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    if args.way == "rpc":
        torch.distributed.rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--folder", required=True, help="where ranks meet by files")
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--late", nargs=2, metavar=("RANK", "MS"), default=("1", "20"))
    parser.add_argument("--burn", action="store_true")
    parser.add_argument("--spawn", action="store_true", help="start the ranks here, by fork")
    given = parser.parse_args()
    if given.spawn:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ["MASTER_PORT"] = str(free.getsockname()[1])
        mp.start_processes(train, args=(given,), nprocs=2, start_method="fork")
    else:
        train(int(os.environ["RANK"]), given)
