"""Real lines of language-model training, each from the public place that is named above it."""

# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass, field

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Real:
    """A log's lines, and what their steps are: columns by name, as far as printed."""

    text: str
    steps: dict[str, list[float]]
    facts: dict[str, str] = field(default_factory=dict)


REAL = {
    # https://github.com/epfLLM/Megatron-LLM/issues/11
    "megatron": Real(
        text="""\
 iteration      122/  250000 | consumed samples:       124928 | elapsed time per iteration (ms): 86545.2 | learning rate: 9.150E-06 | global batch size:  1024 | lm loss: 2.504220E+00 | loss scale: 1.0 |
 iteration      123/  250000 | consumed samples:       125952 | elapsed time per iteration (ms): 87871.6 | learning rate: 9.225E-06 | global batch size:  1024 | lm loss: 2.493043E+00 | loss scale: 1.0 |
""",
        steps={"step": [122, 123], "batch": [124928, 125952], "duration_s": [86.5452, 87.8716], "time_s": [NAN, NAN]},
        facts={"global_batch_size": "1024"},
    ),
    # README.md of https://github.com/FlagAI-Open/OpenSeek
    "megatron stamped": Real(
        text="[default0]: [2025-05-27 15:23:07] iteration        1/    24000 | consumed samples:          1024 | elapsed "
        "time per iteration (ms): 271607.0 | throughput per GPU (TFLOP/s/GPU): 40.4 | global batch size:  1024 |\n",
        steps={"step": [1], "batch": [1024], "duration_s": [271.607], "time_s": [1748359387]},
        facts={"global_batch_size": "1024"},
    ),
    # https://github.com/argonne-lcf/Megatron-DeepSpeed (ALCF notes)
    "megatron of DeepSpeed": Real(
        text="iteration      199/  317892 | consumed samples:       152832 | consumed tokens:    625999872 | elapsed time "
        "per iteration (ms): 14287.5 | learning rate: 2.407E-04 | global batch size:   768 | samples per second: 53.753 |\n",
        steps={"step": [199], "batch": [152832], "duration_s": [14.2875]},
        facts={"global_batch_size": "768"},
    ),
    # Chronicles of https://github.com/bigscience-workshop/bigscience, train/tr11-176B-ml
    "megatron of BigScience": Real(
        text=" [default7]: iteration    12695/  115311 | consumed samples:      9841584 | consumed tokens:  20155564032 | "
        "elapsed time per iteration (s): 105.22 | learning rate: 5.969E-05 | global batch size:  2048 | lm loss: 2.463556E+00 | "
        "samples per second: 19.463 | TFLOPs: 149.02 |\n",
        steps={"step": [12695], "batch": [9841584], "duration_s": [105.22]},
        facts={"global_batch_size": "2048"},
    ),
    # README.md of JUPITER's benchmark suite, Megatron-LM
    "megatron of JUPITER": Real(
        text="[default3]: iteration       10/ 3125000 | consumed samples:          960 | elapsed time per iteration (s): "
        "7.2310 | learning rate: 4.438E-07 | global batch size:    96 | samples per second: 13.276 | TFLOPs: 101.54 |\n",
        steps={"step": [10], "batch": [960], "duration_s": [7.231]},
        facts={"global_batch_size": "96"},
    ),
    # Form of megatron/training/training.py (FlagScale): the time, and its mean over more lines
    "megatron with two times": Real(
        text=" iteration        7/      10 | consumed samples:           28 | elapsed time per iteration (ms): 271.2/270.1 |\n",
        steps={"step": [7], "batch": [28], "duration_s": [0.2712]},
    ),
    # https://github.com/NVIDIA/Megatron-LM, before global batches: no samples are printed
    "megatron of 2020": Real(
        text="using world size: 16 and model-parallel size: 1\n"
        " iteration      100/ 1000000 | elapsed time per iteration (ms): 544.0 | learning rate 1.485E-05 | lm loss 8.4E+00 |\n",
        steps={"step": [100], "batch": [NAN], "duration_s": [0.544]},
        facts={"world_size": "16"},
    ),
    # https://github.com/pytorch/torchtitan/pull/3393
    "torchtitan": Real(
        text="""\
[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:47,456 - root - INFO - step: 15  loss:  3.10680  grad_norm:  0.8587  memory:  9.46GiB(64.99%)  tps: 7,334  tflops: 0.53  mfu: 0.17%
""",
        steps={"step": [14, 15], "rate": [7282, 7334], "time_s": [1779120286.338, 1779120287.456]},
    ),
    # https://github.com/pytorch/torchtitan/pull/1287
    "torchtitan without grad_norm": Real(
        text="[rank0]:[titan] 2025-06-16 22:30:50,322 - root - INFO - step: 200  loss:  6.1384  memory: 49.66GiB(52.28%)  "
        "tps: 5,856  tflops: 339.16  mfu: 34.29%\n",
        steps={"step": [200], "rate": [5856]},
    ),
    # https://github.com/microsoft/huggingface-transformers/pull/7
    "huggingface": Real(
        text="""\
 98%|█████████▊| 2086/2120 [26:01<00:22,  1.49it/s]
 98%|█████████▊| 2087/2120 [26:02<00:22,  1.48it/s]
{'train_step_runtime': 0.641, 'train_step_samples_per_second': 56.162, 'epoch': 0.98}
 99%|█████████▊| 2090/2120 [26:04<00:20,  1.43it/s]
""",
        steps={"step": [2086, 2087, 2090], "epoch_steps": [2120] * 3, "time_s": [865561, 865562, 865564]},
    ),
    # https://github.com/liujunwen23/MIRE/issues/1 and https://github.com/hiyouga/LlamaFactory/issues/774
    "huggingface jsonl": Real(
        text="""\
{"current_steps": 1, "total_steps": 42, "loss": 1.4653, "learning_rate": 0.0, "epoch": 0.06896551724137931, "percentage": 2.38, "elapsed_time": "0:00:15", "remaining_time": "0:10:23"}
{"current_steps": 3200, "total_steps": 3235, "loss": 4.4671, "eval_loss": null, "predict_loss": null, "reward": null, "learning_rate": 1.4439610072863874e-08, "epoch": 0.99, "percentage": 98.92, "elapsed_time": "5:13:22", "remaining_time": "0:03:25"}
""",
        steps={"step": [1, 3200], "epoch_steps": [42, 3235], "time_s": [864015, 864000 + 18802]},
    ),
    # https://github.com/PaddlePaddle/Paddle/pull/56363
    "paddlenlp": Real(
        text="""\
[    INFO] - loss: 2.00048828, learning_rate: 2.1e-06, global_step: 20, interval_runtime: 26.3106, interval_samples_per_second: 6.081193361471736, interval_steps_per_second: 0.760149170183967, epoch: 0.0014
[    INFO] - loss: 1.94342518, learning_rate: 4.1e-06, global_step: 40, interval_runtime: 18.792, interval_samples_per_second: 8.514269788523704, interval_steps_per_second: 1.064283723565463, epoch: 0.0028
""",
        steps={"step": [20, 40], "elapsed_s": [26.3106, 18.792]},
    ),
    # https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/740
    "nemo": Real(
        text="""\
Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | global_step: 120 | reduced_train_loss: 1.233 | train_step_timing in s: 0.03146 | val_loss: 4.106
Training epoch 0, iteration 121/149 | lr: 3e-05 | consumed_samples: 122 | global_batch_size: 1 | global_step: 121 | reduced_train_loss: 1.288 | train_step_timing in s: 0.03163 | val_loss: 4.106
""",
        steps={"epoch": [0, 0], "step": [120, 121], "duration_s": [0.03146, 0.03163], "batch": [121, 122]},
        facts={"global_batch_size": "1"},
    ),
    # https://github.com/NVIDIA/NeMo-Framework-Launcher/issues/55
    "nemo bar": Real(
        text="Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, "
        "reduced_train_loss=3.090, global_step=794.0, consumed_samples=1.63e+6]\n",
        steps={"epoch": [0], "step": [795], "time_s": [864000 + 9 * 3600 + 7 * 60 + 58], "batch": [NAN]},
    ),
    # https://github.com/NVIDIA-NeMo/Speech/issues/11900
    "nemo bar without an end": Real(
        text="Epoch 0: :   0%|          | 614/? [23:53<00:00, v_num=, reduced_train_loss=, global_step=, consumed_samples=]\n",
        steps={"epoch": [0], "step": [614], "time_s": [864000 + 23 * 60 + 53]},
    ),
    # https://github.com/Lightning-AI/pytorch-lightning/issues/4225
    "lightning": Real(
        text="""\
Epoch 0:  17%|█▋        | 3/18 [00:14<01:13,  4.87s/it, loss=10.049, v_num=193315]
Epoch 0:  22%|██▏       | 4/18 [00:17<01:02,  4.47s/it, loss=10.049, v_num=193315]
""",
        steps={"epoch": [0, 0], "step": [3, 4], "time_s": [864014, 864017]},
    ),
    # https://github.com/deepspeedai/DeepSpeed/issues/5779
    "deepspeed": Real(
        text="[2024-07-17 19:53:24,981] [INFO] [timer.py:258:stop] epoch=0/micro_step=4500/global_step=4500, "
        "RunningAvgSamplesPerSec=16.124955167964504, CurrSamplesPerSec=16.807402094161112, MemAllocated=0.02GB\n",
        steps={"epoch": [0], "step": [4500], "rate": [16.807402094161112], "time_s": [1721246004.981]},
    ),
    # https://github.com/deepspeedai/DeepSpeed/issues/1825
    "deepspeed of 2022": Real(
        text="[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.48609168106144, "
        "MemAllocated=0.26GB, MaxMemAllocated=9.02GB\n",
        steps={"epoch": [0], "step": [40], "rate": [NAN], "time_s": [1646964418.985]},
    ),
    # https://github.com/karpathy/nanoGPT/issues/110, and train.py for the first line
    "nanogpt": Real(
        text="tokens per iteration will be: 491,520\niter 1631: loss 4.0863, time 561.94ms\n"
        "iter 1632: loss 3.7441, time 563.15ms, mfu 12.30%\n",
        steps={"step": [1631, 1632], "duration_s": [0.56194, 0.56315]},
        facts={"tokens_per_step": "491520"},
    ),
    # run1000.sh of https://github.com/karpathy/nanochat
    "nanochat": Real(
        text="""\
Tokens / micro-batch / rank: 8 x 2048 = 16,384
Tokens / micro-batch: 131,072
Total batch size 524,288 => gradient accumulation steps: 4
step 00004/71680 (0.01%) | loss: 8.813754 | lrm: 1.00 | dt: 1571.88ms | tok/sec: 83,385 | mfu: 50.92 | total time: 0.00m
step 00005/71680 (0.01%) | loss: 8.488074 | lrm: 1.00 | dt: 1572.76ms | tok/sec: 83,338 | mfu: 50.89 | total time: 0.00m
""",
        steps={"step": [4, 5], "rate": [83385, 83338], "duration_s": [1.57188, 1.57276]},
        facts={
            "micro_batch_size": "8", "sequence_length": "2048", "tokens_per_step": "524288", "micro_batches": "4",
        },
    ),
    # Distributed fine-tuning of MPT-30B using Composer on AMD GPUs, https://rocm.blogs.amd.com (28 Jan 2025)
    "composer": Real(
        text="composer_version: 0.21.3\nnum_gpus_per_node: 8\nnum_nodes: 2\n[epoch=1][batch=5/5]:\n"
        "\t Train time/batch: 4\n\t Train time/sample: 4096\n\t Train time/token: 29254495\n"
        "\t Train throughput/batches_per_sec: 0.0027\n\t Train throughput/samples_per_sec: 2.7330\n"
        "\t Train throughput/device/samples_per_sec: 0.1708\n\t Train throughput/tokens_per_sec: 20082.8418\n",
        steps={"epoch": [1], "step": [5], "rate": [2.733], "batch": [4096]},
        facts={"composer": "0.21.3", "gpus_per_node": "8", "nodes": "2"},
    ),
    # examples/fully_sharded_data_parallel/README.md of https://github.com/facebookresearch/fairseq
    "fairseq": Real(
        text="""\
2021-03-08 12:29:51 | INFO | fairseq_cli.train | training on 1 devices (GPUs/TPUs)
2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.0, "loss": "16.475", "ppl": "91120.8", "wps": "0", "ups": "0", "wpb": "16384", "bsz": "8", "num_updates": "1", "lr": "2e-05", "gnorm": "20.751", "wall": "105"}
2021-03-08 12:32:33 | INFO | train_inner | {"epoch": 1, "update": 0.0, "loss": "16.446", "ppl": "89281.6", "wps": "288.7", "ups": "0.02", "wpb": "16384", "bsz": "8", "num_updates": "2", "lr": "4e-05", "gnorm": "19.777", "wall": "161"}
""",
        steps={"epoch": [1, 1], "step": [1, 2], "rate": [0, 288.7], "batch": [16384] * 2, "time_s": [1615206696, 1615206753]},
        facts={"world_size": "1"},
    ),
    # https://github.com/facebookresearch/fairseq/issues/2338
    "fairseq simple": Real(
        text="2020-07-17 07:11:02 | INFO | train_inner | epoch 001:   2800 / 160368 loss=9.255, ppl=611.12, wps=57.3, "
        "ups=0.04, wpb=1613, bsz=80, num_updates=2800, lr=2.8e-05, gnorm=3.23, train_wall=13, wall=1236\n",
        steps={"epoch": [1], "step": [2800], "rate": [57.3], "batch": [1613], "time_s": [1594969862]},
    ),
    # https://github.com/facebookresearch/fairseq/issues/301
    "fairseq of 2018": Real(
        text="| epoch 010  2000 / 8223 loss=1.27 (1.50), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=2.1427\n"
        "| epoch 010  3000 / 8223 loss=1.28 (1.49), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=2.1507\n",
        steps={"epoch": [10, 10], "step": [2000, 3000], "epoch_steps": [8223] * 2, "mean_rate": [962, 962]},
    ),
}  # fmt: skip

