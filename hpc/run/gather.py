"""Brings what every rank recorded to rank 0, which writes the trace."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc.backends import options_of_run
from hpc.measure.clock import GlobalClock
from hpc.measure.meetings import Meetings, input_record_of
from hpc.model.files import TracesFolder, host_path
from hpc.model.groups import Call, CallTable, calls_as_json, calls_of_json
from hpc.model.options import INPUT_FIGURES, LOADER_FIGURES
from hpc.model.outcome import Outcome
from hpc.model.spec import COLLECTIVES, RunSpec
from hpc.model.timestamps import ABSENT, DEVICE_PHASES, MEETING_STAMPS, STAMPS
from hpc.model.trace import RankReport, Telemetry, Trace, TraceError
from hpc.model.trace_file import TraceUnwritable, write_trace
from hpc.model.training import TrainingHistory
from hpc.node_agent.agent import NodeAgent, Recording
from hpc.recovery.folders import JournalError, in_attempt_folder
from hpc.recovery.journal import Journal, name_ranks
from hpc.run.data_replicas import DataReplicas, count_once
from hpc.run.rank_state import attempted
from hpc.system.environment import describe_project, in_common
from hpc.system.job_facts import describe_job
from hpc.system.sanitize import exception_text, without_secrets
from hpc.system.text import first_of, grouped, plural
from hpc.system.version import code_version
from hpc.workloads.delay import PHASES

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

    Array = npt.NDArray[Any]

WAITS_S = (1.0, 4.0, 15.0)
"""Seconds before each further try to write a trace, if the file system does not answer."""
MAX_NUMBERS = 1 << 26
"""The maximum of numbers in the telemetry of a trace (half a GiB): beyond that every node leaves out samples."""
MAX_MEETING_BYTES = 1 << 30
"""The maximum of the time stamps of collectives inside steps in a trace."""
MAX_SKIPPED_NAMED = 3
"""The maximum of files that the evidence names; the facts of the ranks have more."""
_TELEMETRY_TAG = 79
# What a server that restarts, a stale handle and a mount that is gone look like. Room and rights do not come back so.
_MAY_COME_BACK = frozenset(
    {errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOENT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN}
)


@dataclass(frozen=True, kw_only=True)
class RankPayload:
    """One rank's contribution to the trace.

    `losses` returns the losses of all steps, `workload` may have `injected_ns` (int64 [step, phase]), `meetings` are
    the collectives inside the steps, `agent` is the helper of this rank's node if this rank started it, `history` is
    that of a whole training. These are optional in a trace: `problems` has the reason for each that is missing. Of a
    script there are the first `steps` steps with the measured `blocks`, no losses (None), `loader_ns` by
    LOADER_FIGURES, and `host_bound_ns` [step, phase], how long the host set its device's pace. `by_rank`: the trace has
    the calls of each rank, although all may call the same.
    `of_node_alone`: what the agent read of its ranks is of other processes than those that train. Rank 0 knows the
    `replicas`, whose samples count once; None: each rank reads its own.
    """

    journal: Journal
    clock: GlobalClock
    report: RankReport
    losses: Callable[[], Sequence[float]] | None
    workload: Any
    meetings: Meetings | None
    agent: NodeAgent | None
    problems: dict[str, str]
    history: TrainingHistory | None = None
    steps: int
    blocks: Sequence[Sequence[int]]
    loader_ns: Sequence[Sequence[int]] | None = None
    host_bound_ns: Sequence[Sequence[int]] | None = None
    by_rank: bool = False
    of_node_alone: bool = False
    replicas: DataReplicas | None = None


def write_gathered(
    comm: Communicator, run: RunSpec, attempt: int, payload: RankPayload, folder: TracesFolder, script: str,
    cancelled: str = "",
) -> None:  # fmt: skip
    """Rank 0 writes the trace of an attempt that ended `ok`. Collective: all ranks return when it is on the disk.

    `cancelled` has how a script ended that a signal has ended: its trace is one of what was made until then.

    A failure in an optional part does not lose the trace: the part is missing, and facts and evidence state the reason.
    """
    points, problems = payload.clock.points, payload.problems
    steps, losses_of = payload.steps, payload.losses
    losses = nothing = np.full(steps, np.nan)
    if losses_of is not None:
        losses = attempted(problems, "losses", lambda: _as_losses(losses_of(), steps), nothing)
    recording = _recorded(payload)
    arrays: dict[str, Array] = {
        "stamps": np.frombuffer(payload.journal.stamps, np.int64).reshape(-1, len(STAMPS))[:steps],
        "samples": np.frombuffer(payload.journal.samples, np.int64)[:steps].astype(np.int32),
        "losses": losses,
        "clock_local_ns": np.array([point.local_ns for point in points], np.int64),
        "clock_offset_ns": np.array([point.offset_ns for point in points], np.float64),
        "clock_bound_ns": np.array([point.bound_ns for point in points], np.float64),
        "barrier_exits_ns": np.array(payload.clock.barrier_exits_ns, np.int64),
        "unix_offset_ns": np.array([offset_ns for offset_ns, _ in payload.clock.unix_offsets_ns], np.int64),
        "unix_bound_ns": np.array([bound_ns for _, bound_ns in payload.clock.unix_offsets_ns], np.int64),
    }
    injected_ns = attempted(problems, "injected_ns", lambda: _injected(payload.workload, steps), None)
    if all(comm.allgather(injected_ns is not None)):
        assert injected_ns is not None
        arrays["injected_ns"] = injected_ns
    meetings, width, calls = _meetings(comm, payload)
    if meetings is not None:
        its = np.frombuffer(meetings.stamps, np.int64).reshape(steps, len(meetings.names), len(MEETING_STAMPS))
        arrays["meetings"] = np.full((steps, width, len(MEETING_STAMPS)), ABSENT)
        arrays["meetings"][:, : len(meetings.names)] = its
    input_names, figures = _input(payload)
    if all(comm.allgather(figures is not None)):
        assert figures is not None
        arrays["input"] = figures
    if any(comm.allgather(payload.host_bound_ns is not None)):
        arrays["host_bound_ns"] = _host_bound(payload)
    gathered: dict[str, Any] = {name: _gather(comm, array) for name, array in arrays.items()}
    telemetry = attempted(problems, "telemetry", lambda: gather_telemetry(comm, recording), None)
    everyone = comm.gather(_encoded(payload, recording, comm.rank))
    if comm.rank == 0:
        assert everyone is not None
        count_once(gathered["samples"], payload.replicas, run.rank_batch_size * (run.tokens_per_sample or 1))
        described = [json.loads(text) for text in everyone]
        names_of: dict[str, Any] = {
            "input_names": input_names if "input" in gathered else (),
            "host_bound_phases": DEVICE_PHASES if "host_bound_ns" in gathered else (),
        }
        if calls is not None:
            names_of["calls"] = calls
        elif meetings is not None:
            names_of |= {"meeting_names": meetings.names, "meeting_roots": meetings.roots}
        others = {
            "telemetry": telemetry, "history": payload.history, "script": script,
            "blocks": np.array(payload.blocks, np.int64), "steps_completed": np.full(comm.size, steps, np.int64),
        }  # fmt: skip
        has_losses = payload.losses is not None and run.diagnostic != COLLECTIVES
        trace = _trace(run, attempt, described, {**others, **names_of, **gathered}, has_losses, cancelled)
        try:
            write_or_keep(folder, trace)
        except TraceError:
            raise
        except Exception as error:  # noqa: BLE001 - a value that HDF5 cannot store must not lose the measurement
            traceback.print_exc()
            write_or_keep(folder, _without_decoration(trace, error))
    comm.Barrier()


def _recorded(payload: RankPayload) -> Recording | None:
    """The telemetry of this rank's node, where it started the helper."""
    if payload.agent is None:
        return None
    recording = attempted(payload.problems, "telemetry", payload.agent.stop_telemetry, None)
    return recording.of_node() if recording is not None and payload.of_node_alone else recording


