"""The measured loop; and trainings of a model to a target, whose first epoch has it."""

from __future__ import annotations

import gc
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpc.backends import Backend, InvalidRun
from hpc.measure.timer import StepTimer
from hpc.model.files import AttemptFiles, TracesFolder
from hpc.model.spec import MIN_WARMUP_STEPS, RunSpec
from hpc.model.training import Epoch, TrainingError, TrainingHistory, TrainingState, begin_lines, end_lines, epoch_lines
from hpc.recovery.journal import Journal
from hpc.run.rank_state import attempted
from hpc.system.atomic import write_durable
from hpc.system.regular_file import open_regular, parse_json

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def train(
    backend: Backend, run: RunSpec, timer: StepTimer, samples: memoryview, synchronise: Callable[[], object]
) -> list[list[int]]:
    """Runs all steps; stores each one's sample count. Returns the measured blocks, [first step, one past the last].

    The clocks are synchronised before the first step, MIN_WARMUP_STEPS before each block, and after the last step.
    Between a synchronisation and the end of its block only steps run: no pause, no garbage collection, no wait for a
    device.
    """
    stop = run.warmup_steps - MIN_WARMUP_STEPS

    synchronise()
    timer.begin(0)
    for step in range(stop):
        samples[step] = backend.step(step, timer)
    timer.resolve()
    backend.release()

    with garbage_collection_off():
        for block in run.blocks:
            begin, stop = stop, block[1]
            synchronise()
            timer.begin(begin)
            for step in range(begin, stop):
                samples[step] = backend.step(step, timer)
            timer.resolve()
            if block[1] < run.steps:
                backend.release()  # after the last one, no code that a workload can make fail runs before the trace
            gc.collect()  # of this block alone, since all else is frozen: long runs do not grow

    synchronise()
    return run.blocks


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Python's collector pauses for up to half a second: it cleans up once, then rests; afterwards all is as it was."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


# A model trained to a target: epochs, evaluations, checkpoints and their files, all of it on one clock.


