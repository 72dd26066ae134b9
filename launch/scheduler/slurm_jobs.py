"""Job states from Slurm: from the controller while it has the job, then from the accounting database.

`squeue` runs before `sacct`, although `sacct` keeps more: the accounts lag by seconds (a requeued job is still
PREEMPTED there, an ended one RUNNING), and for as long as slurmdbd is down. A job that neither has, or that only the
accounts have as active, is queried by `scontrol`, too: squeue may be a wrapper with a cache. A command that fails to
answer is distinguished from one that answers without the job: an outage does not end a job.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hpc.model.evidence import JobNow
from hpc.model.verdict import JobEnd
from hpc.system.job_facts import Job
from hpc.system.tool import Failure, run_tool
from launch.scheduler.protocol import JobQuery, JobState, JobSteps

COMMAND_TIMEOUT_S, INSIDE_TIMEOUT_S = 60, 10
"""Seconds for a command of Slurm's, and for one inside a job that is about to be ended."""


_PENDING = (
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
)  # fmt: skip
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED", "SUSPENDED")
_ACTIVE = dict.fromkeys(_PENDING, JobState.PENDING) | dict.fromkeys(_RUNNING, JobState.RUNNING)
_MAY_REQUEUE = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""Ends after which a job may be put back into the queue. The controller then calls it PENDING at once."""
_SETTINGS_BEHIND = {
    "PREEMPTED": ("PreemptMode",),
    "NODE_FAIL": ("SlurmdTimeout",),
    "": ("MinJobAge", "AccountingStorageType"),
}
"""By state of an ended job, "" for one that Slurm has forgotten: the settings that explain the end."""
_QUEUE_FIELDS = ("JobID", "State", "NodeList", "Partition", "RestartCnt", "Requeue", "Name", "Reason")
_ACCOUNT_FIELDS = ("JobID", "State", "NodeList", "Partition", "JobName", "Reason")
_JOB_ID = re.compile(r"[0-9]+(?:_[0-9]+|\+[0-9]+)?")
_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_NOT_YET = frozenset({"", "RUNNING", "COMPLETING", "PENDING", "SUSPENDED", "REQUEUED", "CONFIGURING"})
"""States of a job that has not ended."""
_FORGOTTEN = re.compile(r"Invalid job id", re.IGNORECASE)
_OF_CONTROLLER = (
    "Unable to contact slurm controller", "Communication connection failure", "Communications shut ?down",
    "Message send failure", "Message receive failure", "Socket timed out", "Zero Bytes were transmitted",
    "controller in standby", "Controller is in standby", "Unable to connect", "Connection (?:refused|reset|timed out)",
    "connection failure", "not connected", "Resource temporarily unavailable", "no answer within",
    "Munge (?:encode|decode) failed", "authentication (?:credential|error)", "auth_g_(?:create|verify|pack)",
    "munged", "munge\\.socket", "(?:Expired|Rewound|Replayed) credential",
)  # fmt: skip
"""The texts of slurm_errno.c (20.11 to 25.05), of its authentication and of the system about a controller that a client
did not reach, or that did not recognise it, and ours about a command that did not answer."""
CONTROLLER_AWAY = re.compile("|".join(_OF_CONTROLLER), re.IGNORECASE)
"""Transient errors, of submissions and of steps: another client would not reach the controller now, and later it may.
A daemon of munge that restarts, or a clock that is being set, looks like one that is away."""
_STEP_REFUSED = re.compile(
    r"srun: (?:error|fatal): ((?:Unable to (?:confirm allocation for job|create step for job|allocate resources)"
    r"|Task launch for \S+ failed on node|Application launch failed)[^\n]*)"
)
_STEP_AWAITED = re.compile(
    r"srun: (?:(?P<awaited>Job \d+ step creation (?:temporarily|still) disabled, retrying[^\n]*"
    r"|Job step creation (?:temporarily|still) disabled, retrying[^\n]*)|(?:Step created for|Job step created))"
)
"""srun's words while it waits until the controller creates its step, and when that is done (src/srun/launch.c)."""


def is_job_id(text: str) -> bool:
    """Whether the text has the form of a Slurm job id: `17`, an array task `17_3`, a component `17+1`.

    No other text may reach a command of Slurm's: a damaged record's `--version` would be an option.
    """
    return _JOB_ID.fullmatch(text) is not None


