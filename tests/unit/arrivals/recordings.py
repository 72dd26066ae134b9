"""Makes what NCCL Inspector and torch.profiler write of ranks with known delays, in the form of their sources.

No recording of several hosts was at hand: the form is that of inspector_json.cc and json.cc (NCCL 2.28 to 2.29) and of
torch/csrc/profiler/util.h, the times are those of the model below.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MS = 1_000_000
EPOCH_NS = 1_752_867_229_000_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LateNs = Callable[[int, int], int]
"""How late a rank comes to a collective, by rank and number."""


@dataclass(frozen=True)
class Kernel:
    """One rank's kernel: true times, ns."""

    begin_ns: int
    end_ns: int


@dataclass
class Model:
    """Ranks that call `count` collectives: all come within `jitter_ns`, but for those late; then it takes `takes_ns`,
    and kernels end within `drain_ns`."""

    ranks: int = 8
    count: int = 60
    takes_ns: int = 400_000
    jitter_ns: int = 60_000
    drain_ns: int = 15_000
    every_ns: int = 50 * MS
    late_ns: LateNs = field(default=lambda rank, number: 0)
    seed: int = 1

    def kernels(self) -> list[list[Kernel]]:
        """[collective][rank]."""
        rng = random.Random(self.seed)
        made = []
        for number in range(self.count):
            due = EPOCH_NS + number * self.every_ns
            come = [due + rng.randrange(self.jitter_ns) + self.late_ns(rank, number) for rank in range(self.ranks)]
            done = max(come) + self.takes_ns
            made.append([Kernel(begin, done + rng.randrange(self.drain_ns)) for begin in come])
        return made


@dataclass
class Hosts:
    """`per_host` ranks on each; clocks are off by `off_ns` from host to host."""

    per_host: int = 4
    off_ns: int = 7 * MS

    def name(self, rank: int) -> str:
        return f"node{rank // self.per_host}"

    def clock_ns(self, rank: int, true_ns: int) -> int:
        return true_ns + (rank // self.per_host) * self.off_ns


def inspector(
    folder: Path,
    kernels: Sequence[Sequence[Kernel]],
    hosts: Hosts,
    *,
    verbose: bool = False,
    lost: Callable[[int, int], bool] = lambda rank, number: False,
    function: str = "AllReduce",
    comm: str = "0x7f8c496ae9f661",
) -> list[Path]:
    """A file per rank, by lines as NCCL Inspector writes them."""  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    ranks = len(kernels[0])
    paths = []
    for rank in range(ranks):
        path = folder / f"{hosts.name(rank)}-pid{1000 + rank}.log"
        with path.open("a") as file:
            for number, its in enumerate(kernels):
                if not lost(rank, number):
                    file.write(_record(comm, rank, ranks, number, its[rank], hosts, function, verbose) + "\n")
        paths.append(path)
    return paths


def _record(
    comm: str, rank: int, ranks: int, number: int, kernel: Kernel, hosts: Hosts, function: str, verbose: bool
) -> str:
    took_us = (kernel.end_ns - kernel.begin_ns) // 1000
    perf: dict[str, object] = {
        "coll": function, "coll_sn": number, "coll_msg_size_bytes": 25_000_000, "coll_exec_time_us": took_us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.75,
    }  # fmt: skip
    if verbose:
        begin_us = hosts.clock_ns(rank, kernel.begin_ns) // 1000
        channels = [
            {"channel_id": channel, "kernel_start_ts": begin_us + channel, "kernel_stop_ts": begin_us + took_us,
             "kernel_record_ts": begin_us + took_us}
            for channel in range(2)
        ]  # fmt: skip
        perf["event_trace_sn"] = {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": []}
        perf["event_trace_ts"] = {
            "coll_start_ts": begin_us - 50,
            "coll_stop_ts": begin_us - 45,
            "kernel_events": channels,
        }
    header = {"id": comm, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 2}
    metadata = {
        "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": EPOCH_NS // 1000, "hostname": hosts.name(rank), "pid": 1000 + rank,
    }  # fmt: skip
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}, separators=(",", ":"))


