"""parse.published.columns: tables without cases, units of speeds, and what tells rows apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.alarms.table import judge
from parse.published.points import Published
from parse.published.vocabulary import devices_in, rate
from parse.report.summary import no_speedup_text
from tests.unit.test_published import read, table


def points(document: Published) -> dict[tuple[str, ...], tuple[str, float | None, str]]:
    """Case, speed and unit by the options of the points, which differ."""
    by_options = {
        tuple(result.run.options.values()): (result.requested.case, result.median_speed, result.unit)
        for result in document.results
    }
    assert len(by_options) == len(document.results)
    return by_options


def speedups(document: Published) -> dict[str, float]:
    assert all(result.speedup for result in document.results)
    return {result.requested.case: round(result.speedup or 0, 2) for result in document.results}


TECHNIQUES = table("| Techniques | TPS/GPU | Memory(GiB) |", "| FSDP | 500 | 82.4 |", "| FSDP + Float8 | 850 | 76.8 |")


def test_a_table_of_one_axis_by_the_devices_of_its_caption(tmp_path: Path) -> None:
    document = read(tmp_path, f"**Table 1** FSDP. Llama 3.1 8B model. 8 GPUs. Local batch size 2.\n\n{TECHNIQUES}\n")
    assert points(document) == {("FSDP",): ("8g", 4000, "tokens/s"), ("FSDP + Float8",): ("8g", 6800, "tokens/s")}
    assert document.remarks[0].endswith("TPS/GPU is of one device: multiplied by the 8 that the text above names")
    assert [alarm for result in judge(document.results) for alarm in result.alarms] == []


def test_a_table_of_one_axis_of_unknown_devices(tmp_path: Path) -> None:
    document = read(tmp_path, TECHNIQUES)
    assert points(document) == {
        ("FSDP", "of one device"): ("?", 500, "tokens/s"), ("FSDP + Float8", "of one device"): ("?", 850, "tokens/s")
    }  # fmt: skip
    reason = no_speedup_text(document.results[0])
    assert reason == "the document does not say of how many devices these speeds are"


def test_two_settings_of_one_axis(tmp_path: Path) -> None:
    rows = ("| FSDP 8, CP 1 | 32768 | 3,890 |", "| FSDP 4, CP 2 | 65536 | 2,540 |")
    document = read(tmp_path, "## 8 GPUs\n" + table("| Parallelism | Sequence Length | TPS/GPU |", *rows))
    assert points(document) == {
        ("FSDP 8, CP 1", "32768"): ("8g", 31120, "tokens/s"), ("FSDP 4, CP 2", "65536"): ("8g", 20320, "tokens/s")
    }  # fmt: skip


def test_batch_sizes_of_one_axis_need_no_number_of_the_row(tmp_path: Path) -> None:
    document = read(tmp_path, "8 GPUs\n\n" + table("| Batch size | TPS/GPU |", "| 1 | 500 |", "| 2 | 850 |"))
    assert points(document) == {("1",): ("8g", 4000, "tokens/s"), ("2",): ("8g", 6800, "tokens/s")}


def test_the_same_table_on_two_sizes_is_no_scaling(tmp_path: Path) -> None:
    document = read(tmp_path, f"8 GPUs\n\n{TECHNIQUES}\n\n128 GPUs\n\n{TECHNIQUES}\n")
    assert {result.speedup for result in document.results} == {None}
    assert len({result.requested.setting for result in document.results}) == 4


def test_of_one_or_of_all_devices_cannot_be_known(tmp_path: Path) -> None:
    text = "#### 70b on 256 H100s\n" + table("| Quantization | tokens/sec |", "| None | 597.3 |", "| float8 | 809.8 |")
    document = read(tmp_path, text)
    assert points(document) == {("None",): ("?", 597.3, "tokens/s"), ("float8",): ("?", 809.8, "tokens/s")}
    assert document.remarks[0].endswith("tokens/sec: whether it is of one or of all 256 devices cannot be known")
    total = read(tmp_path, text.replace("tokens/sec", "total tokens/sec"))
    assert points(total)["None",] == ("256g", 597.3, "tokens/s")


def test_a_word_in_the_place_of_a_speed_of_one_axis(tmp_path: Path) -> None:
    rows = ("| off | 104 |", "| on | 89(\u219314.4%) |", "| offload | OOM |", "| | |")
    document = read(tmp_path, "1 GPU\n\n" + table("| checkpointing | samples/s |", *rows))
    assert {value: speed for (value,), (_, speed, _) in points(document).items()} == {
        "off": 104, "on": 89, "offload": None
    }  # fmt: skip


def test_rows_that_only_notes_tell_apart_are_points(tmp_path: Path) -> None:
    rows = ("| NVFP4 | 1.2715 | 30,040 |", "| BF16 | 1.2738 | 21,919 |")
    document = read(tmp_path, "1 GPU\n\n" + table("| Run | Loss | Tokens/sec (per GPU) |", *rows))
    assert points(document) == {("NVFP4",): ("1n1g", 30040, "tokens/s"), ("BF16",): ("1n1g", 21919, "tokens/s")}


def test_tables_of_inference_are_no_trainings(tmp_path: Path) -> None:
    inference = table("| Batch size | Throughput Avg | Latency (ms) |", "| 1 | 23 | 34.9 |", "| 2 | 26 | 59.3 |")
    training = table("| GPUs | img/s |", "| 1 | 10 |", "| 8 | 70 |")
    document = read(tmp_path, f"{inference}\n\n{training}\n\n{inference}\n")
    assert speedups(document) == {"1n1g": 1, "8g": 7}
    assert document.remarks == (f"{tmp_path / 'report.md'}: lines 1, 11: a table of inference; not read",)


@pytest.mark.parametrize(
    ("head", "unit", "factor"),
    [
        ("Throughput (tok/s)", "tokens", 1), ("Throughput (T/s)", "tokens", 1), ("Throughput (S/s)", "samples", 1),
        ("seq/sec", "samples", 1), ("frames/s", "frames", 1), ("Throughput [mol/ms]", "molecules", 1000),
        ("images per second", "samples", 1), ("TPS/GPU", "tokens", 1), ("mels/s", "mels", 1),
    ],
)  # fmt: skip
def test_units_of_speeds(head: str, unit: str, factor: int) -> None:
    actual = rate(head)
    assert actual and (actual.unit, actual.factor) == (unit, factor)


@pytest.mark.parametrize("head", ["Throughput (GB/s)", "it/s", "Throughput (steps/s)", "TFLOP/s", "Bandwidth [MB/sec]"])
def test_other_units_are_no_throughput(tmp_path: Path, head: str) -> None:
    assert rate(head) is None
    assert read(tmp_path, table(f"| GPUs | {head} |", "| 1 | 10 |", "| 8 | 70 |")).results == ()


def test_the_unit_of_a_table_may_be_above_it(tmp_path: Path) -> None:
    rows = table("| GPUs | Throughput |", "| 1 | 10.5k |", "| 8 | 70 K |")
    document = read(tmp_path, f"Performance numbers, in mels per second, are means.\n\n{rows}\n")
    assert {result.requested.case: (result.median_speed, result.unit) for result in document.results} == {
        "1n1g": (10500, "mels/s"), "8g": (70000, "mels/s")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("NVIDIA DGX A100 (8x A100 80GB)", 8), ("70b on 256 H100s with FSDP=32, TP=8", 256), ("8 GPUs. TP 4", 8),
        ("1024 V100 GPUs", 1024), ("Single-node training on 8x power limited B200 GPUs", 8), ("A100 x 4", 4),
        ("4 nodes with 8x Tesla V100-SXM2-16GB GPUs each", 32), ("单机8卡", 8), ("2机16卡", 16),
        ("on 8 or 128 H100 GPUs", None),
        ("Llama 3.1 8B", None), ("512 GPU training on 64 node GB200 cluster", None), ("batch size 8", None), ("", None),
    ],
)  # fmt: skip
def test_devices_that_a_text_names(text: str, devices: int | None) -> None:
    assert devices_in(text) == devices


def test_a_column_of_devices_with_their_names(tmp_path: Path) -> None:
    rows = ("| 1024 V100 GPUs | 44 min |", "| 256 V100 GPUs | 2.4 hr |", "| 16 V100 GPUs | 33.22 hr |")
    assert speedups(read(tmp_path, table("| Devices | Training Time |", *rows))) == {
        "16g": 1, "256g": 13.84, "1024g": 45.3
    }  # fmt: skip


def test_a_column_of_names_of_devices_counts_none(tmp_path: Path) -> None:
    rows = ("| 8 | H100 | 800 |", "| 16 | H100 | 1500 |", "| 8 | A100 | 400 |", "| 16 | A100 | 700 |")
    document = read(tmp_path, table("| # GPUs | GPU | img/s |", *rows))
    assert {(r.run.options["gpu"], r.run.devices): r.speedup for r in document.results} == {
        ("H100", 8): 1, ("H100", 16): 1.875, ("A100", 8): 1, ("A100", 16): 1.75
    }  # fmt: skip


def test_devices_of_two_models_are_two_settings(tmp_path: Path) -> None:
    rows = ("| 8x A100 | 400 |", "| 16x A100 | 700 |", "| 8x H100 | 800 |", "| 16 x H100s | 1500 |")
    document = read(tmp_path, table("| GPUs | img/s |", *rows))
    assert {(r.run.options["device"], r.run.devices): r.speedup for r in document.results} == {
        ("a100", 8): 1, ("a100", 16): 1.75, ("h100", 8): 1, ("h100", 16): 1.875
    }  # fmt: skip


def test_one_batch_of_all_devices_is_strong_scaling(tmp_path: Path) -> None:
    """As FastPitch's table: fewer devices accumulate more."""
    rows = ("| 16 | 1 | 16 | 100 |", "| 16 | 4 | 4 | 380 |", "| 16 | 8 | 2 | 700 |")
    document = read(tmp_path, table("| Batch size / GPU | GPUs | Grad accumulation | img/s |", *rows))
    assert speedups(document) == {"1n1g": 1, "4g": 3.8, "8g": 7}
    assert {result.run.options["global batch size"] for result in document.results} == {"256"}


