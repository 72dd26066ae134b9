"""A run of a person's own script: this process keeps clock, journal and watch, and the script trains beside it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.measure.clock import GlobalClock
from hpc.measure.connections import ConnectionLost, Connections, union
from hpc.measure.world import World
from hpc.model.files import AttemptFiles, TracesFolder
from hpc.model.spec import SCRIPT_STEPS, RunSpec, script_blocks, without_last
from hpc.model.timestamps import ABSENT
from hpc.model.trace import RankReport
from hpc.model.trace_file import load_hdf5
from hpc.node_agent.agent import NodeAgent, start_agent
from hpc.node_agent.sources import RankProcess
from hpc.observe.events import ENDING, read_ranks, spelled_ranks
from hpc.observe.flight_record import WARMUP_VARIABLE
from hpc.observe.stacks import stacks_of
from hpc.observe.stamps import ObservedStep
from hpc.recovery.folders import attempt_folder
from hpc.recovery.journal import Journal, name_ranks
from hpc.recovery.stacks import STACK_SIGNAL, handles
from hpc.run.data_replicas import DataReplicas, group_roles, may_share, replicas_of, roles_as_text
from hpc.run.gather import RankPayload, write_gathered
from hpc.run.live_steps import LiveSteps
from hpc.run.rank_state import (
    EXIT_STATUS,
    NothingMeasured,
    OtherScriptFailed,
    ScriptFailed,
    ScriptOutOfMemory,
    attempted,
    limit_exit,
    outcome_of,
)
from hpc.run.rendezvous import is_alone
from hpc.run.script_facts import (
    MAX_LOOKS,
    SharedMappings,
    backend_facts,
    said_remarks,
    script_facts,
    shared_memory,
    unseen_facts,
)
from hpc.run.script_groups import (
    Lacking,
    grouped_collectives,
    in_run,
    lacking_calls,
    place_in_world,
    reduces_by_calls,
    without_groups,
    worlds_of,
)
from hpc.run.script_process import (
    END_PATIENCE_S,
    Agreement,
    ScriptProcess,
    ScriptSignals,
    as_ranks,
    describe_status,
    first_to_fail,
    own_folder,
    script_environment,
    spawned_ranks,
    starts_ranks,
    torchrun_variables,
)
from hpc.run.script_roles import calls_by_step, in_steps_of_others, updates_nothing
from hpc.run.script_steps import (
    RankSteps,
    ScriptStepCount,
    StepCollectives,
    collective_record,
    count_steps,
    differing_steps,
    exchanged_bytes,
    host_bound,
    host_bound_by_step,
    kinds_of,
    meetings_of,
    others_unseen,
    patterns_of,
    pauses_of,
    read_steps,
    step_collectives,
    trained_in,
    unlike_others,
    usual_collectives,
    waits_at_pauses,
    write_steps,
)
from hpc.system.text import grouped, plural

if TYPE_CHECKING:
    from hpc.run.rank_state import Rank

LOOK_S, LATER_LOOK_S, EARLY_LOOKS = 0.2, 1.0, 50
"""Seconds between looks at the script, later, and after how many."""
CLOCK_S, CLOCK_POINTS = 5.0, 100
"""Seconds between synchronisations of the clocks; after so many of them, and again, they come more rarely."""
JOURNAL_S, JOURNAL_SHARE, JOURNAL_LIMIT_S = 10.0, 20, 30.0
"""Seconds between stores of the steps in the journal, but so many times as long as one takes, at most the last; without
steps that can be recognised each reads all events, and there is no limit."""
STACKS_S = 1.5
"""How long a script may take to write its stacks; the watchdog waits twice as long for those of all ranks."""
_FAILURE_LIMIT_S = 60.0
"""For all ranks to know of a script that failed; then they end by themselves, else the first that sees it ends them."""
MAX_LACKING_NAMED = 3
"""The maximum of calls that are said to lack ranks; the facts of rank 0 have all."""
_GOES_ON_STEPS = 100
"""A script that makes so many steps after a signal was not ended by it."""


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
        self._clock, self._agreement = GlobalClock(self._comm), Agreement(self._comm, self._pause)
        if self._journal.passed_over:
            journal = {"folder": str(self._journal.folder), "passed_over": self._journal.passed_over}
            report = replace(report, journal=journal)
        self._report = rank.preflight.built(self._comm, report)
        self._limit = self._run.steps if self._run.steps < SCRIPT_STEPS else 0
        self._live, self._looks = LiveSteps(self._events), 0
        self._process: ScriptProcess | None = None
        # In a sweep the step and the scheduler may both ask for an end.
        self._signals = ScriptSignals(self._command(), once=rank.arguments.script is not None)
        self._signal_step = self._made = 0
        self._is_signalled = self._is_asked_to_end = False
        self._unmeasurable, self._known_unmeasurable = "", set[str]()
        self._lacking: list[Lacking] = []
        self._by_calls = self._is_spawned = False
        self._of_learners: Sequence[str] = ()  # what they call in their steps, where other ranks have none
        self._mappings = SharedMappings()
        self._members: Sequence[int] = range(self._comm.size)
        self._clock_due_s = self._journal_due_s = 0.0

    def measure(self) -> int:
        """Runs the script to its end, or to the steps that were requested, and writes the trace.

        Returns 0, or where a signal came that the script has had, the status of the script, as of subprocess.
        """
        self._note()
        self._synchronise()
        self._report = self._rank.pass_moment("met_ns", self._report)
        self._process = process = ScriptProcess(self._command(), self._environment(), self._signals)
        if self._rank.stacks is not None:
            self._rank.stacks.add(self._script_stacks)
        agent = self._start_agent(process)
        try:
            failed = self._watch(process, agent)
        except ConnectionLost:
            self._end_alone(process)
            if not self._signals.last:
                raise
            return process.status or 0
        if failed and read_steps(self._events).facts.get(ENDING):
            process.wait(END_PATIENCE_S)  # by itself, so that its own status is known
        status = process.status
        process.end()
        self._signals.end(self._terminated)
        try:
            if not failed and self._comm.size == 1 and (paths := spawned_ranks(self._events)):
                self._conclude_spawned(paths, agent)
            else:
                self._conclude(process, agent, status, failed=failed)
        except NothingMeasured as error:
            if not self._is_signalled:
                raise
            self._report_early(error)
        limit_exit(self._comm.rank)
        attempted({}, "removing the events", lambda: shutil.rmtree(self._events), None)
        attempted({}, "removing the journal", self._journal.remove, None)
        if agent is not None:
            attempted({}, "removing the copies", agent.end, None)
        return status or 0 if self._is_signalled else 0

    def _end_alone(self, process: ScriptProcess) -> None:
        """Ends the script where another rank is gone; one that has had a signal ends by itself."""
        while self._signals.last and process.status is None:
            process.wait(LOOK_S)
        self._store()
        if self._signals.last:
            self._say_way_to_a_trace()
        process.end()

    def _report_early(self, error: NothingMeasured) -> None:
        """That a script ended on a signal before anything was measured is no fault of the run: it stays to be done.
        In a sweep that is raised, else it is this rank's note."""
        failure = ScriptFailed(f"{error}; {self._early()}")
        failure.known_to_all = True
        if self._rank.arguments.script is not None:
            raise failure from None
        if self._comm.rank == 0:
            self._rank.report(failure)

    def _early(self) -> str:
        number = self._signals.last
        return f"ended early at step {self._made} by {signal.Signals(number).name}" if number else ""

    def _conclude(self, process: ScriptProcess, agent: NodeAgent | None, status: int | None, *, failed: bool) -> None:
        """Writes the trace of a script that has ended, or raises how it failed."""
        self._report = self._rank.pass_moment("ended_ns", self._report)
        recorded = self._store_all()
        comm, ranks, made = self._comm, self._comm.size, len(recorded.steps)
        fewest, largest = self._agreement.largest(-made, made)  # the slowest script may take a while to end
        if ranks == 1 and not failed and (reason := others_unseen(self._events, recorded.facts)):
            raise NothingMeasured(f"nothing was measured: {reason}")
        places = comm.gather(place_in_world(recorded.facts, comm.rank, ranks))
        self._members = read_ranks(comm.scatter(None if places is None else [*map(spelled_ranks, worlds_of(places))]))
        if fewest == 0 < largest and [*self._members] == [*range(ranks)]:
            self._of_learners = comm.allgather(calls_by_step(self._events, recorded.steps))
        in_world = in_run(recorded, self._members, ranks)
        needs_calls = self._of_learners or reduces_by_calls(in_world, self._run.warmup_steps, ranks)
        self._by_calls = bool(self._agreement.largest(bool(needs_calls))[0])
        if self._by_calls:
            recorded = self._store_all()
        self._synchronise()
        self._say_remarks(recorded)
        cancelled = ""
        if failed and not (self._is_signalled and self._rank.arguments.script is None):
            self._fail(process, status, recorded)
        elif failed:
            ends = grouped((describe_status(its), rank) for rank, its in enumerate(self._comm.allgather(status or 0)))
            cancelled = "; ".join(f"{name_ranks(ranks)}: the script ended with {how}" for how, ranks in ends.items())
        payload = self._payload(recorded, agent)
        write_gathered(
            self._comm, self._run, self._rank.arguments.attempt, payload, self._rank.folder, self._rank.script,
            cancelled,
        )  # fmt: skip

    def _conclude_spawned(self, paths: Sequence[Path], agent: NodeAgent | None) -> None:
        """Writes the trace of the ranks that the script has started itself: another run than was begun, of as many."""
        size, claim = len(paths), self._rank.arguments.claim
        if claim is None:
            raise NothingMeasured(
                f"nothing was measured: the script starts {size} ranks itself, and so does the sweep: measure it by "
                "rankwise observe -- SCRIPT.py, or have it take its rank from RANK"
            )
        gpus = size if self._run.gpus_per_node else 0
        run, attempt = claim(replace(self._run, ranks_per_node=size, gpus_per_node=gpus))
        traces = self._rank.arguments.traces
        # From now on a failure, too, is of that attempt.
        self._rank.folder = TracesFolder.at_start(traces, AttemptFiles(traces, run.run_id, attempt).stem)

        def conclude(comm: Connections) -> None:
            its = self._as_spawned(comm, run, attempt, paths[comm.rank])
            assert its._process is not None
            its._conclude(its._process, agent if comm.rank == 0 else None, 0, failed=False)
            attempted({}, "removing the journal", its._journal.remove, None)

        as_ranks(size, conclude)

    def _as_spawned(self, comm: Connections, run: RunSpec, attempt: int, path: Path) -> ScriptRun:
        """As this run is to one of these ranks, whose events are in the file. Collective."""
        its, rank, traces = copy(self), copy(self._rank), self._rank.arguments.traces
        its._rank, its._comm, its._run, its._is_spawned = rank, comm, run, True
        rank.number, rank.run, rank.comm = comm.rank, run, comm
        rank.arguments = replace(rank.arguments, attempt=attempt)
        reason = "the script has started its ranks itself: what the node's helper reads of a rank was read of none"
        rank.problems = {**rank.problems, "counters of the rank's process": reason}
        rank.moments = dict(rank.moments)
        place = replace(self._world, rank=comm.rank, size=comm.size, local_rank=comm.rank, local_size=comm.size)
        its._world, its._report = place, RankReport.from_json({**self._report.as_json(), **asdict(place)})
        its._events = own_folder(path, comm.rank)
        its._journal = rank.journal = Journal(traces, rank.folder.stem, comm.rank, run.steps, unmeasured=1)
        its._clock, its._agreement = GlobalClock(comm), Agreement(comm)
        its._clock.points[:] = self._clock.points
        its._clock.barrier_exits_ns[:] = self._clock.barrier_exits_ns
        its._clock.unix_offsets_ns[:] = self._clock.unix_offsets_ns
        its._members = range(comm.size)
        return its

    def _command(self) -> list[str]:
        given = self._rank.arguments.script_arguments
        return [sys.executable, self._run.workload, *(self._run.arguments if given is None else given)]

    def _environment(self) -> dict[str, str]:
        place = torchrun_variables(self._world, self._comm, self._run)
        if self._comm.size == 1 and is_alone(os.environ) and starts_ranks(self._run.workload):
            place = {}
        place[WARMUP_VARIABLE] = str(self._run.warmup_steps)
        in_job = self._rank.arguments.script is not None
        return script_environment(os.environ, place, self._events, in_job=in_job)

    def _start_agent(self, process: ScriptProcess) -> NodeAgent | None:
        arguments, run = self._rank.arguments, self._run
        partial = AttemptFiles(arguments.traces, run.run_id, arguments.attempt).partial
        return start_agent(
            self._comm, self._world, run, self._report.gpu_uuids, self._journal.folder, partial, arguments.copy_s,
            replace(RankProcess.this_process(), pid=process.pid),
        )  # fmt: skip

    def _watch(self, process: ScriptProcess, agent: NodeAgent | None) -> bool:
        """Waits for the scripts of all ranks; compares the clocks meanwhile, and keeps the journal.

        Returns whether one failed. Once every script has gone on from its last requested step, the watch is over: how
        they end does not matter.
        """
        made, signals = ScriptStepCount(self._events, self._limit), self._signals
        ahead = 0
        while True:
            process.wait(LOOK_S if self._looks < EARLY_LOOKS else LATER_LOOK_S)
            self._looks += 1
            if agent is not None:
                agent.look()
            now_s = time.monotonic()
            if now_s >= self._journal_due_s:
                attempted(self._rank.problems, "the journal's latest steps", self._store, None)
            status = process.status
            clock_due, speaks, self._made = now_s >= self._clock_due_s, bool(self._unmeasurable), made.now()
            if signals.is_new:
                signals.is_new, self._signal_step = False, self._made
            elif self._made > self._signal_step + _GOES_ON_STEPS:
                signals.last = 0
            # A rank that updates nothing has no steps before the others' calls are known: it is where they are.
            follows = not self._made and 0 < self._limit <= ahead and updates_nothing(self._events)
            one_runs, one_failed, behind, ahead, synchronises, one_speaks, signalled = self._agreement.largest(
                status is None, bool(status), -ahead if follows else -self._made, self._made,
                clock_due and self._comm.rank == 0, speaks, bool(signals.last),
            )  # fmt: skip
            self._is_signalled = bool(signalled)
            if one_speaks:
                self._say_unmeasurable()
            self._rank.training = ahead > 0
            if self._rank.training and (clock_due or self._mappings.looks < MAX_LOOKS):
                self._mappings.look(self._events)
            is_complete = self._limit and -behind >= self._limit
            if not (one_runs and self._is_signalled):  # else each ends by itself
                if one_failed and not is_complete:
                    return True
                if is_complete or not (one_runs or one_failed):
                    return False
            if synchronises:
                self._synchronise()

    def _pause(self, seconds: float) -> None:
        """Between two looks whether all ranks have come: the script is looked at, too, so that it is known until when
        it ran."""
        if self._process is not None:
            self._process.wait(0)
        time.sleep(seconds)

    def _say_unmeasurable(self) -> None:
        """Rank 0 prints, each once, why scripts cannot be measured, while they run."""
        for text in dict.fromkeys(self._comm.allgather(self._unmeasurable)):
            if text and text not in self._known_unmeasurable:
                self._known_unmeasurable.add(text)
                if self._comm.rank == 0:
                    print(f"nothing is measured so far, and the script goes on: {text}", file=sys.stderr, flush=True)
        self._unmeasurable = ""

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
        """Stores the steps since the last time. Evaluated batches are progress, too."""
        begin_s, live = time.monotonic(), self._live
        live.look()
        recorded, (first, steps) = live.recorded, live.new
        self._unmeasurable = "" if recorded.unmeasurable in self._known_unmeasurable else recorded.unmeasurable
        self._write(recorded, steps, first)
        self._journal.unmeasured[0] = live.evaluated
        if recorded.steps:
            script = live.facts(self._run.warmup_steps, self._comm.size)
            backend = backend_facts(recorded, {}, self._comm.size, by_calls=False)
            self._report = replace(self._report, extra={**self._report.extra, "script": script}, backend=backend)
        now_s = time.monotonic()
        rest_s = max(JOURNAL_S, JOURNAL_SHARE * (now_s - begin_s))
        self._journal_due_s = now_s + (min(JOURNAL_LIMIT_S, rest_s) if recorded.steps else rest_s)

    def _write(self, recorded: RankSteps, steps: Sequence[ObservedStep], first: int = 0) -> None:
        """Stores these steps, from this number on; their samples only if no other rank can have read the same batch,
        which `_payload` knows of all."""
        if (imported_ns := recorded.facts.get("imported_ns")) is not None:
            self._report = self._rank.pass_moment("imported_ns", self._report, imported_ns)
        shares = may_share(group_roles(recorded, self._members, self._comm.size), self._comm.size)
        write_steps(self._journal, steps, self._run, counts=not shares, first=first)

    def _store_all(self) -> RankSteps:
        """Stores all steps, and what the hooks state; the journal then has what a trace is made of."""
        recorded = in_run(read_steps(self._events, by_calls=self._by_calls), self._members, self._comm.size)
        if self._of_learners and not recorded.steps:
            recorded = in_steps_of_others(recorded, self._events, self._of_learners, self._comm.rank)
        self._made = len(recorded.steps)
        self._write(recorded, recorded.steps)
        self._journal.unmeasured[0] = 0
        record = collective_record(self._events, recorded.steps)
        script = script_facts(
            recorded, record, self._run, early=self._early(), cpus_decided=self._rank.arguments.cpus_decided
        )
        self._report = replace(
            self._report, extra={**self._report.extra, "script": script},
            software={**(self._report.software or {}), "torch": recorded.facts.get("torch")},
            backend=backend_facts(recorded, record, self._comm.size, by_calls=self._by_calls),
        )  # fmt: skip
        return recorded

    def _say_remarks(self, recorded: RankSteps) -> None:
        """Rank 0 prints the remarks of all ranks, each once."""
        remarks: Sequence[Sequence[str]] = self._comm.gather(said_remarks(recorded, self._run, self._early())) or ()
        for remark, ranks in grouped((text, rank) for rank, texts in enumerate(remarks) for text in texts).items():
            print(f"{name_ranks(ranks)}: {remark}", file=sys.stderr, flush=True)

    def _fail(self, process: ScriptProcess, status: int | None, recorded: RankSteps) -> None:
        """Raises ScriptFailed on the rank whose script failed first, and OtherScriptFailed on others.

        `status` is that of the script before it was ended.
        """
        failed, says_ns = bool(status or recorded.facts.get("exception")), recorded.facts.get(ENDING, ABSENT)
        offset_ns = round(self._clock.points[-1].offset_ns)
        times = [says_ns, process.alive_ns, process.ended_ns]
        ends = self._comm.gather([int(failed), *(at if at == ABSENT else at + offset_ns for at in times)])
        first = self._comm.bcast(None if ends is None else first_to_fail(ends))
        error = self._failure(process, recorded) if self._comm.rank == first else None
        ends_with = 0 if error is None else EXIT_STATUS[outcome_of(error, self._rank.training)]
        try:
            (ends_with,) = self._agreement.largest(ends_with, limit_s=_FAILURE_LIMIT_S)
        except TimeoutError:
            raise error or ConnectionLost(f"connection lost: the script of rank {first} has failed") from None
        if error is None:
            raise OtherScriptFailed(ends_with)
        error.known_to_all = True
        raise error

    def _failure(self, process: ScriptProcess, recorded: RankSteps) -> ScriptFailed:
        """How the script of this rank failed."""
        status = process.status
        assert status is not None
        spawned = 0 if recorded.steps else count_steps(self._events)
        # The hooks count a step only when the script goes on from it.
        self._rank.training |= bool(recorded.steps or spawned)
        exception: Mapping[str, str] = recorded.facts.get("exception") or {}
        text = f"the script ended with {describe_status(status)}"
        if exception:
            text += f": {exception.get('type')}: {exception.get('message')}"
        elif status < 0 and recorded.steps and recorded.facts.get(ENDING):
            text += " after its last step, at its very end"
        if spawned:
            text += f"; the ranks that it started itself had made {plural(spawned, 'step')}, of which no trace is made"
        elif not recorded.steps:
            text += "; it had made no step"
        elif self._rank.arguments.script is None:
            text += f"; {self._way_to_a_trace()}"
        if str(exception.get("type")).rpartition(".")[2] in ("OutOfMemoryError", "MemoryError"):
            return ScriptOutOfMemory(text)
        return ScriptFailed(text)

    def _way_to_a_trace(self) -> str:
        stem, traces = self._rank.folder.stem, self._rank.arguments.traces
        collect = f"rankwise hpc.recovery collect --stem {stem} --to {traces}"
        recover = f"rankwise sweep recover {traces}"
        return f"its steps become a trace by `{collect}` on each node, then `{recover}`"

    def _payload(self, recorded: RankSteps, agent: NodeAgent | None) -> RankPayload:
        """This rank's part of the trace. Raises NothingMeasured on all ranks where nothing was."""
        comm, run = self._comm, self._run
        reasons = comm.allgather("" if recorded.steps else recorded.observed.reason or "it made no step")
        if without := grouped((reason, rank) for rank, reason in enumerate(reasons) if reason):
            texts = [f"{name_ranks(ranks)}: {reason}" for reason, ranks in without.items()]
            raise NothingMeasured(f"nothing was measured: {'; '.join(texts[:3])}")
        counts: Sequence[int] = comm.allgather(len(recorded.steps))
        steps = min(*counts, run.steps)
        if comm.rank == 0 and max(counts) != min(counts):
            print(f"ranks made {min(counts)} to {max(counts)} steps: the first {steps} are compared", file=sys.stderr)
        paused, phased = (
            union(comm, (pause["step"] for pause in pauses_of(recorded.steps, which))) for which in ("pause", "phase")
        )
        blocks = script_blocks(run.warmup_steps, steps, paused)
        if not blocks:
            raise NothingMeasured(
                f"nothing was measured: the script made {plural(steps, 'step')}, of which {run.warmup_steps} are "
                "warm-up and 5 follow each pause: let it make more, or lower --warmup"
            )
        preflight, pid, report = self._rank.preflight, self._pid, self._report
        if not self._is_spawned:
            report = attempted(
                self._rank.problems, "preflight", lambda: preflight.stepped(comm, self._report, pid), report
            )
        measured = [step for first, stop in blocks for step in recorded.steps[first:stop]]
        kinds = usual_collectives(measured)
        unlike = union(comm, unlike_others(recorded.steps, blocks, kinds))
        blocks = without_last(blocks, unlike)
        inside = {step for first, stop in blocks for step in range(first, stop)}
        wider = inside | {first - 1 for first, _ in blocks}
        collectives, by_rank = self._collectives(recorded.steps[:steps], wider)
        meetings = meetings_of(recorded.steps[:steps], collectives) if collectives.kinds or by_rank else None
        process = int(path.name.partition(".")[0]) if (path := trained_in(self._events)) else 0
        mapped = comm.gather(self._mappings.as_text(process, socket.gethostname()))
        memory = comm.scatter(None if mapped is None else shared_memory(mapped))
        unmatched = {reason: len(inside.intersection(its)) for reason, its in collectives.unmatched.items()}
        script = {
            **report.extra["script"], "waits_at_pauses": waits_at_pauses(recorded.steps, paused | phased),
            "unmatched_collectives": {reason: count for reason, count in unmatched.items() if count},
            **({"lacking_calls": [each.as_json() for each in self._lacking]} if self._lacking else {}),
            **unseen_facts(recorded, report.extra["script"]["collective_record"], blocks, memory),
            **({} if (paced := host_bound(measured)) is None else {"host_bound": paced}),
            **({"exchanged_bytes": exchanged} if (exchanged := exchanged_bytes(measured)) else {}),
        }  # fmt: skip
        write_steps(self._journal, recorded.steps, run)
        replicas = self._replicas(recorded)
        if replicas.reason or replicas.replicas:
            script["data_replicas"] = asdict(replicas)
        bound_ns = max(step.bound_ns for step in measured)
        report = replace(report, stamp_bound_ns=bound_ns, extra={**report.extra, "script": script})
        for each in self._lacking[:MAX_LACKING_NAMED]:
            print(each, file=sys.stderr, flush=True)
        return RankPayload(
            journal=self._journal, clock=self._clock, report=report, losses=None,
            workload=None, meetings=meetings, agent=agent,
            problems=self._rank.problems, steps=steps, blocks=blocks,
            loader_ns=[(step.loader_ns, step.later_ns, step.after_ns) for step in recorded.steps[:steps]],
            host_bound_ns=host_bound_by_step(recorded.steps[:steps]), by_rank=by_rank,
            of_node_alone=self._is_spawned,
            replicas=replicas,
        )  # fmt: skip

    def _replicas(self, recorded: RankSteps) -> DataReplicas:
        """Which ranks read the same batch, known on rank 0, which says so. Collective."""
        roles = self._comm.gather(roles_as_text(group_roles(recorded, self._members, self._comm.size)))
        replicas = DataReplicas() if roles is None else replicas_of(roles)
        if replicas.reason:
            print(f"no speed: {replicas.reason}", file=sys.stderr, flush=True)
        return replicas

    def _collectives(self, steps: Sequence[ObservedStep], measured: Collection[int]) -> tuple[StepCollectives, bool]:
        """Those of the measured steps of all ranks, matched step by step; whether ranks have lists of their own."""
        called = [kinds_of(step) for step in steps]
        if not self._by_calls:
            called = without_groups(called)
            of_first = self._comm.bcast(patterns_of(called))
            differing = union(self._comm, differing_steps(called, of_first))
            if 2 * len(differing.intersection(measured)) <= len(measured):
                return step_collectives(called, measured, differing), False
        collectives = grouped_collectives(called, measured)
        unfit = [step for steps in collectives.unmatched.values() for step in steps]
        if other_order := union(self._comm, unfit):
            collectives = grouped_collectives(called, measured, other_order)
        patterns = self._comm.gather(patterns_of(called))
        self._lacking = [] if patterns is None else lacking_calls(patterns, measured)
        return collectives, True

    def _script_stacks(self) -> list[str]:
        """The script's stacks, on the signal for them; outside a sweep a script that handles that has it, too."""
        if self._rank.arguments.script is None and handles(self._pid, STACK_SIGNAL):
            self._signals.note(STACK_SIGNAL)
        return attempted(self._rank.problems, "the script's stacks", lambda: stacks_of(self._events, STACKS_S), [])

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _say_way_to_a_trace(self) -> None:
        if self._comm.rank == 0 and self._rank.arguments.script is None:
            os.write(2, f"rank 0 ends by a signal: {self._way_to_a_trace()}\n".encode())  # print() may be interrupted

    def _terminated(self, number: int, _: object) -> None:
        """Ends on the second signal that comes when the script has ended: its trace is being written."""
        if not self._is_asked_to_end:
            self._is_asked_to_end = True
            return
        self._say_way_to_a_trace()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
