"""Which family a log is of: by its steps, whatever stands before them; by its marks where it has no steps."""

from __future__ import annotations

import pytest

from parse.logs.engine.log_format import LogError
from parse.logs.formats import FORMATS, format_named, recognise
from tests.unit.logs import made

MLLOG = ':::MLLOG {"namespace": "", "time_ms": 1594790175195, "key": "run_start", "value": null, "metadata": {}}\n'
MARK = "- AI-Rank-log 1618110628.249 test_begin\n"
STEPS = {
    "ngc-pytorch": made.ngc_pytorch([0.4] * 5, batch=128),
    "pytorch-imagenet": made.pytorch_imagenet([0.4] * 5),
    "paddle-resnet50": made.paddle([0.4] * 5, batch=128),
    "plsc": made.plsc([0.4] * 50, batch=128),
    "ngc-tensorflow": "DLL 2020-09-01 06:41:11.984949 - (3, 16135) imgs_per_sec : 1146.8574254443538  loss : 3.44898\n",
    "tf2-official": "I0407 21:17:05.025709 139725706671936 keras_utils.py:145] TimeHistory: 6.46 seconds, 495.19 "
    "examples/second between steps 100 and 200\n",
    "ngc-mxnet": "INFO:root:Epoch[0] Batch [20]\tSpeed: 84.39 samples/sec\taccuracy=0.000000\n",
    "oneflow": "train: epoch 0, iter 20, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, samples/s: 3988.891 "
    "1597933942.9863544\n",
    "mllog": MLLOG,
    "ai-rank": MARK,
}


def log_format(tmp_path, text):
    path = tmp_path / "x.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return recognise(path).name


def test_every_format_has_a_case_here():
    assert set(STEPS) == set(FORMATS)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "before",
    ["", "noise\n" * 1000, MARK, MLLOG, "x" * 3_000_000 + "\n"],
    ids=["nothing", "noise", "a mark", "MLLOG", "an endless line"],
)
def test_recognised_whatever_stands_before(tmp_path, name, before):
    expected = name if STEPS[name] not in (MLLOG, MARK) else ("mllog" if MLLOG in (before, STEPS[name]) else name)
    assert log_format(tmp_path, before + STEPS[name]) == expected


@pytest.mark.parametrize("name", STEPS)
def test_wrapped_and_coloured(tmp_path, name):
    wrapped = "".join(
        f"Fri Apr  9 10:16:49 2021[1,0]<stdout>:\x1b[32m{line}\x1b[0m\r\n" for line in STEPS[name].splitlines()
    )
    assert log_format(tmp_path, wrapped) == name


def test_the_format_with_more_steps_is_recognised(tmp_path):
    assert log_format(tmp_path, STEPS["oneflow"] + STEPS["paddle-resnet50"]) == "paddle-resnet50"
    assert log_format(tmp_path, STEPS["oneflow"] * 9 + STEPS["paddle-resnet50"]) == "oneflow"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing of interest\n", "no step line of a known system"),
        ("", "no step line of a known system"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 64, "binary"),
        ("Epoch: no numbers\nIteration: none  train.total_ips : many img/s\n", "no step line of a known system"),
    ],
)
def test_what_is_no_log_is_refused_with_the_reason(tmp_path, text, reason):
    with pytest.raises(LogError, match=reason):
        log_format(tmp_path, text)


def test_an_unknown_format_is_refused():
    with pytest.raises(LogError, match="'caffe'; there are ngc-pytorch"):
        format_named("caffe")


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_read_marks(name):
    kinds = {log_pattern.kind for log_pattern in format_named(name).patterns}
    assert {"mllog", "mark"} <= kinds
