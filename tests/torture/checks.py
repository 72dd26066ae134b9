"""Checks of a run that was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc.model.files import AttemptFiles
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RecordError, read_begin_record, read_exit_record
from hpc.model.trace_file import read_trace
from tests.torture.kills import Kind
from tests.torture.truth import Life, Loss, lost, read_life, too_many
from tools.devcluster.cluster import DevCluster
from tools.devcluster.processes import Processes

COPY_S = 1.0
LATE_S = 10.0
"""A copy may come so much later than it should: the machine has few cores, and everything of it is busy."""
_DAEMONS = frozenset({"slurmctld", "slurmd", "slurmscriptd", "unshare"})


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The files of one attempt in the traces; `steps` is its trace's steps by rank, empty where it has none, and
    `evidence` what it says of its end."""

    begin: BeginRecord
    record: ExitRecord | None
    steps: dict[int, int]
    recovered: bool
    evidence: str = ""


def attempts_of(traces: Path) -> list[Attempt]:
    """All attempts that were begun, in order. Raises TraceError or RecordError where a file is not whole.

    Of an attempt whose begin record was lost the exit record has what is known.
    """
    stems = {path.name.rsplit(".", 2)[0] for kind in ("begin", "exit") for path in traces.glob(f"*.{kind}.json")}
    begins = [_begin(AttemptFiles.of_stem(traces, stem)) for stem in stems]
    return [_attempt(traces, begin) for begin in sorted(begins, key=lambda begin: begin.attempt)]


def _begin(files: AttemptFiles) -> BeginRecord:
    try:
        return read_begin_record(files.begin_record)
    except RecordError:
        if not files.exit_record.exists():
            raise
    record = read_exit_record(files.exit_record)
    return BeginRecord(
        run_id=record.run_id, attempt=record.attempt, job_id=record.job_id, begin_unix_s=record.begin_unix_s
    )


def _attempt(traces: Path, begin: BeginRecord) -> Attempt:
    name = begin.stem
    record, trace = traces / f"{name}.exit.json", traces / f"{name}.h5"
    read = read_trace(trace) if trace.exists() else None
    return Attempt(
        begin=begin,
        record=read_exit_record(record) if record.exists() else None,
        steps={} if read is None else dict(enumerate(read.steps_completed.tolist())),
        recovered=read is not None and read.recovered,
        evidence="" if read is None else read.evidence,
    )


def check_killed(
    kind: Kind, attempt: Attempt, life: Life, killed_s: float, copied: Mapping[int, int]
) -> tuple[Loss, list[str]]:
    """The loss of a killed attempt, and its faults; `copied` is the steps by rank that had been copied to the traces
    before."""
    loss, wrong = lost(life, attempt.steps, killed_s), _check_record(attempt)
    if attempt.record is not None and attempt.record.outcome not in kind.outcomes:
        wrong.append(f"outcome {attempt.record.outcome}, not {' or '.join(sorted(kind.outcomes))}")
    if more := too_many(attempt.steps, life.steps):
        wrong.append(f"the trace knows steps that ranks {more} never completed")
    if kind.exact and loss.steps > 1:
        wrong.append(f"{loss.steps} steps lost, though the nodes live")
    if less := [rank for rank, steps in copied.items() if attempt.steps.get(rank, 0) < steps]:
        wrong.append(f"of ranks {less} more had been copied than the trace knows")
    if loss.age_s > COPY_S + LATE_S:
        wrong.append(f"a step lost that was completed {loss.age_s:.1f} s before")
    if attempt.steps and not attempt.recovered and not kind.saves:
        wrong.append("the trace does not say that it was recovered")
    return loss, wrong


