"""Damaged sweeps, a small part of `make fuzz`; and that each of its checks fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome
from tests.fuzz import fuzz_evidence
from tests.fuzz.fuzz_evidence import FAILED, LATE, MEASURED, OPEN, Input, check, make_sweep, run
from tests.fuzz.trials import Defect
from tests.unit.traces import cut_short, make_trace, put, put_exit_record

pytestmark = pytest.mark.all

FEW = 40


def test_a_few_damaged_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(5_000, FEW, tmp_path) == 0, capsys.readouterr().out


def write_too_much(traces: Path) -> None:
    put(traces, cut_short(make_trace(OPEN, attempt=8, recovered=True), 9, Outcome.RANK_FAIL))


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (lambda traces: print("Traceback (most recent call last):"), "a traceback is printed"),
        (lambda traces: (traces / f"{MEASURED.run_id}.1.h5").unlink(), "changed or thrown away"),
        (lambda traces: (traces / f"{LATE.run_id}.2.h5").write_bytes(b"other"), "changed or thrown away"),
        (lambda traces: (traces / f"{OPEN.run_id}.7.h5").write_bytes(b"half"), "written that cannot be read"),
        (lambda traces: [path.unlink() for path in traces.glob("*.h5") if OPEN.run_id in path.name], "is nowhere"),
        (write_too_much, "says that 9 steps were completed"),
        (lambda traces: put_exit_record(traces, FAILED, Outcome.OK), "says ok without a whole trace"),
        (
            lambda traces: (traces / f"{FAILED.run_id}.9.exit.json").write_bytes(b"{"),
            "a record was written that cannot",
        ),
        (lambda traces: put_exit_record(traces, FAILED, Outcome.OOM), "is oom, without damage rank_fail"),
        (lambda traces: (traces / f"{LATE.run_id}.2.rerun").touch(), "is to be measured again"),
    ],
)
def test_a_defect_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Callable[[Path], object], message: str
) -> None:
    make_sweep(tmp_path / "template")
    _, statuses = check(tmp_path / "template", tmp_path / "usual", None)
    usual = {each.run_id: each.state for each in statuses}
    if "measured again" in message:
        usual[LATE.run_id] = "ok, wanted again"
    summarize = fuzz_evidence.summarize.main

    def spoilt(argv: Sequence[str]) -> int:
        defect(tmp_path / "out" / "traces")
        return summarize(argv)

    monkeypatch.setattr(fuzz_evidence.summarize, "main", lambda argv: spoilt(argv) if "csv" in argv else 0)
    nothing = Input(seed=0, damages=(), refused=None)
    with pytest.raises(Defect, match=message):
        check(tmp_path / "template", tmp_path / "out", nothing, usual)