# https://github.com/NVIDIA/nccl/issues/743 (its line ends), megatron/training/training.py and arguments.py
MEGATRON_HEADER = """\
using world size: 32, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 2
using torch.bfloat16 for parameters ...
------------------------ arguments ------------------------
  fp8 ............................................. None
  global_batch_size ............................... 512
  hidden_size ..................................... 4096
  micro_batch_size ................................ 2
  model_parallel_size ............. 1...........................default
  num_layers ...................................... 32
  params_dtype .................................... torch.bfloat16
  pipeline_model_parallel_size .................... 2
  seq_length ...................................... 2048
  tensor_model_parallel_size ...................... 4
-------------------- end of arguments ---------------------
"""

# https://github.com/hongbo-miao/hongbomiao.com/pull/37505, https://github.com/deepspeedai/DeepSpeed/issues/3544
DEEPSPEED_HEADER = """\
[2025-12-28 05:01:38,135] [INFO] [launch.py:168:main] nnodes=1, num_local_procs=2, node_rank=0
[2025-12-28 05:01:38,135] [INFO] [launch.py:180:main] dist_world_size=2
[2023-04-24 13:26:47,820] [INFO] [config.py:957:print]   fp16_enabled ................. False
[2023-04-24 13:26:47,820] [INFO] [config.py:957:print]   bfloat16_enabled ............. True
[2023-04-24 13:26:47,822] [INFO] [config.py:957:print]   gradient_accumulation_steps .. 2
[2023-04-24 13:26:47,822] [INFO] [config.py:957:print]   train_batch_size ............. 32
[2023-04-24 13:26:47,822] [INFO] [config.py:957:print]   train_micro_batch_size_per_gpu  8
[2023-04-24 13:26:47,822] [INFO] [config.py:957:print]   world_size ................... 2
"""

