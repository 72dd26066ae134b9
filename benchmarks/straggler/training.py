"""One rank of a training: `torchrun … training.py CASE.json FOLDER`, or of many by `--serve`. It knows of no tool.

Delays are sleeps; so is work, where it is not computing. Each is recorded with the length that it had, and written to
FOLDER/truth-RANK.json at the end, with the time of each step. With STRAGGLER_TOOL=NAME the tool's hooks, which its
documentation has one put into a script, are those of adapters/NAME.py.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.straggler.cases import Case, case_of
from benchmarks.straggler.hooks import Hooks

WIDTH, ROWS, MICRO_BATCHES = 64, 8, 4
WORK_MS = {"data": 4.0, "forward": 12.0, "backward": 16.0, "optimizer": 3.0, "between": 1.0, "collective": 0.0}
EVALUATION_MS, CHECKPOINT_MS, EVERY = 40.0, 20.0, 5


class Sleeps:
    """What this rank sleeps, by step and phase, and how long that took."""

    def __init__(self, case: Case, rank: int, folder: Path) -> None:
        self.case, self.rank, self.folder = case, rank, folder
        self.step = 0
        self.records: list[tuple[int, str, str, float, float]] = []
        self.random = random.Random(f"{case.name} {rank}")

    def __call__(self, phase: str, step: int | None = None, parts: int = 1) -> None:
        """Work and delay of a phase; where the phase comes several times a step, its part of both."""
        at = self.step if step is None else step
        case = self.case
        work = WORK_MS[phase] + sum(each.ms_in(self.rank, at, case.steps) for each in case.more if each.phase == phase)
        if case.jitter and phase in ("forward", "backward"):
            work += self.random.uniform(0, case.jitter)
        self.sleep(at, phase, "work", work / parts)
        delay = sum(each.ms_in(self.rank, at, case.steps) for each in case.delays if each.phase == phase)
        self.sleep(at, phase, "delay", delay / parts)

    def sleep(self, step: int, phase: str, what: str, ms: float) -> None:
        """Sleeps or, as work may be, computes so long, and records how long it was."""
        if ms <= 0:
            return
        begin = time.perf_counter_ns()
        if what == "work" and self.case.work == "compute":
            end, matrix = time.thread_time() + ms / 1e3, torch.ones(WIDTH, WIDTH)
            while time.thread_time() < end:
                matrix @ matrix
        else:
            time.sleep(ms / 1e3)
        self.records.append((step, phase, what, ms, (time.perf_counter_ns() - begin) / 1e6))


class _SleepBothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, back: Callable[[], None]) -> torch.Tensor:
        ctx.back = back
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.back()
        return gradients[0], None


class Work(nn.Module):
    """Sleeps in the forward and in the backward pass of a training; in an evaluation not at all."""

    def __init__(self, sleeps: Sleeps, parts: int) -> None:
        super().__init__()
        self.sleeps, self.parts = sleeps, parts

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return inputs
        self.sleeps("forward", parts=self.parts)
        slept: Callable[..., torch.Tensor] = _SleepBothWays.apply
        result = slept(inputs, lambda: self.sleeps("backward", parts=self.parts))
        return result


class Model(nn.Module):
    """Two layers, work between them."""

    def __init__(self, sleeps: Sleeps, parts: int = 1) -> None:
        super().__init__()
        self.up, self.work, self.down = nn.Linear(WIDTH, WIDTH), Work(sleeps, parts), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(torch.relu(self.work(self.up(inputs))))
        return result


class SleepingSGD(torch.optim.SGD):
    """SGD whose step takes its time."""

    sleeps: Sleeps

    def step(self, closure: Any = None) -> Any:
        self.sleeps("optimizer")
        return super().step(closure)


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """A batch at each index, which takes its time to be read, in the rank's process or in its worker's."""

    def __init__(self, sleeps: Sleeps) -> None:
        self.sleeps = sleeps
        self.parts = MICRO_BATCHES if sleeps.case.training == "accumulation" else 1

    def __len__(self) -> int:
        return self.sleeps.case.steps * self.parts

    def __getitem__(self, index: int) -> torch.Tensor:
        case, step = self.sleeps.case, index // self.parts
        self.sleeps("data", step, self.parts)
        if case.hidden and self.sleeps.rank == 0:
            self.sleeps.sleep(step, "data", "work", case.hidden)
        if case.pace:
            self.sleeps.sleep(step, "data", "wait", case.pace - 1e3 * time.monotonic() % case.pace)
        if torch.utils.data.get_worker_info() is not None:
            with (self.sleeps.folder / f"worker-{self.sleeps.rank}.jsonl").open("a") as file:
                file.writelines(json.dumps(each) + "\n" for each in self.sleeps.records)
            self.sleeps.records.clear()
        torch.manual_seed(index)
        return torch.randn(ROWS * MICRO_BATCHES, WIDTH)


def batches(case: Case, sleeps: Sleeps) -> Iterator[torch.Tensor]:
    """The loader."""
    workers: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 2} if case.training == "workers" else {}
    yield from torch.utils.data.DataLoader(Samples(sleeps), batch_size=None, **workers)


def slow_link(sleeps: Sleeps) -> Callable[..., Any]:
    """A communication hook of DDP: this rank's part of the all-reduce leaves late."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        sleeps("collective")
        buffer = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

    return hook


