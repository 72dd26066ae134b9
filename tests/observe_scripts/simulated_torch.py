"""A torch whose CPU is a simulated accelerator; a script imports this before torch, and is measured as any other.

`device` is the accelerator. Once `begin(names)` was called, torch's collectives are those of NCCL, without data: each
group has a stream, which waits for the calling stream; `Work.wait` makes the current stream wait, and no host; they
meet on the devices of all ranks. `torch.cpu`'s streams and events, which FSDP2 uses, are the simulated ones.
All of this is below the hooks, which come to torch when its import is done: a finder of modules behind theirs.

SIMULATED_DEVICE is a JSON object: `rate` and `offset_ns` of the device's clock, by which ranks differ; `held_s`, a list
of (begin, end) since the start between which no anchor is had; `jumps`, a list of (rank, seconds since the start, ms by
which the device's clock then goes on); `collective_ms`; `one_queue`, whether all streams are one hardware queue.
"""

import importlib.util
import json
import os
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the script's process has not the project's

from tests.simulated_device import RealClock, SimulatedDevice, SimulatedStream, StoreMeetings, latencies

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
CONFIG = json.loads(os.environ.get("SIMULATED_DEVICE", "{}"))
_START_NS = RealClock.now_ns()
device = SimulatedDevice(
    RealClock(),
    rate=CONFIG.get("rate", 25e-6) * (1 if RANK % 2 else -1),
    offset_ns=CONFIG.get("offset_ns", 7e12) * (RANK + 1),
    held=[(_START_NS + int(begin * 1e9), _START_NS + int(end * 1e9)) for begin, end in CONFIG.get("held_s", [])],
    jumps=[(_START_NS + int(at * 1e9), int(ms * 1e6)) for rank, at, ms in CONFIG.get("jumps", []) if rank == RANK],
    latency_ns=latencies(RANK),
    resolution_ns=500,
    one_queue=CONFIG.get("one_queue", False),
)
COLLECTIVE_MS = CONFIG.get("collective_ms", 1.0)
METHODS = (
    "allreduce", "allgather", "_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single",
    "broadcast",
)  # fmt: skip
groups = {}
"""Of each group, by its name: its stream, and where its ranks meet; empty until `begin`."""
ends = {}
"""The end of each collective on its stream, by the identity of its list in `calls`, all of which are kept."""
calls = []
"""Of each collective that Python called: [arrival, wait, end], events of the calling and of the waiting stream."""


def begin():
    """From now on collectives are simulated. The process group is there; its store is used once more by itself."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store().clone()
    for name in ("python", "ddp"):
        groups[name] = (device.training_stream(), StoreMeetings(store.clone(), name, RANK, RANKS))


def collective(name="ddp", ms=COLLECTIVE_MS):
    """Queues one behind the current stream; its end is an event. The host does not wait."""
    stream, meetings = groups[name]
    return device.collective(meetings, ms, stream)


def marked():
    """An event of now on the current stream."""
    return device.current_stream().record_event()


def watch_fsdp(group):
    """Of its class of groups of parameters: `calls` have what the compute stream waits for, not those of collectives.

    An all-gather is waited for where its parameters are needed, a reduce-scatter where the next one is begun or its
    group finalized: torch 2.13 finalizes the root before the first block is reduced, whose input has no gradient.
    """
    unshard, wait_for_unshard = group.unshard, group.wait_for_unshard
    post_backward, finalize_backward = group.post_backward, group.finalize_backward
    gathers, scatters = {}, []

    def watched_unshard(self, *values, **named):
        before = len(calls)
        unshard(self, *values, **named)
        if len(calls) > before:
            gathers[id(self)] = calls[before]

    def watched_wait(self):
        call = gathers.pop(id(self), None)
        begin = marked()
        wait_for_unshard(self)
        if call is not None:
            call[1:] = [begin, marked()]

    def watched_post_backward(self, *values):
        before, waits, begin = len(calls), bool(self.comm_ctx.reduce_scatter_states), marked()
        post_backward(self, *values)
        if waits and scatters:
            scatters[-1][1:] = [begin, marked()]
        for call in calls[before:]:
            call[1:] = [call[0]] * 2
            scatters[:] = [call]

    def watched_finalize(self):
        waits, begin = bool(self.comm_ctx._last_post_reduce_events), marked()
        finalize_backward(self)
        if waits and scatters:
            scatters.pop()[1:] = [begin, marked()]

    group.unshard, group.wait_for_unshard = watched_unshard, watched_wait
    group.post_backward, group.finalize_backward = watched_post_backward, watched_finalize


def _below_hooks(torch):
    dist = torch.distributed

    class SimulatedWork(dist.Work):
        def __init__(self):
            super().__init__()
            self.call = [marked()]
            self.end = collective("python")
            calls.append(self.call)
            ends[id(self.call)] = self.end

    def simulate(name):
        original = getattr(dist.ProcessGroup, name)

        def call(group, *values, **named):
            if not groups:
                return original(group, *values, **named)
            if isinstance(values[0], torch.Tensor):  # out of another: what a rank has itself
                output, given = values[0].view(-1), values[1].reshape(-1)
                output.copy_(given.repeat(RANKS) if output.numel() > given.numel() else given.chunk(RANKS)[RANK])
            if name == "allgather":
                for output in values[0][0]:
                    output.copy_(values[1][0])
            return SimulatedWork()

        setattr(dist.ProcessGroup, name, call)

    for name in METHODS:
        if hasattr(dist.ProcessGroup, name):
            simulate(name)
    waited = dist.Work.wait

    def wait(work, *values, **named):
        if not isinstance(work, SimulatedWork):
            return waited(work, *values, **named)
        work.call.append(marked())
        work.end.wait()
        work.call.append(marked())
        return True

    dist.Work.wait = wait
    item = torch.Tensor.item

    def synchronizing_item(tensor):
        if groups and tensor.is_floating_point():
            device.current_stream().synchronize()
        return item(tensor)

    torch.Tensor.item = synchronizing_item
    torch.cuda.CUDAGraph = _Graph
    torch.cpu.Stream = _Stream
    torch.cpu.Event = lambda *_, **__: device.make_event()
    torch.cpu.stream, torch.cpu.current_stream = device.stream, lambda _=None: device.current_stream()
    torch.cpu.synchronize = lambda _=None: device.synchronize()


class _Graph:
    """A graph of one kernel, that takes so long."""

    def __init__(self, ms=0):
        self.ms = ms

    def capture_begin(self):
        device.captured_by = threading.get_ident()

    def capture_end(self):
        device.captured_by = None

    def replay(self):
        device.run(self.ms)


class _Stream(SimulatedStream):
    def __init__(self, priority=0):
        super().__init__(device, of_training=True)
        device.streams.append(self)


def register():
    """The parameters' device is an accelerator, for the hooks of this process, if it has any."""
    clock = sys.modules.get("_rankwise_observe.device_clock")
    if clock is not None:
        clock.ACCELERATORS["cpu"] = lambda _: device


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _below_hooks(module)

        spec.loader.exec_module = exec_module
        return spec


assert "torch" not in sys.modules
sys.meta_path.insert(1 if os.environ.get("RANKWISE_OBSERVE") else 0, _Finder)
