"""AI-Rank's marks, as the rules have them and as programs print them."""

from __future__ import annotations

import pytest

from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import LOGS, values

CHECKSUM = "d41d8cd98f00b204e9800998ecf8427e"


def read(tmp_path, *lines, name="ai-rank"):
    return [*text_logs.read(name, tmp_path, *lines)[1]]


def mark(tmp_path, line):
    (record,) = [record for record in read(tmp_path, line) if record.kind == "mark"]
    return record


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (f"load_data, checksum:{CHECKSUM}", {"mark": "load_data", "checksum": CHECKSUM}),
        ("test_begin", {"mark": "test_begin"}),
        (
            "eval_accuracy:0.16753999888896942, total_epoch_cnt:1",
            {"mark": "eval_accuracy", "eval_accuracy": "0.16753999888896942", "total_epoch_cnt": "1"},
        ),
        (
            "target_quality_time:8.03sec",
            {"mark": "target_quality_time", "target_quality_time": "8.03", "unit": "sec"},
        ),
        ("test_finish", {"mark": "test_finish"}),
        ("total_use_time:12.03sec", {"mark": "total_use_time", "total_use_time": "12.03", "unit": "sec"}),
        ("avg_ips:1190images/sec", {"mark": "avg_ips", "avg_ips": "1190", "unit": "images/sec"}),
        ("avg_ips:188 videos/sec", {"mark": "avg_ips", "avg_ips": "188", "unit": "videos/sec"}),
        ("warmup_begin, warmup_samples:100", {"mark": "warmup_begin", "warmup_samples": "100"}),
    ],
)
def test_the_marks_of_the_rules(tmp_path, line, values):
    record = mark(tmp_path, f"- AI-Rank-log 1558631910.424 {line}")
    assert (record.time_s, record.rank, record.values) == (1558631910.424, None, values)


def test_the_checksum_is_a_fact(tmp_path):
    records = read(tmp_path, f"- AI-Rank-log 1558631910.424 load_data, checksum:{CHECKSUM}")
    assert values(records, "facts") == [{"checksum": CHECKSUM}]


@pytest.mark.parametrize(
    ("line", "time_s", "values"),
    [
        (
            "AI-Rank-log 1617000000.1234567 eval_accuracy:77.3, total_epoch_cnt:21.52",
            1617000000.1234567,
            {"mark": "eval_accuracy", "eval_accuracy": "77.3", "total_epoch_cnt": "21.52"},
        ),
        (
            "AI-Rank-log - 2021-04-02 12:33:11,123 - INFO - test begin",
            1617366791.123,
            {"mark": "test_begin", "printed": "test begin"},
        ),
        (
            "AI-Rank-log - 2021-04-02 12:33:11,123 - INFO - total_epoch_cnt: 3 total time: 12.3 avg_ips: 123 word/s",
            1617366791.123,
            {"mark": "total_epoch_cnt", "total_epoch_cnt": "3", "avg_ips": "123", "unit": "total"},
        ),
        (
            "AI-Rank-log - 2021-04-02 12:33:11,123 - INFO - Epoch 3 using time 12.5, avg_ips 1234.5 example/sec",
            1617366791.123,
            {"mark": "avg_ips", "avg_ips": "1234.5", "unit": "example/sec"},
        ),
        ("INFO:rank:AI-Rank-log 1618110628.3435 test_finish", 1618110628.3435, {"mark": "test_finish"}),
        ("- AI-Rank-log 1618110628.5 test_end", 1618110628.5, {"mark": "test_finish", "printed": "test_end"}),
        (
            "- AI-Rank-Log 1618110628.5 eval_accuracy：0.75，total_epoch_cnt：4",
            1618110628.5,
            {"mark": "eval_accuracy", "eval_accuracy": "0.75", "total_epoch_cnt": "4"},
        ),
        ("- AI-Rank-log load_data", None, {"mark": "load_data", "untimed": "yes"}),
        (
            "- AI-Rank-log 1618110628.5 total_use_time:148,720sec",
            1618110628.5,
            {"mark": "total_use_time", "total_use_time": "148720", "unit": "sec"},
        ),
    ],
)
def test_the_marks_of_programs(tmp_path, line, time_s, values):
    record = mark(tmp_path, line)
    assert record.time_s == (None if time_s is None else pytest.approx(time_s, abs=1e-5))
    assert record.values == values


def test_the_rank_of_a_launcher_is_read(tmp_path):
    assert mark(tmp_path, "[1,3]<stdout>:- AI-Rank-log 1558631910.424 test_begin").rank == 3


@pytest.mark.parametrize(
    "line",
    [
        "[04/01 15:04:20] d2.utils.events INFO: AI-Rank-log eta: 6:39:53  iter: 19  total_loss: 2.054",
        "AI-Rank-log 2021-04-03 12:00:42,482 - mmseg - INFO - Iter [50/80000]\tlr: 9.995e-03, eta: 17:49:18",
        "- AI-Rank-log 1558631910.424 target_qps：2000",
        "it prints AI-Rank marks at test_begin",
        "- AI-Rank-log 1558631910.424",
    ],
)
def test_other_text_behind_the_prefix_is_no_mark(tmp_path, line):
    assert read(tmp_path, line) == []


def test_marks_alone_make_a_log(tmp_path):
    read(tmp_path, "- AI-Rank-log 1558631910.424 test_begin")
    log_format = recognise(tmp_path / "x.log")
    assert (log_format.name, log_format.steps) == ("ai-rank", ())


def test_the_prefix_alone_makes_none(tmp_path):
    read(tmp_path, "- AI-Rank-log 1558631910.424 here we go")
    with pytest.raises(LogError, match="no step line"):
        recognise(tmp_path / "x.log")


def test_they_are_read_in_logs_of_other_formats(tmp_path):
    records = read(tmp_path, "- AI-Rank-log 1558631910.424 test_begin", name="pytorch-imagenet")
    assert [record.kind for record in records] == ["mark"]


@pytest.mark.skipif(not LOGS.is_dir(), reason="needs ../shared/logs")
def test_a_real_log():
    path = LOGS / "airank-format_tsm_pytorch_1n1g_fp32.log"
    read = [record for batch in batches(path, format_named("ai-rank")) for record in batch.records]
    records = [record for record in read if record.kind == "mark"]
    assert [(record.values["mark"], record.time_s) for record in records] == [
        ("load_data", pytest.approx(1618110628.103)),
        ("test_begin", pytest.approx(1618110628.249)),
        ("eval_accuracy", pytest.approx(1618118480.571)),
        ("eval_accuracy", pytest.approx(1618126329.537)),
    ]
    assert records[0].values["checksum"] == "234584"
    assert [record.values["total_epoch_cnt"] for record in records[2:]] == ["0", "1"]
