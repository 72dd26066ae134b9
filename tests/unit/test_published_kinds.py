"""parse.published.tables: which columns and tables are speeds of training, on how many devices, times which factor."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.alarms.table import judge
from parse.published.vocabulary import device_name, ranks_in, rate, scaled_rate, without_rate
from tests.unit.test_published import read, table


def cells(folder: Path, head: str, *rows: str, above: str = "## Training\n\n") -> dict[str, float | None]:
    """Speeds by case of a table of devices and one other column."""
    document = read(folder, above + table(head, *rows) + "\n")
    return {result.requested.case: result.median_speed for result in document.results}


def reason(folder: Path, text: str) -> str:
    return "".join(read(folder, text).refusals)


@pytest.mark.parametrize(
    ("head", "factor"),
    [("Tokens/s", 1), ("ktok/s", 1000), ("K tokens/s", 1000), ("Tokens/s (k)", 1000), ("Msamples/s", 10**6),
     ("Throughput (10^3 tokens/s)", 1000), ("Throughput (million tokens/sec)", 10**6), ("mol/ms", 1000), ("mels/s", 1),
     ("batch 32 img/s", 1), ("Throughput (x1000 img/s)", 1), ("seq/s [x1000]", 1000)],
)  # fmt: skip
def test_heads_in_thousands_and_millions(head: str, factor: int) -> None:
    its = scaled_rate(head)
    assert its and its.factor == factor


def test_a_scaled_head_scales_its_cells_once(tmp_path: Path) -> None:
    rows = ("| 8 | 95.1 |", "| 64 | 740k |")
    assert cells(tmp_path, "| GPUs | Tokens/s (k) |", *rows) == {"8g": 95_100, "64g": 740_000}
    assert cells(tmp_path, "| GPUs | Throughput |", "| 8 | 95.1 ktok/s |") == {"8g": 95_100}
    assert without_rate("95 ktok/s") == "95 k"


@pytest.mark.parametrize(
    "head",
    ["PyTorch version", "Paddle commit", "Ideal img/s", "target img/s", "Dataloader img/s", "eval img/s",
     "PyTorch infer FPS", "img/s/$", "img/s per watt", "img/s (max)", "img/s (std)", "FPS (it/s)"],
)  # fmt: skip
def test_columns_that_are_no_speed_of_a_training(tmp_path: Path, head: str) -> None:
    heads, rows = f"| GPUs | img/s | {head} |", ("| 1 | 100 | 1.8 |", "| 8 | 790 | 1.8 |")
    assert cells(tmp_path, heads, *rows) == {"1n1g": 100, "8g": 790}


@pytest.mark.parametrize(
    "head", ["tokens/GPU/s", "TGS", "tokens per GPU per second", "tokens/s/p", "tokens/s/rank", "per-GPU tokens/s"]
)
def test_speeds_of_one_device(tmp_path: Path, head: str) -> None:
    assert cells(tmp_path, f"| GPUs | {head} |", "| 8 | 4000 |", "| 64 | 3800 |") == {"8g": 32_000, "64g": 243_200}


def test_a_heading_says_that_speeds_are_of_one_device(tmp_path: Path) -> None:
    above, rows = "## Throughput per GPU, batch size 32 per GPU\n\n", ("| 8 | 400 | 3200 |", "| 64 | 390 | 24960 |")
    document = read(tmp_path, above + table("| GPUs | img/s | total img/s |", *rows) + "\n")
    assert {result.median_speed for result in document.results} == {3200, 24_960}
    assert cells(tmp_path, "| GPUs | img/s |", "| 8 | 400 |", "| 64 | 390 |", above=above) == {
        "8g": 3200,
        "64g": 24_960,
    }


def test_a_speed_of_one_node_is_taken_times_the_nodes(tmp_path: Path) -> None:
    heads = "| Nodes | GPUs per node | Throughput per node (samples/s) |"
    assert cells(tmp_path, heads, "| 1 | 8 | 100 |", "| 4 | 8 | 95 |") == {"1n8g": 100, "4n8g": 380}


def test_numbers_of_models_count_no_devices(tmp_path: Path) -> None:
    document = read(
        tmp_path, "## Training\n\n" + table("| Device | img/s |", "| 2080 | 190 |", "| 3090 | 400 |") + "\n"
    )
    assert {result.requested.case for result in document.results} == {"?"}


def test_devices_in_names_and_below_hardware(tmp_path: Path) -> None:
    names = ("| 1p-GPU | 100 |", "| 8p-GPU | 790 |", "| 1p-NPU | 90 |", "| 8p-NPU | 700 |")
    document = read(tmp_path, "## 训练结果\n\n" + table("| NAME | FPS |", *names) + "\n")
    speedups = {(result.run.options["device"], result.requested.case): result.speedup for result in document.results}
    assert speedups[("gpu", "8g")] == 7.9 and round(speedups[("npu", "8g")] or 0, 2) == 7.78
    rows = ("| 1x A100 | 2,500 |", "| 8x A100 | 19,100 ± 120 |")
    assert cells(tmp_path, "| Hardware | img/s |", *rows) == {"1n1g": 2500, "8g": 19_100}
    assert (ranks_in("GPU_1P"), ranks_in("1080p"), device_name("8P-NPU")) == (1, None, "npu")


@pytest.mark.parametrize(
    "text",
    ["## 推理\n\n" + table("| Model | img/s |", "| a | 300 |"),
     "## Models\n\n" + table("| GPU number | T4 TensorRT (FPS) | mAP |", "| 8 | 300 | 40 |", "| 4 | 200 | 41 |"),
     "## Models\n\n" + table("| Model | Inf time (fps) | box AP |", "| a | 14 | 37 |"),
     "## Models\n\n" + table("| Model | FPS | mAP |", "| a | 300 | 40 |"),
     "## Pretrained Models\n\n" + table("| name | pretrain | acc@1 | FPS |", "| Swin-T | ImageNet-1K | 81.2 | 755 |"),
     "## Single prompt\n\n" + table("| Config | tok/s |", "| fp8 | 300 |")],
)  # fmt: skip
def test_speeds_of_inference_are_named_and_not_read(tmp_path: Path, text: str) -> None:
    assert "inference; not read" in reason(tmp_path, text + "\n")


def test_training_and_inference_in_one_table(tmp_path: Path) -> None:
    heads = "| GPUs | train FPS | infer FPS |"
    assert cells(tmp_path, heads, "| 1 | 95 | 40 |", "| 8 | 381 | 41 |") == {"1n1g": 95, "8g": 381}


def test_a_column_of_approximations_has_a_reason(tmp_path: Path) -> None:
    text = "## Training\n\n" + table("| Model | Samples/sec |", "| a | ~1750 |") + "\n"
    assert "Samples/sec: no cell is a figure ('~1750'); not read" in reason(tmp_path, text)
    its = rate("17.13 samp/s")
    assert its and its.unit == "samples"


def test_sizes_in_heads(tmp_path: Path) -> None:
    # InternLM/InternEvo/doc/en/train_performance.md, both of its tables
    sizes = {"8g": 4078 * 8, "1024g": 3625 * 1024}
    above = "Throughput is the tokens per GPU per second.\n\n"
    assert cells(tmp_path, "| GPU Number | 8 | 1024 |", "| TGS | 4078 | 3625 |", "| TFLOPS | 193 | 184 |") == sizes
    assert cells(tmp_path, "| Configuration | 8 GPUs | 1024 GPUs |", "| tp=1 | 4078 | 3625 |", above=above) == sizes
    assert cells(tmp_path, "| Model | 1 GPU | 8xA100 |", "| a | 219 img/s | 1734 img/s |") == {"1n1g": 219, "8g": 1734}
    wide = table("| Model | 1 GPU (img/s) | 8 GPUs (img/s) | Speedup |", "| a | 219 | 1734 | 7.9x |")
    results = judge(read(tmp_path, f"## Training\n\n{wide}\n").results)
    assert [alarm.name for result in results for alarm in result.alarms] == []
    assert [result.published.speedup for result in results if result.published] == [None, 7.9]
    for head in (
        "| Model | 1x A100 | 8x H100 |",
        "| Model | 1 GPU memory | 8 GPU memory |",
        "| Model | 1 GPU | 1 card |",
    ):
        assert "no table of speeds" in reason(tmp_path, table(head, "| a | 219 | 1734 |") + "\n")


def test_a_unit_above_columns_of_models(tmp_path: Path) -> None:
    # PaddlePaddle/Perf/Bert/README.md:272
    head, rows = "| 卡数 | FP32(BS=96) | loss |", ("| 1 | 164.866 | 1 |", "| 8 | 1320.939 | 1 |")
    above = "- V100上训练吞吐率(sequences/sec)如下:\n\n"
    assert cells(tmp_path, head, *rows, above=above) == {"1n1g": 164.866, "8g": 1320.939}
    for above in ("训练\n\n", "Accuracy at 200 images/sec\n\n", "It runs at 200 images/sec\n\n"):
        assert "no table of speeds" in reason(tmp_path, above + table(head, *rows) + "\n")


def test_times_of_epochs_by_their_cells(tmp_path: Path) -> None:
    rows = ("| 1x A100 | 120 seconds / epoch |", "| 4x A100 | 31 s/epoch |")
    document = read(tmp_path, "## Training\n\n" + table("| GPUs | Training time |", *rows) + "\n")
    assert [(result.unit, round(result.speedup or 0, 2)) for result in document.results] == [
        ("epochs/s", 1), ("epochs/s", 3.87)
    ]  # fmt: skip


def test_steps_in_a_second_have_a_reason(tmp_path: Path) -> None:
    text = table("| GPUs | it/s |", "| 1 | 3.3 |", "| 8 | 3.0 |") + "\n"
    assert "it/s: steps in a second; not read" in reason(tmp_path, text)


def test_a_head_says_how_many_devices_a_node_has(tmp_path: Path) -> None:
    assert cells(tmp_path, "| Nodes (4 GPUs each) | img/s |", "| 1 | 100 |", "| 16 | 1500 |") == {
        "1n4g": 100, "16n4g": 1500
    }  # fmt: skip