def ring_average(sleeps: Sleeps, tensor: torch.Tensor) -> None:
    """All ranks' mean, by each sending what it has to its neighbour, ranks - 1 times."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total, turn = tensor.clone(), tensor.clone()
    for at in range(world - 1):
        if at == 0:
            sleeps("collective")
        came = torch.empty_like(turn)
        sent = dist.isend(turn, (rank + 1) % world)
        dist.recv(came, (rank - 1) % world)
        assert sent is not None
        sent.wait()
        total, turn = total + came, came
    tensor.copy_(total / world)


Step = Callable[[torch.Tensor, Iterator[torch.Tensor], Hooks], None]
"""Forward and backward of a step, from its first batch on; further ones come from the loader."""


def build(case: Case, sleeps: Sleeps) -> tuple[nn.Module, Step]:
    """The model, and its forward and backward of one step."""
    world = dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = Model(sleeps, MICRO_BATCHES if case.training in ("accumulation", "pipeline") else 1)
    if case.training == "pipeline":
        return model, pipeline_step(model, world)
    if case.training == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in (model.up, model.down):
            fully_shard(layer)  # type: ignore[arg-type]
        fully_shard(model)
    elif case.training == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    elif case.training != "ring":
        model = nn.parallel.DistributedDataParallel(model)
        if any(each.phase == "collective" for each in case.delays):
            model.register_comm_hook(None, slow_link(sleeps))

    def step(batch: torch.Tensor, source: Iterator[torch.Tensor], hooks: Hooks) -> None:
        micro = MICRO_BATCHES if case.training == "accumulation" else 1
        for at in range(micro):
            if at:
                with hooks.part("data"):
                    batch = next(source)
            if isinstance(model, nn.parallel.DistributedDataParallel):
                model.require_backward_grad_sync = at == micro - 1
            with hooks.part("forward"):
                loss = model(batch).square().mean() / micro
            with hooks.part("backward"):
                loss.backward()
        if case.training == "ring":
            for parameter in model.parameters():
                assert parameter.grad is not None
            flat = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
            with hooks.part("collective"):
                ring_average(sleeps, flat)
            nn.utils.vector_to_parameters(flat, [each.grad for each in model.parameters() if each.grad is not None])

    return model, step


def pipeline_step(model: nn.Module, world: int) -> Step:
    """Two stages, each in world / 2 replicas, which average their gradients."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("pp", "dp"))
    stages, replicas = mesh["pp"].get_group(), mesh["dp"].get_group()
    at = dist.get_rank(stages)
    stage = PipelineStage(model, at, 2, torch.device("cpu"), group=stages)
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=lambda out, target: (out - target).square().mean())

    def step(batch: torch.Tensor, source: Iterator[torch.Tensor], hooks: Hooks) -> None:
        with hooks.part("forward"):
            if at:
                schedule.step(target=batch)
            else:
                schedule.step(batch)
        with hooks.part("backward"):
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad, group=replicas)
                parameter.grad /= world // 2

    return step