SCHEMA, SCHEMA_VERSION = "rankwise-checkpoint", 1
_MAX_HEADER_BYTES = 1 << 26


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the text names the file, what is wrong, and what to do."""


def write_checkpoint(path: Path, facts: Mapping[str, Any], state: TrainingState) -> None:
    """Writes the file beside its place, flushes it to the disk and renames it. Raises OSError; the old file stays."""
    body = io.BytesIO()
    arrays: dict[str, Any] = {f"a{number}": array for number, array in enumerate(state.arrays.values())}
    np.savez(body, **arrays)
    content = body.getvalue()
    header = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "sha256": hashlib.sha256(content).hexdigest(),
        "names": list(state.arrays),
        "values": dict(state.values),
        "facts": dict(facts),
    }
    line = json.dumps(header)
    digest = hashlib.sha256(line.encode()).hexdigest()
    write_durable(path, f"{digest} {line}\n".encode() + content)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], TrainingState]:
    """Facts and state of a checkpoint. Raises CheckpointError where it is not whole, OSError where it is not there."""
    with open_regular(path) as file:
        line = file.readline(_MAX_HEADER_BYTES)
        content = file.read()
    digest, _, text = line.removesuffix(b"\n").partition(b" ")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise _broken(path, "its header is cut or changed")
    header = parse_json(text)
    if header.get("schema") != SCHEMA or header.get("schema_version") != SCHEMA_VERSION:
        version = f"{header.get('schema')} {header.get('schema_version')}"
        raise _broken(path, f"it is of {version}, this version reads {SCHEMA} {SCHEMA_VERSION}")
    if hashlib.sha256(content).hexdigest() != header["sha256"]:
        raise _broken(path, f"its content is cut or changed ({len(content)} bytes, whose checksum is another)")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = {name: stored[f"a{number}"] for number, name in enumerate(header["names"])}
    return header["facts"], TrainingState(arrays=arrays, values=header["values"])


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} cannot be used: {what}; remove it, and the training restarts at its first epoch"
    )


class TrainsToATarget(Backend, Protocol):
    """What a backend adds to Backend for whole trainings."""

    def begin_epoch(self, epoch: int) -> float:
        """The next step is the first of this epoch, counted from 0; returns its learning rate."""

    def evaluate(self, completed: Callable[[], None]) -> tuple[int, int]:
        """How many of this rank's held-out images the model recognises, and how many there are; calls `completed` after
        each batch."""

    def state(self) -> TrainingState:
        """All that the training needs to go on, equal on all ranks once they have the same statistics."""

    def load_state(self, state: TrainingState) -> None:
        """Raises ValueError where the state is of another model."""

    def statistics(self) -> list[Any]:
        """What the model keeps beside its parameters, as batch norm's running means: each rank has its own."""

    def set_statistics(self, values: list[Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Input:
    """The files of a training: steps of an epoch, different images to train on and to evaluate, and their checksum."""

    steps_per_epoch: int
    samples_per_epoch: int
    evaluation_samples: int
    images_sha256: str


class WholeTraining:
    """A run with `epochs`, on this rank. Everything here is collective; rank 0 keeps the history and the checkpoint.

    `problems` takes, by name, what is missing from the trace or the log, and why.
    """

    def __init__(
        self, comm: Intracomm, run: RunSpec, folder: TracesFolder, backend: Any, data: Input, problems: dict[str, str]
    ) -> None:
        self._comm, self._run, self._folder = comm, run, folder
        self._backend: TrainsToATarget = backend
        self._data = data
        self._files = AttemptFiles.of_stem(folder.path, folder.stem)
        self._attempt = self._files.attempt
        self._log = _Log(run, problems) if comm.rank == 0 else None
        self._started_unix_ns, self._started_ns = time_ns(), perf_counter_ns()
        self._history = self._new_history()

    @property
    def unmeasured_steps(self) -> int:
        """The steps of the whole training after the measured ones, evaluation included, for those who watch."""
        run, of_epoch = self._run, self._data.steps_per_epoch
        batches = -(-self._data.evaluation_samples // run.global_batch_size)
        return run.epochs * of_epoch - run.steps + -(-run.epochs // run.eval_every) * batches

    def train(self, timer: StepTimer, journal: Journal, synchronise: Callable[[], object]) -> TrainingHistory:
        """Trains until the target is reached or all epochs are done; measures in the first epoch of the attempt.

        Raises InvalidRun where the checkpoint of an earlier attempt cannot be used.
        """
        self._history = self._begin().begin(self._attempt, self._now_ns())
        if self._log is not None:
            self._log.begin(self._history)
        self._checkpoint(self._backend.state() if self._comm.rank == 0 else None)
        measured = False
        while not self._history.is_over:
            first = 0
            begin_ns = self._now_ns()
            rate = self._backend.begin_epoch(len(self._history.epochs))
            if not measured:
                train(self._backend, self._run, timer, journal.samples, synchronise)
                timer.rest()
                first, measured = self._run.steps, True
                samples = sum(journal.samples)
            else:
                samples = 0
            for _ in range(first, self._data.steps_per_epoch):
                timer.begin(0)
                samples += self._backend.step(self._run.steps, timer)
                journal.unmeasured[0] += 1
            self._end_epoch(begin_ns, rate, samples, journal)
        self._history = replace(self._history, stop_ns=self._now_ns())
        if self._log is not None:
            self._log.end(self._history)
        journal.unmeasured[1] = journal.unmeasured[0]
        return self._history

    def remove_checkpoints(self) -> None:
        """Removes those of all attempts, once the trace is written."""
        if self._comm.rank == 0:
            for path in (self._files.checkpoint, *self._files.earlier_checkpoints()):
                path.unlink(missing_ok=True)

    def _now_ns(self) -> int:
        """Unix time as of this attempt's start, plus what the clock that is never set has counted since."""
        return self._started_unix_ns + perf_counter_ns() - self._started_ns

    def _begin(self) -> TrainingHistory:
        """The history of the latest checkpoint, from which the state is loaded; a new one where there is none."""
        stored = self._read() if self._comm.rank == 0 else None
        history: TrainingHistory | None = self._comm.bcast(None if stored is None else stored[0])
        if history is None:
            return self._history
        state = self._share(None if stored is None else stored[1])
        try:
            self._backend.load_state(state)
        except (ValueError, KeyError) as error:
            raise InvalidRun(f"the checkpoint of {self._run.run_id} cannot be used: {error}") from None
        return history

    def _new_history(self) -> TrainingHistory:
        run, data = self._run, self._data
        return TrainingHistory(
            planned_epochs=run.epochs, target=run.target_accuracy, eval_every=run.eval_every,
            samples_per_epoch=data.samples_per_epoch, evaluation_samples=data.evaluation_samples,
            images_sha256=data.images_sha256,
        )  # fmt: skip

    def _read(self) -> tuple[TrainingHistory, TrainingState] | None:
        """The latest checkpoint of the run; None where no attempt left one. Raises InvalidRun if it is not usable."""
        path = next(iter(self._files.earlier_checkpoints()), None)
        if path is None:
            return None
        try:
            facts, state = read_checkpoint(path)
            history = TrainingHistory.from_json(facts["history"])
        except (CheckpointError, TrainingError, OSError) as error:
            raise InvalidRun(str(error)) from None
        differing = [
            f"{name} is {facts.get(name)!r} there and {here!r} here"
            for name, here in (("run", self._run.run_id), ("ranks", self._run.ranks))
            if facts.get(name) != here
        ]
        if history.images_sha256 != self._data.images_sha256:
            differing.append("it was trained on other images")
        if differing:
            raise InvalidRun(
                f"the checkpoint {path} is of another training: {'; '.join(differing)}; remove it, and the training "
                "restarts at its first epoch"
            )
        return history, state

    def _share(self, state: TrainingState | None) -> TrainingState:
        """Rank 0's state on every rank."""
        shapes = {} if state is None else {name: (a.shape, str(a.dtype)) for name, a in state.arrays.items()}
        shapes, values = self._comm.bcast((shapes, None if state is None else state.values))
        arrays = {}
        for name, (shape, dtype) in shapes.items():
            array = np.ascontiguousarray(state.arrays[name]) if state is not None else np.empty(shape, dtype)
            self._comm.Bcast(array)
            arrays[name] = array.reshape(shape)
        return TrainingState(arrays=arrays, values=values)

    def _end_epoch(self, begin_ns: int, rate: float, samples: int, journal: Journal) -> None:
        """Adds the epoch to the history, with its evaluation where one is due, and writes the checkpoint."""
        everywhere = self._comm.allreduce(samples)
        trained_ns, evaluated_ns, correct, evaluated = self._now_ns(), 0, 0, 0
        # As DDP does before each forward: the model that is evaluated, and stored, is rank 0's on every rank.
        self._backend.set_statistics(self._comm.bcast(self._backend.statistics()))
        if self._history.is_evaluated(len(self._history.epochs) + 1):
            counts = np.array(self._backend.evaluate(lambda: _count_unmeasured(journal)), np.int64)
            correct, evaluated = (int(count) for count in self._comm.allreduce(counts))
            evaluated_ns = self._now_ns()
        state = self._backend.state() if self._comm.rank == 0 else None
        epoch = Epoch(
            attempt=self._attempt, learning_rate=rate, begin_ns=begin_ns, trained_ns=trained_ns,
            evaluated_ns=evaluated_ns, samples=everywhere, evaluated=evaluated, correct=correct,
            state_sha256="" if state is None else state.sha256(),
        )  # fmt: skip
        self._history = self._comm.bcast(self._history.with_epoch(epoch))
        if self._log is not None:
            self._log.epoch(self._history)
        if not self._history.is_over:  # the next file is the trace
            self._checkpoint(state)

    def _checkpoint(self, state: TrainingState | None) -> None:
        """Rank 0 writes a checkpoint. Where that fails training goes on, and the history says so."""
        error = ""
        if state is not None:
            facts = {"run": self._run.run_id, "ranks": self._run.ranks, "history": self._history.to_json()}
            try:
                self._folder.require()
                write_checkpoint(self._files.checkpoint, facts, state)
                for path in self._files.earlier_checkpoints():
                    path.unlink(missing_ok=True)
            except OSError as failure:
                error = f"after epoch {len(self._history.epochs)}: {failure}"
        if error := self._comm.bcast(error):
            self._history = replace(self._history, checkpoint_errors=(*self._history.checkpoint_errors, error))
            if self._log is not None:
                self._log.say(f"no checkpoint {error}")


def _count_unmeasured(journal: Journal) -> None:
    journal.unmeasured[0] += 1


class _Log:
    """The log of a whole training on rank 0's standard output, as it goes on.

    An attempt that goes on from a checkpoint prints what came before again, by the times of the history, so that the
    last attempt's log is the whole training's.
    """

    def __init__(self, run: RunSpec, problems: dict[str, str]) -> None:
        self._run, self._problems = run, problems

    def begin(self, history: TrainingHistory) -> None:
        self._print(begin_lines(self._run, history))
        for number in range(1, len(history.epochs) + 1):
            self._print(epoch_lines(history, number))

    def epoch(self, history: TrainingHistory) -> None:
        self._print(epoch_lines(history, len(history.epochs)))

    def end(self, history: TrainingHistory) -> None:
        self._print(end_lines(history))

    def say(self, text: str) -> None:
        self._print([text])

    def _print(self, lines: Iterable[str]) -> None:
        """A log that cannot be written, as on a full disk, costs no training."""
        text = "\n".join(lines)
        attempted(self._problems, "training log", lambda: print(text, flush=True), None)
