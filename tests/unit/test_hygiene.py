"""Hostile notes and host names are plain text in records and tables, and secrets are redacted."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.model.outcome import ExitRecord, Outcome, RankNote, read_exit_record, read_rank_note
from parse.alarms.table import judge
from parse.ledger.point import ledgers
from parse.report.notices import warnings
from parse.report.summary import Summary
from parse.report.table import FORMATS
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.traces import make_run, put, put_exit_record, put_plan

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "\x1b]0;owned\x07\x1b[2J | <script>alert(1)</script> `rm` [x](javascript:y) [x]: z \u202e\r\n# head"
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")


def test_secrets_are_redacted_in_records_and_notes(tmp_path: Path) -> None:
    note = RankNote(
        rank=0, outcome=Outcome.RANK_FAIL, exception="ValueError", message="HF_TOKEN=hush is refused", step=3,
        hostname="n0",
    )  # fmt: skip
    record = ExitRecord(
        run_id="r", attempt=1, outcome=Outcome.RANK_FAIL, exit_status=1, job_id="7", restart_count=0, nodelist="n0",
        begin_unix_s=1, end_unix_s=2, evidence=("rank 0: login --password hush", "https://me:hush@host"),
    )  # fmt: skip
    written = [note.write(tmp_path, "r.1"), record.write(tmp_path)]
    assert not any("hush" in path.read_text() for path in written)
    assert read_rank_note(written[0]) == dataclasses.replace(note, message="HF_TOKEN=(left out) is refused")
    assert read_exit_record(written[1]).evidence == ("rank 0: login --password (left out)", "https://(left out)@host")


@pytest.mark.parametrize("form", ["table", "markdown", "csv"])
def test_hostile_notes_are_shown_escaped(tmp_path: Path, form: str) -> None:
    run = make_run()
    put_plan(tmp_path, [run])
    put_exit_record(tmp_path, run, Outcome.RANK_FAIL)
    note = {"rank": 0, "outcome": "rank_fail", "exception": "Err", "message": HOSTILE, "step": 3, "hostname": HOSTILE}
    (tmp_path / f"{run.run_id}.1.rank0.json").write_text(json.dumps(note))
    (tmp_path / f"{run.run_id}.2.exit.json").write_text(HOSTILE)
    summary = Summary(results=judge(results(load([tmp_path]))), remarks=(HOSTILE,), refusals=(HOSTILE,))
    written, beside = FORMATS[form](summary), "\n".join(warnings(summary))
    assert "owned" in beside and ("owned" in written or form == "csv")
    harmless(written, form)
    harmless(beside, "table")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_hostile_host_names_are_shown_escaped(tmp_path: Path, form: str) -> None:
    trace = trace_of(run_of(), data=on(1, ms=5))
    ranks = [{**facts, "hostname": f"{HOSTILE}{facts['node_rank']}"} for facts in trace.ranks]
    put(tmp_path, dataclasses.replace(trace, ranks=ranks))
    judged = judge(results(load([tmp_path])))
    written = FORMATS[form](Summary(results=judged, ledgers=ledgers(judged)))
    assert "owned" in written
    harmless(written, form)


def test_hostile_records_are_shown_escaped_by_sweep_status(tmp_path: Path) -> None:
    (traces := tmp_path / "traces").mkdir()
    run = make_run()
    put_plan(traces, [run])
    record = json.loads(put_exit_record(traces, run, Outcome.RANK_FAIL).read_text())
    (traces / f"{run.run_id}.2.exit.json").write_text(json.dumps(record | {"run_id": "\x1b]0;owned\x07\x1b[2J"}))
    argv = [sys.executable, "-m", "hpc.sweep", "status", "--out", str(tmp_path)]
    env = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert "owned" in done.stdout + done.stderr
    harmless(done.stdout + done.stderr, "table")


def harmless(written: str, form: str) -> None:
    assert not STEERS.search(written.replace("\r\n", "\n") if form == "csv" else written)
    if form == "markdown":
        assert not re.search(r"(?<!\\)(?:<|`)", written)
        assert not re.search(r"\](?:\(|:)", written)
        assert "\n# head" not in written
        for table in re.findall(r"(?:^\|.*\n)+", written, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