def test_a_global_batch_that_grows_is_one_batch_of_each_device(tmp_path: Path) -> None:
    rows = ("| 8 | 64 | 100 |", "| 16 | 128 | 190 |")
    document = read(tmp_path, table("| # GPUs | GlobalBatchSize | img/s |", *rows))
    assert (speedups(document), document.results[0].run.batch_size) == ({"8g": 1, "16g": 1.9}, 8)


def test_figures_that_are_cut_off_make_no_alarm(tmp_path: Path) -> None:
    rows = ("| 8 | 18 |", "| 32 | 75 |", "| 64 | 150 |")
    results = judge(read(tmp_path, table("| GPUs | img/s |", *rows)).results)
    assert [alarm.name for result in results for alarm in result.alarms] == []


def test_a_table_with_more_settings_is_no_copy_of_another(tmp_path: Path) -> None:
    whole = table(
        "| GPUs | XLA | img/s |", "| 1 | No | 10 |", "| 8 | No | 70 |", "| 1 | Yes | 12 |", "| 8 | Yes | 90 |"
    )
    part = table("| GPUs | img/s |", "| 1 | 10 |", "| 8 | 70 |")
    results = judge(read(tmp_path, f"{part}\n\n{whole}\n").results)
    assert [alarm.name for result in results for alarm in result.alarms] == []