def _input(payload: RankPayload) -> tuple[Sequence[str], Array | None]:
    """What is recorded of this rank's input, int64 [step, figure], with the names of the figures; None: nothing."""
    if payload.loader_ns is not None:
        return LOADER_FIGURES, np.array(payload.loader_ns, np.int64).reshape(payload.steps, len(LOADER_FIGURES))
    record = input_record_of(payload.workload)
    if record is None:
        return (), None
    return INPUT_FIGURES, np.frombuffer(record.figures, np.int64).reshape(payload.steps, len(INPUT_FIGURES))


def _host_bound(payload: RankPayload) -> Array:
    """How long the host set the pace of this rank's device, int64 [step, phase]; absent where that is not known."""
    shape = payload.steps, len(DEVICE_PHASES)
    if payload.host_bound_ns is None:
        return np.full(shape, ABSENT, np.int64)
    return np.array(payload.host_bound_ns, np.int64).reshape(shape)


def _meetings(comm: Communicator, payload: RankPayload) -> tuple[Meetings | None, int, CallTable | None]:
    """The meetings of this rank, in an amount that a trace can hold; how many a step has in it; and on rank 0, where
    ranks call different ones, or in groups, the table of the calls of all. Collective."""
    meetings = payload.meetings
    if meetings is not None:
        meetings.finish()
    called = None if meetings is None else [*map(Call, meetings.names, meetings.roots, meetings.groups)]
    everyone, width, problem, table = comm.gather(calls_as_json(called)), 0, "", None
    if everyone is not None:
        known = {text: calls_of_json(text) for text in {*everyone}}
        width = max(len(its or ()) for its in known.values())
        size = comm.size * payload.steps * width * len(MEETING_STAMPS) * np.dtype(np.int64).itemsize
        in_groups = any(call.group for its in known.values() for call in its or ())
        if None in known.values() or not (width or payload.by_rank):
            width = ABSENT
        elif size > MAX_MEETING_BYTES:
            problem = (
                f"{width} collectives in each of {payload.steps} steps on {comm.size} ranks would be {size} "
                f"bytes, of which a trace holds up to {MAX_MEETING_BYTES}"
            )
        elif payload.by_rank or in_groups or len(known) > 1:
            table = CallTable.of([known[text] or () for text in everyone])
    width, problem = comm.bcast((width, problem))
    if problem:
        payload.problems["meetings"] = problem
    if meetings is None or width == ABSENT or problem:
        return None, 0, None
    return meetings, width, table


