"""Known delays in scripts whose ranks meet in groups, and what the script itself notes of each step: its sleeps, its
calls with their groups and when they were called, waited for and done, and when the step ended.

`delay(place)` sleeps where the plan has it; `watch()` notes whatever goes through torch's process groups from then on.
The plan is a JSON file: {"steps": of a window, "windows": [null | [place, rank, milliseconds], ...]}.
"""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

CALLS = {
    "allreduce": "all-reduce", "allgather": "all-gather", "_allgather_base": "all-gather",
    "all_gather_single": "all-gather", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter", "alltoall_base": "all-to-all", "all_to_all_single": "all-to-all",
    "broadcast": "broadcast",
}  # fmt: skip
FUNCTIONAL = {"all_reduce": "all-reduce", "all_gather_tensor": "all-gather", "reduce_scatter_tensor": "reduce-scatter"}


class GroupDelays:
    def __init__(self, plan, rank):
        read = json.loads(Path(plan).read_text())
        self.window, self.windows, self.rank = read["steps"], read["windows"], rank
        self.steps = self.window * len(self.windows)
        self.slept, self.met, self.done = [], [], []  # of this step, and the steps before
        self.going = {}  # the record of each call that was not yet waited for, by its work
        self.asleep = None  # the messages before which this rank sleeps: "link"

    @property
    def now(self):
        """What this step's window has: place, rank, milliseconds."""
        return self.windows[min(len(self.done) // self.window, len(self.windows) - 1)] or ("", -1, 0)

    def here(self, place):
        """How many ms the plan has for this rank and place in this step."""
        where, rank, ms = self.now
        return ms if (place, self.rank) == (where, rank) else 0

    def __call__(self, place):
        if ms := self.here(place):
            begin = time.perf_counter_ns()
            time.sleep(ms / 1e3)
            self.slept.append((begin, time.perf_counter_ns()))

    def meet(self, name, group, call, *values, **named):
        """Notes a call that is waited for at once."""
        begin = time.perf_counter_ns()
        result = call(*values, **named)
        self.note(name, group, begin, begin, time.perf_counter_ns())
        return result

    def note(self, name, group, called=0, waits=0, ends=0, peer=None):
        """A call's record, whose times may be filled in later; of a message `peer` is (sender, receiver, tag)."""
        record = [name, list(peer or dist.get_process_group_ranks(group)), called, waits, ends]
        self.met.append(record)
        return record

    def end(self):
        """Ends the step."""
        self.done.append({"slept": self.slept, "met": self.met, "end": time.perf_counter_ns()})
        self.slept, self.met = [], []

    def write(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / f"rank{self.rank}.json").write_text(json.dumps(self.done))

    def watch(self):
        """Notes calls of process groups, messages, and functional collectives."""
        for method, name in CALLS.items():
            if hasattr(dist.ProcessGroup, method):
                setattr(dist.ProcessGroup, method, self._collective(getattr(dist.ProcessGroup, method), name))
        for method in ("send", "recv"):
            setattr(dist.ProcessGroup, method, self._message(getattr(dist.ProcessGroup, method), method))
        dist.Work.wait = self._wait(dist.Work.wait)
        for method, name in FUNCTIONAL.items():
            setattr(functional, method, self._functional(getattr(functional, method), name))
        functional.wait_tensor = self._wait_tensor(functional.wait_tensor)

    def _collective(self, original, name):
        def call(group, *values, **named):
            record = self.note(name, group, time.perf_counter_ns())
            work = original(group, *values, **named)
            self.going[id(work)] = record
            if getattr(values[-1], "asyncOp", True) is False:
                record[3] = record[2]
            return work

        return call

    def _message(self, original, method):
        def call(group, tensors, other, tag=0):
            peer = dist.get_process_group_ranks(group)[other]
            sends = method == "send"
            if sends and self.asleep is not None and peer in self.asleep:
                self("link")
            pair = (self.rank, peer, tag) if sends else (peer, self.rank, tag)
            record = self.note("message", group, time.perf_counter_ns(), peer=pair)
            work = original(group, tensors, other, tag)
            self.going[id(work)] = record
            return work

        return call

    def _wait(self, original):
        def wait(work, *values, **named):
            record = self.going.pop(id(work), None)
            if record is None:
                return original(work, *values, **named)
            record[3] = record[3] or time.perf_counter_ns()
            result = original(work, *values, **named)
            record[4] = time.perf_counter_ns()
            return result

        return wait

    def _functional(self, original, name):
        def call(*values, **named):
            group = named.get("group", values[-1])
            resolved = dist.distributed_c10d._resolve_process_group(functional._resolve_group_name(group))
            self.going["functional"] = self.note(f"functional {name}", resolved, time.perf_counter_ns())
            return original(*values, **named)

        return call

    def _wait_tensor(self, original):
        def wait(tensor):
            record = self.going.pop("functional", None)
            if record is None:
                return original(tensor)
            record[3] = time.perf_counter_ns()
            result = original(tensor)
            record[4] = time.perf_counter_ns()
            return result

        return wait


class Backwards(torch.autograd.Function):
    """Calls a function on the way back."""

    @staticmethod
    def forward(ctx, inputs, act):
        ctx.act = act
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.act(gradient), None
