"""Simulated training in groups of ranks (pipeline stages, tensor and expert parallelism, replicas), with its truth.

Ranks are numbered as meshes of torch are: stages outermost, then replicas, then the ranks that share a layer. Each
stage has a program of its own work, calls and waits (one forward, one backward, by turns); all ranks of a stage follow
it together, which is what makes thousands of them quick. The truth is made first, in whole ns of the global clock; what
a rank records of it is what its node's clock showed then.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.groups import MESSAGE, Call, CallTable, RankGroup
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Trace
from tests.unit.simulated import (
    ENTRY_SKEW_NS,
    MS,
    ORIGIN_NS,
    SYNCHRONISATION_NS,
    Clock,
    Int64,
    _recorded,
    _segments,
)
from tests.unit.traces import make_run

Bools = npt.NDArray[np.bool_]
PHASES = ("data", "compute", "optimizer")
"""The phases of a rank's own work."""
SEND_NS = 5_000
"""What an eager sender takes."""
TRANSFERS: Mapping[str, int] = {"dp": MS, "tp": MS // 20, "pp": MS // 10, "ep": MS // 10, "all ranks": MS // 20}


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """How many stages, replicas, ranks that share a layer; and of `dp` how many neighbours share experts, 1: none."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.pp * self.dp * self.tp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica, and which of those that share a layer."""
        stage, inside = divmod(rank, self.dp * self.tp)
        return (stage, *divmod(inside, self.tp))

    def rank(self, stage: int, replica: int = 0, part: int = 0) -> int:
        return (stage * self.dp + replica) * self.tp + part

    def group(self, rank: int, dimension: str) -> RankGroup | None:
        """The group of that dimension that the rank is in; None for all ranks."""
        stage, replica, part = self.place(rank)
        if dimension == "tp":
            ranks = [self.rank(stage, replica, each) for each in range(self.tp)]
        elif dimension == "dp":
            ranks = [self.rank(stage, each, part) for each in range(self.dp)]
        elif dimension == "ep":
            first = replica - replica % self.ep
            ranks = [self.rank(stage, each, part) for each in range(first, first + self.ep)]
        else:
            return None
        return RankGroup(ranks=tuple(ranks), dimension=dimension)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a step consists of; times are of a layer and micro-batch, `data_ns` and `optimizer_ns` of a step.

    `spread` is the standard deviation of each piece as a share of it, `common` that of a factor that all ranks share in
    a step. `stages` multiplies the work of each stage, `experts` that of each place among those who share experts;
    `links` is what messages between two stages, (sender, receiver), take beyond the others. Gradients are reduced by a
    `wrapper`, else by calls after the last backward, in every `reduce_every`-th step. `gathers`: the weights of each
    layer are gathered, called a layer ahead. Where sends are not `eager` they are waited for, before the next one,
    until the receiver has called. `clips`: at last all ranks agree on a norm.
    """

    micro_batches: int = 4
    layers: int = 2
    data_ns: int = MS
    forward_ns: int = MS
    backward_ns: int = 2 * MS
    optimizer_ns: int = MS
    spread: float = 0.02
    common: float = 0.02
    stages: Sequence[float] = ()
    experts: Sequence[float] = ()
    links: Mapping[tuple[int, int], int] = field(default_factory=dict)
    transfers: Mapping[str, int] = field(default_factory=lambda: TRANSFERS)
    wrapper: bool = False
    reduce_every: int = 1
    gathers: bool = False
    eager: bool = True
    clips: bool = False


@dataclass(frozen=True, kw_only=True)
class Delay:
    """Own work of these ranks that takes `ns` longer in all of a step, shared out evenly over the pieces of its `phase`
    (data, forward, backward, optimizer), in these `steps` [step], None: in all."""

    ranks: tuple[int, ...]
    phase: str
    ns: int
    steps: Bools | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedGraph:
    """A trace and the truth of it, on the global clock.

    `stamps_ns` [rank, step, 6] and `meetings_ns` [rank, step, call, 3] are when everything really happened, `work_ns`
    [rank, step, phase] a rank's own work by PHASES, `wait_ns` and `communication_ns` [rank, step, dimension] the rest
    of its step, by `dimensions`. `ends_ns` [case, step] is the latest end of each step: of what happened first, then
    without each delay, then without any.
    """

    trace: Trace
    mesh: Mesh
    dimensions: tuple[str, ...]
    stamps_ns: Int64
    meetings_ns: Int64
    work_ns: Int64
    wait_ns: Int64
    communication_ns: Int64
    ends_ns: Int64

    def costs_ms(self) -> list[float]:
        """What each delay costs a measured step in the mean, as the training goes on without it."""
        first, stop = (int(edge) for edge in self.trace.blocks[0])
        took = self.ends_ns[:, stop - 1] - self.ends_ns[:, first - 1]
        return [float(took[0] - without) / (stop - first) / 1e6 for without in took[1:-1].tolist()]


@dataclass(frozen=True)
class _Work:
    phase: str  # of a Delay
    ns: int
    of_experts: bool = False


@dataclass(frozen=True)
class _Call:
    name: str
    dimension: str
    at: int  # its place among the calls of its rank
    link: tuple[int, int] | None = None  # of a message: the stages that send and receive
    number: int = 0  # of messages on this link


@dataclass(frozen=True)
class _Wait:
    call: _Call


@dataclass(frozen=True)
class _Stamp:
    at: int  # in STAMPS
    reduces: bool = False  # after the gradients have been reduced by the wrapper


Operation = _Work | _Call | _Wait | _Stamp


class _Program:
    """What the ranks of a stage do in a step, in order."""

    def __init__(self, mesh: Mesh, model: Model, stage: int) -> None:
        self.mesh, self.model, self.stage = mesh, model, stage
        self.operations: list[Operation] = []
        self.calls: list[_Call] = []
        self._links: Counter[tuple[int, int]] = Counter()
        self._sent: dict[tuple[int, int], _Call] = {}
        self._write()

    def _write(self) -> None:
        mesh, model = self.mesh, self.model
        self.operations += [_Work("data", model.data_ns), _Stamp(1)]
        ahead = min(model.micro_batches, mesh.pp - self.stage - 1)
        for micro_batch in range(model.micro_batches + ahead):
            if micro_batch < model.micro_batches:
                self._forward(micro_batch)
            if micro_batch >= ahead:
                self._backward()
        self.operations += [_Stamp(3), _Stamp(4, reduces=model.wrapper)]
        if not model.wrapper and mesh.dp > 1:
            self._meet("all-reduce", "dp")
        for sent in self._sent.values():
            self.operations.append(_Wait(sent))
        if model.clips:
            self._meet("all-reduce", "all ranks")
        self.operations += [_Work("optimizer", model.optimizer_ns), _Stamp(5)]

    def _forward(self, micro_batch: int) -> None:
        if self.stage > 0:
            self._receive((self.stage - 1, self.stage))
        gathers = self.model.gathers and self.mesh.dp > 1 and micro_batch == 0
        gathered = [self._call("all-gather", "dp")] if gathers else []
        for layer in range(self.model.layers):
            if gathers and layer + 1 < self.model.layers:
                gathered.append(self._call("all-gather", "dp"))
            if gathers:
                self.operations.append(_Wait(gathered[layer]))
            self._layer("forward", self.model.forward_ns)
        if self.stage < self.mesh.pp - 1:
            self._send((self.stage, self.stage + 1))

    def _backward(self) -> None:
        if self.stage < self.mesh.pp - 1:
            self._receive((self.stage + 1, self.stage))
        for _ in range(self.model.layers):
            self._layer("backward", self.model.backward_ns)
        if self.stage > 0:
            self._send((self.stage, self.stage - 1))

    def _layer(self, phase: str, ns: int) -> None:
        dense = ns // 2 if self.mesh.ep > 1 else ns
        self.operations.append(_Work(phase, dense))
        if self.mesh.tp > 1:
            self._meet("all-reduce", "tp")
        if self.mesh.ep > 1:
            self._meet("all-to-all", "ep")
            self.operations.append(_Work(phase, ns - dense, of_experts=True))
            self._meet("all-to-all", "ep")

    def _meet(self, name: str, dimension: str) -> None:
        self.operations.append(_Wait(self._call(name, dimension)))

    def _receive(self, link: tuple[int, int]) -> None:
        self.operations.append(_Wait(self._call(MESSAGE, "pp", link)))

    def _send(self, link: tuple[int, int]) -> None:
        if (sent := self._sent.pop(link, None)) is not None:
            self.operations.append(_Wait(sent))
        call = self._call(MESSAGE, "pp", link)
        if self.model.eager:
            self.operations.append(_Wait(call))
        else:
            self._sent[link] = call

    def _call(self, name: str, dimension: str, link: tuple[int, int] | None = None) -> _Call:
        number = 0
        if link is not None:
            number = self._links[link]
            self._links[link] += 1
        call = _Call(name, dimension, len(self.calls), link, number)
        self.calls.append(call)
        self.operations.append(call)
        return call


def simulate_graph(
    mesh: Mesh, model: Model, generator: np.random.Generator, *, run: RunSpec | None = None,
    delays: Sequence[Delay] = (), clocks: Sequence[Clock] = (), bound_ns: float = 10_000,
) -> SimulatedGraph:  # fmt: skip
    """The run, of as many ranks as the mesh has, with these delays.

    `clocks` are those of its nodes; without any all ranks read the global clock. Defaults to a run of one node.
    """
    run = run or make_run(ranks_per_node=mesh.ranks)
    if run.ranks != mesh.ranks:
        raise ValueError(f"{run.ranks} ranks are not a mesh of {mesh.ranks}")
    programs = [_Program(mesh, model, stage) for stage in range(mesh.pp)]
    happened = _Happened(mesh, model, programs, run, delays)
    order, compared_ns, now_ns = _order(programs), [], ORIGIN_NS
    for first, stop in _segments(run):
        compared_ns.append(now_ns)
        entered = generator.integers(0, ENTRY_SKEW_NS, happened.now.shape[1:])
        happened.now = happened.now.max(axis=(1, 2, 3), keepdims=True) + SYNCHRONISATION_NS + entered
        for step in range(first, stop):
            happened.go(step, order, generator)
        now_ns = int(happened.now[0].max()) + ENTRY_SKEW_NS
    clocks = clocks or [Clock()] * run.nodes
    trace = _recorded(run, happened.stamps, [*compared_ns, now_ns], clocks, generator, bound_ns, None)
    local_ns = happened.meetings.copy()
    for node, clock in enumerate(clocks):
        ours = slice(node * run.ranks_per_node, (node + 1) * run.ranks_per_node)
        if node:
            shown = clock.read(happened.meetings[ours])
            local_ns[ours] = np.where(happened.meetings[ours] == ABSENT, ABSENT, shown)
    backend = {"unrecorded_collectives": [], "meets_before_gradients": ["it does"]}
    facts = [{**facts, "backend": _reduction(mesh, model, rank)} for rank, facts in enumerate(trace.ranks)]
    stamps = trace.stamps.copy()
    stamps[:, :, STAMPS.index("forward_end")] = ABSENT
    return SimulatedGraph(
        trace=dataclasses.replace(
            trace, stamps=stamps, meetings=local_ns, calls=_table(mesh, programs), ranks=facts,
            environment={**trace.environment, "backend": {**trace.environment["backend"], **backend}},
        ),
        mesh=mesh, dimensions=happened.dimensions, stamps_ns=happened.stamps, meetings_ns=happened.meetings,
        work_ns=happened.work, wait_ns=happened.waited, communication_ns=happened.exposed, ends_ns=happened.ends,
    )  # fmt: skip


def _reduction(mesh: Mesh, model: Model, rank: int) -> dict[str, Any]:
    if not model.wrapper:
        return {"reduction": {"by": "calls"}}
    group = mesh.group(rank, "dp")
    assert group is not None
    return {"reduction": {"by": "wrapper", "ranks": list(group.ranks), "dimension": "dp"}}


def _table(mesh: Mesh, programs: Sequence[_Program]) -> CallTable:
    by_rank = []
    for rank in range(mesh.ranks):
        stage, replica, part = mesh.place(rank)
        groups = {dimension: mesh.group(rank, dimension) for dimension in ("dp", "tp", "ep", "all ranks")}
        its = []
        for call in programs[stage].calls:
            if call.link is None:
                its.append(Call(call.name, -1, groups[call.dimension]))
            else:
                sender, receiver = (mesh.rank(each, replica, part) for each in call.link)
                its.append(Call(MESSAGE, sender, RankGroup(ranks=(sender, receiver), dimension="pp")))
        by_rank.append(its)
    return CallTable.of(by_rank)


def _order(programs: Sequence[_Program]) -> list[tuple[int, int]]:
    """(stage, place of an operation), each behind what it waits for."""
    order: list[tuple[int, int]] = []
    called: set[tuple[int, _Call]] = set()
    at = [0] * len(programs)
    while any(place < len(program.operations) for place, program in zip(at, programs, strict=True)):
        before = len(order)
        for stage, program in enumerate(programs):
            while at[stage] < len(program.operations):
                operation = program.operations[at[stage]]
                if isinstance(operation, _Wait) and not _awaited(programs, stage, operation.call) <= called:
                    break
                if isinstance(operation, _Call):
                    called.add((stage, operation))
                order.append((stage, at[stage]))
                at[stage] += 1
        if len(order) == before:
            raise ValueError("the stages wait for one another in a circle")
    return order


def _awaited(programs: Sequence[_Program], stage: int, call: _Call) -> set[tuple[int, _Call]]:
    """The calls of other stages that this one waits for there."""
    if call.link is not None:
        peer = _peer(programs, stage, call)
        return set() if peer is None else {peer}
    if call.dimension != "all ranks":
        return set()
    return {
        (at, each) for at, program in enumerate(programs) for each in program.calls if each.dimension == "all ranks"
    }


def _peer(programs: Sequence[_Program], stage: int, call: _Call) -> tuple[int, _Call] | None:
    """The other end of a message; None for an eager sender, who waits for nobody."""
    assert call.link is not None
    sender, receiver = call.link
    if stage == sender and programs[stage].model.eager:
        return None
    peer = receiver if stage == sender else sender
    its = (each for each in programs[peer].calls if (each.link, each.number) == (call.link, call.number))
    return peer, next(its)


class _Happened:
    """What the ranks do step by step: in arrays [case, replica, part] of a stage; it is recorded of the first case."""

    def __init__(
        self, mesh: Mesh, model: Model, programs: Sequence[_Program], run: RunSpec, delays: Sequence[Delay]
    ) -> None:
        self.mesh, self.model, self.programs, self.delays = mesh, model, programs, delays
        names = {call.dimension for program in programs for call in program.calls} | (
            {"dp"} if model.wrapper else set()
        )
        self.dimensions = tuple(sorted(names))
        ranks, steps, calls = mesh.ranks, run.steps, max(len(program.calls) for program in programs)
        self.stamps = np.full((ranks, steps, len(STAMPS)), ABSENT)
        self.meetings = np.full((ranks, steps, calls, 3), ABSENT)
        self.work = np.zeros((ranks, steps, len(PHASES)), np.int64)
        self.waited = np.zeros((ranks, steps, len(self.dimensions)), np.int64)
        self.exposed = np.zeros_like(self.waited)
        self.ends = np.zeros((len(delays) + 2, steps), np.int64)
        self.now = np.full((len(delays) + 2, mesh.pp, mesh.dp, mesh.tp), ORIGIN_NS)
        self.pieces = [[each for each in program.operations if isinstance(each, _Work)] for program in programs]
        self.peers = [
            {call: _peer(programs, stage, call) for call in program.calls if call.link is not None}
            for stage, program in enumerate(programs)
        ]

    def go(self, step: int, order: Sequence[tuple[int, int]], generator: np.random.Generator) -> None:
        """One step of all ranks."""
        took = self._took(step, generator)
        self._called: dict[tuple[int, int], Int64] = {}
        placed = [0] * self.mesh.pp
        reduces = (step + 1) % self.model.reduce_every == 0
        self.stamps[:, step, 0] = self.now[0].ravel()
        for stage, place in order:
            operation = self.programs[stage].operations[place]
            ours = self._ranks(stage)
            match operation:
                case _Work():
                    its = took[stage][placed[stage]]
                    placed[stage] += 1
                    self.now[:, stage] += its
                    of = {"data": 0, "optimizer": 2}.get(operation.phase, 1)
                    self.work[ours, step, of] += its[0].ravel()
                case _Call():
                    if reduces or not _is_reduction(operation):
                        self._called[stage, operation.at] = self.now[:, stage].copy()
                        self.meetings[ours, step, operation.at, 0] = self.now[0, stage].ravel()
                case _Wait(call):
                    if reduces or not _is_reduction(call):
                        waits, ends = self._wait(stage, step, call)
                        self.meetings[ours, step, call.at, 1:] = np.stack([waits.ravel(), ends.ravel()], axis=1)
                case _Stamp():
                    if operation.reduces:
                        self._leave(stage, step, "dp", self.now[:, stage].max(axis=1, keepdims=True), False, 0)
                    self.stamps[ours, step, operation.at] = self.now[0, stage].ravel()
        self.ends[:, step] = self.now.max(axis=(1, 2, 3))

    def _ranks(self, stage: int) -> slice:
        size = self.mesh.dp * self.mesh.tp
        return slice(stage * size, (stage + 1) * size)

    def _took(self, step: int, generator: np.random.Generator) -> list[list[Int64]]:
        """The own work of this step [stage][piece], ns [case, replica, part]."""
        model, mesh = self.model, self.mesh
        together = np.exp(generator.normal(0, model.common))
        experts = np.ones(mesh.dp) if not len(model.experts) else np.resize(model.experts, mesh.dp)
        took = []
        for stage, pieces in enumerate(self.pieces):
            factor = together * (model.stages[stage] if len(model.stages) else 1.0)
            noise = 1 + model.spread * generator.standard_normal((len(pieces), mesh.dp, mesh.tp))
            its = []
            for piece, by_place in zip(pieces, noise, strict=True):
                whole = piece.ns * factor * by_place * (experts[:, None] if piece.of_experts else 1.0)
                its.append(np.repeat(np.maximum(np.rint(whole), 1000).astype(np.int64)[None], len(self.now), axis=0))
            took.append(its)
        for number, delay in enumerate(self.delays):
            if delay.steps is not None and not delay.steps[step]:
                continue
            for rank in delay.ranks:
                stage, replica, part = mesh.place(rank)
                late = [at for at, piece in enumerate(self.pieces[stage]) if piece.phase == delay.phase]
                for at in late:
                    longer = delay.ns // len(late) + (delay.ns % len(late) if at == late[0] else 0)
                    has = np.arange(len(self.now)) != 1 + number
                    has[-1] = False
                    took[stage][at][has, replica, part] += longer
        return took

    def _wait(self, stage: int, step: int, call: _Call) -> tuple[Int64, Int64]:
        """A stage waits for the result of a call; when it begins to, and when it has it, in the first case."""
        called = self._called[stage, call.at]
        link_ns, sends_eagerly = 0, False
        if call.link is None:
            needed = self._last(stage, call, called)
        elif (peer := self.peers[stage][call]) is None:
            needed, sends_eagerly = called, True
        else:
            needed = np.maximum(called, self._called[peer[0], peer[1].at])
            link_ns = self.model.links.get(call.link, 0)
        return self._leave(stage, step, call.dimension, needed, sends_eagerly, link_ns)

    def _last(self, stage: int, call: _Call, called: Int64) -> Int64:
        """The latest arrival of each rank's group, [case, replica, part]."""
        if call.dimension == "tp":
            return np.broadcast_to(called.max(axis=2, keepdims=True), called.shape)
        if call.dimension == "dp":
            return np.broadcast_to(called.max(axis=1, keepdims=True), called.shape)
        if call.dimension == "ep":
            of_experts = called.reshape(len(called), -1, self.mesh.ep, self.mesh.tp)
            last = of_experts.max(axis=2, keepdims=True)
            return np.broadcast_to(last, of_experts.shape).reshape(called.shape)
        awaited = [self._called[at, each.at] for at, each in _awaited(self.programs, stage, call)]
        last = np.max(awaited, axis=(0, 2, 3))[:, None, None]
        return np.broadcast_to(last, called.shape)

    def _leave(
        self, stage: int, step: int, dimension: str, needed: Int64, sends_eagerly: bool, link_ns: int
    ) -> tuple[Int64, Int64]:
        waits = self.now[:, stage].copy()
        transfer = SEND_NS if sends_eagerly else self.model.transfers[dimension] + link_ns
        self.now[:, stage] = np.maximum(waits, needed + transfer)
        begin, end = waits[0], self.now[0, stage].copy()
        waited = np.maximum(0, np.minimum(end, np.broadcast_to(needed, waits.shape)[0]) - begin)
        at = self.dimensions.index(dimension)
        self.waited[self._ranks(stage), step, at] += waited.ravel()
        self.exposed[self._ranks(stage), step, at] += (end - begin - waited).ravel()
        return begin, end


def _is_reduction(call: _Call) -> bool:
    return call.dimension == "dp" and call.name == "all-reduce"