NO_STEPS = [
    ("torchtitan", "[titan] 2025-06-16 22:30:50,322 - root - INFO - validate step: 200  loss:  6.1384  memory: 4.66GiB(52.28%)  tps: 5,856\n"),
    ("torchtitan", "INFO - step: 200  loss:  6.1384  memory: 4.66GiB(52.28%)  tps: 5,85  tflops: 339.16  mfu: 34.29%\n"),
    ("huggingface", "Loading checkpoint shards: 100%|██████████| 4/4 [00:16<00:00,  4.01s/it]\n"),
    ("huggingface", "  0%|          | 0/51 [00:61<?, ?it/s\n"),
    ("lightning", "Validation DataLoader 0:  20%|██        | 2/10 [00:00<00:01,  4.87it/s]\n"),
    ("composer", "[Eval batch=5/5] Eval on eval data: Train throughput/samples_per_sec: 2.7330\n"),
    ("nanogpt", "step 2000: train loss 2.1234, val loss 2.3456\n"),
    ("megatron", " validation loss at iteration 1000 | lm loss value: 4.735407E+00 | lm loss PPL: 1.139099E+02 |\n"),
    ("fairseq", "| epoch 010 | train loss 1.44 | train ppl 2.72 | s/checkpoint    7747 | words/s    961 | words/batch    906\n"),
]  # fmt: skip
"""Lines that only look like steps of a format."""