def _as_losses(losses: Sequence[float], steps: int) -> Array:
    array = np.array(losses, np.float64)
    if array.shape != (steps,):
        raise ValueError(f"losses have the shape {list(array.shape)}; {steps} steps were made")
    return array


def _injected(workload: Any, steps: int) -> Array | None:
    """The sleeps of a workload that sleeps; None where it is another that has something by that name."""
    injected = getattr(workload, "injected_ns", None)
    fits = isinstance(injected, np.ndarray) and injected.dtype == np.int64 and injected.shape == (steps, len(PHASES))
    return injected if fits else None


def _encoded(payload: RankPayload, recording: Recording | None, rank: int) -> str:
    """The rank's clock domain, its facts and its problems as JSON."""
    report, problems = payload.report, payload.problems
    if payload.agent is not None and payload.agent.copying is not None:
        report = replace(report, copies=attempted(problems, "copies", payload.agent.copy_facts, None))
    if recording is not None:
        report = replace(report, telemetry=recording.facts)
    if (record := input_record_of(payload.workload)) is not None:
        report = replace(report, input=record.as_json())
    facts = attempted(problems, "facts", lambda: json.dumps(report.as_json(), default=str), json.dumps({"rank": rank}))
    return json.dumps([payload.clock.domain, json.loads(facts), problems])


