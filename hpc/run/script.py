"""A run of a person's own script: this process keeps clock, journal and watch, and the script trains beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.backends.addresses import endpoints, requested_interface
from hpc.measure.clock import GlobalClock
from hpc.measure.connections import ConnectionLost
from hpc.measure.meetings import Meetings
from hpc.measure.world import LaunchError, World
from hpc.model.files import AttemptFiles
from hpc.model.spec import SCRIPT_STEPS, script_blocks, without_last
from hpc.model.timestamps import ABSENT, GRADS_READY, MEETING_STAMPS, REDUCED, STAMPS
from hpc.model.trace import RankReport
from hpc.model.trace_file import load_hdf5
from hpc.node_agent.agent import NodeAgent, start_agent
from hpc.node_agent.sources import RankProcess
from hpc.observe.events import EVALUATE_OUT, UNCLEAR, EventFileError, read_events, steps_counted
from hpc.observe.stacks import stacks_of
from hpc.observe.steps import ObservedStep, ObservedSteps, steps_of
from hpc.recovery.folders import attempt_folder
from hpc.recovery.journal import Journal, name_ranks
from hpc.run.agreement import Agreement
from hpc.run.gather import RankPayload, write_gathered
from hpc.run.rank_end import (
    EXIT_STATUS,
    NothingMeasured,
    OtherScriptFailed,
    ScriptFailed,
    attempted,
    limit_exit,
    outcome_of,
)
from hpc.system.text import grouped, plural

if TYPE_CHECKING:
    from hpc.run.rank_state import Rank

# The process of a script: started with torchrun's variables and the hooks, ended with all that it has started.

CHECKOUT = Path(__file__).resolve().parents[2]
SITE = CHECKOUT / "hpc" / "observe" / "site"
"""The folder of the sitecustomize that hooks torch once that is imported."""
EVENTS_VARIABLE = "RANKWISE_OBSERVE"
"""Names the folder for the events of every process that the script starts."""
END_PATIENCE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for a script that is to end."""
_POLL_S = 0.02
# Ends with the rank that started it, whatever ends that. The script takes the place of this interpreter.
_START = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class ScriptProcess:
    """A running script. `ended_ns` is when its end was noticed (perf_counter_ns), `status` as of subprocess."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        starter = [sys.executable, "-I", "-S", "-c", _START, str(os.getpid())]
        self._process = subprocess.Popen([*starter, *command], env=dict(environment), process_group=0)
        self.ended_ns = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; -N where signal N ended it."""
        status = self._process.poll()
        if status is not None and not self.ended_ns:
            self.ended_ns = time.perf_counter_ns()
        return status

    def wait(self, seconds: float) -> None:
        """Returns when the script has ended, or after that time."""
        limit = time.monotonic() + seconds
        while self.status is None and (remaining_s := limit - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, remaining_s))

    def end(self, patience_s: float = END_PATIENCE_S) -> None:
        """Ends it, and what it has started: by SIGTERM, and after `patience_s` by SIGKILL."""
        if self.status is None:
            self._send(signal.SIGTERM)
            self.wait(patience_s)
        self._send(signal.SIGKILL)
        self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def describe_status(status: int) -> str:
    """`exit status 7`, `signal 9 (SIGKILL)`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def script_environment(
    inherited: Mapping[str, str], place: Mapping[str, str], events: Path, *, in_job: bool
) -> dict[str, str]:
    """The environment of the script: what this process has, torchrun's variables in `place` where they are not set, and
    the way to the hooks.

    The checkout is left out of its import path, which a job script (`in_job`) has put there, and so is PYTHONSAFEPATH:
    the script imports what it imports without us. Raises LaunchError where RANK or WORLD_SIZE are set to others.
    """
    for name in ("RANK", "WORLD_SIZE"):
        if name in place and inherited.get(name, place[name]) != place[name]:
            raise LaunchError(
                f"{name} is {inherited[name]} in the environment and {place[name]} by MPI: start it by srun or mpirun "
                f"without that variable, not by torchrun or accelerate, which have ranks of their own"
            )
    environment = {**place, **inherited}
    if in_job:
        environment.pop("PYTHONSAFEPATH", None)
    paths = [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in paths if (Path(path) / "hpc").resolve() != CHECKOUT / "hpc"]
    return {**environment, "PYTHONPATH": os.pathsep.join([str(SITE), *others]), EVENTS_VARIABLE: str(events)}


# What the hooks recorded in the processes of a script, as the steps of its rank.

_WIDTH = len(STAMPS)
CollectiveKind = tuple[str, int]
"""Name and root of a collective."""


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """The steps of a rank's script, what the hooks state of it, and how many batches it evaluated."""

    observed: ObservedSteps
    facts: Mapping[str, Any] = field(default_factory=dict)
    evaluated: int = 0

    @property
    def steps(self) -> Sequence[ObservedStep]:
        return self.observed.steps


