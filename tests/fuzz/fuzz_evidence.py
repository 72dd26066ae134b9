"""Damaged files of a sweep, and everything that reads them.

`python -m tests.fuzz.fuzz_evidence [--count N] [--from SEED]`; `--seed N` repeats one with its full output.

Defects: a traceback, a hang, a trace that is lost, overwritten or unreadable, `ok` without a whole trace, a measured
run measured again, an unreadable file that is not named, damage that changes other runs. Each is printed with its seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc import sweep as sweep_command
from hpc.model import evidence
from hpc.model.files import EXIT
from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RankNote, RecordError, read_own_record
from hpc.model.spec import RunSpec, SpecError
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace
from hpc.model.verdict import JobEnd
from hpc.node_agent.copies import Copies
from hpc.recovery import recover
from hpc.recovery.journal import SCHEMA, SCHEMA_VERSION, read_journals
from hpc.system.job_facts import Job
from hpc.system.regular_file import MAX_BYTES
from launch.follow import write_missing_records
from launch.jobs.options import LaunchOptions, RunLimits
from launch.jobs.script import Folders
from launch.queue import SUBMITTED, recall
from launch.scheduler.lock import FolderLock
from launch.scheduler.slurm_jobs import read_job_now
from launch.step.claim import Claim
from launch.step.watch import Launcher, Watchdog
from launch.sweep import status
from launch.sweep.request import Request, SweepOptions
from launch.sweep.run_status import RunStatus, choose_reruns, mend_records, pending_runs, run_statuses
from launch.sweep.submit import FAILURES
from launch.sweep.text import describe_runs
from parse import summarize
from tests.fuzz.damages import ERRORS, HUGE_BYTES, OF_ANY, OF_JSON, Damage, empty, folder, refused, zeros
from tests.fuzz.trials import Defect, command, require, try_seeds
from tests.unit.traces import cut_short, make_run, make_trace, put, put_plan

COUNT = 3_000
RUNS = tuple(make_run(nodes=2, repeat=repeat) for repeat in range(1, 6))
RUN_IDS = [run.run_id for run in RUNS]
MEASURED, FAILED, LATE, OPEN, AGAIN = RUNS
STEPS_LEFT = 3
JOB, SINCE = "local-elsewhere-1-1", 1_700_000_000
ENDED = subprocess.Popen(["true"])
ENDED.wait()


@dataclass(frozen=True, kw_only=True)
class Input:
    """What one seed does: the files and their damage, and one that cannot be opened, with the errno."""

    seed: int
    damages: Sequence[tuple[str, Damage]]
    refused: tuple[str, int] | None

    def __str__(self) -> str:
        damages = ", ".join(f"{damage.__name__} of {name}" for name, damage in self.damages)
        return f"{damages}; refused: {self.refused}"


def make_sweep(out: Path) -> Folders:
    """A sweep's folder with all kinds of files: runs measured, failed, measured after a timeout, cut off, rerun."""
    folders = Folders.under(out)
    for each in (folders.jobs / "runs", folders.logs, folders.traces):
        each.mkdir(parents=True)
    put_plan(folders.traces, RUNS)
    _begin(folders, MEASURED, 1)
    put(folders.traces, make_trace(MEASURED))
    _end(folders, MEASURED, 1, Outcome.OK)
    _begin(folders, FAILED, 1)
    put(folders.traces, cut_short(make_trace(FAILED, recovered=True), 6, Outcome.RANK_FAIL))
    _note(folders, FAILED)
    (folders.traces / f"{FAILED.run_id}.1.stacks.txt").write_text("rank 0, 6 steps completed:\n")
    _end(folders, FAILED, 1, Outcome.RANK_FAIL)
    _begin(folders, LATE, 1)
    _end(folders, LATE, 1, Outcome.TIMEOUT)
    _begin(folders, LATE, 2)
    put(folders.traces, make_trace(LATE, attempt=2))
    _end(folders, LATE, 2, Outcome.OK)
    _begin(folders, OPEN, 1)
    _note(folders, OPEN)
    _leave_stamps(folders.traces / f"{OPEN.run_id}.1.partial")
    stem = folders.traces / f"{OPEN.run_id}.1"
    Path(f"{stem}.signal").write_text("SIGTERM at 2026-11-20 23:12:16\n")
    Path(f"{stem}.kept").write_text("kept: n1:/dev/shm/rankwise-0/x\n")
    Path(f"{stem}.hang.json").write_text(json.dumps({"text": "no rank made a step for 70 s", "phase": "step"}))
    _begin(folders, AGAIN, 1)
    _end(folders, AGAIN, 1, Outcome.OOM)
    (folders.traces / f"{AGAIN.run_id}.1.rerun").touch()
    memory = {"script": "2n.sh", "job_name": "2n", "job_ids": [JOB], "runs": [run.run_id for run in RUNS]}
    (folders.jobs / SUBMITTED).write_text(json.dumps(memory))
    (folders.jobs / ".lock").write_text(json.dumps({"user": "a", "host": "b", "pid": 1, "since_unix_s": SINCE}))
    return folders


