"""Torch's record of collectives, read and cut into steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc.observe import flight_record
from hpc.observe.flight_record import (
    CollectiveRecord,
    CollectiveRecordError,
    RecordedCollective,
    StepSpan,
    by_step,
    read,
)

OFFSET = 1_795_764_000_000_000_000
GLOO: dict[str, Any] = {  # an entry of torch 2.13, by gloo
    "collective_seq_id": 14, "input_dtypes": ["Float"], "input_sizes": [[263168]], "is_p2p": False, "op_id": 14,
    "output_dtypes": ["Float"], "output_sizes": [[263168]], "p2p_seq_id": 0, "pg_id": 0,
    "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "record_id": 0, "retired": True,
    "state": "scheduled", "thread_id": "140693249592192", "thread_name": "python",
    "time_created_ns": OFFSET + 5_000, "time_discovered_completed_ns": 0, "time_discovered_started_ns": 0,
    "timeout_ms": 1800000,
}  # fmt: skip
# As NCCL's are by torch's source; none was recorded on a GPU.
NCCL = GLOO | {
    "profiling_name": "nccl:_all_gather_base", "input_dtypes": ["BFloat16"], "input_sizes": [[8, 10]],
    "output_dtypes": ["BFloat16"], "output_sizes": [[16, 10]], "state": "completed", "duration_ms": 0.25,
    "time_created_ns": OFFSET + 4_000,
}  # fmt: skip


def written(folder: Path, *dumps: list[dict[str, Any]]) -> CollectiveRecord:
    """What is read of a process that has left these."""
    usual = {"unix_offset_ns": OFFSET, "written_ns": 9_000, "steps": 3, "variables": {"TORCH_FR_BUFFER_SIZE": "20"}}
    usual["groups_of_one"] = ["7"]
    lines = [json.dumps(usual)]
    lines += [json.dumps({"entries": entries} if entries else {"version": "2.10"}) for entries in dumps]
    (folder / "1.2.collectives").write_text("\n".join(lines) + "\n")
    record = read(folder / "1.2.events")
    assert record is not None
    return record


def test_entries_of_all_groups_in_the_order_of_their_calls(tmp_path: Path) -> None:
    record = written(tmp_path, [NCCL], [GLOO])
    assert record.entries == [
        RecordedCollective("all-gather", "default_pg", 320, 4_000, 0.25),
        RecordedCollective("all-reduce", "default_pg", 1_052_672, 5_000, None),
    ]
    assert (record.written_ns, record.steps, record.is_cut) == (9_000, 3, False)
    assert record.variables == {"TORCH_FR_BUFFER_SIZE": "20"}


def test_an_entry_that_both_dumps_have_counts_once(tmp_path: Path) -> None:
    entries = written(tmp_path, [NCCL, GLOO], [NCCL, GLOO]).entries
    assert [entry.called_ns for entry in entries] == [4_000, 5_000]


def test_calls_in_a_group_of_one_rank_meet_nobody(tmp_path: Path) -> None:
    assert not written(tmp_path, [GLOO | {"process_group": ["7", "mesh_dp"]}]).entries


def test_a_ring_that_is_full_has_lost_earlier_ones(tmp_path: Path) -> None:
    assert written(tmp_path, [], [GLOO | {"record_id": 7}, GLOO | {"record_id": 8}]).is_cut


def test_bytes_of_a_type_that_is_not_known_are_not_guessed(tmp_path: Path) -> None:
    (entry,) = written(tmp_path, [GLOO | {"input_dtypes": ["Float4"], "output_dtypes": ["Float4"]}]).entries
    assert entry.bytes is None


def test_a_process_that_wrote_nothing_has_no_record(tmp_path: Path) -> None:
    assert read(tmp_path / "1.2.events") is None


HEADER = b'{"unix_offset_ns": 0, "written_ns": 0, "steps": 0, "variables": {}, "groups_of_one": []}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]\n", b'{"unix_offset_ns": 1}\n', b"[" * 100_000,
        HEADER + b'{"entries": [{}]}\n',
        HEADER + b'{"entries": 7}\n',
        HEADER.replace(b'{}', b'[]'),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.2.collectives").write_bytes(content)
    with pytest.raises(CollectiveRecordError, match=r"1\.2\.collectives"):
        read(tmp_path / "1.2.events")


def test_a_record_of_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_record, "MAX_BYTES", 10)
    with pytest.raises(CollectiveRecordError, match="more than 10 bytes"):
        written(tmp_path, [GLOO])


def entry(at: int, size: int = 8, duration: float | None = None, name: str = "all-reduce") -> RecordedCollective:
    return RecordedCollective(name, "default_pg", size, at, duration)


def recorded(*entries: RecordedCollective, written_ns: int = 1_000, is_cut: bool = False) -> CollectiveRecord:
    return CollectiveRecord(written_ns, 9, entries, is_cut, {})


STEPS = [StepSpan(begin, begin + 100, begin + 55, begin + 80) for begin in (0, 100, 200, 300)]


def test_kinds_have_their_number_in_a_step_and_their_median_duration() -> None:
    calls = [
        call
        for number, (begin, *_) in enumerate(STEPS)
        for call in (entry(begin), entry(begin + 60, 4, 1.0 + number), entry(begin + 90, 4, 3.0 + number))
    ]
    facts = by_step(recorded(*calls, entry(450)), STEPS)
    assert (facts["steps"], facts["unlike"], facts["after_steps"]) == (4, 0, 9)
    assert facts["kinds"] == [
        {
            "name": "all-reduce",
            "group": "default_pg",
            "bytes": 4,
            "per_step": 2.0,
            "phase": "backward",
            "after_ms": 60e-6,
            "duration_ms": 3.5,
        },
        {"name": "all-reduce", "group": "default_pg", "bytes": 8, "per_step": 1.0, "phase": "forward", "after_ms": 0.0},
    ]


def test_a_step_that_the_record_has_not_whole_counts_for_nothing() -> None:
    calls = [entry(50), entry(150), entry(250), entry(350)]
    assert by_step(recorded(*calls, written_ns=399), STEPS)["steps"] == 3
    assert by_step(recorded(*calls), STEPS)["steps"] == 4
    assert by_step(recorded(*calls, is_cut=True), STEPS)["steps"] == 3


def test_steps_with_another_number_of_calls_are_counted_apart() -> None:
    calls = [entry(10), entry(20), entry(110), entry(210), entry(310)]
    facts = by_step(recorded(*calls), STEPS)
    assert (facts["steps"], facts["unlike"]) == (3, 1)
    assert [kind["per_step"] for kind in facts["kinds"]] == [1.0]


def test_no_calls_and_no_steps_are_no_kinds() -> None:
    assert by_step(recorded(), STEPS)["kinds"] == []
    assert by_step(recorded(entry(5)), [])["kinds"] == []


def test_kinds_are_of_a_bounded_number() -> None:
    many = [entry(at, at) for at in range(flight_record.MAX_KINDS + 3)]
    facts = by_step(recorded(*many), [StepSpan(0, 100)])
    assert (len(facts["kinds"]), facts["further_kinds"]) == (flight_record.MAX_KINDS, 3)


@pytest.mark.parametrize(("text", "step"), [("20", 15), ("5", 0), ("3", 0), ("x", 0), (None, 0)])
def test_the_warm_up_has_it_written_before_its_last_steps(
    monkeypatch: pytest.MonkeyPatch, text: str | None, step: int
) -> None:
    monkeypatch.delenv(flight_record.WARMUP_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(flight_record.WARMUP_VARIABLE, text)
    assert flight_record.step_to_write() == step


@pytest.mark.parametrize(
    ("variables", "is_written"),
    [({}, True), ({"TORCH_FR_BUFFER_SIZE": "20000"}, True), ({"TORCH_FR_BUFFER_SIZE": "20001"}, False),
     ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "1000000"}, False), ({"TORCH_FR_BUFFER_SIZE": "x"}, False),
     ({"TORCH_NCCL_ENABLE_TIMING": "1"}, True)],
)  # fmt: skip
def test_a_long_record_is_written_in_the_warm_up_alone(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_written: bool
) -> None:
    for name in flight_record.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert flight_record.is_written_at_end() is is_written


def test_no_step_that_is_measured_pays_for_it() -> None:
    from hpc.model.spec import MIN_WARMUP_STEPS

    assert flight_record.STEPS_BEFORE_WINDOW == MIN_WARMUP_STEPS