def look(job_ids: Sequence[str], names: Mapping[str, str] = _NO_NAMES) -> dict[str, JobQuery]:
    """Queries the state of these jobs; runs a few commands, each ended after COMMAND_TIMEOUT_S.

    `names` holds known job names by job id: if a job of another name has the number now, the queried job has ended and
    is forgotten. A text that is no job id is reported as an unknown job and passed to no command.
    """
    known = {job_id: _not_an_id(job_id) for job_id in job_ids if not is_job_id(job_id)}
    if valid_ids := [job_id for job_id in job_ids if job_id not in known]:
        rows, queue_error = _in_the_queue(valid_ids)
        queries = {job_id: _query_from_row(row) for job_id, row in rows.items()}
        if missing := [job_id for job_id in valid_ids if job_id not in queries]:
            accounts, accounts_error = _in_the_accounts(missing, names)
            for job_id in missing:
                row, error, away = accounts.get(job_id), accounts_error, queue_error
                if not queue_error and (row is None or row.state in _ACTIVE):
                    shown, problem = _shown(job_id)  # squeue may be a wrapper whose cache is empty
                    away = problem if CONTROLLER_AWAY.search(problem) else ""
                    if shown is not None:
                        queries[job_id] = _query_from_row(shown)
                        continue
                error = "; ".join(filter(None, (away, error)))
                queries[job_id] = _query_from_accounts(row, error, controller_answers=not away)
        known |= {job_id: _for_name(job_id, queries[job_id], names.get(job_id, "")) for job_id in valid_ids}
    return {job_id: known[job_id] for job_id in job_ids}


def ends(job_ids: Sequence[str], names: Mapping[str, str] = _NO_NAMES) -> dict[str, JobEnd]:
    """The ends of these jobs, without jobs that may still run: only attempts of the returned jobs may be closed.

    The reasons include the settings that explain the end, for example that a preempted job is not requeued. `names` is
    as in `look`.
    """
    settings: dict[str, dict[str, str]] = {}  # by partition
    job_ends = {}
    for job_id, query in look(job_ids, names).items():
        if (end := query.end) is None:
            continue
        reasons = [end.reason]
        if explaining := _SETTINGS_BEHIND.get(end.state, ()):
            if end.partition not in settings:
                settings[end.partition] = cluster_settings(end.partition)
            values = settings[end.partition]
            reasons += [f"{name}={values[name]}" for name in explaining if values.get(name)]
        earlier = lives(job_id, names.get(job_id, ""))[:-1] if end.source == "sacct" else ()
        restarts = max(end.restarts, len(earlier))
        job_ends[job_id] = replace(end, reason=", ".join(filter(None, reasons)), restarts=restarts)
    return job_ends


def lives(job_id: str, name: str = "") -> list[JobEnd]:
    """The ends of all starts of a requeued job, in order; the last one is that of the present start.

    Only the accounts keep them: empty without accounting, or if it does not answer. With a `name`, jobs of another
    name that had the same number are left out.
    """
    if not is_job_id(job_id):
        return []
    printed, _ = _ask("sacct", "-X", "-D", "-n", "-P", "-o", ",".join(_ACCOUNT_FIELDS), "-j", job_id)
    life_ends = [row for key, row in _account_rows(printed) if key == job_id and _is_named(row.name, name)]
    numbered = [replace(end, restarts=life, requeued=True) for life, end in enumerate(life_ends)]
    return [*numbered[:-1], *(replace(end, requeued=False) for end in numbered[-1:])]


def job_now(job: Job) -> JobNow:
    """What the controller says of this process's job."""
    answer = run_tool(["scontrol", "-o", "show", "job", job.job_id], timeout_s=INSIDE_TIMEOUT_S)
    return read_job_now(answer.stdout if answer.ok else "", job)


