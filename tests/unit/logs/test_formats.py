"""Which family a log is of: by its steps, whatever stands before them; by its marks where it has no steps."""

from __future__ import annotations

import pytest

from parse.logs.engine.log_format import FIELDS, IN_OTHER_UNITS, LogError
from parse.logs.engine.reader import find_step
from parse.logs.formats import FORMATS, format_named, recognise
from tests.unit.logs import made
from tests.unit.logs.real_lines import REAL

MLLOG = ':::MLLOG {"namespace": "", "time_ms": 1594790175195, "key": "run_start", "value": null, "metadata": {}}\n'
MARK = "- AI-Rank-log 1618110628.249 test_begin\n"
LANGUAGE_MODELS = (
    "megatron", "torchtitan", "nemo", "deepspeed", "paddlenlp", "composer", "fairseq", "nanogpt", "nanochat",
    "huggingface", "lightning",
)  # fmt: skip
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
    "megatron-progress": "2025-02-24 17:38:03\tJob ID: 198424\t# GPUs: 8\tSaving async checkpoint\tIteration: 100\t"
    "Job throughput: 364.8 TFLOP/s/GPU\tTokens (in billions): 0.05\n",
    "timm": "Train: 0 [  50/73 ( 70%)]  Loss: 6.77 (6.83)  Time: 0.320s,  400.32/s  (0.470s,  272.39/s)  LR: 1e-05\n",
    "torchvision": "Epoch: [0]  [ 103/5005]  eta: 4:43:31  lr: 0.1  img/s: 13.6  loss: 6.8  time: 2.54  data: 0.0\n",
    "paddle-suites": "total step: 20, epoch: 0, batch: 19, loss: 11.09, avg_reader_cost: 0.00011 sec, avg_batch_cost: "
    "0.14243 sec, avg_samples: 96.00000, ips: 673.51948 sequences/sec\n",
    "paddle-tokens": "[2022-07-27 12:40:00,967] [    INFO] - global step 2, epoch: 0, batch: 1, loss: 1, "
    "avg_batch_cost: 0.13314 sec, speed: 7.51 step/s, ips_total: 61529 tokens/s, ips: 7691 tokens/s, lr: 8e-09\n",
    "mmengine": "2022/12/13 19:00:12 - mmengine - INFO - Epoch(train) [1][  50/3104]  lr: 1.0000e-02  eta: 0:26:28  "
    "time: 0.1285  data_time: 0.0040  memory: 2581  loss: 0.7176\n",
    "detectron2": "[04/14 09:05:02] d2.utils.events INFO:  eta: 0:11:54  iter: 119  total_loss: 9.214  time: 0.8153\n",
    "keras": "422/422 [==============================] - 13s 29ms/step - loss: 0.7840 - accuracy: 0.7643\n",
    "tf-cnn-benchmarks": "total images/sec: 308.27\n",
    "horovod-synthetic": "Total img/sec on 8 GPU(s): 4801.4 +-42.7\n",
    **{name: REAL[name].text for name in LANGUAGE_MODELS},
    "ngc-ssd": "Iteration:     20, Loss function: 20.876, Average Loss: 0.450, avg. samples / sec: 8747.58\n",
    "ngc-rnnt": "DLL 2021-05-19 10:22:33.848718 - epoch    1 | iter   20/272 | loss  340.75 | utts/s  5054 | "
    "took  0.20 s | lrate 5.14e-05\n",
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
    with pytest.raises(LogError, match="'caffe'; there are pytorch-imagenet"):
        format_named("caffe")


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_read_marks(name):
    kinds = {log_pattern.kind for log_pattern in format_named(name).patterns}
    assert {"mllog", "mark"} <= kinds


@pytest.mark.parametrize("name", FORMATS)
def test_the_lines_of_all_formats_compile_and_name_known_fields(name):
    log_format = format_named(name)
    assert {group for form in log_format.steps for group in form.pattern.groupindex} <= {*FIELDS, *IN_OTHER_UNITS}
    assert all(log_pattern.pattern.pattern == log_pattern.expression for log_pattern in log_format.patterns)


DLL = "DLL 2021-03-23 10:16:53.781815 - Epoch: 0 Iteration: 5  train.loss : 7.09304  train.total_ips : "
MEGATRON = " [2021-03-23 10:17:06] iteration 56/ 5000 | consumed samples: 57344 | elapsed time per iteration (ms): "
MMSEG = "2021-03-23 10:17:00,123 - mmseg - INFO - Iter [36/1800]\tlr: 9.653e-03, eta: 0:08:04, time: "
NANOCHAT = "step 00004/21400 (0.05%) | loss: 10.39 | lrm: 1.00 | dt: 310.00ms | tok/sec: "
PADDLE_NLP = (
    "[2021-03-23 10:17:18,581] [    INFO] - loss: 1.2, learning_rate: 2.9e-05, global_step: 95, interval_runtime: "
)
SSD = "Iteration: 60, Loss function: 5.1, Average Loss: 0.5, avg. samples / sec: "


@pytest.mark.parametrize(
    ("name", "field", "begin", "whole", "damaged"),
    [
        ("ngc-pytorch", "rate", DLL, "3303.23 img/s", ("33", "33a3.23 img/s", "330..23 img/s", "3303\x9923 img/s")),
        ("megatron", "duration_ms", MEGATRON, "310.0 | lr: 1", ("31", "31'.0 | lr: 1", "31050 | lr: 1", "310\xe50 |")),
        ("mmengine", "duration_s", MMSEG, "0.310, data_time: 0.05", ("0.[10, data_time: 0.05", "0", "0x310, data")),
        (
            "paddlenlp",
            "elapsed_s",
            PADDLE_NLP,
            "0.3100, interval_s",
            ("0", "0d3100, interval_s", "0-.3100, interval_s"),
        ),
        ("nanochat", "rate", NANOCHAT, "1,691,252 | mfu: 48.1", ("1,691(252 | mfu: 48.1", "1]691,252 | mfu: 48.1")),
        ("ngc-ssd", "rate", SSD, "3303.23", ("3", "3303423", "330\xe2.23", "33z3.23")),
    ],
)
def test_a_number_that_a_damaged_line_has_cut_is_none(name, field, begin, whole, damaged):
    def fields(end: str) -> set[str]:
        step = find_step((begin + end).encode("latin-1"), format_named(name).steps)
        return {*step.fields} if step else set()

    assert field in fields(whole)
    assert [end for end in damaged if field in fields(end)] == []


def test_a_damaged_date_is_no_time():
    """`2021-03223` is no 3 February, nor 223 March."""
    line = b"2021-03223 10:16:52,851-INFO: [Pass 0, train batch 12] \tloss 7.1, elapse 0.3600 sec"
    step = find_step(line, format_named("paddle-resnet50").steps)
    assert step and "time" not in step.fields