def check_saved(attempt: Attempt, life: Life, truth: Path) -> list[str]:
    """The faults of a script that was signalled: each rank has a checkpoint of all its steps and has got each signal
    once; the trace is whole, of the steps that all ranks made, and the record says which signal ended them."""
    wrong = []
    for rank, made in sorted(life.steps.items()):
        (got,), saved = truth.glob(f"*.{rank}.got"), list(truth.glob(f"*.{rank}.saved"))
        if [path.read_text() for path in saved] != [str(made)]:
            wrong.append(f"rank {rank} made {made} steps and no checkpoint of them")
        signals = got.read_text().split()
        if len(set(signals)) != len(signals):
            wrong.append(f"rank {rank} got {' '.join(signals)}")
        if not any(f"by {name}" in attempt.evidence for name in signals):
            wrong.append(f"rank {rank} got {' '.join(signals)}, and the trace says {attempt.evidence!r}")
    if attempt.recovered or set(attempt.steps.values()) != {min(life.steps.values())}:
        wrong.append(f"the trace has steps {attempt.steps} of {life.steps}, recovered: {attempt.recovered}")
    return wrong


def check_later(attempts: list[Attempt], folder: Path, ended_s: float) -> list[str]:
    """The faults of the attempts after the killed one, which were cancelled."""
    wrong = []
    for attempt in attempts:
        wrong += _check_record(attempt)
        # A start of Open MPI's that crashes is a launch_fail.
        if attempt.record is not None and attempt.record.outcome not in (Outcome.CANCELLED, Outcome.LAUNCH_FAIL):
            wrong.append(f"attempt {attempt.begin.attempt} is {attempt.record.outcome}, and was cancelled")
        life = read_life(folder, attempt.begin.job_id, attempt.begin.restart_count)
        if (loss := lost(life, attempt.steps, ended_s)).age_s > COPY_S + LATE_S:
            wrong.append(f"attempt {attempt.begin.attempt} lost a step that was {loss.age_s:.1f} s old")
    return wrong


def _check_record(attempt: Attempt) -> list[str]:
    number = attempt.begin.attempt
    if attempt.record is None:
        return [f"attempt {number} has no exit record"]
    return [] if attempt.record.evidence else [f"attempt {number} is {attempt.record.outcome} without evidence"]


def half_files(traces: Path) -> list[str]:
    """Files that are neither a trace nor a record nor the plan: copies, parts, files beside."""
    whole = (".h5", ".begin.json", ".exit.json", ".rerun", ".hang.json", ".stacks.txt")
    scripts = traces / "scripts"  # the jobs' scripts, for the ranks
    paths = [path for path in traces.rglob("*") if path != scripts]
    names = [path.name for path in paths if path.parent != scripts or path.suffix != ".sh"]
    return [n for n in names if not n.endswith(whole) and not n.startswith("plan.") and ".rank" not in n] + [
        n for n in names if n.endswith((".part", ".new")) or n.startswith(".")
    ]


def local_files(cluster: DevCluster) -> list[str]:
    """Files in the nodes' own storage: journals, shared memory."""
    return [
        f"{node}:{path.relative_to(storage)}"
        for node in cluster.shape.node_names
        for storage in [cluster.local_storage(node)]
        for path in storage.rglob("*")
        if not path.is_dir()
    ]


def processes_left(cluster: DevCluster) -> list[str]:
    """Processes in the cluster that are no daemon's, and children of these that nobody waits for."""
    confs = (str(cluster.conf), str(cluster.root / "login.conf"))
    alive = Processes(confs, own_names=cluster.host.own_names).alive()
    return [f"{pid} {name}" for pid, name in _names(alive) if name not in _DAEMONS] + [
        f"{pid} {name} (zombie)" for pid, name in _zombies(alive)
    ]


def until_none(what: Callable[[], list[str]], seconds: float = 60) -> list[str]:
    """Calls `what` until it returns nothing or the time is over; its last result."""
    limit = time.monotonic() + seconds
    while (items := what()) and time.monotonic() < limit:
        time.sleep(0.05)
    return items


def _names(pids: dict[int, str]) -> Iterator[tuple[int, str]]:
    for pid in pids:
        try:
            yield pid, Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue


def _zombies(parents: dict[int, str]) -> Iterator[tuple[int, str]]:
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            name, _, rest = (path / "stat").read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state == "Z" and int(parent) in parents:
            yield int(path.name), name.partition("(")[2]
