"""Checks of a run with a fault: a right outcome, no measurement lost, none made twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc.model.files import AttemptFiles
from hpc.model.outcome import Outcome
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from hpc.recovery.folders import attempt_folders
from tests.processes import Process, processes
from tests.torture.checks import Attempt, attempts_of, half_files, local_files
from tests.torture.truth import too_many
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import STORAGE

OnNode = Callable[[str], Path]
POSSIBLE = frozenset({Outcome.OK, Outcome.RANK_FAIL, Outcome.LAUNCH_FAIL})
"""The possible outcomes of an attempt in which a call failed: it was not ended, nothing was lost."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The steps that the ranks of a run completed by their own account: attempt → (process, rank) → steps."""

    steps: Mapping[int, Mapping[tuple[int, int], int]]
    ranks: int
    planned: int

    def is_complete(self, attempt: int) -> bool:
        """Whether every rank of this attempt completed every step."""
        done = self.steps.get(attempt, {})
        return {rank for _, rank in done} == set(range(self.ranks)) and set(done.values()) == {self.planned}

    def completed(self, attempt: int) -> dict[int, int]:
        """The steps that the ranks of this attempt completed, by rank."""
        return {rank: steps for (_, rank), steps in self.steps.get(attempt, {}).items()}

    @property
    def complete(self) -> list[int]:
        """The attempts that were measured to the end."""
        return [attempt for attempt in sorted(self.steps) if self.is_complete(attempt)]


def read_truth(folder: Path, *, ranks: int, planned: int) -> Truth:
    """The accounts in the folder; see fault_workload."""
    steps: dict[int, dict[tuple[int, int], int]] = {}
    for path in folder.glob("*.steps"):
        attempt, pid, rank = map(int, path.name.removesuffix(".steps").split("."))
        steps.setdefault(attempt, {})[pid, rank] = path.stat().st_size
    return Truth(steps=steps, ranks=ranks, planned=planned)


def check_run(
    traces: Path, run_id: str, truth: Truth, *, ranks_met_the_fault: bool, on_node: OnNode,
    possible: Collection[Outcome] = POSSIBLE,
) -> tuple[list[Attempt], list[str]]:  # fmt: skip
    """The attempts of the only run in the traces, and their faults.

    `on_node` says where this process finds HOST:PATH of a node; see `path_on`.
    """
    attempts = [attempt for attempt in attempts_of(traces) if attempt.begin.run_id == run_id]
    wrong: list[str] = []
    for attempt in attempts:
        wrong += check_attempt(traces, attempt, truth, ranks_met_the_fault, on_node, possible)
    if not attempts:
        wrong.append("no attempt was begun")
    if unknown := set(truth.steps) - {attempt.begin.attempt for attempt in attempts}:
        wrong.append(f"ranks ran in attempts {sorted(unknown)}, of which nothing is recorded")
    if len(truth.complete) > 1:
        wrong.append(f"measured {len(truth.complete)} times: attempts {truth.complete}")
    wrong += [f"left in the traces: {name}" for name in half_files(traces)]
    return attempts, wrong


def check_attempt(
    traces: Path, attempt: Attempt, truth: Truth, ranks_met_the_fault: bool, on_node: OnNode,
    possible: Collection[Outcome] = POSSIBLE,
) -> list[str]:  # fmt: skip
    """The faults of one attempt."""
    number, record = attempt.begin.attempt, attempt.record
    if record is None:
        return [f"attempt {number} has no exit record"]
    wrong = [] if record.evidence else [f"attempt {number} is {record.outcome} without evidence"]
    if record.outcome not in possible:
        wrong.append(f"attempt {number} is {record.outcome}, and nobody ended it")
    path = AttemptFiles(traces, attempt.begin.run_id, number).trace
    measured = truth.is_complete(number)
    if measured and not is_whole(path, truth):
        wrong += check_local_trace(record.local_copies, truth, number, on_node)
    if record.outcome is Outcome.OK and not measured:
        wrong.append(f"attempt {number} is ok, and its ranks completed {truth.steps.get(number)}")
    if record.outcome is Outcome.OK and not is_whole(path, truth):
        wrong.append(f"attempt {number} is ok, and its trace is not whole")
    if measured and record.outcome is not Outcome.OK and not ranks_met_the_fault:
        wrong.append(f"attempt {number} is {record.outcome}, and all ranks completed all steps: {record.evidence[:1]}")
    if measured and record.outcome is not Outcome.OK and path.exists() and read_trace(path).outcome is Outcome.OK:
        wrong.append(f"attempt {number} is {record.outcome}, and its trace is whole and says ok: {record.evidence[:1]}")
    if record.outcome is not Outcome.OK and not measured and (more := too_many(attempt.steps, truth.completed(number))):
        wrong.append(f"attempt {number} has steps of ranks {more} that were never completed")
    return wrong


def is_whole(path: Path, truth: Truth) -> bool:
    """Whether this is a trace of all steps of all ranks."""
    return path.exists() and read_trace(path).steps_completed.tolist() == [truth.planned] * truth.ranks


def path_on(cluster: DevCluster | None) -> OnNode:
    """A function that maps HOST:PATH of this machine, or of a node of the cluster, to a path of this process."""

    def path(place: str) -> Path:
        node, _, name = place.partition(":")
        return Path(name) if cluster is None else cluster.local_storage(node) / Path(name).relative_to(STORAGE)

    return path


def check_local_trace(place: str, truth: Truth, number: int, on_node: OnNode) -> list[str]:
    """The fault of the node-local place, HOST:PATH, where a record says that the trace is."""
    if not place:
        return [f"attempt {number} lost: all ranks completed all steps, no trace has them, the record names no other"]
    try:
        return [] if is_whole(on_node(place), truth) else [f"attempt {number} lost: no whole trace is at {place}"]
    except TraceError as error:
        return [f"attempt {number} lost: {error}"]


def left_on_this_node(traces: Path, attempts: Collection[Attempt]) -> list[str]:
    """Folders of attempts that stayed in node-local storage, but for those that a record names."""
    return [
        str(folder)
        for attempt in attempts
        for folder in attempt_folders(traces, attempt.begin.stem)
        if attempt.record is None or str(folder) not in attempt.record.local_copies
    ]


def left_on_nodes(cluster: DevCluster, attempts: Collection[Attempt]) -> list[str]:
    """The same of the nodes of a development cluster."""
    names = [attempt.begin.stem for attempt in attempts]
    places = {attempt.record.local_copies for attempt in attempts if attempt.record and attempt.record.local_copies}
    paths = [path for path in local_files(cluster) if any(name in path for name in names)]
    return [path for path in paths if not any(path.partition(":")[2] in place for place in places)]


def processes_of(folder: Path) -> list[str]:
    """Processes that have the trial's folder in their command line or environment."""
    return [f"{process.pid} {' '.join(process.words)[:120]}" for process in _processes_of(folder)]


def ranks_of(folder: Path) -> list[str]:
    """The ranks among them, by their numbers."""
    return [str(process.pid) for process in _processes_of(folder) if process.words[1:3] == ("-m", "hpc.rank")]


def _processes_of(folder: Path) -> Iterator[Process]:
    for process in processes():
        if any(str(folder) in text for text in (*process.words, *process.environ)):
            yield process
