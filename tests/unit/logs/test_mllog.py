"""MLPerf's lines: three forms of them, and what they tell."""

from __future__ import annotations

import json

import pytest

from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from parse.logs.mlperf import trained
from parse.logs.sizes import NOWHERE, size_of
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import LOGS, facts


def line(key, value=None, time_ms=1593154619126, **metadata):
    content = {
        "namespace": "main",
        "time_ms": time_ms,
        "key": key,
        "value": value,
        "metadata": {"lineno": 1, **metadata},
    }
    return ":::MLLOG " + json.dumps(content)


def read(tmp_path, *lines, name="mllog"):
    return [*text_logs.read(name, tmp_path, *lines)[1]]


def keys(records):
    return [record.values["key"] for record in records if record.kind == "mllog"]


def test_key_value_time_and_metadata_are_read(tmp_path):
    (record,) = read(tmp_path, line("eval_accuracy", 0.75886, 1594794481748, epoch_num=37))
    assert (record.kind, record.time_s, record.rank) == ("mllog", 1594794481.748, None)
    assert record.values == {"key": "eval_accuracy", "value": "0.75886", "epoch_num": "37"}


def test_the_rank_of_a_launcher_is_read(tmp_path):
    (record,) = read(tmp_path, "3: " + line("run_stop", status="aborted"))
    assert (record.rank, record.values) == (3, {"key": "run_stop", "status": "aborted"})


def test_headers_become_facts(tmp_path):
    records = read(
        tmp_path,
        line("submission_benchmark", "resnet"),
        line("global_batch_size", 1664),
        line("train_samples", 1281167),
        line("seed", 5012),
        line("lars_epsilon", 0.0),
    )
    assert facts(records) == {
        "model": "resnet50", "global_batch_size": "1664", "samples_per_epoch": "1281167", "seed": "5012",
    }  # fmt: skip
    assert len(keys(records)) == 5


def test_the_order_of_the_fields_does_not_matter(tmp_path):
    content = '{"metadata": {"epoch_num": 3}, "value": 0.25, "key": "eval_accuracy", "time_ms": 1593155188792}'
    (record,) = read(tmp_path, f":::MLLOG {content} and what another rank printed behind it")
    assert (record.time_s, record.values["value"], record.values["epoch_num"]) == (1593155188.792, "0.25", "3")


def test_the_form_of_0_6(tmp_path):
    records = read(tmp_path, ':::MLL 1556733699.71 global_batch_size: {"value": 512, "metadata": {"epoch_num": 1}}')
    assert [record.time_s for record in records] == [pytest.approx(1556733699.71)] * 2
    assert records[0].values == {"key": "global_batch_size", "value": "512", "epoch_num": "1"}
    assert facts(records) == {"global_batch_size": "512"}


def test_the_form_of_0_5(tmp_path):
    records = read(
        tmp_path,
        ":::MLPv0.5.0 resnet 1541635735.108541965 (imagenet_main.py:42) run_start",
        'NCF_RAW_:::MLPv0.5.0 resnet 1541635736.1 (a.py:1) eval_accuracy: {"epoch": 4, "value": 0.61}',
        ":::MLPv0.5.0 resnet 1541635737.2 (a.py:1) run_set_random_seed: 12",
    )
    assert keys(records) == ["run_start", "eval_accuracy", "run_set_random_seed"]
    assert records[0].time_s == pytest.approx(1541635735.108542)
    assert records[1].values == {"key": "eval_accuracy", "value": "0.61", "epoch": "4"}
    assert facts(records) == {"seed": "12"}