def count_steps(folder: Path) -> int:
    """The steps that the script has made so far, by the count of its hooks."""
    return max(map(_counted, folder.glob("*.events")), default=0)


def read_steps(folder: Path) -> RankSteps:
    """The steps that the script has made so far. Without any, `observed.reason` is why nothing is measured."""
    paths = sorted(folder.glob("*.events"), key=_counted, reverse=True)
    if not paths:
        reason = "no process of the script imported torch where hooks could see it (python -I and -E keep them out)"
        return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=reason))
    training = [path for path in paths if _counted(path)]
    if len(training) > 1:
        reason = (
            f"{len(training)} processes of one rank's script train, and a rank is one process that trains: "
            "start as many ranks instead (--ranks-per-node)"
        )
        return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=reason))
    try:
        recorded = read_events(paths[0])
    except (EventFileError, OSError) as error:
        return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=str(error)))
    evaluated = sum(event.kind == EVALUATE_OUT for event in recorded.events)
    return RankSteps(observed=steps_of(recorded), facts=recorded.facts, evaluated=evaluated)


def _counted(path: Path) -> int:
    try:
        return steps_counted(path)
    except OSError:  # it is being made
        return 0


def write_steps(journal: Journal, steps: Sequence[ObservedStep], stated: int) -> int:
    """Stores the steps in the journal, as far as it reaches; returns how many it has now.

    `stated` are the samples of a step of which it was not seen how many it takes.
    """
    count = min(len(steps), len(journal.samples))
    for number, step in enumerate(steps[:count]):
        journal.stamps[number * _WIDTH : (number + 1) * _WIDTH] = array("q", step.stamps)
        journal.samples[number] = stated if step.samples is None else step.samples
    return count


def pauses_of(steps: Sequence[ObservedStep]) -> list[dict[str, Any]]:
    """The pauses as facts of the rank: before which step, of what kind, how long, how much of it was waiting for other
    ranks."""
    return [
        {
            "step": number, "kind": step.pause.kind, "seconds": (step.pause.end_ns - step.pause.begin_ns) / 1e9,
            "waited_s": step.pause.waited_ns / 1e9,
        }
        for number, step in enumerate(steps) if step.pause is not None
    ]  # fmt: skip


def waits_at_pauses(steps: Sequence[ObservedStep], paused: Iterable[int]) -> list[dict[str, Any]]:
    """As facts of the rank: how long it waited in collectives while others paused before these steps, but it did not.

    Counted from the reduction of the step before to its own next gradients.
    """
    facts = []
    for number in sorted(paused):
        if 0 < number < len(steps) and steps[number].pause is None:
            since, until = steps[number - 1].stamps[REDUCED], steps[number].stamps[GRADS_READY]
            calls = [*steps[number - 1].collectives, *steps[number].collectives]
            waited_ns = sum(call.waited_ns for call in calls if ABSENT != since <= call.waits_ns <= until)
            facts.append({"step": number, "waited_s": waited_ns / 1e9})
    return facts


def usual_collectives(steps: Sequence[ObservedStep]) -> tuple[CollectiveKind, ...]:
    """The collectives of most of these steps, in the order of their calls."""
    counts = Counter(_kinds(step) for step in steps)
    return counts.most_common(1)[0][0] if counts else ()