def _begin(folders: Folders, run: RunSpec, attempt: int) -> None:
    values = {"run_id": run.run_id, "attempt": attempt, "job_id": JOB, "begin_unix_s": SINCE}
    (folders.traces / f"{run.run_id}.{attempt}.begin.json").write_text(json.dumps(values) + "\n")
    (folders.logs / f"{run.run_id}.{attempt}.err").write_text("srun: error: node2: task 1: Killed\n" * 50)
    (folders.logs / f"{run.run_id}.{attempt}.out").write_text("begins\n")


def _end(folders: Folders, run: RunSpec, attempt: int, outcome: Outcome) -> None:
    ExitRecord(
        run_id=run.run_id, attempt=attempt, outcome=outcome, exit_status=0, job_id=JOB, restart_count=0, nodelist="n1",
        begin_unix_s=SINCE, end_unix_s=SINCE + 60, evidence=("because",),
    ).write(folders.traces)  # fmt: skip


def _note(folders: Folders, run: RunSpec) -> None:
    RankNote(rank=1, outcome=Outcome.RANK_FAIL, exception="E", message="boom", step=2, hostname="n1").write(
        folders.traces, f"{run.run_id}.1"
    )


def _leave_stamps(partial: Path) -> None:
    partial.mkdir()
    steps, width = OPEN.steps, len(STAMPS)
    for rank in range(OPEN.ranks):
        begun = STEPS_LEFT * width + 2
        stamps = array("q", [*range(1, begun + 1), *[ABSENT] * (steps * width - begun)])
        samples = array("q", [4] * STEPS_LEFT + [ABSENT] * (steps - STEPS_LEFT))
        (partial / f"rank{rank}.stamps").write_bytes(stamps.tobytes() + samples.tobytes())
        header = {
            "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "rank": rank, "steps": steps,
            "byteorder": sys.byteorder, "run": OPEN.to_json(), "attempt": 1, "facts": {"rank": rank, "hostname": "n1"},
            "clock": {"domain": "c", "points": [[10, 0.5, 0.0], [99, 0.5, 0.0]], "barrier_exits_ns": [1, 2, 3, 4],
                      "unix_offsets_ns": [[10**18, 9], [10**18, 9]]},
        }  # fmt: skip
        (partial / f"rank{rank}.json").write_text(json.dumps(header))
        (partial / f"rank{rank}.stacks").write_text("Current thread 0x1:\n")
    (partial / "rank0.whole").touch()
    (partial / "n1.beat").write_text("10\n")


def input_of(seed: int, files: Sequence[str]) -> Input:
    """What that seed does to a sweep of these files: the first do everything once to each, all others at random."""
    pairs = [(name, damage) for name in files for damage in dict.fromkeys(_damages_of(name))]
    if seed < len(pairs):
        return Input(seed=seed, damages=(pairs[seed],), refused=None)
    seed_of_errors = seed - len(pairs)
    if seed_of_errors < len(files) * len(ERRORS):
        name, number = divmod(seed_of_errors, len(ERRORS))
        return Input(seed=seed, damages=(), refused=(files[name], ERRORS[number]))
    rng = random.Random(seed)
    damages = [(name, rng.choice(_damages_of(name))) for name in rng.sample(files, rng.choice((1, 2, 2, 3)))]
    away = (rng.choice(files), rng.choice(ERRORS)) if rng.random() < 0.2 else None
    return Input(seed=seed, damages=damages, refused=away)


def _damages_of(name: str) -> Sequence[Damage]:
    return OF_JSON if name.endswith(".json") else OF_ANY