def between(case: Case, sleeps: Sleeps, model: nn.Module, step: int) -> None:
    """What comes between two steps: logging, evaluation, a checkpoint."""
    sleeps("between")
    if case.training == "evaluation" and step % EVERY == EVERY - 1:
        model.eval()
        with torch.no_grad():
            model(torch.randn(ROWS, WIDTH))
        sleeps.sleep(step, "between", "work", EVALUATION_MS)
        model.train()
    if case.training == "checkpoint" and step % EVERY == EVERY - 1:
        torch.save(model.state_dict(), sleeps.folder / f"model-{sleeps.rank}.pt")
        if case.aside and sleeps.rank == 0:
            threading.Thread(target=time.sleep, args=(case.aside / 1e3,)).start()
        elif not case.aside:
            sleeps.sleep(step, "between", "work", CHECKPOINT_MS)


def train(case: Case, folder: Path) -> None:
    """One rank of a training, from the launcher's variables on."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    name, rank = os.environ.get("STRAGGLER_TOOL", ""), dist.get_rank()
    adapter = importlib.import_module(f"benchmarks.straggler.adapters.{name}") if name else None
    hooks = Hooks(folder, rank) if adapter is None else adapter.ToolHooks(folder, rank)
    sleeps = Sleeps(case, rank, folder)
    model, forward_backward = build(case, sleeps)
    optimizer = SleepingSGD(model.parameters(), lr=1e-3)
    optimizer.sleeps = sleeps
    source = batches(case, sleeps)
    dist.barrier()
    times: list[tuple[float, float]] = []
    for step in range(case.steps):
        begin, cpu = time.perf_counter(), time.process_time()
        sleeps.step = step
        with hooks.part("data"):
            batch = next(source)
        with hooks.step(model):
            forward_backward(batch, source, hooks)
            with hooks.part("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
        between(case, sleeps, model, step)
        hooks.end_of_step()
        times.append((1e3 * (time.perf_counter() - begin), 1e3 * (time.process_time() - cpu)))
    dist.barrier()
    hooks.end()
    worker = folder / f"worker-{rank}.jsonl"
    records = [*sleeps.records, *(map(json.loads, worker.read_text().splitlines()) if worker.exists() else ())]
    (folder / f"truth-{rank}.json").write_text(json.dumps({"rank": rank, "sleeps": records, "steps": times}))
    dist.destroy_process_group()


def serve() -> None:
    """Makes a training for each line of standard input: its ranks are forked, so that torch is imported once for all.

    A line has `case`, `folder`, the environment of each of `ranks`, and `limit_s`; the answer is the ranks' statuses.
    """
    if name := os.environ.get("STRAGGLER_TOOL"):
        importlib.import_module(f"benchmarks.straggler.adapters.{name}")
    for line in sys.stdin:
        request = json.loads(line)
        ranks = []
        for at, environment in enumerate(request["ranks"]):
            if not (pid := os.fork()):
                os.setsid()
                signal.alarm(request["limit_s"])
                os.environ.update(environment)
                output = os.open(f"{request['folder']}/output-{at}.txt", os.O_CREAT | os.O_WRONLY)
                os.dup2(output, 1)
                os.dup2(output, 2)
                _end_with(request)
            ranks.append(pid)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]), flush=True)


def _end_with(request: dict[str, Any]) -> NoReturn:
    """A forked rank's training, and its end."""
    status = 1
    try:
        train(read_case(request["case"]), Path(request["folder"]))
        status = 0
    except Exception:  # noqa: BLE001 - printed, and the status says so
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # a tool may end by them
        sys.stderr.flush()
        os._exit(status)


def read_case(path: str) -> Case:
    return case_of(json.loads(Path(path).read_text()))


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else train(read_case(sys.argv[1]), Path(sys.argv[2]))