def unlike_others(
    steps: Sequence[ObservedStep], blocks: Sequence[Sequence[int]], kinds: Sequence[CollectiveKind]
) -> list[int]:
    """The last steps of blocks with other collectives than `kinds`, and than any step within a block.

    Where a pause follows, or nothing, a step ends with its update: it lacks what others call between that and the next.
    """
    within = {_kinds(steps[at]) for first, stop in blocks for at in range(first, stop - 1)}
    return [stop - 1 for _, stop in blocks if _kinds(steps[stop - 1]) not in within | {tuple(kinds)}]


MAX_PATTERNS = 64
"""Of more different lists of collectives in the steps of a script the most frequent are recorded."""


@dataclass(frozen=True, kw_only=True)
class StepCollectives:
    """Which collectives the steps of all ranks have: `kinds` in their order, of which each step has some, or all;
    `columns` [step] has the places of a step's calls among them, None of a call that is not recorded.

    `unmatched` has, by the reason, steps of which it is not known who waits for whom in all of their collectives.
    """

    kinds: tuple[CollectiveKind, ...]
    columns: Sequence[tuple[int | None, ...]]
    unmatched: Mapping[str, Sequence[int]]


def step_collectives(
    steps: Sequence[Sequence[CollectiveKind]], measured: Collection[int], differing: Collection[int] = ()
) -> StepCollectives:
    """From the collectives of a rank's steps; only those of the `measured` steps are looked for, in others as well.

    `differing` are steps in which ranks call different ones.

    A collective in which it is not known who waits for whom is recorded where most steps have it, so that no rank is
    accused of what they wait in it; one that only some steps have is not.
    """
    alike = [() if number in differing else tuple(kinds) for number, kinds in enumerate(steps)]
    counts = Counter(alike[number] for number in sorted(measured) if number not in differing)
    patterns = [kinds for kinds, _ in counts.most_common(MAX_PATTERNS)]
    usual = {*patterns[0]} if patterns else set()
    joined: tuple[CollectiveKind, ...] = ()
    for kinds in patterns:
        joined = _joined(joined, tuple(kind for kind in kinds if kind[1] != UNCLEAR or kind in usual))
    columns = {kinds: _places(kinds, joined) for kinds in patterns}
    unmatched: dict[str, list[int]] = {}
    for number in sorted(measured):
        kinds = alike[number]
        for name in dict.fromkeys(name for name, root in kinds if root == UNCLEAR and (name, root) not in usual):
            unmatched.setdefault(name, []).append(number)
        if number not in differing and kinds not in columns:
            unmatched.setdefault("collectives of too many different steps", []).append(number)
    if not_alike := sorted({*differing} & {*measured}):
        unmatched["collectives that differ between ranks"] = not_alike
    return StepCollectives(
        kinds=joined, columns=[columns.get(kinds, (None,) * len(kinds)) for kinds in alike], unmatched=unmatched
    )


def _joined(longer: tuple[CollectiveKind, ...], other: tuple[CollectiveKind, ...]) -> tuple[CollectiveKind, ...]:
    """A short list that has both in their order."""
    joined: list[CollectiveKind] = []
    for tag, begin, end, its_begin, its_end in SequenceMatcher(None, longer, other, autojunk=False).get_opcodes():
        joined += longer[begin:end]
        joined += () if tag == "equal" else other[its_begin:its_end]
    return tuple(joined)


def _places(kinds: Sequence[CollectiveKind], joined: Sequence[CollectiveKind]) -> tuple[int | None, ...]:
    """Where each of these is in the list that has them in their order; None for one that it lacks."""
    places: list[int | None] = []
    begin = 0
    for kind in kinds:
        place = joined.index(kind, begin) if kind in joined[begin:] else None
        places.append(place)
        begin = begin if place is None else place + 1
    return tuple(places)


Patterns = tuple[Sequence[Sequence[Any]], Sequence[int]]
"""Different lists of collectives, and by step the number of its own."""


def patterns_of(steps: Sequence[Sequence[CollectiveKind]]) -> Patterns:
    """As a rank tells others which collectives its steps have."""
    numbers: dict[tuple[CollectiveKind, ...], int] = {}
    by_step = [numbers.setdefault(tuple(kinds), len(numbers)) for kinds in steps]
    return [[[name, root] for name, root in kinds] for kinds in numbers], by_step


