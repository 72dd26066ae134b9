"""parse.published.times: tables of times give speedups; with work in the table samples/s, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.alarms.table import judge
from parse.alarms.text import sentence
from parse.published.durations import duration, time_head
from parse.published.points import Published, published
from parse.report.notices import READINGS
from parse.report.reading import read_documents
from parse.report.table import text
from parse.runs.result import Result, TimeReading
from tests.unit.alarm_figures import figures
from tests.unit.test_published import read, table

HOSTS = table(
    "| Start Server, Devices | Elapsed Time (min) | Notes |",
    "| server1:1 | 27:56 | 1 epoch |",
    "| server1:2 | 14:22 | 1 epoch |",
    "| server1:4 | 07:57 | 1 epoch |",
    "| server1:2, server2:2 | 27:27 | 1 epoch |",
)


def speedups(document: Published) -> dict[str, float | None]:
    return {result.requested.case: result.speedup and round(result.speedup, 2) for result in document.results}


def speeds(document: Published) -> dict[str, tuple[float | None, str]]:
    return {result.requested.case: (result.median_speed, result.unit) for result in document.results}


def readings(results: tuple[Result, ...]) -> set[TimeReading]:
    return {result.published.time.reading for result in results if result.published and result.published.time}


@pytest.mark.parametrize(
    ("cell", "unit", "seconds"),
    [
        ("27:56", "min", 1676), ("1:30", "h", 5400), ("1:02:03", "", 3723), ("1:02:03.5", "s", 3723.5),
        ("1-02:03:04", "", 93784), ("1 day, 2:03:04", "", 93784), ("1h 23m", "", 4980), ("1h23m4s", "", 4984),
        ("1 hour and 5 minutes", "", 3900), ("85 min", "s", 5100), ("1,234.5", "s", 1234.5), ("350 ms", "", 0.35),
        ("2.5", "h", 9000), ("0.5 days", "", 43200), ("27:56 min", "", 1676), ("12 秒", "", 12),
    ],
)  # fmt: skip
def test_times_as_documents_print_them(cell: str, unit: str, seconds: float) -> None:
    time = duration(cell, unit)
    assert time and float(time.seconds) == seconds and not time.assumed


@pytest.mark.parametrize(
    ("cell", "unit"),
    [("", "s"), ("-", "s"), ("~30 min", ""), ("4-6 hours", ""), ("5", ""), ("5m 1h", ""), ("0", "s"), ("1:75", "min"),
     ("OOM", "s"), ("27:56", "s"), ("2.65 x", "s"), ("1e3", "s"), ("10 GB", "s")],
)  # fmt: skip
def test_what_is_no_time(cell: str, unit: str) -> None:
    assert duration(cell, unit) is None


@pytest.mark.parametrize(
    ("head", "unit", "per", "count"),
    [
        ("Elapsed Time (min)", "min", "trainings", 1), ("time per epoch (s)", "s", "epochs", 1),
        ("Training time [h]", "h", "trainings", 1), ("sec/step", "s", "steps", 1),
        ("ms per iteration", "ms", "steps", 1),
        ("s/it", "s", "steps", 1), ("Epoch (s)", "s", "epochs", 1), ("Time for 100 steps (s)", "s", "steps", 100),
        ("Time to train, hours", "h", "trainings", 1), ("Wall clock", "", "trainings", 1),
        ("Time (mm:ss)", "min", "trainings", 1),
        ("train_time_s", "s", "trainings", 1), ("time_per_step_ms", "ms", "steps", 1),
        ("Time / s", "s", "trainings", 1),
        ("每个epoch耗时(秒)", "s", "epochs", 1),
        ("Hours to train", "h", "trainings", 1),
        ("TTT (min)", "min", "trainings", 1), ("训练时间(小时)", "h", "trainings", 1),
    ],
)  # fmt: skip
def test_heads_of_times(head: str, unit: str, per: str, count: int) -> None:
    actual = time_head(head)
    assert actual and (actual.unit, actual.per, actual.count) == (unit, per, count)


@pytest.mark.parametrize(
    "head",
    ["Latency (ms)", "GPU hours", "samples/s", "Time limit", "Speedup (time)", "Data time (s)", "Time per GPU", "Date",
     "images/sec", "Estimated time", "Sync time (ms)", "AllReduce time", "CPU time (s)", "Inference time (ms)",
     "timestamp", "Compile time", "Time/sample (s)"],
)  # fmt: skip
def test_heads_of_other_columns(head: str) -> None:
    assert time_head(head) is None


def test_elapsed_times_by_hosts_and_two_servers_slower_than_one(tmp_path: Path) -> None:
    document = read(tmp_path, HOSTS)
    assert speedups(document) == {"1n1g": 1.0, "1n2g": 1.94, "1n4g": 3.51, "2n2g": 1.02}
    assert (readings(document.results), document.remarks) == ({TimeReading.TRAINING}, ())
    results = judge(document.results)
    (falling,) = figures(results, "falling", "2n2g")
    assert falling["time_ratio"] == pytest.approx(1647 / 862)
    assert sentence("falling", falling) == (
        "4 devices take 1.91 times as long as 2 (1n2g) with 2% allowed between single published figures: more devices, "
        "more time"
    )
    (more_nodes,) = figures(results, "more_nodes", "2n2g")
    assert sentence("more_nodes", more_nodes) == (
        "4 devices on 2 nodes take 3.45 times as long as on fewer (1n4g) with 2% allowed between single published "
        "figures: more nodes, more time"
    )
    assert sum(len(result.alarms) for result in results) == 2


def test_times_of_epochs_are_shown_in_the_place_of_speeds(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text(
        table("| nodes | GPUs | time per epoch (s) |", "| 1 | 1 | 1676 |", "| 1 | 4 | 477 |", "| 2 | 8 | 300 |")
    )
    page = text(read_documents([path]))
    rows = [line.split() for line in page.splitlines() if line.startswith(("1n", "2n"))]
    assert rows[:3] == [
        ["1n1g", "1", "1", "-", "1676.00", "1.00", "100.0"],
        ["1n4g", "1", "4", "-", "477.00", "3.51", "87.8"],
        ["2n4g", "2", "8", "-", "300.00", "5.59", "69.8"],
    ]
    assert "no warnings" in page and "median" not in page
    assert READINGS[TimeReading.EPOCH] in " ".join(page.split())
    assert "no samples/s: the table has neither samples nor a batch size" in READINGS[TimeReading.EPOCH]


def test_steps_of_a_batch_of_each_device_are_weak_scaling(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | Batch size per GPU | sec/step", "1 | 32 | 0.8", "8 | 32 | 1.0"))
    assert speeds(document) == {"1n1g": (40, "samples/s"), "8g": (256, "samples/s")}
    assert (speedups(document)["8g"], readings(document.results)) == (6.4, {TimeReading.LOCAL_BATCH})
    assert {result.run.batch_size for result in document.results} == {32}


def test_steps_of_one_batch_of_all_devices_are_strong_scaling(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | Global batch size | ms/step", "1 | 256 | 800", "8 | 256 | 125"))
    assert speeds(document) == {"1n1g": (320, "samples/s"), "8g": (2048, "samples/s")}
    assert (speedups(document)["8g"], readings(document.results)) == (6.4, {TimeReading.GLOBAL_BATCH})


def test_a_batch_size_that_grows_with_the_devices_is_that_of_all(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | Batch size | s/it", "1 | 32 | 0.8", "8 | 256 | 1.0"))
    assert speeds(document) == {"1n1g": (40, "samples/s"), "8g": (256, "samples/s")}
    assert readings(document.results) == {TimeReading.GROWING_BATCH}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (("GPUs | Batch size | s/it", "1 | 256 | 0.8", "8 | 256 | 0.2"), "is of each device or of all cannot be known"),
        (("GPUs | s/it", "1 | 0.8", "8 | 0.2"), "whether a step is the same work on every size cannot be known"),
        (("GPUs | Steps | Time (s)", "1 | 10 | 8", "8 | 10 | 2"), "whether a step is the same work on every size"),
        (("GPUs | Training time", "1 | 4.5", "8 | 1.5"), "times without a unit: write (s), (min) or (h)"),
        (("Nodes | Time (s)", "1 | 45", "8 | 15"), "how many devices a node has"),
    ],
)
def test_what_cannot_be_known_of_times_is_said(tmp_path: Path, rows: tuple[str, ...], reason: str) -> None:
    (refusal,) = read(tmp_path, table(*rows)).refusals
    assert reason in refusal


@pytest.mark.parametrize(("scaling", "speedup"), [("Strong", 4.0), ("Weak", 32.0)])
def test_a_caption_says_how_work_grows(tmp_path: Path, scaling: str, speedup: float) -> None:
    document = read(tmp_path, f"**{scaling} scaling** (8 GPUs a node)\n\n" + table("GPUs | s/it", "1 | 0.8", "8 | 0.2"))
    assert speedups(document)["8g"] == speedup
    assert readings(document.results) == {TimeReading[scaling.upper()]}


def test_samples_or_tokens_that_the_table_states_are_work(tmp_path: Path) -> None:
    rows = table("GPUs | Epochs | Images | Training time", "1 | 2 | 100,000 | 2:46:40", "4 | 2 | 100,000 | 41:40")
    assert speeds(read(tmp_path, rows)) == {"1n1g": (20, "samples/s"), "4g": (80, "samples/s")}
    tokens = read(tmp_path, table("GPUs | Tokens | Time (h)", "8 | 36,000,000 | 2", "16 | 36,000,000 | 1.25"))
    assert speeds(tokens) == {"8g": (5000, "tokens/s"), "16g": (8000, "tokens/s")}


def test_trainings_of_other_numbers_of_epochs_are_compared_by_epoch(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | Epochs | Time (min)", "1 | 10 | 100", "4 | 20 | 100"))
    assert speedups(document)["4g"] == 2.0


def test_two_parts_without_a_unit_have_their_ratio_alone(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | Epochs | Images | Time", "1 | 1 | 100 | 27:56", "4 | 1 | 100 | 7:57"))
    assert (speedups(document)["4g"], document.results[0].unit) == (3.51, "epochs/s")
    assert "two parts without a unit are taken as minutes and seconds" in document.remarks[0]


def test_a_printed_speedup_of_times_is_held_against_them(tmp_path: Path) -> None:
    rows = ("1 | 120 | 1.0x", "2 | 70 | 1.7×", "8 | 20 | 6.5x")
    results = judge(read(tmp_path, table("GPUs | Time (min) | Speedup", *rows)).results)
    assert [len(figures(results, "as_published", case)) for case in ("1n1g", "2g", "8g")] == [0, 0, 1]


def test_times_of_few_digits_are_known_to_half_of_their_last(tmp_path: Path) -> None:
    """24 h on one device and 3 h on eight may be 23.5 h and 3.4 h: no more than linear."""
    rows = ("1 | 24", "4 | 6", "8 | 3", "16 | 3")
    results = judge(read(tmp_path, table("GPUs | Training time (h)", *rows)).results)
    assert [alarm.name for result in results for alarm in result.alarms] == []


def test_an_approximation_is_no_figure(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | Training time", "1 | 1h 23m", "4 | ~25 min", "8 | 10-12 min"))
    assert {r.requested.case: r.speedup for r in document.results} == {"1n1g": 1.0, "4g": None, "8g": None}


def test_rows_of_another_model_are_another_setting(tmp_path: Path) -> None:
    rows = ("| ResNet | 1 | 100 |", "| ResNet | 8 | 25 |", "| VGG | 1 | 300 |", "| | 8 | 50 |")
    document = read(tmp_path, table("| Model | GPUs | Time (min) |", *rows))
    assert {(r.run.options["model"], r.run.devices): round(r.speedup or 0, 9) for r in document.results} == {
        ("ResNet", 1): 1, ("ResNet", 8): 4, ("VGG", 1): 1, ("VGG", 8): 6
    }  # fmt: skip


def test_a_table_with_speeds_is_read_by_them(tmp_path: Path) -> None:
    document = read(tmp_path, table("GPUs | samples/s | Time (s)", "1 | 100 | 90", "8 | 600 | 10"))
    assert speeds(document) == {"1n1g": (100, "samples/s"), "8g": (600, "samples/s")}


def test_two_documents_of_times(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        Path(tmp_path / name).write_text(HOSTS)
    assert len(published([tmp_path]).results) == 8