def files_of(out: Path) -> list[str]:
    """All its files, as paths from there."""
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def check(
    template: Path, out: Path, damaged: Input | None, usual: Mapping[str, str] | None = None
) -> tuple[str, list[RunStatus]]:
    """Damages a copy of the sweep and has everything read it; what was printed, and how the runs stand then.

    `usual` is how they stand where nothing was damaged. Raises Defect.
    """
    shutil.copytree(template, out)
    damaged = damaged or Input(seed=0, damages=(), refused=None)
    rng = random.Random(damaged.seed)
    for name, damage in damaged.damages:
        damage(out / name, rng)
    traces = out / "traces"
    before = _traces(traces)
    records = {path: path.read_bytes() for path in traces.glob(f"*{EXIT}") if _is_small(path)}
    touched = [name for name, _ in damaged.damages]
    stamps = {path.name: path.read_bytes() for path in (template / "traces").rglob("rank*.stamps")
              if str(path.relative_to(template)) not in touched}  # fmt: skip
    output = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    away = refused(out / damaged.refused[0], damaged.refused[1]) if damaged.refused else contextlib.nullcontext()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), away:
        _read_everything(out, rng)
        statuses, pending = run_statuses(RUN_IDS, traces), pending_runs(RUN_IDS, traces)
        print(*describe_runs(statuses, Folders.under(out)), sep="\n")
    output.seek(0)
    text = output.read()
    require("Traceback" not in text, "a traceback is printed")
    _hold_traces(traces, before)
    _hold_records(traces, records)
    _hold_stamps(traces, stamps)
    if usual is not None:
        _hold_runs(damaged, statuses, pending, usual)
    _hold_words(damaged, text)
    return text, statuses


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= MAX_BYTES


def _read_everything(out: Path, rng: random.Random) -> None:
    """All command lines and what runs in their places, in an order that the seed decides."""
    folders = Folders.under(out)
    traces, stem = folders.traces, f"{OPEN.run_id}.1"
    ends = {JOB: JobEnd(state="TIMEOUT", source="sacct")}
    job_text = rng.choice(("", "JobState=FAILED Restarts=x"))
    job = Job(job_id="4711", name="other", nodelist="n1")
    now = read_job_now(job_text, job)
    begin = BeginRecord(run_id=OPEN.run_id, attempt=1, job_id=JOB, begin_unix_s=SINCE)
    output = evidence.AttemptOutput(
        error=folders.logs / f"{stem}.err", on_node=[out / "node"], collected=rng.choice(("", "kept: \x00:/"))
    )
    command = ["--cluster", "local", "--backend", "mpi", "--workload", "delay", "--nodes", "1", "--dry-run"]

    def planned() -> None:
        lock = FolderLock(folders.jobs)
        with lock.held(lambda holder: None):
            mend_records(folders, print)
            choose_reruns(SweepOptions(retry=(Outcome.OOM,)), RUNS, traces, None, print)
            pending_runs(RUN_IDS, traces)
            recall(folders.jobs)

    def closed(end: JobEnd) -> None:
        evidence.close_attempts(traces, folders.logs, JOB, end, recover=lambda name: None, say=print)

    def claim(job: Job) -> Claim:
        return Claim(
            OPEN.run_id,
            traces,
            folders.logs,
            job,
            force=False,
            say=print,
            close=lambda job_id, end: None,
            pause=lambda seconds: None,
        )

    of_sweep = (*FAILURES, SpecError)  # what hpc.sweep shows as one line
    calls: list[tuple[Callable[[], object], tuple[type[BaseException], ...]]] = [
        (lambda: claim(job).next_attempt(), ()),
        (lambda: claim(job).status(), ()),
        (lambda: closed(now.end or JobEnd(state="", source="squeue")), ()),
        (lambda: evidence.judge_ended(begin, traces, output, exit_status=1, job=now), ()),
        (lambda: recover.main([str(out)]), ()),
        (lambda: recover.main([str(out), "--stem", stem]), ()),
        (lambda: write_missing_records(traces, ends, folders.logs, patience_s=0), of_sweep),
        (lambda: status.show(Request(launch=LaunchOptions(out=out))), of_sweep),
        (lambda: sweep_command.main([*command, "--out", str(out)]), ()),
        (lambda: Watchdog(traces, stem, Launcher(ENDED), RunLimits(), print).see(), ()),
        (lambda: read_journals(traces / f"{stem}.partial", []), ()),
        (lambda: _copy(traces / f"{stem}.partial", out / "node"), ()),
        (planned, of_sweep),
    ]
    for call, caught in [*rng.sample(calls, len(calls)), calls[-1], calls[6]]:
        try:
            call()
        except caught as error:
            print(error)
    for form in ("table", "json", "csv"):
        summarize.main([str(traces), "--format", form])


def _copy(partial: Path, node: Path) -> None:
    """One look of a copier: the journals of its node are whole, what lies in the traces is what there is."""
    node.mkdir()
    for rank in range(OPEN.ranks):
        (node / f"rank{rank}.json").write_text(json.dumps({"rank": rank}))
        (node / f"rank{rank}.stamps").write_bytes(array("q", [ABSENT] * OPEN.steps * (len(STAMPS) + 1)).tobytes())
    Copies(dict.fromkeys(range(OPEN.ranks), node), partial, 10.0).look()