def differing_steps(steps: Sequence[Sequence[CollectiveKind]], others: Patterns) -> list[int]:
    """The steps that have other collectives than those of another rank."""
    patterns = [tuple((str(name), int(root)) for name, root in kinds) for kinds in others[0]]
    pairs = enumerate(zip(steps, others[1], strict=True))
    return [number for number, (kinds, its) in pairs if tuple(kinds) != patterns[its]]


def meetings_of(steps: Sequence[ObservedStep], collectives: StepCollectives) -> Meetings:
    """The collectives inside the steps; those that a step does not have are absent in it."""
    kinds, width = collectives.kinds, len(MEETING_STAMPS)
    stamps = array("q", [ABSENT]) * (len(steps) * len(kinds) * width)
    for number, (step, columns) in enumerate(zip(steps, collectives.columns, strict=True)):
        for column, call in zip(columns, step.collectives, strict=False):  # of steps that differ there are none
            if column is not None:
                first = (number * len(kinds) + column) * width
                stamps[first : first + width] = array("q", (call.arrives_ns, call.waits_ns, call.ends_ns))
    return Meetings.recorded([name for name, _ in kinds], [root for _, root in kinds], memoryview(stamps))


def early_collectives(steps: Sequence[ObservedStep]) -> list[str]:
    """In words, the collectives that a rank calls before its own gradients are complete, as of most steps."""
    early: Counter[str] = Counter()
    for step in steps:
        complete_ns = step.stamps[GRADS_READY]
        early.update(call.name for call in step.collectives if complete_ns == ABSENT or call.arrives_ns < complete_ns)
    return [f"{count / len(steps):.3g} {name} a step" for name, count in sorted(early.items())]


def _kinds(step: ObservedStep) -> tuple[CollectiveKind, ...]:
    return tuple((call.name, call.root) for call in step.collectives)


LOOK_S = 0.2
"""Seconds between looks at the script."""
CLOCK_S, CLOCK_POINTS = 5.0, 100
"""Seconds between synchronisations of the clocks; after so many of them, and again, they come more rarely."""
JOURNAL_S, JOURNAL_SHARE, JOURNAL_LIMIT_S = 10.0, 20, 30.0
"""Seconds between stores of the steps in the journal: so many times as long as one takes, within these limits."""
STACKS_S = 1.5
"""How long a script may take to write its stacks; the watchdog waits twice as long for those of all ranks."""
_FAILURE_LIMIT_S = 60.0
"""For all ranks to know of a script that failed; then they end by themselves, else the first that sees it ends them."""
_RECOVER = "python -m hpc.recovery.recover"
_RUNS, _ENDED, _FAILED = range(3)


class ScriptOutOfMemory(ScriptFailed, MemoryError):
    """The script failed for want of memory, by its own exception."""


