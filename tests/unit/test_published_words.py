"""parse.published.vocabulary: names, numbers and headings of documents."""

from __future__ import annotations

import pytest

from parse.published.vocabulary import Case, batch_size, case, model, number, precision, system


@pytest.mark.parametrize(
    ("text", "nodes", "devices"),
    [
        ("1n8g", 1, 8), ("16n8g", 16, 128), ("1n8c", 1, 8), ("1机1卡", 1, 1), ("2机16卡", 2, 16), ("单机单卡", 1, 1),
        ("32卡", None, 32), ("1卡", 1, 1), ("8 GPUs", None, 8), ("2 nodes 16 GPUs", 2, 16),
    ],
)  # fmt: skip
def test_words_of_cases(text, nodes, devices):
    assert case(text) == Case(nodes=nodes, devices=devices)


@pytest.mark.parametrize("text", ["", "all", "1n0g", "0n8g", "3机16卡", "8", "resnet50", "n8g"])
def test_words_that_are_no_case(text):
    assert case(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [("148,720", "148720"), ("26.50", "26.50"), ("1.9x", "1.9"), ("76.81%", "76.81"), ("0", "0")]
)
def test_numbers_keep_their_digits(text, value):
    assert str(number(text)) == value


@pytest.mark.parametrize("text", ["", "-", "TODO", "OOM", "1,2", "1e3", "nan", "12 34", "-5", "1.2.3"])
def test_words_that_are_no_number(text):
    assert number(text) is None


def test_the_first_text_with_a_setting_counts():
    assert batch_size(["ResNet50 V1.5 bsz = 160", "batch size = 32"]) == 160
    assert batch_size(["OneFlow samples/s (max bsz=96)"]) == 96
    assert batch_size(["batch_size_per_device: 64"]) == 64
    assert batch_size(["128 images of each", "bsz=max"]) is None
    assert precision(["AMP & dynamic loss scale", "FP32"]) == "amp-fp16"
    assert precision(["ResNet50", "FP32 & W/O XLA"]) == "fp32"
    assert precision(["FP32 and FP16", "FP32"]) == ""
    assert model(["batch size = 128", "ResNet 50 FP32"]) == "resnet50"
    assert model(["rn50_b128", "arcface"]) == "arcface_resnet50"
    assert model(["BERT Base"]) == "bert"
    assert model(["Performance"]) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Pytorch 框架测试", "pytorch"), ("NVIDIA/DeepLearningExamples PyTorch", "ngc-pytorch"),
        ("logs/ngc/tensorflow/resnet50", "ngc-tensorflow"), ("PaddlePaddle - ResNet50V1.5", "paddle"),
        ("PaddlePaddle-PLSC", "plsc"), ("MxNet", "mxnet"), ("PyTorch and TensorFlow", ""), ("throughput", ""),
    ],
)  # fmt: skip
def test_systems(text, name):
    assert system([text]) == name
