"""The command: its sentence first, its figures as text and JSON, a line for what cannot be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parse.pipeline.result import MAX_GROUPS, SHOWN
from parse.pipeline_trace import main
from tests.unit.pipeline.made import Seconds, columns, fixed, slow, write

DOCUMENT = Path(__file__).parents[3] / "docs/pipeline_traces.md"


def written(
    capsys: pytest.CaptureFixture[str], path: Path, seconds: Seconds, *options: str, **sizes: int
) -> str:  # fmt: skip
    assert main([str(write(path / "trace.parquet", columns(seconds, **sizes))), *options]) == 0
    return capsys.readouterr().out


def by_step(kind: str, stage: int, number: int, step: int, dp_rank: int) -> float:
    """Every second step takes four times as long, on all workers."""
    return fixed(kind, stage, number, step, dp_rank) * (4 if step % 2 else 1)


def test_a_slow_worker_is_named_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, tmp_path, slow(fixed, 3, stage=1, dp_rank=1), steps=2)
    assert " ".join(text.split("\n\n")[0].split()) == (
        "a step takes 14.75 s (14.75 s without the gaps between operations), without stragglers 11.75 s: 1.26 times as "
        "fast; most of the 3.000 s ±0.000 s (covers 90 %) comes from rank 3 (stage 1, data-parallel rank 1): with its "
        "operations at the usual time a step takes 10.25 s (150 %); of the kinds of operations "
        "backward-compute pays most (67 %)"
    )
    row = next(line for line in text.splitlines() if line.startswith("worker"))
    assert row.split()[-4:] == ["10.250", "4.500", "150.0", "16.250"]


@pytest.mark.parametrize(
    ("slowed", "place"), [({"stage": 1}, "comes from stage 1:"), ({"dp_rank": 0}, "comes from data-parallel rank 0:")]
)
def test_a_stage_and_a_data_parallel_rank_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slowed: dict[str, int], place: str
) -> None:
    text = written(capsys, tmp_path, slow(fixed, 2, **slowed), stages=4, dp_ranks=4, micro_batches=6)
    assert place in " ".join(text.split())


def test_where_no_place_alone_pays_half_the_text_states_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def taking_turns(kind: str, stage: int, number: int, step: int, dp_rank: int) -> float:
        factor = 3 if step % 4 == dp_rank and kind == "forward-compute" else 1
        return fixed(kind, stage, number, step, dp_rank) * factor

    text = written(capsys, tmp_path, taking_turns, dp_ranks=4, steps=4, micro_batches=4)
    assert "no worker, stage or data-parallel rank alone pays half of the" in " ".join(text.split())
    assert "of the kinds of operations forward-compute pays most (100 %)" in " ".join(text.split())


@pytest.mark.parametrize("seconds", [fixed, by_step])
def test_equal_workers_are_no_stragglers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: Seconds
) -> None:  # fmt: skip
    text = written(capsys, tmp_path, seconds, steps=4)
    assert "they cost less than 1 % of a step, or less than steps differ by" in " ".join(text.split())
    assert "comes from" not in text


def test_a_replay_that_is_not_the_recorded_step_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = columns()
    late = [start + 2 * (kind == "optimizer") for start, kind in zip(rows["start_ts"], rows["optype"], strict=True)]
    for gap, is_warned in ((late, True), (rows["start_ts"], False)):
        assert main([str(write(tmp_path / "trace.parquet", rows | {"start_ts": gap}))]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert ("warning: the replayed step is 19 % shorter than the recorded one" in text) is is_warned


def test_tables_are_cut_and_json_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slowed, sizes = slow(fixed, 3, stage=0, dp_rank=5), {"dp_ranks": MAX_GROUPS + 1}
    text = written(capsys, tmp_path, slowed, **sizes)
    assert len(re.findall(r"rank \d+ \(stage", text.split("\n\n")[2])) == SHOWN
    assert f"and {MAX_GROUPS - SHOWN} more" in text
    assert f"not replayed, since others take longer beyond the usual time: {MAX_GROUPS + 2} workers" in text
    read = json.loads(written(capsys, tmp_path, slowed, "--format", "json", **sizes))
    assert len([cost for cost in read["costs"] if cost["by"] == "worker"]) == MAX_GROUPS
    assert read["omitted"] == {"worker": MAX_GROUPS + 2, "data-parallel rank": 1}


def test_every_member_of_the_json_is_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = json.loads(written(capsys, tmp_path, slow(fixed, 3, stage=1, dp_rank=1), "--format", "json", steps=2))
    assert read["schema"] == 1 and read["ideal_s"] == pytest.approx(11.75)
    assert read["costs"][0] | {"share": 1.5, "without_s": 10.25, "alone_s": 16.25, "pays_s": 4.5} == {
        "by": "worker", "rank": 3, "stage": 1, "dp_rank": 1, "kinds": None,
        "without_s": 10.25, "alone_s": 16.25, "pays_s": 4.5, "share": 1.5,
    }  # fmt: skip
    members = {*read, *read["costs"][0], *read["steps"][0]}
    documented = set(re.findall(r"`(\w+)`", DOCUMENT.read_text().split("## JSON")[1]))
    assert members <= documented


@pytest.mark.parametrize("name", ["none.parquet", "", "\x1b[2J.parquet"])
def test_what_cannot_be_read_is_one_line_and_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name.startswith("\x1b"):
        (tmp_path / name).write_bytes(b"no parquet")
    assert main([str(tmp_path / name)]) == 1
    printed = capsys.readouterr()
    assert not printed.out and len(printed.err.splitlines()) == 1
    assert "\x1b" not in printed.err and printed.err.startswith(str(tmp_path))


def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--formt", "json"])
    assert ended.value.code == 2
    assert "did you mean --format" in capsys.readouterr().err