@pytest.mark.parametrize(
    "garbage",
    [
        ':::MLLOG {"key": "eval_accuracy", "value": 0.7',
        ':::MLLOG {"key": "eval_accuracy" "value": 0.7}',
        ':::MLLOG {"key": 7, "value": 0.7}',
        ':::MLLOG {"key": "eval_accuracy", "value": 1' + "0" * 5000 + "}",
        ':::MLLOG {"key": "a", "value": ' + "[" * 20_000 + "]" * 20_000 + "}",
        ":::MLLOG eval_accuracy 0.7",
        ":::MLL 1556733699.71 run_start: {value}",
    ],
)  # fmt: skip
def test_garbage_gives_no_record(tmp_path, garbage):
    assert read(tmp_path, garbage) == []


def test_a_time_of_0_is_no_time(tmp_path):
    records = read(tmp_path, line("submission_org", "Google", time_ms=0))
    assert [record.time_s for record in records] == [None, None]


def test_a_long_value_is_cut(tmp_path):
    (record,) = read(tmp_path, line("note", "x" * 9999))
    assert len(record.values["value"]) == 200


def test_these_lines_alone_make_a_log(tmp_path):
    read(tmp_path, line("run_start"))
    log_format = recognise(tmp_path / "x.log")
    assert (log_format.name, log_format.steps) == ("mllog", ())


def test_the_marker_alone_makes_none(tmp_path):
    read(tmp_path, "grep -c :::MLLOG result_0.txt", "we print :::MLLOG {json} lines")
    with pytest.raises(LogError, match="no step line"):
        recognise(tmp_path / "x.log")


def test_they_are_read_in_logs_of_other_formats(tmp_path):
    assert keys(read(tmp_path, line("run_start"), name="ngc-pytorch")) == ["run_start"]


def test_packs_of_samples_are_no_batch(tmp_path):
    (record,) = read(tmp_path, "0: Namespace(packed_samples=True, average_packing_rate=2, train_batch_size=48)")
    assert record.values == {"packing": "2"}
    known = {"global_batch_size": "768", "batch_size": "48"}
    for packing, devices, batch_size in (("2", 8, 96), ("1.99", None, None)):
        size = size_of({**known, "packing": packing}, NOWHERE, NOWHERE, [])
        assert (size.devices, size.batch_size) == (devices, batch_size)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tracked_stats", {"loss": "x" * 300, "throughput": 12.5}), ("tracked_stats", {"imgs_sec": 12.5}),
     ("throughput", 12.5)],
)  # fmt: skip
def test_stated_rates_are_read_whole(tmp_path, key, value):
    """As in mlcommons/training_results_v1.0: ssd, resnet and rnnt of DSS8440x8A100-PCIE-40GB."""
    (record,) = read(tmp_path, line(key, value))
    assert record.values["rate"] == "12.5"


@pytest.mark.parametrize(
    ("time_ms", "time_s"), [(1593049600, 1593049.6), (1594794481748, 1594794481.748), (0, None), (10**15, None)]
)
def test_times_are_milliseconds_whatever_they_count_from(tmp_path, time_ms, time_s):
    (record,) = read(tmp_path, line("run_start", time_ms=time_ms))
    assert record.time_s == time_s


@pytest.mark.skipif(not LOGS.is_dir(), reason="needs ../shared/logs")
@pytest.mark.parametrize(
    ("name", "seconds", "status", "rate"),
    [
        ("nvidia-mxnet-resnet50_mlperf0.7_dgx1_1n8g_slurm.log", 4290.339, "aborted", 37 * 1281167 / 4286.738),
        ("tensorflow2-resnet50_mlperf0.7_google_v100x8.log", 5293.900, "success", 39 * 1281167 / 5293.895),
    ],
)
def test_real_logs(name, seconds, status, rate):
    records = [record for batch in batches(LOGS / name, format_named("mllog")) for record in batch.records]
    times = {record.values["key"]: record for record in records if record.kind == "mllog"}
    assert times["run_stop"].time_s - times["run_start"].time_s == pytest.approx(seconds, abs=1e-3)
    assert times["run_stop"].values["status"] == status
    done = trained(records, facts(records))
    assert done.rate == pytest.approx(rate, rel=1e-6)