def _trace(
    run: RunSpec, attempt: int, described: Sequence[Any], gathered: Mapping[str, Any], has_losses: bool,
    cancelled: str,
) -> Trace:  # fmt: skip
    """The trace of what all ranks brought; `described` is by rank what `_encoded` returned."""
    facts = [{**facts, "problems": problems} if problems else facts for _, facts, problems in described]
    problems: dict[str, str] = {}
    unknown: dict[str, Any] = {}
    shared, ranks = attempted(problems, "environment", lambda: in_common(facts), (unknown, facts))
    environment = {
        **shared,
        "options": options_of_run(run),
        "job": attempted(problems, "job", lambda: describe_job(os.environ), unknown),
        "project": attempted(problems, "project", describe_project, unknown)
        | {"code": attempted(problems, "code", code_version, None)},
    }
    of_ranks = [problems_of_rank for _, _, problems_of_rank in described]
    losses_known = has_losses and not any("losses" in names for names in of_ranks)
    sentences = [_odd_losses(gathered["losses"])] if losses_known else []
    sentences += _skipped([report for _, report, _ in described])
    sentences += _remarks([report for _, report, _ in described])
    sentences += _helper_problems([report for _, report, _ in described])
    if (history := gathered["history"]) is not None:
        sentences += [f"no checkpoint {error}" for error in history.checkpoint_errors]
    sentences += _missing([*enumerate(of_ranks), (0, problems)])
    return Trace(
        run=run,
        attempt=attempt,
        outcome=Outcome.CANCELLED if cancelled else Outcome.OK,
        evidence="; ".join(filter(None, (cancelled, *sentences))),
        recovered=bool(cancelled),
        clock_domains=[domain for domain, _, _ in described],
        injected_phases=PHASES if "injected_ns" in gathered else (),
        ranks=ranks,
        environment={**environment, **({"problems": problems} if problems else {})},
        **gathered,
    )