def _traces(traces: Path) -> dict[Path, str]:
    """What every trace holds, by its path; of a hole no more than its size."""
    digests = {}
    for path in traces.rglob("*"):
        if path.suffix.lower() == ".h5" and path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            digests[path] = str(size) if size >= HUGE_BYTES else hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def _hold_traces(traces: Path, before: Mapping[Path, str]) -> None:
    after = _traces(traces)
    for path, content in before.items():
        require(after.get(path) == content, f"{path.name} was changed or thrown away")
    for path in after.keys() - before.keys():
        try:
            trace = read_trace(path)
        except TraceError as error:
            raise Defect(f"a trace was written that cannot be read: {error}") from None
        steps = int(trace.steps_completed.max())
        require(trace.recovered and steps <= STEPS_LEFT, f"{path.name} says that {steps} steps were completed")


def _hold_records(traces: Path, before: Mapping[Path, bytes]) -> None:
    """A record that was written after the damage, and says `ok`, has a whole trace."""
    for path in traces.glob("*.exit.json"):
        if not _is_small(path) or path.read_bytes() == before.get(path):
            continue
        try:
            record = read_own_record(path)
        except RecordError as error:
            raise Defect(f"a record was written that cannot be read: {error}") from None
        if record.outcome is Outcome.OK:
            try:
                whole = not read_trace(path.with_name(path.name.replace(EXIT, ".h5"))).recovered
            except TraceError:
                whole = False
            require(whole, f"{path.name} says ok without a whole trace")


def _hold_stamps(traces: Path, before: Mapping[str, bytes]) -> None:
    """What a rank recorded is in the trace, or where it was, or kept aside."""
    trace = traces / f"{OPEN.run_id}.1.h5"
    for name, content in before.items():
        copies = [path for path in traces.rglob(name) if path.is_file() and path.read_bytes() == content]
        rank = int(name.removeprefix("rank").removesuffix(".stamps"))
        brought = trace.is_file() and int(read_trace(trace).steps_completed[rank]) == STEPS_LEFT
        require(bool(copies) or brought, f"what rank {rank} recorded is nowhere")


def _hold_runs(damaged: Input, statuses: Sequence[RunStatus], pending: Sequence[str], usual: Mapping[str, str]) -> None:
    """Runs of which nothing was damaged are as they would have been; what was measured is not measured again."""
    touched = [name for name, _ in damaged.damages] + ([damaged.refused[0]] if damaged.refused else [])
    for run_id, state in ((each.run_id, each.state) for each in statuses):
        if not any(run_id in name for name in touched):
            require(state == usual[run_id], f"{run_id} is {state}, without damage {usual[run_id]}")
    for run, attempt in ((MEASURED, 1), (LATE, 2)):
        of_attempt = [name for name in touched if f"{run.run_id}.{attempt}." in name]
        if not any(name.endswith(".h5") for name in of_attempt) and len(of_attempt) < 2:
            require(run.run_id not in pending, f"{run.run_id} has a whole trace, and is to be measured again")


def _hold_words(damaged: Input, text: str) -> None:
    """What no reader can pass over is named."""
    for name, damage in damaged.damages:
        path = Path(name)
        # A folder is no file, so nobody misses one where a record says all.
        record = path.name.endswith(EXIT) or path.match("plan.*.json") or f"{OPEN.run_id}.1.rank1.json" == path.name
        trace = path.suffix == ".h5" and damage is not folder
        # Of files on which a later damage fell it is not known what is left.
        single = len(damaged.damages) == 1 and damaged.refused is None
        if single and damage in (empty, zeros, folder) and path.parent.name == "traces" and (record or trace):
            require(path.name in text, f"nothing names {name}")


def run(first: int, count: int, place: Path, show: bool = False) -> int:
    """Tries so many seeds; prints what fails. Returns how many did."""
    template = place / "template"
    make_sweep(template)
    usual = {run.run_id: run.state for run in check(template, place / "usual", None)[1]}
    files = files_of(template)

    def attempt(seed: int) -> str:
        out = place / f"sweep {seed}"
        try:
            text, _ = check(template, out, input_of(seed, files), usual)
        finally:
            shutil.rmtree(out, ignore_errors=True)
        if show:
            print(text)
        return "right"

    return try_seeds(first, count, attempt, lambda seed: str(input_of(seed, files)))


def main() -> int:
    """Command line: 0 where nothing failed."""
    return command(
        __doc__, COUNT, lambda options, first, count, place: run(first, count, place, show=options.seed is not None)
    )


if __name__ == "__main__":
    sys.exit(main())
