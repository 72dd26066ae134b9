"""Paddle 2's suites: a line of each, rates of one rank; those that count tokens are another format."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol, read_log
from parse.runs.log_attempt import attempt_of
from tests.unit.logs.text_logs import facts, read, values

SUITES = {
    # PaddlePaddle/Perf, Bert/logs/V100_LOG/PaddleNLP_bert_base_seqlen128_bs96_fp16_DP_N1C8_log and base_bs96_fp16_gpu32.log
    "total step: 20, epoch: 0, batch: 19, loss: 11.090787, avg_reader_cost: 0.00011 sec, avg_batch_cost: 0.14243 sec, avg_samples: 96.00000, ips: 673.51948 sequences/sec":
        (-1, 20, 0.14243, 673.51948, None),
    "tobal step: 10, epoch: 0, batch: 9, loss: 11.246908, avg_reader_cost: 0.05589 sec, avg_batch_cost: 0.45558 sec, avg_samples: 96.00000, ips: 187.69641 sequences/sec":
        (-1, 10, 0.45558, 187.69641, None),
    # PaddlePaddle/Perf, DeepLabV3P/logs/paddle/Deeplabv3_FP16_BS4-N8.log
    "2022-02-05 04:33:42 [INFO]\t[TRAIN] epoch: 1, iter: 10/200, loss: 1.6422, lr: 0.009594, batch_cost: 0.3241, reader_cost: 0.00325, ips: 12.3435 samples/sec | ETA 00:01:01":
        (-1, 10, 0.3241, 12.3435, 1644035622.0),
    # PaddlePaddle/Perf, CtrDnn/logs/CtrDnn_DataLoader_16Thread_4Node
    "2021-02-20 14:29:45,222 - INFO - Epoch: 0, Batch: 200, auc: [0.69528394], cost: [0.5211544],  avg_batch_cost: 1.02807 sec, avg_samples: 1000.00000, ips: 972.69734 example/sec":
        (0, 200, 1.02807, 972.69734, 1613831385.222),
    # PaddlePaddle/PaddleOCR, ppstructure/layout/README_ch.md
    "[08/15 04:03:19] ppdet.engine INFO: Epoch: [0] [  20/1929] learning_rate: 0.064000 loss_vfl: 1.180627 loss_bbox: 0.939552 loss_dfl: 0.442436 loss: 2.628206 eta: 2 days, 12:18:53 batch_cost: 1.5770 data_cost: 0.0008 ips: 15.2184 images/s":
        (0, 20, 1.577, 15.2184, -2063217401.0),
    # PaddlePaddle/PaddleOCR, ppstructure/table/README_ch.md; the line after it is of an older version, of 2022-02-22
    "[2022/08/16 03:08:41] ppocr INFO: epoch: [1/400], global_step: 40, lr: 0.000100, acc: 0.000000, loss: 1.750859, structure_loss: 1.082116, loc_loss: 0.652822, avg_reader_cost: 0.02533 s, avg_batch_cost: 3.37251 s, avg_samples: 48.0, ips: 14.23271 samples/s, eta: 6 days":
        (-1, 40, 3.37251, 14.23271, 1660619321.0),
    "[2022/02/22 07:58:13] root INFO: epoch: [1/800], iter: 20, lr: 0.000001, loss: 0.924677, acc: 0.000000, norm_edit_dis: 0.000008, reader_cost: 0.00236 s, batch_cost: 0.28528 s, samples: 1280, ips: 448.68599":
        (-1, 20, None, 448.68599, 1645516693.0),
    # Of the form of PaddlePaddle/PaddleRec, tools/trainer.py
    "2022-06-07 14:31:15,346 - INFO - epoch: 0, batch_id: 100, auc_like:0.449585, auc_completion:0.503983,  avg_reader_cost: 0.00005 sec, avg_batch_cost: 0.00578 sec, avg_samples: 32.00000, ips: 5539.53509 ins/s":
        (0, 100, 0.00578, 5539.53509, 1654612275.346),
    # PaddlePaddle/models, tutorials/mobilenetv3_prod/Step6/README.md
    "[Epoch 1, iter: 4780] top1: 0.10312, top5: 0.27344, lr: 0.01000, loss: 5.34719, avg_reader_cost: 0.03644 sec, avg_batch_cost: 0.05536 sec, avg_samples: 64.0, avg_ips: 1156.08863 images/sec.":
        (1, 4780, 0.05536, 1156.08863, None),
}  # fmt: skip
TOKENS = {
    # PaddlePaddle/PaddleFleetX, the page hybrid_parallel of projects/gpt: eight ranks
    "[2022-07-27 12:40:00,967] [    INFO] - global step 2, epoch: 0, batch: 1, loss: 11.054802895, avg_reader_cost: 0.00014 sec, avg_batch_cost: 0.13314 sec, speed: 7.51 step/s, ips_total: 61529 tokens/s, ips: 7691 tokens/s, learning rate: 8.33333e-09":
        (2, 0.13314, 7691.0, 1658925600.967),
    "[2022-05-18 09:35:15,274] [    INFO] - global step 2, epoch: 0, batch: 1, loss: 11.050725937, avg_reader_cost: 0.00041 sec, avg_batch_cost: 0.21061 sec, speed: 4.75 step/s, ips: 38897 tokens/s, learning rate: 1.40625e-07":
        (2, 0.21061, 38897.0, 1652866515.274),
    # PaddlePaddle/Perf, Transformer/logs/A100_LOG/PaddleNLP_transformer_big_bs5120_fp32_DP_N1C8_log
    "[2023-08-02 20:08:18,549] [    INFO] - step_idx: 100, epoch: 0, batch: 100, avg loss: 8.056686, normalized loss: 6.689045, ppl: 3154.818848, avg_speed: 8.17 step/s, batch_cost: 0.12241 sec, reader_cost: 0.00015 sec, tokens: 454782, ips: 37152.56615 words/sec":
        (100, 0.12241, 37152.56615, 1691006898.549),
}  # fmt: skip


@pytest.mark.parametrize("line", SUITES)
def test_a_step(tmp_path, line):
    steps, _ = read("paddle-suites", tmp_path, line)
    epoch, step, duration_s, rate, time_s = SUITES[line]
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.rate.tolist()) == ([epoch], [step], [rate])
    assert steps.duration_s[0] == pytest.approx(float("nan") if duration_s is None else duration_s, nan_ok=True)
    assert steps.time_s[0] == pytest.approx(float("nan") if time_s is None else time_s, nan_ok=True, abs=1e-3)
    assert not len(read("paddle-tokens", tmp_path, line)[0].step)


@pytest.mark.parametrize("line", TOKENS)
def test_tokens_are_another_unit(tmp_path, line):
    steps, _ = read("paddle-tokens", tmp_path, line)
    step, duration_s, rate, time_s = TOKENS[line]
    assert (steps.step.tolist(), steps.duration_s.tolist(), steps.rate.tolist()) == ([step], [duration_s], [rate])
    assert steps.time_s[0] == pytest.approx(time_s, abs=1e-3)
    assert format_named("paddle-tokens").unit == "tokens" and format_named("paddle-suites").unit == "samples"
    assert not len(read("paddle-suites", tmp_path, line)[0].step)


@pytest.mark.parametrize("line", [*SUITES, *TOKENS])
def test_they_are_recognised(tmp_path, line):
    (path := tmp_path / "x.log").write_text(line + "\n")
    assert recognise(path).name == ("paddle-tokens" if line in TOKENS else "paddle-suites")


@pytest.mark.parametrize("line", [
    # Words of word2vec are samples of one word: the unit is neither.
    "2021-02-22 16:44:23,790 - INFO - Epoch: 0, Batch: 100, LOSS: [3.9646974],  avg_batch_cost: 0.01597 sec, avg_samples: 100.00000, ips: 6261.34862 word/sec",
    "[04/22 09:31:49] END epoch:9   val loss_avg: 0.30084 avg_batch_cost: 0.22932 sec, avg_reader_cost: 0.00000 sec, avg_ips: 12.55049 instance/sec.",
    "total step: 20, epoch: 0, batch: 19, loss: 11.090787, avg_reader_cost: 0.00011 sec, avg_batch_cost: 0.14243 sec, avg_samples: 96.00000, ips: 673.5",
])  # fmt: skip
def test_other_lines_are_no_steps(tmp_path, line):
    for name in ("paddle-suites", "paddle-tokens"):
        assert not len(read(name, tmp_path, line)[0].step)


# PaddlePaddle/Perf, HRNetW18/logs/paddle/PaddleSeg_fcn_hrnetw18_bs8_fp16_DP_N1C8_log, shortened
SEG_HEADER = """\
LAUNCH INFO 2023-07-27 12:58:34,252 devices: 0,1,2,3,4,5,6,7
LAUNCH INFO 2023-07-27 12:58:34,252 ips: None
LAUNCH INFO 2023-07-27 12:58:34,252 nnodes: 1
batch_size: 8
2023-07-27 12:58:50 [INFO]\tuse AMP to train. AMP level = O1
"""
# PaddlePaddle/Perf, Bert/logs/V100_LOG/base_bs96_fp16_gpu32.log, shortened
NLP_HEADER = "Namespace(batch_size=96, device='gpu', logging_steps=10, model_name_or_path='bert-base-uncased', seed=42, use_amp={amp}, use_pure_fp16=False)"


def test_header_of_a_launch(tmp_path):
    known = facts(read("paddle-suites", tmp_path, SEG_HEADER)[1])
    assert known == {"gpus_per_node": "8", "nodes": "1", "batch_size": "8", "precision": "amp-fp16"}


@pytest.mark.parametrize(("amp", "precision"), [("True", "amp-fp16"), ("1", "amp-fp16"), ("False", "fp32")])
def test_header_of_arguments(tmp_path, amp, precision):
    assert facts(read("paddle-suites", tmp_path, NLP_HEADER.format(amp=amp))[1]) == {
        "batch_size": "96", "print_every": "10", "model": "bert-base-uncased", "seed": "42", "precision": precision,
    }  # fmt: skip


@pytest.mark.parametrize(("ring", "expected"), [("0", {"world_size": "8"}), ("10", {})])
def test_the_ring_of_all_ranks(tmp_path, ring, expected):
    line = f"I0205 04:33:26.832818 41833 nccl_context.cc:82] init nccl context nranks: 8 local rank: 0 gpu id: 0 ring id: {ring}"
    assert facts(read("paddle-suites", tmp_path, line)[1]) == expected


@pytest.mark.parametrize(("line", "reason"), [
    ("2021-08-14 08:06:16 [INFO]\t[EVAL] #Images: 82 mIoU: 0.8397 Acc: 0.9263", "EVAL"),
    ("[08/15 05:00:00] ppdet.engine INFO: Eval iter: 0", "Eval"),
    ("[2022/08/08 16:28:39] ppocr INFO: cur metric, precision: 0.115", "evaluation"),
    ("[2025/06/25 18:25:28] ppocr INFO: save model in ./output/latest", "save model"),
    ("2021-02-20 14:38:09,247 - INFO - Epoch: 0, using time 708.9 second, ips 15516.2 example/sec.", "the end of an epoch"),
])  # fmt: skip
def test_pauses(tmp_path, line, reason):
    assert values(read("paddle-suites", tmp_path, line)[1], "pause") == [{"reason": reason}]


def test_ips_is_one_ranks(tmp_path):
    lines = [
        f"total step: {step}, epoch: 0, batch: {step - 1}, loss: 11.1, avg_reader_cost: 0.0001 sec, "
        "avg_batch_cost: 0.50000 sec, avg_samples: 96.00000, ips: 192.00000 sequences/sec"
        for step in range(10, 131, 10)
    ]
    (path := tmp_path / "x.log").write_text("\n".join(lines) + "\n")
    log_format = format_named("paddle-suites")
    attempt = attempt_of(path, read_log(path, log_format, Protocol()), PathFacts(devices=8, nodes=1), Protocol())
    assert attempt.log.printed == pytest.approx(8 * 192)
    assert sum(len(batch.steps.step) for batch in batches(path, log_format)) == 13