class ScriptRun:
    """A run on this rank. Everything here is collective, and done by all ranks in the same order."""

    def __init__(self, rank: Rank, world: World, report: RankReport) -> None:
        assert rank.comm is not None
        self._rank, self._world, self._comm, self._run = rank, world, rank.comm, rank.run
        if self._comm.rank == 0:
            load_hdf5()
        stem, traces = rank.folder.stem, rank.arguments.traces
        # One step beyond the last, so that a script is not at its end before it has ended (recovery.progress).
        self._journal = rank.journal = Journal(traces, stem, rank.number, self._run.steps, unmeasured=1)
        self._events = attempt_folder(traces, stem) / f"events.rank{rank.number}"
        shutil.rmtree(self._events, ignore_errors=True)  # of a process that was killed, under the same number
        self._events.mkdir(mode=0o700)
        self._clock, self._agreement = GlobalClock(self._comm), Agreement(self._comm)
        if self._journal.passed_over:
            journal = {"folder": str(self._journal.folder), "passed_over": self._journal.passed_over}
            report = replace(report, journal=journal)
        self._report = rank.preflight.built(self._comm, report)
        self._limit = self._run.steps if self._run.steps < SCRIPT_STEPS else 0
        self._process: ScriptProcess | None = None
        self._clock_due_s = self._journal_due_s = 0.0

    def measure(self) -> None:
        """Runs the script to its end, or to the steps that were requested, and writes the trace."""
        self._note()
        self._synchronise()
        self._process = process = ScriptProcess(self._command(), self._environment())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminated)
        if self._rank.stacks is not None:
            self._rank.stacks.add(self._script_stacks)
        agent = self._start_agent(process)
        try:
            failed = self._watch(process)
        except ConnectionLost:
            self._end_early()
            raise
        process.end()
        recorded = self._store_all()
        self._agreement.exchange(0)  # the slowest script may take a while to end
        self._synchronise()
        self._say_remarks(recorded)
        if failed is not None:
            self._fail(failed, process, recorded)
        payload = self._payload(recorded, agent)
        write_gathered(
            self._comm, self._run, self._rank.arguments.attempt, payload, self._rank.folder, self._rank.script
        )
        limit_exit(self._comm.rank)
        last = {
            "removing the events": lambda: shutil.rmtree(self._events),
            "removing the journal": self._journal.remove,
            "removing the copies": None if agent is None else agent.end,
        }
        for what, call in last.items():
            if call is not None:
                attempted({}, what, call, None)

    def _command(self) -> list[str]:
        return [sys.executable, self._run.workload, *self._run.arguments]

    def _environment(self) -> dict[str, str]:
        """torchrun's variables for the script."""
        world, comm = self._world, self._comm
        address, _, port = endpoints(comm, requested_interface(self._run.gpus_per_node > 0))[0].rpartition(":")
        # Simulated nodes are one machine, whose devices all ranks share.
        local = (comm.rank, comm.size) if world.nodes_simulated else (world.local_rank, world.local_size)
        group = (0, 1) if world.nodes_simulated else (world.node_rank, world.nodes)
        place = {
            "RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "LOCAL_RANK": str(local[0]),
            "LOCAL_WORLD_SIZE": str(local[1]), "GROUP_RANK": str(group[0]), "GROUP_WORLD_SIZE": str(group[1]),
            "MASTER_ADDR": address, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": self._run.run_id,
        }  # fmt: skip
        in_job = self._rank.arguments.script is not None
        return script_environment(os.environ, place, self._events, in_job=in_job)

    def _start_agent(self, process: ScriptProcess) -> NodeAgent | None:
        arguments, run = self._rank.arguments, self._run
        partial = AttemptFiles(arguments.traces, run.run_id, arguments.attempt).partial
        return start_agent(
            self._comm, self._world, run, self._report.gpu_uuids, self._journal.folder, partial, arguments.copy_s,
            replace(RankProcess.this_process(), pid=process.pid),
        )  # fmt: skip

    def _watch(self, process: ScriptProcess) -> int | None:
        """Waits for the scripts of all ranks; compares the clocks meanwhile, and keeps the journal.

        Returns the rank whose script failed first, None if none did. Once every script has gone on from its last
        requested step, the watch is over: how they end does not matter.
        """
        while True:
            process.wait(LOOK_S)
            now_s = time.monotonic()
            if now_s >= self._journal_due_s:
                attempted(self._rank.problems, "the journal's latest steps", self._store, None)
            status = process.status
            state = _RUNS if status is None else _FAILED if status else _ENDED
            ended_ns = process.ended_ns + round(self._clock.points[-1].offset_ns)
            table = self._agreement.exchange(state, ended_ns, count_steps(self._events), now_s >= self._clock_due_s)
            states, ends_ns, steps = table[:, :3].T
            self._rank.training = bool(steps.max() > 0)
            if self._limit and steps.min() >= self._limit:
                return None
            if (failed := states == _FAILED).any():
                ends = {int(rank): int(ends_ns[rank]) for rank in failed.nonzero()[0]}
                return min(ends, key=lambda rank: ends[rank])
            if (states == _ENDED).all():
                return None
            if table[0, 3]:
                self._synchronise()

    def _synchronise(self) -> None:
        self._clock.synchronise()
        self._clock_due_s = time.monotonic() + CLOCK_S * (1 + len(self._clock.points) // CLOCK_POINTS)
        attempted(self._rank.problems, "the journal's latest clock", self._note, None)

    def _note(self) -> None:
        self._journal.note(
            run=self._run.to_json(), attempt=self._rank.arguments.attempt, facts=self._report.as_json(),
            clock=self._clock.facts,
        )  # fmt: skip

    def _store(self) -> None:
        """Stores the steps so far, but for the last, which may not be over. Evaluated batches are progress, too."""
        begin_s = time.monotonic()
        recorded = read_steps(self._events)
        write_steps(self._journal, recorded.steps[:-1], self._run.rank_batch_size)
        self._journal.unmeasured[0] = recorded.evaluated
        now_s = time.monotonic()
        self._journal_due_s = now_s + min(max(JOURNAL_S, JOURNAL_SHARE * (now_s - begin_s)), JOURNAL_LIMIT_S)

    def _store_all(self) -> RankSteps:
        """Stores all steps, and what the hooks state; the journal then has what a trace is made of."""
        recorded = read_steps(self._events)
        write_steps(self._journal, recorded.steps, self._run.rank_batch_size)
        self._journal.unmeasured[0] = 0
        observed, facts = recorded.observed, recorded.facts
        early = observed.early_remarks(self._run.warmup_steps)
        script: dict[str, Any] = {
            "arguments": list(self._run.arguments), "absent": dict(observed.absent),
            "remarks": [remark for remark in observed.remarks if remark not in early], "warmup_remarks": list(early),
            "pauses": pauses_of(recorded.steps), "facts": dict(facts),
        }  # fmt: skip
        window = recorded.steps[len(recorded.steps) // 2 :]
        backend = {
            "absent_stamps": [name for name in STAMPS if name in observed.absent],
            "reduces": facts.get("size", 1) > 1,
            "gradient_bytes": facts.get("gradient_bytes"),
            "meets_before_gradients": early_collectives(window),
            "meetings_by_step": True,
            # Where the moment of the gradients is known, so are the collectives before it.
            "unrecorded_collectives": [] if recorded.steps and STAMPS[GRADS_READY] not in observed.absent else None,
        }
        self._report = replace(
            self._report, extra={**self._report.extra, "script": script},
            software={**(self._report.software or {}), "torch": facts.get("torch")},
            backend={name: value for name, value in backend.items() if value is not None},
        )  # fmt: skip
        return recorded

    def _say_remarks(self, recorded: RankSteps) -> None:
        """Rank 0 prints the remarks of all ranks, each once."""
        early = recorded.observed.early_remarks(self._run.warmup_steps)
        mine = [f"{remark}{', in the warm-up' if remark in early else ''}" for remark in recorded.observed.remarks]
        remarks: Sequence[Sequence[str]] = self._comm.gather(mine) or ()
        for remark, ranks in grouped((text, rank) for rank, texts in enumerate(remarks) for text in texts).items():
            print(f"{name_ranks(ranks)}: {remark}", file=sys.stderr, flush=True)

    def _fail(self, first: int, process: ScriptProcess, recorded: RankSteps) -> None:
        """Raises ScriptFailed on the rank whose script failed first, and OtherScriptFailed on others."""
        error = self._failure(process, recorded) if self._comm.rank == first else None
        status = 0 if error is None else EXIT_STATUS[outcome_of(error, self._rank.training)]
        try:
            status = int(self._agreement.exchange(status, limit_s=_FAILURE_LIMIT_S)[first, 0])
        except TimeoutError:
            raise error or ConnectionLost(f"connection lost: the script of rank {first} has failed") from None
        if error is None:
            raise OtherScriptFailed(status)
        error.known_to_all = True
        raise error

    def _failure(self, process: ScriptProcess, recorded: RankSteps) -> ScriptFailed:
        """How the script of this rank failed."""
        status = process.status
        assert status is not None
        self._rank.training |= bool(recorded.steps)  # the hooks count a step only when the script goes on from it
        exception: Mapping[str, str] = recorded.facts.get("exception") or {}
        text = f"the script ended with {describe_status(status)}"
        if exception:
            text += f": {exception.get('type')}: {exception.get('message')}"
        if not recorded.steps:
            text += "; it had made no step"
        elif self._rank.arguments.script is None:
            text += f"; {self._way_to_a_trace()}"
        if str(exception.get("type")).rpartition(".")[2] in ("OutOfMemoryError", "MemoryError"):
            return ScriptOutOfMemory(text)
        return ScriptFailed(text)

    def _way_to_a_trace(self) -> str:
        stem, traces = self._rank.folder.stem, self._rank.arguments.traces
        collect = f"python -m hpc.recovery collect --stem {stem} --to {traces}"
        return f"its steps become a trace by `{collect}` on each node, then `{_RECOVER} {traces}`"

    def _payload(self, recorded: RankSteps, agent: NodeAgent | None) -> RankPayload:
        """This rank's part of the trace. Raises NothingMeasured on all ranks where nothing was."""
        comm, run = self._comm, self._run
        reasons = comm.allgather("" if recorded.steps else recorded.observed.reason or "it made no step")
        if without := [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]:
            raise NothingMeasured(f"nothing was measured: {'; '.join(without[:3])}")
        counts: Sequence[int] = comm.allgather(len(recorded.steps))
        steps = min(*counts, run.steps)
        if comm.rank == 0 and max(counts) != min(counts):
            print(f"ranks made {min(counts)} to {max(counts)} steps: the first {steps} are compared", file=sys.stderr)
        paused = {pause["step"] for pauses in comm.allgather(pauses_of(recorded.steps)) for pause in pauses}
        blocks = script_blocks(run.warmup_steps, steps, paused)
        if not blocks:
            raise NothingMeasured(
                f"nothing was measured: the script made {plural(steps, 'step')}, of which {run.warmup_steps} are "
                "warm-up and 5 follow each pause: let it make more, or lower --warmup"
            )
        preflight, pid = self._rank.preflight, self._pid
        report = attempted(
            self._rank.problems, "preflight", lambda: preflight.stepped(comm, self._report, pid), self._report
        )
        measured = [step for first, stop in blocks for step in recorded.steps[first:stop]]
        kinds = usual_collectives(measured)
        unlike = {step for steps in comm.allgather(unlike_others(recorded.steps, blocks, kinds)) for step in steps}
        blocks = without_last(blocks, unlike)
        inside = {step for first, stop in blocks for step in range(first, stop)}
        collectives = self._collectives(recorded.steps[:steps], inside | {first - 1 for first, _ in blocks})
        meetings = meetings_of(recorded.steps[:steps], collectives) if collectives.kinds else None
        unmatched = {reason: len(inside.intersection(its)) for reason, its in collectives.unmatched.items()}
        script = {
            **report.extra["script"], "waits_at_pauses": waits_at_pauses(recorded.steps, paused),
            "unmatched_collectives": {reason: count for reason, count in unmatched.items() if count},
        }  # fmt: skip
        report = replace(report, stamp_bound_ns=0, extra={**report.extra, "script": script})
        return RankPayload(
            journal=self._journal, clock=self._clock, report=report, losses=None,
            workload=None, meetings=meetings, agent=agent,
            problems=self._rank.problems, steps=steps, blocks=blocks,
            loader_ns=[step.loader_ns for step in recorded.steps[:steps]],
        )  # fmt: skip

    def _collectives(self, steps: Sequence[ObservedStep], measured: Collection[int]) -> StepCollectives:
        """Those of the measured steps of all ranks, matched step by step."""
        called = [_kinds(step) for step in steps]
        of_first = self._comm.bcast(patterns_of(called))
        differing = {step for its in self._comm.allgather(differing_steps(called, of_first)) for step in its}
        if 2 * len(differing.intersection(measured)) > len(measured):  # which _common_meetings of hpc.run.gather states
            return step_collectives(called, measured)
        return step_collectives(called, measured, differing)

    def _script_stacks(self) -> list[str]:
        return attempted(self._rank.problems, "the script's stacks", lambda: stacks_of(self._events, STACKS_S), [])

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _end_early(self) -> None:
        """Stores what there is, and ends the script."""
        self._store()
        assert self._process is not None
        self._process.end(patience_s=0.5)

    def _terminated(self, number: int, _: object) -> None:
        """Ends with the script, on a signal that ends this process."""
        self._end_early()
        if self._comm.rank == 0 and self._rank.arguments.script is None:
            os.write(2, f"rank 0 ends by a signal: {self._way_to_a_trace()}\n".encode())  # print() may be interrupted
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