# Excerpts of public tables (docs/public_tables.md), with other numbers.


def test_columns_whose_cells_alone_have_the_unit(tmp_path: Path) -> None:
    """As efficientnet's: the head names the precision alone, ratios have columns of their own."""
    rows = (
        "| b0 | 1 | 600 img/s | 1400 img/s | 2.33 x | 1.0 x |",
        "| b0 | 8 | 4500 img/s | 8400 img/s | 1.87 x | 7.5 x |",
    )
    heads = (
        "| **Model** | **GPUs** | **FP32** | **Throughput - AMP** | **Throughput speedup** | **FP32 Strong Scaling** |"
    )
    document = read(tmp_path, table(heads, *rows))
    assert {(r.run.precision, r.run.devices): (r.median_speed, r.speedup) for r in document.results} == {
        ("fp32", 1): (600, 1), ("fp32", 8): (4500, 7.5), ("amp-fp16", 1): (1400, 1), ("amp-fp16", 8): (8400, 6)
    }  # fmt: skip


def test_figures_of_systems_that_are_no_speeds(tmp_path: Path) -> None:
    """As OneFlow's reports of GPT and InsightFace: petaFLOP/s and numbers of classes below the names of systems."""
    rows = ("| 8 | 12.3 | 1.2 | 2,000,000 |", "| 16 | 24.0 | 2.3 | 4,000,000 |")
    heads = "| GPUs | OneFlow sequences/sec | OneFlow aggregate petaFLOP/s | OneFlow num_classes |"
    document = read(tmp_path, table(heads, *rows))
    assert {result.requested.case: result.median_speed for result in document.results} == {"8g": 12.3, "16g": 24.0}


def test_an_improvement_and_a_bandwidth_are_no_speeds(tmp_path: Path) -> None:
    rows = table("| Model | throughput improvement over baseline |", "| BERT | 1.09x |", "| GPT2 | 2.28 |")
    switches = table(
        "| Switch | Throughput (Tbps) | Max throughput [GB/s] |", "| SN5600 | 51.2 | 10 |", "| SN5400 | 25.6 | 5 |"
    )
    assert read(tmp_path, f"{rows}\n\n{switches}\n").results == ()


def test_a_throughput_of_one_axis_needs_a_unit(tmp_path: Path) -> None:
    rows = table("| Experiment | Throughput |", "| pipeline-1 | 81.8 |", "| pipeline-2 | 135.5 |")
    (refusal,) = read(tmp_path, rows).refusals
    assert "Throughput: neither its head nor the text above says what it counts" in refusal
    assert len(read(tmp_path, f"In samples per second:\n\n{rows}").results) == 2