def _skipped(reports: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence about the files that ranks could not decode and left out, if there are any."""
    skips, files = 0, {}
    for report in reports:
        of_rank = report.get("input") or {}
        skips += of_rank.get("skips", 0)
        files.update(of_rank.get("skipped", {}))
    if not skips:
        return []
    named = first_of([f"{name} ({reason})" for name, reason in files.items()], MAX_SKIPPED_NAMED)
    return [f"{plural(skips, 'image')} in batches could not be decoded, skipped: {named}"]


def _remarks(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each remark on what a script did, with its ranks."""
    ranks = grouped(
        (remark, rank)
        for rank, report in enumerate(reports)
        for remark in (report.get("script") or {}).get("remarks", ())
    )
    return [f"{name_ranks(of_remark)}: {remark}" for remark, of_remark in ranks.items()]


def _helper_problems(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each reason why a node's helper did not do all of its work, with what lacks, and the nodes."""
    lacking: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for report in reports:
        for part, name in (("telemetry", "telemetry"), ("copies", "copies of the time stamps")):
            if problem := (report.get(part) or {}).get("problem"):
                parts, hosts = lacking.setdefault(problem, ({}, {}))
                parts[name] = hosts[str(report.get("hostname", "?"))] = None
    return [
        f"{' and '.join(parts)} incomplete on {first_of([*hosts], MAX_SKIPPED_NAMED)} (the helper {problem})"
        for problem, (parts, hosts) in lacking.items()
    ]


def _missing(problems: Iterable[tuple[int, Mapping[str, str]]]) -> list[str]:
    """A sentence for each missing part, with its ranks; `problems` has pairs of rank and problems by name."""
    ranks = grouped((problem, rank) for rank, of_rank in problems for problem in of_rank.items())
    return [f"{part} missing on {name_ranks(of_part)} ({reason})" for (part, reason), of_part in ranks.items()]


def _without_decoration(trace: Trace, error: Exception) -> Trace:
    """The same measurement without facts, environment, telemetry and script; the evidence states the error."""
    reason = f"facts, environment, telemetry and script missing ({type(error).__name__}: {exception_text(error)})"
    return replace(
        trace, ranks=[{"rank": rank} for rank in range(len(trace.ranks))], environment={}, telemetry=None, script="",
        evidence="; ".join(filter(None, (trace.evidence, reason))),
    )  # fmt: skip


class TraceKept(TraceError):
    """The trace could not be written to its place; `local_copy` is its HOST:PATH, empty if there is none."""

    def __init__(self, text: str, local_copy: str) -> None:
        super().__init__(text)
        self.local_copy = local_copy


def write_or_keep(folder: TracesFolder, trace: Trace, waits_s: Sequence[float] = WAITS_S) -> None:
    """Writes the trace; tries again, after these waits, where a file system may come back.

    Where every try fails, whatever the reason, the trace is written to the attempt's folder on this node. Raises
    TraceKept then.
    """
    name = f"{folder.stem}.h5"
    for wait_s in (*waits_s, None):
        try:
            _write_to(folder, name, trace)
            return
        except TraceError as error:
            failure = error
        if wait_s is None or not isinstance(failure, TraceUnwritable) or failure.error.errno not in _MAY_COME_BACK:
            break
        print(f"{without_secrets(str(failure))}; tried again in {wait_s:g} s", file=sys.stderr, flush=True)
        sleep(wait_s)

    def write_here(local: Path) -> Path:
        try:
            write_trace(local / name, trace)
        except TraceUnwritable as error:
            raise OSError(error.error.errno, error.error.strerror, str(local / name)) from error
        return local / name

    try:
        local = in_attempt_folder(folder.path, folder.stem, "the trace", write_here)
    except JournalError as error:
        raise TraceKept(f"{failure}; nor to this node: {error}", "") from failure
    raise TraceKept(f"{failure}; the whole trace is kept at {host_path(local)}", host_path(local)) from failure


def _write_to(folder: TracesFolder, name: str, trace: Trace) -> None:
    try:
        folder.require()
    except OSError as error:
        raise TraceUnwritable(folder.path / name, error) from error
    write_trace(folder.path / name, trace)


def _gather(comm: Communicator, array: Array) -> Array | None:
    """[…] of every rank to [rank, …] on rank 0."""
    everyone = np.empty((comm.size, *array.shape), array.dtype) if comm.rank == 0 else None
    comm.Gather(np.ascontiguousarray(array), everyone)
    return everyone


def gather_telemetry(comm: Communicator, recording: Recording | None) -> Telemetry | None:
    """The telemetry of all nodes, on rank 0; None on other ranks, and where no helper read anything. Collective.

    Nodes are in the order of the ranks that recorded. A series that only some nodes have is NaN for the others. Raises
    MemoryError on rank 0 alone, where the recordings do not fit into memory; no rank sends anything then.
    """
    usable = recording if recording is not None and len(recording.local_ns) else None
    sizes = comm.gather(None if usable is None else (usable.series, len(usable.local_ns)))
    recorded = {} if sizes is None else {rank: size for rank, size in enumerate(sizes) if size is not None}
    series = tuple(dict.fromkeys(name for names, _ in recorded.values() for name in names))
    longest = max((samples for _, samples in recorded.values()), default=0)
    every = max(1, -(-len(recorded) * longest * len(series) // MAX_NUMBERS))
    failure: MemoryError | None = None
    try:
        local_ns = np.full((len(recorded), -(-longest // every)), ABSENT, np.int64)
        values = np.full((*local_ns.shape, len(series)), np.nan)
    except MemoryError as error:
        every, failure = 0, error
    every = int(comm.bcast(every))
    if usable is not None and comm.rank != 0 and every:
        comm.Send(np.ascontiguousarray(usable.local_ns[::every]), 0, _TELEMETRY_TAG)
        comm.Send(np.ascontiguousarray(usable.values[::every]), 0, _TELEMETRY_TAG)
    if failure is not None:
        raise failure
    if not recorded:
        return None
    for node, (rank, (names, samples)) in enumerate(recorded.items()):
        count = -(-samples // every)
        if rank == 0:
            assert usable is not None
            rows_ns, rows = usable.local_ns[::every], usable.values[::every]
        else:
            rows_ns, rows = np.empty(count, np.int64), np.empty((count, len(names)))
            comm.Recv(rows_ns, rank, _TELEMETRY_TAG)
            comm.Recv(rows, rank, _TELEMETRY_TAG)
        local_ns[node, :count] = rows_ns
        values[node, :count, [series.index(name) for name in names]] = rows.T
    return Telemetry(ranks=np.array(list(recorded), np.int64), local_ns=local_ns, values=values, series=series)


def _odd_losses(losses: Array) -> str:
    """Reports steps with a loss that is not a number: the speed is valid, the training is not."""
    odd = ~np.isfinite(losses)
    if not odd.any():
        return ""
    ranks = np.flatnonzero(odd.any(axis=1))
    step = int(np.flatnonzero(odd.any(axis=0))[0])
    return f"the loss is not finite on {len(ranks)} of {len(losses)} ranks, first in step {step}"
