"""Outcomes decided from evidence: each rule where it decides, and where another one does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpc.model.evidence import (
    AttemptOutput,
    close_attempts,
    describe,
    judge_ended,
    open_attempts,
    read_evidence,
)
from hpc.model.files import AttemptFiles
from hpc.model.outcome import (
    BeginRecord,
    ExitRecord,
    Outcome,
    RankNote,
    RecordError,
    exit_records,
    final_record,
    read_exit_record,
    read_rank_note,
)
from hpc.model.verdict import GROUP_KILLS, RANK_STATUSES, EndedBy, Evidence, JobEnd, decide, is_secondary
from hpc.run.rank_state import EXIT_STATUS
from hpc.system.job_facts import Job
from launch.scheduler.slurm_jobs import read_job_now
from tests.unit.traces import make_run, make_trace, put

NONE = Evidence(exit_status=1, trace=False, job_id="7")
UNSEEN = Evidence(exit_status=None, trace=False)
BOOM = RankNote(rank=1, outcome=Outcome.RANK_FAIL, exception="ValueError", message="boom", step=4, hostname="node2")
ECHO = replace(BOOM, rank=0, exception="RuntimeError", message="[1] Connection closed by peer [10.0.0.2]:4711", step=3)
IN_GROUP = f"rankwise: x_r1.1: out of memory: {GROUP_KILLS}: 1"
LATER = replace(BOOM, rank=2, message="later", step=7)
ABORTED = replace(BOOM, exception="ScriptFailed", message="the script ended with signal 6 (SIGABRT)")
MEMORY = replace(BOOM, rank=3, outcome=Outcome.OOM, exception="MemoryError", message="", step=9)
INVALID = replace(BOOM, rank=4, outcome=Outcome.INVALID, exception="InvalidRun", message="asked for 2 ranks", step=-1)
AWAY = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-20T23:11:33 DUE TO {}, SEE SLURMCTLD LOG ***"
KILLED = "srun: error: node2: task 3: Killed"
OPEN_MPI = "mpirun noticed that process rank 1 with PID 0 on node node1 exited on signal 9 (Killed)."
PRTE = "prterun noticed that process rank 1 with PID 77 on node node1 exited on\nsignal 9 (Killed)."
EXITED = "srun: error: node1: task 0: Exited with exit code 7"
MPIRUN_EXITED = (
    "mpirun detected that one or more processes exited …\n  Process name: [[26331,1],3]\n  Exit code:    7\n"
)
_FRAME = "-" * 74
NO_PMI = f"""{_FRAME}
The application appears to have been direct launched using "srun",
but OMPI was not built with SLURM's PMI support and therefore cannot
execute. There are several options for building PMI support under
SLURM, depending upon the SLURM version you are using:
{_FRAME}
*** An error occurred in MPI_Init_thread
[node1:77] Local abort before MPI_INIT completed completed successfully
srun: error: node1: task 0: Exited with exit code 1
"""
ABORT = "terminate called after throwing an instance of 'c10::Error'\n  what():  no luck\nFatal Python error: Aborted\n"
NO_SLOTS = f"{_FRAME}\nThere are not enough slots available in the system\nto satisfy the 9 slots\n{_FRAME}\n"
HYDRA = "=   RANK 1 PID 77 RUNNING AT node1\n=   KILLED BY SIGNAL: 9 (Killed)\n"


def job(state: str, **more: object) -> JobEnd:
    return JobEnd(state=state, source="squeue", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "outcome", "text"),
    [
        (replace(NONE, exit_status=0, trace=True), Outcome.OK, "whole trace"),
        (replace(UNSEEN, trace=True, job=job("FAILED")), Outcome.OK, "no exit status of the launcher was recorded"),
        (replace(NONE, exit_status=9, trace=True, notes=[BOOM]), Outcome.OK, "trace; only then the launcher"),
        (replace(NONE, exit_status=0), Outcome.LAUNCH_FAIL, "no step was made"),
        (replace(NONE, steps=5), Outcome.RANK_FAIL, "up to 5 steps"),
        (replace(NONE, trace=True, ended_by=EndedBy.HANG, reason="no end for 600 s"), Outcome.OK, "no end for 600 s"),
        # Why the script ended the step comes before what the ranks say of it.
        (replace(NONE, ended_by=EndedBy.TIME_LIMIT, notes=[BOOM]), Outcome.TIMEOUT, "time limit"),
        (replace(NONE, ended_by=EndedBy.PREEMPTION, error=KILLED), Outcome.PREEMPTED, "preempted"),
        (replace(NONE, ended_by=EndedBy.HANG, reason="no step in 90 s", steps=3), Outcome.RANK_FAIL, "no step in 90 s"),
        (replace(NONE, ended_by=EndedBy.HANG), Outcome.LAUNCH_FAIL, "no rank made a step"),
        (replace(NONE, exit_status=0, trace=True, ended_by=EndedBy.TIME_LIMIT), Outcome.OK, "whole trace"),
        # Notes: invalid, then memory, then whoever failed first; an echo never wins.
        (replace(NONE, notes=[BOOM, MEMORY, INVALID]), Outcome.INVALID, "rank 4 on node2 before the first step"),
        (replace(NONE, notes=[BOOM, MEMORY]), Outcome.OOM, "rank 3 on node2 after step 9: MemoryError"),
        (replace(NONE, notes=[LATER, BOOM]), Outcome.RANK_FAIL, "rank 1 on node2 after step 4: ValueError: boom"),
        (replace(NONE, notes=[ECHO, LATER]), Outcome.RANK_FAIL, "rank 2 on node2 after step 7: ValueError: later"),
        (replace(NONE, notes=[ECHO], error=KILLED, steps=4), Outcome.RANK_FAIL, "rank 3 on node2: Killed"),
        (replace(NONE, notes=[ECHO]), Outcome.RANK_FAIL, "the rank it lost left no note"),
        (replace(NONE, notes=[ECHO], error="slurmstepd: error: Detected 1 oom_kill event"), Outcome.OOM, "oom_kill"),
        # Standard error.
        (replace(NONE, error="slurmstepd: error: Step 1.0 exceeded memory limit (9 > 8)"), Outcome.OOM, "exceeded"),
        (replace(NONE, error="torch.OutOfMemoryError: CUDA out of memory. Tried"), Outcome.OOM, "CUDA out of memory"),
        (replace(NONE, error="torch.OutOfMemoryError: HIP out of memory. Tried"), Outcome.OOM, "HIP out of memory"),
        (replace(NONE, error="(GPU_0_bfc) ran out of memory. The caller indicates that this is not a failure", steps=2),
         Outcome.RANK_FAIL, "up to 2 steps"),
        (replace(NONE, error="srun: error: node1: task 0: Bus error (core)", steps=2), Outcome.RANK_FAIL, "/dev/shm"),
        (replace(NONE, error="srun: error: node1: tasks 0-1: Killed", steps=2), Outcome.RANK_FAIL, "ranks 0-1 on"),
        (replace(NONE, error="bash: line 1: 77 Bus error", steps=2), Outcome.RANK_FAIL, "/dev/shm"),
        (replace(NONE, error="[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", steps=2),
         Outcome.RANK_FAIL, "NCCL waited in vain for a rank: collective operation timeout: WorkNCCL(SeqNum=7)"),
        (replace(NONE, error=OPEN_MPI, steps=2), Outcome.RANK_FAIL, "rank 1 on node1: signal 9 (Killed)"),
        (replace(NONE, error=PRTE, steps=2), Outcome.RANK_FAIL, "rank 1 on node1: signal 9 (Killed)"),
        (replace(NONE, error=HYDRA, steps=2), Outcome.RANK_FAIL, "node1: SIGNAL: 9 (Killed), as the kernel's"),
        (replace(NONE, error=KILLED), Outcome.LAUNCH_FAIL,
         "rank 3 on node2: Killed, as the kernel's OOM killer does: see dmesg, or the job's memory"),
        (replace(NONE, error=f"srun: error: task 2 launch failed: Unspecified error\n{KILLED}"), Outcome.LAUNCH_FAIL,
         "task 2 launch failed"),
        (replace(NONE, error="srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"),
         Outcome.LAUNCH_FAIL, "Unable to contact slurm controller"),
        # The job was taken away: its ranks' failures are of that.
        (replace(NONE, error=f"{KILLED}\n{AWAY.format('NODE FAILURE')}", notes=[BOOM]), Outcome.NODE_FAIL, "due to"),
        (replace(NONE, error=AWAY.format("TIME LIMIT")), Outcome.TIMEOUT, "time limit"),
        (replace(NONE, error=AWAY.format("PREEMPTION")), Outcome.PREEMPTED, "preemption"),
        (replace(NONE, error=AWAY.format("JOB REQUEUE")), Outcome.PREEMPTED, "job requeue"),
        # Kills in a control group that others may share explain a death, but not the end of a job.
        (replace(NONE, error=f"{IN_GROUP}\n{KILLED}"), Outcome.OOM, "that the kernel killed: 1"),
        (replace(NONE, error=f"{IN_GROUP}\n{KILLED}", notes=[BOOM]), Outcome.RANK_FAIL, "boom"),
        (replace(NONE, error=f"{AWAY.format('JOB REQUEUE')}\n{IN_GROUP}"), Outcome.PREEMPTED, "job requeue"),
        (replace(NONE, error=IN_GROUP, ended_by=EndedBy.SIGNAL), Outcome.CANCELLED, "signal"),
        (replace(NONE, error="srun: error: Node failure on node2", notes=[ECHO]), Outcome.NODE_FAIL, "Node failure"),
        (replace(NONE, error=AWAY.format("NODE FAILURE"), notes=[INVALID]), Outcome.INVALID, "rank 4"),
        # What programs print of memory or of Slurm is not believed against a rank's own note, or of another job.
        (replace(NONE, notes=[BOOM], error="Cannot allocate memory, falling back"), Outcome.RANK_FAIL, "boom"),
        (replace(NONE, notes=[ECHO], error="Cannot allocate memory"), Outcome.OOM, "Cannot allocate memory"),
        (replace(NONE, notes=[BOOM], error="slurmstepd: error: Detected 1 oom_kill event"), Outcome.OOM, "oom_kill"),
        (replace(NONE, job_id="8", notes=[BOOM], error=AWAY.format("TIME LIMIT")), Outcome.RANK_FAIL, "boom"),
        (replace(NONE, job_id="local-h-7-1", error=AWAY.format("TIME LIMIT")), Outcome.LAUNCH_FAIL, "DUE TO TIME"),
        # A rank that exits without a note is the cause, whatever the others say of losing it.
        (replace(NONE, notes=[BOOM], steps=5, error=EXITED), Outcome.RANK_FAIL, "rank 0 on node1 exited with status 7"),
        (replace(NONE, notes=[ECHO], error=EXITED.replace("task 0", "tasks 2-3")), Outcome.LAUNCH_FAIL, "ranks 2-3 on"),
        (replace(NONE, notes=[BOOM], error=EXITED.replace("task 0", "task 1")), Outcome.RANK_FAIL, "ValueError: boom"),
        (replace(NONE, notes=[BOOM], error=EXITED.replace("code 7", "code 1")), Outcome.RANK_FAIL, "ValueError: boom"),
        (replace(NONE, notes=[BOOM], error=MPIRUN_EXITED), Outcome.LAUNCH_FAIL, "rank 3 exited with status 7"),
        (replace(NONE, ended_by=EndedBy.TIME_LIMIT, error=EXITED), Outcome.TIMEOUT, "time limit"),
        # The cause, which stands far above the last line.
        (replace(NONE, error=NO_PMI), Outcome.LAUNCH_FAIL, "OMPI was not built with SLURM's PMI support: the site's"),
        (replace(NONE, error=NO_PMI), Outcome.LAUNCH_FAIL, "`rankwise doctor --site SITE` names one that does"),
        (replace(NONE, error=NO_PMI, steps=3), Outcome.RANK_FAIL, "rank 0 on node1 exited with status 1"),
        (replace(NONE, notes=[ABORTED], error=ABORT), Outcome.RANK_FAIL,
         "(SIGABRT); standard error has: terminate called after throwing an instance of 'c10::Error' what(): no luck"),
        (replace(NONE, notes=[BOOM], error=ABORT), Outcome.RANK_FAIL, "ValueError: boom"),
        (replace(NONE, error=f"{ABORT}srun: error: node2: task 3: Aborted"), Outcome.LAUNCH_FAIL,
         "rank 3 on node2: Aborted; standard error has: terminate called"),
        (replace(NONE, exit_status=134, error=f"{ABORT}Thread\n"), Outcome.LAUNCH_FAIL, "has: terminate called"),
        # A launcher that cannot start is quoted; what nobody could see is not called a failure.
        (replace(NONE, error=NO_SLOTS), Outcome.LAUNCH_FAIL, "ends with: There are not enough slots available in the"),
        (replace(NONE, error="x\nmpiexec: not found\n\n"), Outcome.LAUNCH_FAIL, "ends with: mpiexec: not found"),
        (replace(NONE, unreadable="/t/x.h5: Stale file handle", steps=4), Outcome.LOST, "Stale file handle"),
        # The scheduler.
        *[
            (replace(UNSEEN, job=job(state), notes=[BOOM]), outcome, f"squeue: {state}")
            for state, outcome in (
                ("TIMEOUT", Outcome.TIMEOUT), ("DEADLINE", Outcome.TIMEOUT), ("PREEMPTED", Outcome.PREEMPTED),
                ("NODE_FAIL", Outcome.NODE_FAIL), ("BOOT_FAIL", Outcome.NODE_FAIL), ("OUT_OF_MEMORY", Outcome.OOM),
                ("CANCELLED", Outcome.CANCELLED),
            )
        ],
        (replace(UNSEEN, job=job("NODE_FAIL", requeued=True, reason="NodeDown")), Outcome.NODE_FAIL, "(NodeDown), and"),
        (replace(UNSEEN, job=job("FAILED"), notes=[BOOM]), Outcome.RANK_FAIL, "boom"),
        (replace(UNSEEN, job=job("FAILED")), Outcome.LOST, "squeue: FAILED"),
        (replace(UNSEEN, job=job("")), Outcome.LOST, "has forgotten the job"),
        (UNSEEN, Outcome.LOST, "did not answer"),
        (replace(UNSEEN, job=job(""), error=KILLED), Outcome.LOST, "has forgotten the job"),  # killed with their job
        (replace(UNSEEN, error="srun: error: node1: task 0: Bus error (core)"), Outcome.LAUNCH_FAIL, "/dev/shm"),
        # A signal ended the script.
        (replace(NONE, ended_by=EndedBy.SIGNAL, reason="by SIGTERM", error=KILLED), Outcome.CANCELLED, "by SIGTERM"),
        (replace(UNSEEN, ended_by=EndedBy.SIGNAL, job=job("")), Outcome.LOST, "forgotten"),
        (replace(NONE, ended_by=EndedBy.SIGNAL, job=job("TIMEOUT")), Outcome.TIMEOUT, "squeue: TIMEOUT"),
        (replace(NONE, ended_by=EndedBy.SIGNAL, job=job("", requeued=True)), Outcome.PREEMPTED, "back to the queue"),
        (replace(UNSEEN, job=job("", requeued=True), notes=[ECHO]), Outcome.NODE_FAIL, "started again"),
        (replace(UNSEEN, ended_by=EndedBy.REQUEUE), Outcome.NODE_FAIL, "started again"),
    ],
)  # fmt: skip
def test_the_first_rule_that_knows_decides(evidence: Evidence, outcome: Outcome, text: str) -> None:
    decided, sentences = decide(evidence)
    assert decided is outcome
    assert text in sentences[0]


def test_the_deciding_sentence_is_first_and_none_is_repeated() -> None:
    evidence = replace(NONE, exit_status=143, notes=[BOOM], error=AWAY.format("NODE FAILURE"))
    assert decide(evidence)[1] == (
        "standard error: the job was taken away due to node failure",
        "rank 1 on node2 after step 4: ValueError: boom",
        "the launcher ended with exit status 143 (SIGTERM)",
    )


@pytest.mark.parametrize(
    "message", ["Connection reset by peer", "Broken pipe", "ncclRemoteError: A call failed", "Socket closed"]
)
def test_a_secondary_failure_is_recognised_by_its_message(message: str) -> None:
    assert is_secondary(replace(BOOM, message=message))
    assert not is_secondary(BOOM)


RUNNING = "JobId=7 JobName=a b JobState=RUNNING Reason=None Requeue=1 Restarts=0 EndTime=2026-11-20T23:12:36 {}"


@pytest.mark.parametrize(
    ("text", "restarts", "expected"),
    [
        ("", 0, None),
        (RUNNING.format("PreemptTime=None"), 0, None),
        (RUNNING.format("PreemptTime=2026-11-20T23:12:16"), 0, ("PREEMPTED", False)),
        ("JobState=COMPLETING Restarts=1", 0, ("", True)),
        ("JobState=COMPLETING Restarts=1", 1, None),
        ("JobState=CANCELLED Restarts=0", 0, ("CANCELLED", False)),
    ],
)
def test_how_a_job_ends_from_scontrol(text: str, restarts: int, expected: tuple[str, bool] | None) -> None:
    end = read_job_now(text, Job(job_id="7", restarts=restarts)).end
    assert (None if end is None else (end.state, end.requeued)) == expected


def judged(folder: Path, job_text: str | None = None, end_unix_s: int | None = None) -> ExitRecord | None:
    begin = BeginRecord(
        run_id="a_r1", attempt=2, job_id="7", begin_unix_s=5, restart_count=1, nodelist="node[1-2]", job_name="a"
    )
    job = None if job_text is None else read_job_now(job_text, Job(job_id="7", restarts=1, end_unix_s=end_unix_s))
    return judge_ended(begin, folder, AttemptOutput(error=folder / "none"), exit_status=143, job=job)


def test_the_record_combines_begin_record_notes_and_local_copies(tmp_path: Path) -> None:
    replace(BOOM, local_copies="node2:/tmp/x.h5").write(tmp_path, "a_r1.2")
    (tmp_path / "a_r1.2.kept").write_text("kept: node1:/dev/shm/y\n")
    record = judged(tmp_path)
    assert record is not None
    assert describe(record) == "rank_fail: rank 1 on node2 after step 4: ValueError: boom"
    assert (record.run_id, record.attempt, record.restart_count, record.job_id) == ("a_r1", 2, 1, "7")
    assert (record.nodelist, record.begin_unix_s, record.exit_status) == ("node[1-2]", 5, 143)
    assert record.local_copies == "node2:/tmp/x.h5, node1:/dev/shm/y"


KEPT = f"rankwise-7/a_r1.2-{'0a' * 4}"


def with_error(folder: Path, text: str, *, collected: str = "", on_node: Sequence[Path] = ()) -> ExitRecord:
    (folder / "a_r1.2.err").write_text(text)
    begin = BeginRecord(run_id="a_r1", attempt=2, job_id="7", begin_unix_s=5)
    output = AttemptOutput(error=folder / "a_r1.2.err", collected=collected, on_node=on_node)
    record = judge_ended(begin, folder, output, exit_status=1)
    assert record is not None
    return record


def test_a_trace_that_rank_0_could_not_write_is_found_in_its_output(tmp_path: Path) -> None:
    place = f"node2:/dev/shm/{KEPT}/a_r1.2.h5"
    record = with_error(
        tmp_path, f"x.TraceKept: /t/a_r1.2.h5: full; the whole trace is kept at {place}\nrank 0: over\n"
    )
    assert (record.outcome, record.local_copies, record.is_final) == (Outcome.RANK_FAIL, place, True)
    assert record.evidence[0] == f"rank 0 could not write its whole trace, which is kept at {place}"


def test_what_collecting_printed_counts_where_the_log_could_not_take_it(tmp_path: Path) -> None:
    record = with_error(tmp_path, "", collected=f"kept: node2:/tmp/my dir/{KEPT}/a_r1.2.h5\n")
    assert (record.outcome, record.local_copies) == (Outcome.RANK_FAIL, f"node2:/tmp/my dir/{KEPT}/a_r1.2.h5")
    record = with_error(tmp_path, "", collected=f"kept: node2:/tmp/{KEPT}\n")  # of ranks that died: no trace
    assert (record.outcome, record.local_copies) == (Outcome.LAUNCH_FAIL, f"node2:/tmp/{KEPT}")


@pytest.mark.parametrize(
    "place", ["node2:/etc/passwd", "node2:/dev/shm/rankwise-7/a_r1.1-0a0a0a0a/a_r1.1.h5", f"node2:/dev/shm/{KEPT}/x.h5",
              f"../{KEPT}/a_r1.2.h5"],
)  # fmt: skip
def test_a_place_that_is_not_the_attempts_own_is_not_believed(tmp_path: Path, place: str) -> None:
    record = with_error(tmp_path, f"the whole trace is kept at {place}\n")
    assert (record.outcome, record.local_copies) == (Outcome.LAUNCH_FAIL, "")


def test_traces_and_notes_on_the_node_count(tmp_path: Path) -> None:
    folder = tmp_path / KEPT
    folder.mkdir(parents=True)
    run = make_run()
    put(folder, make_trace(run)).rename(folder / "a_r1.2.h5")
    here = f"{os.uname().nodename}:{folder}/a_r1.2.h5"
    record = with_error(tmp_path, "", on_node=[folder])
    assert (record.outcome, record.local_copies) == (Outcome.RANK_FAIL, here)
    replace(BOOM, rank=0, local_copies=here, message="full").write(folder, "a_r1.2")
    record = with_error(tmp_path, f"kept: {os.uname().nodename}:{folder}\n", on_node=[folder])
    assert (record.outcome, record.local_copies) == (Outcome.RANK_FAIL, here)
    assert record.evidence[0] == "rank 0 on node2 after step 4: ValueError: full"
    (folder / "a_r1.2.h5").rename(tmp_path / "a_r1.2.h5")  # brought home
    record = with_error(tmp_path, f"the whole trace is kept at {here}\n", on_node=[folder])
    assert (record.outcome, record.local_copies) == (Outcome.OK, "")


def test_a_whole_trace_on_a_node_counts_whatever_ended_the_job(tmp_path: Path) -> None:
    (tmp_path / "a_r1.2.signal").write_text("SIGTERM at noon\n")
    (tmp_path / "a_r1.2.rank1.json").write_text(json.dumps({**asdict(BOOM), "outcome": "oom"}))
    record = with_error(tmp_path, f"the whole trace is kept at node2:/dev/shm/{KEPT}/a_r1.2.h5\n")
    assert record.outcome is Outcome.RANK_FAIL
    assert [each.split(" ")[0] for each in record.evidence] == ["rank", "rank", "the", "the"]


def test_a_hang_is_believed_before_a_signal(tmp_path: Path) -> None:
    (tmp_path / "a_r1.2.hang.json").write_text(json.dumps({"text": "no rank made a step for 70 s"}))
    (tmp_path / "a_r1.2.signal").write_text("SIGTERM at noon\n")
    record = judged(tmp_path)
    assert record and (record.outcome, record.evidence[0]) == (Outcome.LAUNCH_FAIL, "no rank made a step for 70 s")


WARNED = "JobId=7 JobState=RUNNING Restarts=1 PreemptTime={} EndTime={}"


@pytest.mark.parametrize(
    ("preempt_time", "remaining_s", "outcome"),
    [
        ("None", 60, "timeout"),
        ("None", -5, "timeout"),
        ("None", 86_400, "cancelled"),  # sent by a user, a day before the limit
        ("2026-11-20T23:12:16", 86_400, "preempted"),
    ],
)
def test_a_warning_is_explained_by_the_end_of_the_job(
    tmp_path: Path, preempt_time: str, remaining_s: int, outcome: str
) -> None:
    (tmp_path / "a_r1.2.signal").write_text("SIGUSR1 at noon\n")
    end = time.strftime("%FT%T", time.localtime(time.time() + remaining_s))
    record = judged(tmp_path, WARNED.format(preempt_time, end))
    assert record is not None and record.outcome == outcome


@pytest.mark.parametrize(
    ("signal", "job_text", "outcome"),
    [
        ("SIGUSR1", WARNED.format("None", "Unknown"), "timeout"),
        ("SIGUSR1", "", "timeout"),
        ("SIGUSR1", None, "cancelled"),  # no scheduler here: nobody warns
        ("SIGTERM", "JobState=COMPLETING Restarts=1", "cancelled"),
        ("SIGTERM", "JobState=COMPLETING Restarts=2", "preempted"),
        ("SIGTERM", None, "cancelled"),
    ],
)
def test_a_signal_is_explained_by_the_job(tmp_path: Path, signal: str, job_text: str | None, outcome: str) -> None:
    (tmp_path / "a_r1.2.signal").write_text(f"{signal} at noon\n")
    record = judged(tmp_path, job_text)
    assert record is not None and record.outcome == outcome


def test_where_scontrol_does_not_answer_the_end_of_the_job_is_known_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "a_r1.2.signal").write_text("SIGUSR1 at noon\n")
    early = judged(tmp_path, "", end_unix_s=int(time.time()) + 86_400)
    near = judged(tmp_path, "", end_unix_s=int(time.time()) + 60)
    assert early is not None and early.outcome is Outcome.CANCELLED and "sent by a user" in early.evidence[0]
    assert near is not None and near.outcome is Outcome.TIMEOUT


def test_an_unexplained_signal_makes_no_record(tmp_path: Path) -> None:
    (tmp_path / "a_r1.2.signal").write_text("SIGTERM at noon\n")
    assert judged(tmp_path, "") is None


def began(folder: Path, stem: str, job_id: str, restarts: int) -> None:
    run_id, _, attempt = stem.rpartition(".")
    values = {"run_id": run_id, "attempt": int(attempt), "job_id": job_id, "begin_unix_s": 5, "restart_count": restarts}
    (folder / f"{stem}.begin.json").write_text(json.dumps(values))


def closed(folder: Path, job_id: str, end: JobEnd, before: int | None = None) -> list[str]:
    messages: list[str] = []
    close_attempts(folder, folder, job_id, end, before=before, recover=lambda name: None, say=messages.append)
    return messages


def test_close_ends_attempts_of_earlier_restarts_only(tmp_path: Path) -> None:
    for stem, job_id, restarts in [("a_r1.1", "7", 0), ("a_r2.1", "7", 1), ("a_r3.1", "7", 2), ("a_r4.1", "8", 0)]:
        began(tmp_path, stem, job_id, restarts)
    (tmp_path / "a_r5.1.begin.json").write_text("{")  # half-written
    began(tmp_path, "a_r6.1", "7", 0)
    (tmp_path / "a_r6.1.begin.json").rename(tmp_path / "b_r6.1.begin.json")  # says another name than it has
    (tmp_path / "a_r2.1.signal").write_text("SIGTERM at noon\n")
    end = JobEnd(state="", source="SLURM_RESTART_COUNT", restarts=2, requeued=True)
    outcomes = [":".join(line.split(":")[:2]) for line in closed(tmp_path, "7", end, before=2)]
    assert outcomes == ["a_r1.1: node_fail", "a_r2.1: preempted"]
    assert {path.name for path in tmp_path.glob("*.exit.json")} == {"a_r1.1.exit.json", "a_r2.1.exit.json"}
    assert [begin.run_id for begin in open_attempts(tmp_path, "7")] == ["a_r3"]
    assert closed(tmp_path, "7", end, before=2) == []


@pytest.mark.parametrize(("state", "outcome"), [("CANCELLED", "cancelled"), ("", "lost")])
def test_close_ends_attempts_of_another_job(tmp_path: Path, state: str, outcome: str) -> None:
    began(tmp_path, "a_r1.1", "8", 0)
    closed(tmp_path, "8", JobEnd(state=state, source="scontrol show job"))
    assert read_exit_record(tmp_path / "a_r1.1.exit.json").outcome == outcome


def test_a_trace_that_is_none_counts_as_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a_r1.2.h5").write_text("no trace")
    evidence = read_evidence(AttemptFiles(tmp_path, "a_r1", 2), AttemptOutput(error=tmp_path / "none"))
    assert (evidence.trace, evidence.steps) == (False, -1)
    assert "a_r1.2.h5: not an HDF5 file" in capsys.readouterr().err


def test_the_statuses_that_ranks_of_ours_end_with_are_known() -> None:
    assert set(EXIT_STATUS.values()) == RANK_STATUSES


# Records.


def record(attempt: int, outcome: Outcome) -> ExitRecord:
    return ExitRecord(
        run_id="run_r1", attempt=attempt, outcome=outcome, exit_status=0, job_id="7", restart_count=0, nodelist="n1",
        begin_unix_s=1, end_unix_s=2,
    )  # fmt: skip


def test_records_are_read_back(tmp_path: Path) -> None:
    for attempt in (2, 10, 1):
        record(attempt, Outcome.TIMEOUT).write(tmp_path)
    assert [r.attempt for r in exit_records(tmp_path)["run_r1"]] == [1, 2, 10]
    assert read_exit_record(tmp_path / "run_r1.10.exit.json") == record(10, Outcome.TIMEOUT)


def test_notes_are_read_back(tmp_path: Path) -> None:
    note = RankNote(rank=3, outcome=Outcome.OOM, exception="MemoryError", message="no", step=7, hostname="n1")
    path = note.write(tmp_path, "run_r1.1")
    assert path.name == "run_r1.1.rank3.json"
    assert read_rank_note(path) == note
    assert '\n "outcome": "oom",\n' in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"outcome": "ok"}', '{"outcome": "splendid"}', "\x00"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run_r1.1.exit.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"run_r1\.1\.exit\.json"):
        read_exit_record(path)
    with pytest.raises(RecordError, match=r"run_r1\.1\.exit\.json"):
        read_rank_note(path)


def test_the_latest_ok_attempt_is_the_final_one() -> None:
    assert final_record([]) is None
    pending = [record(1, Outcome.PREEMPTED), record(2, Outcome.TIMEOUT), record(3, Outcome.LAUNCH_FAIL)]
    assert final_record(pending) is None
    failed = record(4, Outcome.RANK_FAIL)
    assert final_record([*pending, failed]) == failed
    ok = record(5, Outcome.OK)
    assert final_record([failed, ok, record(6, Outcome.OOM)]) == ok
    assert final_record([ok, record(7, Outcome.OK)]) == record(7, Outcome.OK)