def read_job_now(text: str, job: Job) -> JobNow:
    """The output of `scontrol -o show job`, called inside the job; empty where it does not answer.

    Slurm gives an ending job the state COMPLETING only. Restarts shows that it will be requeued, PreemptTime that it
    is preempted.
    """
    fields = dict(_FIELD.findall(text))
    state, restarts = fields.get("JobState", ""), _number(fields.get("Restarts", "0"))
    if state in _NOT_YET:
        state = "PREEMPTED" if fields.get("PreemptTime", "None") != "None" else ""
    end = None
    if state or restarts > job.restarts:
        end = JobEnd(
            state=state, source="scontrol show job", reason=fields.get("Reason", ""), restarts=restarts,
            requeued=restarts > job.restarts,
        )  # fmt: skip
    try:
        end_unix_s = int(time.mktime(time.strptime(fields.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return JobNow(answered=bool(text), end=end, end_unix_s=job.end_unix_s)
    return JobNow(answered=bool(text), end=end, end_unix_s=end_unix_s)


def job_steps(job: Job) -> JobSteps:
    """The steps of this process's job, from the ids that squeue prints (`7.batch`, `7.3`)."""
    answer = run_tool(["squeue", "-h", "-s", "-j", job.job_id, "-o", "%i"])
    numbers = frozenset(line.strip().rpartition(".")[2] for line in answer.stdout.splitlines()) - {"batch", "extern"}
    is_silent = answer.failure is Failure.HANGING or CONTROLLER_AWAY.search(answer.stderr)
    silent = f"slurmctld does not answer: {answer.describe()}" if is_silent else ""
    return JobSteps(numbers=numbers, silent=silent, listed=answer.ok)


def step_refusal(error: str) -> str:
    """srun's message in this standard error if it could not start its step since it did not reach the controller; empty
    otherwise. A message about the request itself, which would be refused again, does not count."""
    refusals = [text for text in _STEP_REFUSED.findall(error) if CONTROLLER_AWAY.search(text)]
    return " ".join(refusals[-1].split()) if refusals else ""


def awaited_step(error: str) -> str:
    """srun's message in this standard error if it waits for its step to be created; empty otherwise."""
    messages = list(_STEP_AWAITED.finditer(error))
    return " ".join((messages[-1]["awaited"] or "").split()) if messages else ""


def cluster_settings(partition: str) -> dict[str, str]:
    """The controller's configuration, with the partition's own PreemptMode; empty if the controller does not answer."""
    config, _ = _ask("scontrol", "show", "config")
    settings = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", config, re.MULTILINE))
    if settings and partition:
        shown, _ = _ask("scontrol", "-o", "show", "partition", partition)
        if mode := re.search(rf"^PartitionName={re.escape(partition)} .*\bPreemptMode=(\S+)", shown, re.MULTILINE):
            settings["PreemptMode"] = mode[1]
    return settings


def _in_the_queue(job_ids: Sequence[str]) -> tuple[dict[str, JobEnd], str]:
    """The controller's rows of the jobs, and the errors of its commands if it did not answer."""
    columns = ",".join(f"{name}:|" for name in _QUEUE_FIELDS)
    printed, queue_error = _ask("squeue", "-h", "-t", "all", "-O", columns, "-j", ",".join(job_ids))
    if not queue_error:
        return _queue_rows(printed), ""
    if CONTROLLER_AWAY.search(queue_error):
        return {}, queue_error
    rows: dict[str, JobEnd] = {}
    for job_id in job_ids:
        row, error = _shown(job_id)
        if error:
            return rows, f"{queue_error}; {error}"
        if row:
            rows[job_id] = row
    return rows, ""


def _shown(job_id: str) -> tuple[JobEnd | None, str]:
    """The job as scontrol shows it, None if the controller does not have it, and the error if it did not answer."""
    printed, error = _ask("scontrol", "-o", "show", "job", job_id)
    return _shown_row(printed), error


def _in_the_accounts(job_ids: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, JobEnd], str]:
    printed, error = _ask("sacct", "-X", "-n", "-P", "-o", ",".join(_ACCOUNT_FIELDS), "-j", ",".join(job_ids))
    rows = _account_rows(printed)
    return {job_id: row for job_id, row in rows if _is_named(row.name, names.get(job_id, ""))}, error


def _not_an_id(text: str) -> JobQuery:
    end = JobEnd(state="", source="the record", reason=f"{text!r} is no Slurm job id: the record is damaged")
    return JobQuery(state=JobState.UNKNOWN, end=end)


def _is_named(name: str, expected: str) -> bool:
    return not name or not expected or name == expected


def _for_name(job_id: str, query: JobQuery, expected: str) -> JobQuery:
    """The query of the expected job: forgotten if another job has its number."""
    if _is_named(query.name, expected):
        end = query.end and replace(query.end, name=expected or query.end.name)
        return replace(query, end=end)
    reason = f"{job_id} is the number of another job now, {query.name}"
    end = JobEnd(state="", source="squeue", name=expected, reason=reason)
    return JobQuery(state=JobState.UNKNOWN, name=query.name, end=end)


def _query_from_row(row: JobEnd, error: str = "") -> JobQuery:
    state = _ACTIVE.get(row.state, JobState.ENDED)
    reason = row.reason if state is JobState.PENDING else ""
    return JobQuery(
        state=state, name=row.name, end=row if state is JobState.ENDED else None, reason=reason, error=error
    )  # fmt: skip


def _query_from_accounts(row: JobEnd | None, error: str, *, controller_answers: bool) -> JobQuery:
    """The query of a job that the controller does not list, from its row in the accounts (None: not there)."""
    if row is not None and row.state not in _ACTIVE and (controller_answers or row.state not in _MAY_REQUEUE):
        return _query_from_row(row, error)
    if not controller_answers:
        return JobQuery(state=JobState.UNREACHABLE, error=error)
    lagging = f"sacct still says {row.state}" if row else ""
    end = JobEnd(state="", source="squeue", reason="; ".join(filter(None, (lagging, error))))
    return JobQuery(state=JobState.UNKNOWN, end=end, error=error, reason=lagging)


def _rows(text: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    """The values of each line by these names, of which the last may hold anything."""
    for line in text.splitlines():
        values = [value.strip() for value in line.split("|", len(fields) - 1)]
        if len(values) == len(fields):
            yield dict(zip(fields, values, strict=True))


def _queue_rows(text: str) -> dict[str, JobEnd]:
    return {
        row["JobID"]: JobEnd(
            state=row["State"], source="squeue", name=row["Name"], nodelist=row["NodeList"],
            partition=row["Partition"], restarts=_number(row["RestartCnt"]),
            reason=_reason(row["State"], row["Requeue"], row["Reason"].removesuffix("|")),
        )
        for row in _rows(text, _QUEUE_FIELDS)
    }  # fmt: skip


def _account_rows(text: str) -> list[tuple[str, JobEnd]]:
    rows = []
    for row in _rows(text, _ACCOUNT_FIELDS):
        state, _, by = row["State"].partition(" ")  # "CANCELLED by 1000"
        reason = " ".join(filter(None, (by and f"{by} (user id)", _without_none(row["Reason"]))))
        if state:
            rows.append((row["JobID"], JobEnd(
                state=state, source="sacct", name=row["JobName"], nodelist=row["NodeList"], partition=row["Partition"],
                reason=reason,
            )))  # fmt: skip
    return rows


def _shown_row(text: str) -> JobEnd | None:
    fields = dict(re.findall(r"\b(JobState|Reason|Partition|NodeList|Restarts|Requeue)=(\S*)", text))
    if "JobState" not in fields:
        return None
    name = re.search(r"\bJobName=(.*?)(?: \w+=|$)", text, re.MULTILINE)
    return JobEnd(
        state=fields["JobState"], source="scontrol", name=name[1] if name else "",
        nodelist=fields.get("NodeList", "").replace("(null)", ""), partition=fields.get("Partition", ""),
        restarts=_number(fields.get("Restarts", "")),
        reason=_reason(fields["JobState"], fields.get("Requeue", ""), fields.get("Reason", "")),
    )  # fmt: skip


def _without_none(reason: str) -> str:
    return "" if reason.strip() in ("None", "(null)") else reason.strip()


def _reason(state: str, requeue: str, reason: str) -> str:
    """Slurm's reason; for an end that allows a requeue, also the job's Requeue setting."""
    requeue_setting = f"Requeue={requeue}" if state in _MAY_REQUEUE and requeue else ""
    return ", ".join(filter(None, (_without_none(reason), requeue_setting)))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _ask(*command: str) -> tuple[str, str]:
    """The output of a Slurm command, and its error, empty if it succeeded or reported that there is no such job."""
    answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
    answered = answer.ok or (answer.failure is Failure.FAILING and _FORGOTTEN.search(answer.stderr))
    return (answer.stdout, "") if answered else ("", answer.describe())
