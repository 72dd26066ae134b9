"""Decides whether a run is begun in this job, by its records and their jobs, so that no run is measured twice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from glob import escape
from pathlib import Path

from hpc.model.evidence import corrected_record, describe, exit_of
from hpc.model.files import BEGIN, BEGIN_RECORD, EXIT
from hpc.model.outcome import (
    BeginRecord,
    ExitRecord,
    RecordAway,
    RecordError,
    is_damaged,
    read_begin_record,
    read_own_record,
)
from hpc.model.verdict import JobEnd
from hpc.recovery.folders import attempts_here, life_sign
from hpc.system.job_facts import Job
from launch.scheduler.protocol import JobState
from launch.scheduler.table import scheduler_of

LOOK_PAUSE_S = 5.0
MAX_LOOKS = 3


class ClaimStatus(StrEnum):
    """Whether a run is to be begun in this job: only if PENDING."""

    PENDING = "pending"
    FINAL = "final"
    ELSEWHERE = "elsewhere"


class Claim:
    """Decides about one run in one job. `say` shows the reason; `close` closes the open attempts of a job, given its
    end."""

    def __init__(
        self, run_id: str, traces: Path, logs: Path, job: Job, *, force: bool, say: Callable[[str], None],
        close: Callable[[str, JobEnd], None], pause: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._run_id, self._traces, self._logs, self._job, self._force = run_id, traces, logs, job, force
        self._say, self._close, self._pause = say, close, pause

    def status(self) -> ClaimStatus:
        """Whether the run is to be begun here. Closes attempts of jobs that have ended."""
        while True:
            status = self._by_records()
            if status is not ClaimStatus.PENDING:
                return status
            others = self._open_elsewhere()
            if not others:
                return ClaimStatus.PENDING
            closed = 0
            for path, begin in others:
                end = self._end_of(begin)
                if end is None:
                    began = f"job {begin.job_id}, which began it ({path.name})"
                    self._say(f"{self._run_id} is left to {began} and may still run it")
                    return ClaimStatus.ELSEWHERE
                self._close(begin.job_id, end)
                closed += _is_recorded(exit_of(path))
            if not closed:  # could not be written: the run goes on
                return ClaimStatus.PENDING

    def next_attempt(self) -> int:
        """The first number above those of all attempts of the run that left any file: beside the traces, in the logs,
        or on this node. The folder of traces may have been replaced since."""
        number = re.compile(rf"\.?{re.escape(self._run_id)}\.(\d+)(?:\..+)?")
        folders = [folder for folder in (self._traces, self._logs) if folder.is_dir()]
        names = [*attempts_here(self._traces), *(path.name for folder in folders for path in folder.iterdir())]
        return max((int(match[1]) for name in names if (match := number.fullmatch(name))), default=0) + 1

    def _by_records(self) -> ClaimStatus:
        for path in sorted(self._traces.glob(f"{escape(self._run_id)}.*{EXIT}")):
            try:
                record = read_own_record(path)
            except RecordAway as error:
                self._say(f"{self._run_id} is left alone: {error}, and it may be final")
                return ClaimStatus.ELSEWHERE
            except RecordError:  # damaged: its attempt counts as open
                continue
            if self._is_final(record):
                return ClaimStatus.FINAL
        return ClaimStatus.PENDING

    def _is_final(self, record: ExitRecord) -> bool:
        if corrected := corrected_record(record, self._traces):
            with suppress(OSError):  # the next command corrects it then
                corrected.write(self._traces)
            self._say(f"{record.stem}: {describe(corrected)}; {corrected.evidence[1]}")
            record = corrected
        if not record.is_final or record.files(self._traces).rerun_is_requested:
            return False
        # With --force, a run that this job measured stays final: the job may have been requeued since.
        return not self._force or record.job_id == self._job.job_id

    def _open_elsewhere(self) -> list[tuple[Path, BeginRecord]]:
        """The run's attempts that began in other jobs and have no whole exit record."""
        open_attempts = []
        for path in sorted(self._traces.glob(f"{escape(self._run_id)}.*{BEGIN}")):
            if BEGIN_RECORD.fullmatch(path.name) is None or _is_recorded(exit_of(path)):
                continue
            try:
                begin = read_begin_record(path)
            except RecordError:  # half-written or damaged: which job began it is not known
                continue
            if begin.job_id and begin.job_id != self._job.job_id:
                open_attempts.append((path, begin))
        return open_attempts

    def _end_of(self, begin: BeginRecord) -> JobEnd | None:
        job_id, scheduler = begin.job_id, scheduler_of(begin.job_id)
        for remaining in reversed(range(MAX_LOOKS)):
            query = scheduler.query(begin)
            if query.state is not JobState.UNREACHABLE:
                break
            self._say(f"is job {job_id} there still? {query.error}")
            if remaining:
                self._pause(LOOK_PAUSE_S)
        if query.state is JobState.UNKNOWN and (sign := life_sign(self._traces, begin.stem)):
            self._say(f"the scheduler does not list job {job_id}, but it runs: {sign}")
            return None
        return query.end and scheduler.ends([job_id]).get(job_id, query.end)


def _is_recorded(record: Path) -> bool:
    return os.path.lexists(record) and not is_damaged(record)