def profiles(
    folder: Path,
    kernels: Sequence[Sequence[Kernel]],
    hosts: Hosts,
    *,
    with_seq: bool = True,
    first: int = 0,
    skipped: Callable[[int, int], bool] = lambda rank, number: False,
) -> list[Path]:
    """A profile per rank, as torch.profiler writes it."""  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    ranks, paths = len(kernels[0]), []
    base = EPOCH_NS - 3600 * 1000 * MS
    for rank in range(ranks):
        events: list[dict[str, object]] = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {}},
        ]
        for number, its in enumerate(kernels):
            if skipped(rank, number):
                continue
            begin_ns = hosts.clock_ns(rank, its[rank].begin_ns) - base
            args: dict[str, object] = {
                "External id": number, "device": rank, "stream": 20, "correlation": number,
                "Collective name": "allreduce", "In msg nelems": 6_250_000, "Out msg nelems": 6_250_000,
                "Group size": ranks, "dtype": "Float", "Process Group Name": "0",
                "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(ranks))),
            }  # fmt: skip
            if with_seq:
                args["Seq"] = first + number
            events.append(
                {"ph": "X", "cat": "kernel", "name": KERNEL,
                 "pid": 0, "tid": 20, "ts": begin_ns / 1000, "dur": (its[rank].end_ns - its[rank].begin_ns) / 1000,
                 "args": args}
            )  # fmt: skip
        page = {
            "schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
            "baseTimeNanoseconds": base, "host_name": hosts.name(rank), "traceEvents": events,
        }  # fmt: skip
        path = folder / f"trace_rank{rank}.json"
        path.write_text(json.dumps(page))
        paths.append(path)
    return paths


def tensor_and_data_parallel(
    late_rank: int, late_ns: int, steps: int = 40
) -> dict[tuple[int, ...], list[list[Kernel]]]:
    """8 ranks in pairs (tp) and in two groups of four (dp): in each step a pair meets, then works, then all of dp meet.
    The kernels by group, [step][place]; `late_rank` works longer before it meets its pair."""
    rng = random.Random(5)
    pairs = [(rank, rank + 1) for rank in range(0, 8, 2)]
    fours = [tuple(range(0, 8, 2)), tuple(range(1, 8, 2))]
    made: dict[tuple[int, ...], list[list[Kernel]]] = {group: [] for group in (*pairs, *fours)}
    free = [EPOCH_NS] * 8
    for _ in range(steps):
        for groups in (pairs, fours):
            for group in groups:
                late = late_ns if groups is pairs else 0
                come = {
                    rank: free[rank] + 5 * MS + rng.randrange(30_000) + (late if rank == late_rank else 0)
                    for rank in group
                }
                done = max(come.values()) + 400_000
                made[group].append([Kernel(come[rank], done + rng.randrange(15_000)) for rank in group])
                for rank in group:
                    free[rank] = done
    return made


def flight_dumps(
    folder: Path,
    kernels: Sequence[Sequence[Kernel]],
    *,
    timed: bool = True,
    packed: bool = True,
    reached: int = 1 << 30,
) -> list[Path]:
    """A dump of torch's flight recorder per rank; the last rank has come to the first `reached` collectives alone, and
    nobody has completed the one behind them."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks, paths = len(kernels[0]), []
    for rank in range(ranks):
        entries = [
            {
                "record_id": number, "process_group": ("0", "default_pg"), "collective_seq_id": number,
                "profiling_name": "nccl:all_reduce", "input_sizes": [[25, 1000]], "input_dtypes": ["Float"],
                "output_sizes": [[25, 1000]], "output_dtypes": ["Float"], "is_p2p": False,
                "state": "completed" if number < reached else "started",
                "time_created_ns": its[rank].begin_ns,
            } | ({"duration_ms": (its[rank].end_ns - its[rank].begin_ns) / MS} if timed else {})
            for number, its in enumerate(kernels[: reached + (rank != ranks - 1)])
        ]  # fmt: skip
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
        dump = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}
        path = folder / f"nccl_trace_rank_{rank}{'' if packed else '.json'}"
        path.write_bytes(pickle.dumps(dump, 2) if packed else json.dumps(dump).encode())
        paths.append(path)
    return paths