def test_two_batches_of_all_devices_with_accumulation(tmp_path: Path) -> None:
    """As BERT's: a global batch for each sequence length, and accumulation in two figures."""
    heads = (
        "| GPUs | Sequence Length | Gradient Accumulation: AMP, FP32 | Global Batch Size | Throughput - FP32 (seq/s) |"
    )
    rows = ("| 1 | 128 | 64 , 128 | 1024 | 40 |", "| 8 | 128 | 8 , 16 | 1024 | 280 |",
            "| 1 | 512 | 32 , 64 | 512 | 10 |", "| 8 | 512 | 4 , 8 | 512 | 75 |")  # fmt: skip
    document = read(tmp_path, table(heads, *rows))
    assert {(r.run.options["sequence length"], r.run.devices): r.speedup for r in document.results} == {
        ("128", 1): 1, ("128", 8): 7, ("512", 1): 1, ("512", 8): 7.5
    }  # fmt: skip


def test_batch_sizes_in_thousands_of_each_device(tmp_path: Path) -> None:
    """As DLRM's: 8k on 8 devices and 4k on 16 are one batch of all."""
    rows = ("| 16 | large | 4k | 1,080,000 |", "| 8 | large | 8k | 720,000 |", "| 1 | small | 64k | 200,000 |")
    document = read(tmp_path, table("| GPUs | Model size | Batch size / GPU | samples/s |", *rows))
    assert {result.requested.case: result.speedup for result in document.results} == {"1n1g": 1, "8g": 1, "16g": 1.5}


def test_equal_batches_of_all_of_several_of_each(tmp_path: Path) -> None:
    """As QuartzNet's: 24 x 2 and 48 x 1 on one device are two rows, not two runs."""
    rows = ("| 24 | 2 | 1 | 40 |", "| 48 | 1 | 1 | 50 |", "| 24 | 1 | 2 | 78 |")
    document = read(tmp_path, table("| Batch size / GPU | Grad accumulation | GPUs | img/s |", *rows))
    speeds = [(r.run.options["batch size"], r.run.devices, r.median_speed, r.speedup) for r in document.results]
    assert sorted(speeds) == [
        ("24", 1, 40, 1), ("24", 2, 78, 1.95), ("48", 1, 50, 1)
    ]  # fmt: skip


def test_figures_without_a_role_are_settings_only_as_far_as_needed(tmp_path: Path) -> None:
    """As nnU-Net's: the dimension tells rows apart, the dice does not."""
    rows = (
        "| 1 | 2 | 73.21 | 33 min |",
        "| 8 | 2 | 73.15 | 11 min |",
        "| 1 | 3 | 74.35 | 105 min |",
        "| 8 | 3 | 74.34 | 15 min |",
    )
    document = read(tmp_path, table("| GPUs | Dimension | Dice | Time to train |", *rows))
    assert {(r.run.options["dimension"], r.run.devices): r.speedup for r in document.results} == {
        ("2", 1): 1, ("2", 8): 3, ("3", 1): 1, ("3", 8): 7
    }  # fmt: skip


def test_devices_of_each_node_by_the_machine_in_a_heading(tmp_path: Path) -> None:
    rows = table("| Nodes | Throughput (seq/s) |", "| 1 | 100 |", "| | |", "| 20 | 1900 |")
    document = read(tmp_path, f"##### Multi-node on NVIDIA DGX A100 (8x A100 80GB)\n{rows}")
    assert (speedups(document), document.remarks) == ({"1n8g": 1, "20n8g": 19}, ())


def test_nodes_and_their_devices(tmp_path: Path) -> None:
    document = read(tmp_path, table("| Nodes | GPUs / node | img/s |", "| 1 | 8 | 10 |", "| 2 | 8 | 19 |"))
    assert speedups(document) == {"1n8g": 1, "2n8g": 1.9}


def test_code_in_a_line_opens_no_block(tmp_path: Path) -> None:
    rows = table("| GPUs | img/s |", "| 1 | 10 |", "| 8 | 70 |")
    document = read(tmp_path, f"```bash scripts/run.sh <model>```\n\n```\n```bash\n```\n\n{rows}")
    assert speedups(document) == {"1n1g": 1, "8g": 7}


def test_equal_times_of_few_digits_are_no_copy(tmp_path: Path) -> None:
    rows = ("| 1 | 11 min | 11 min |", "| 8 | 2 min | 2 min |")
    results = judge(read(tmp_path, table("| GPUs | Time to train - FP32 | Time to train - AMP |", *rows)).results)
    assert [alarm.name for result in results for alarm in result.alarms] == []
