"""Short logs of language-model training, written from the programs' format strings."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.fuzz.sample import BATCH, NUMBER, RATE, STEP_S, Sample, clock, comma, sample


def _megatron(steps: int) -> Iterator[str]:
    yield "using world size: 16, data-parallel size: 8, tensor-model-parallel size: 2, pipeline-model-parallel size: 1"
    yield from (f"  {name:.<32} {value}" for name, value in {"global_batch_size ": BATCH, "seq_length ": 2048}.items())
    for step in range(1, steps + 1):
        yield (
            f" [{clock(step):%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{50000:8d} | consumed samples: "
            f"{step * BATCH:12d} | elapsed time per iteration (ms): {1e3 * STEP_S:.1f} | throughput per GPU "
            f"(TFLOP/s/GPU): 31.4 | learning rate: 1.2E-04 | global batch size: {BATCH:5d} | lm loss: 6.977E+00 |"
        )


def _megatron_older(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"[default7]: iteration {step}/ 250000 | consumed samples: {step * BATCH} | consumed tokens: "
            f"{step * BATCH * 2048} | elapsed time per iteration (ms): {1e3 * STEP_S:.1f} | lr: 3.000E-07 | "
            f"global batch size: {BATCH} | lm loss: 1.119602E+01 | samples per second: {RATE:.3f} | TFLOPs: 48.77 |"
        )


def _megatron_seconds(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"[default7]: iteration {step:8d}/  115311 | consumed samples: {step * BATCH:12d} | elapsed time per "
            f"iteration (s): {STEP_S:.2f} | learning rate: 5.969E-05 | global batch size: {BATCH:5d} | lm loss: 2.4 |"
        )


def _megatron_progress(steps: int) -> Iterator[str]:
    yield f"{clock(0):%Y-%m-%d %H:%M:%S}\tJob ID: 198424\t# GPUs: 8\tStarting job"
    for step in range(1, steps + 1):
        yield (
            f"{clock(step):%Y-%m-%d %H:%M:%S}\tJob ID: 198424\t# GPUs: 8\tSaving async checkpoint\tIteration: {step}\t"
            f"Job throughput: 364.8 TFLOP/s/GPU\tTokens (in billions): {step * BATCH * 0.002:.2f}"
        )


def _torchtitan(steps: int) -> Iterator[str]:
    yield f"[rank0]:[titan] {comma(0)} - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]"
    for step in range(1, steps + 1):
        yield (
            f"[rank0]:[titan] {comma(step)} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  8.0277  "
            f"\x1b[38;5;180mgrad_norm:  1.4604  \x1b[36mmemory:  1.21GiB(0.86%)  \x1b[34mtps: {round(RATE):,}  "
            "\x1b[36mtflops: 0.41  \x1b[35mmfu: 0.04%\x1b[39m"
        )
    yield f"[rank0]:[titan] {comma(steps)} - root - INFO - Saving the checkpoint (or staging if async is enabled)."


def _nemo(steps: int) -> Iterator[str]:
    yield "All distributed processes registered. Starting with 8 processes"
    for step in range(steps):
        yield (
            f" 0: Training epoch 0, iteration {step}/999 | lr: 5.6e-06 | global_batch_size: 32 | global_step: {step} | "
            f"reduced_train_loss: 2.778 | train_step_timing in s: {STEP_S:.4g} | consumed_samples: {32 * (step + 1)} | "
            "val_loss: 2.861"
        )


def _runtime(step: int) -> str:
    return f"{int(step * STEP_S) // 60:02d}:{int(step * STEP_S) % 60:02d}"


def _nemo_bar(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"\rEpoch 0: :  47%|████▋     | {step}/1500 [{_runtime(step)}<07:13, reduced_train_loss=11.50, "
            f"global_step={step - 1}.000, consumed_samples={32 * step}.0, train_step_timing in s={STEP_S:.3f}]"
        )


def _lightning(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield f"\rEpoch 0:  17%|█▋        | {step}/1800 [{_runtime(step)}<01:13,  3.23it/s, loss=10.049, v_num=193315]"
    yield "\rValidation DataLoader 0:  10%|█         | 1/10 [00:00<00:01,  4.87it/s]"


def _huggingface(steps: int) -> Iterator[str]:
    yield from ("***** Running training *****", "  Num examples = 36,718", "  Instantaneous batch size per device = 4")
    yield "  Total train batch size (w. parallel, distributed & accumulation) = 64"
    yield "  Gradient Accumulation steps = 4"
    for step in range(steps + 1):
        yield f"\r  4%|▍         | {step}/1500 [{_runtime(step)}<09:00,  3.23it/s]"
        if step == steps // 2:
            yield from (f"\r  8%|▊         | {batch}/12 [00:00<00:03, 30.5it/s]" for batch in range(3))
            yield "{'eval_loss': 0.59, 'eval_runtime': 39.187, 'eval_samples_per_second': 78.658, 'epoch': 0.5}"
    yield "{'train_runtime': 225.8, 'train_samples_per_second': 14.132, 'train_steps_per_second': 0.221, 'epoch': 1.0}"


def _trainer_log(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        content = {
            "current_steps": step, "total_steps": 1500, "loss": 1.4653, "learning_rate": 0.0, "epoch": 0.06896551,
            "percentage": 2.38, "elapsed_time": f"0:{_runtime(step)}", "remaining_time": "0:10:23",
        }  # fmt: skip
        yield json.dumps(content)


def _paddlenlp(steps: int) -> Iterator[str]:
    yield f"[{comma(0)}] [    INFO] -   Total train batch size (w. parallel, distributed & accumulation) = {BATCH}"
    for step in range(1, steps + 1):
        yield (
            f"[{comma(step)}] [    INFO] - loss: 1.21554871, learning_rate: 2.99e-05, global_step: {step}, "
            f"interval_runtime: {STEP_S:.4f}, interval_samples_per_second: {RATE:.3f}, interval_steps_per_second: 3.2"
        )


def _deepspeed(steps: int) -> Iterator[str]:
    yield f"[{comma(0)}] [INFO] [launch.py:180:main] dist_world_size=8"
    yield f"[{comma(0)}] [INFO] [config.py:964:print]   train_batch_size ............. {BATCH}"
    for step in range(1, steps + 1):
        yield (
            f"[{comma(step)}] [INFO] [timer.py:260:stop] epoch=0/micro_step={4 * step}/global_step={step}, "
            f"RunningAvgSamplesPerSec={RATE!r}, CurrSamplesPerSec={RATE!r}, MemAllocated=4.32GB"
        )


def _deepspeed_older(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"[{comma(step)}] [INFO] [timer.py:198:stop] 0/{step}, RunningAvgSamplesPerSec={RATE!r}, "
            f"CurrSamplesPerSec={RATE!r}, MemAllocated=0.36GB, MaxMemAllocated=15.06GB"
        )


def _nanogpt(steps: int) -> Iterator[str]:
    yield from ("tokens per iteration will be: 491,520", "step 0: train loss 10.9899, val loss 10.9863")
    for step in range(steps):
        yield f"iter {step}: loss 4.0863, time {1e3 * STEP_S:.2f}ms, mfu 12.30%"


def _nanochat(steps: int) -> Iterator[str]:
    yield "Tokens / micro-batch / rank: 32 x 2048 = 65,536"
    yield "Total batch size 524,288 => gradient accumulation steps: 1"
    for step in range(steps):
        yield (
            f"step {step:05d}/21400 (0.05%) | loss: 10.397340 | lrm: 1.00 | dt: {1e3 * STEP_S:.2f}ms | "
            f"tok/sec: {round(524288 / STEP_S):,} | mfu: 48.10 | total time: 0.00m"
        )
    yield "Step 00250 | Validation bpb: 1.169725"


def _composer(steps: int) -> Iterator[str]:
    yield from ("num_gpus_per_node: 8", "num_nodes: 1")
    for step in range(1, steps + 1):
        yield f"[batch={step}/1500]:"
        yield f"\t Train time/batch: {step - 1}"
        yield f"\t Train time/sample: {(step - 1) * BATCH}"
        yield "\t Train loss/train/total: 8.4213"
        yield f"\t Train throughput/samples_per_sec: {RATE:.4f}"
        yield f"\t Train throughput/device/samples_per_sec: {RATE / 8:.4f}"


def _fairseq(steps: int) -> Iterator[str]:
    yield f"{clock(0):%Y-%m-%d %H:%M:%S} | INFO | fairseq_cli.train | training on 8 devices (GPUs/TPUs)"
    for step in range(1, steps + 1):
        content = {
            "epoch": 1, "update": 0.004, "loss": "20.714", "wps": f"{RATE:.1f}", "ups": "3.23", "wpb": str(BATCH),
            "bsz": "32", "num_updates": str(step), "lr": "7.33e-06", "train_wall": "1", "wall": "5",
        }  # fmt: skip
        yield f"{clock(step):%Y-%m-%d %H:%M:%S} | INFO | train_inner | {json.dumps(content)}"


def _fairseq_simple(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"{clock(step):%Y-%m-%d %H:%M:%S} | INFO | train_inner | epoch 001:  {step:5d} / 160368 loss=9.255, "
            f"ppl=611.12, wps={RATE:.1f}, ups=3.23, wpb={BATCH}, bsz=80, num_updates={step}, lr=2.8e-05, wall=5"
        )


def _fairseq_older(steps: int) -> Iterator[str]:
    for step in range(steps):
        yield f"| epoch 001:  {step:5d} / 8223 loss=1.27 (1.50), wps={RATE:.0f}, wpb=908, bsz=32, lr=0.001, clip=100%"


_ITERATION = r"iteration +(?P<step>\d+)/.*?elapsed time per iteration"
_WPS = r"epoch (?P<epoch>\d+):? .*?wps=" + NUMBER
_GROUPED = r"(?P<rate>[-+\w.,]+)"
SAMPLES: tuple[Sample, ...] = (
    sample("megatron", "megatron", _megatron, _ITERATION),
    sample("megatron older", "megatron", _megatron_older, _ITERATION),
    sample("megatron of seconds", "megatron", _megatron_seconds, _ITERATION),
    sample("megatron progress", "megatron-progress", _megatron_progress, r"Iteration: (?P<step>\d+)"),
    sample("torchtitan", "torchtitan", _torchtitan, r"step: *(?P<step>\d+) .*?[tw]ps: " + _GROUPED),
    sample("nemo", "nemo", _nemo, r"epoch (?P<epoch>\d+), iteration (?P<step>\d+)/"),
    sample("nemo bar", "nemo", _nemo_bar, r"Epoch (?P<epoch>\d+): .*?\| *(?P<step>\d+)/"),
    sample("lightning", "lightning", _lightning, r"Epoch (?P<epoch>\d+): .*?\| *(?P<step>\d+)/"),
    sample("huggingface", "huggingface", _huggingface, r"\| *(?P<step>\d+)/\d+ \["),
    sample("huggingface json", "huggingface", _trainer_log, r'"current_steps": (?P<step>\d+)'),
    sample("paddlenlp", "paddlenlp", _paddlenlp, r"global_step: (?P<step>\d+), .*?interval_runtime: "),
    sample("deepspeed", "deepspeed", _deepspeed, r"global_step=(?P<step>\d+), .*?CurrSamplesPerSec=" + NUMBER),
    sample("deepspeed older", "deepspeed", _deepspeed_older, r"\d/(?P<step>\d+), .*?CurrSamplesPerSec=" + NUMBER),
    sample("nanogpt", "nanogpt", _nanogpt, r"iter (?P<step>\d+): loss "),
    sample("nanochat", "nanochat", _nanochat, r"step (?P<step>\d+).*?tok/sec: " + _GROUPED),
    sample(
        "composer", "composer", _composer,
        r"batch=(?P<step>\d+)[^\]]*\]:[\s\S]*?Train throughput/samples_per_sec: " + NUMBER,
    ),
    sample(
        "fairseq", "fairseq", _fairseq,
        r'"epoch": (?P<epoch>\d+), .*?"wps": "(?P<rate>[-+\w.]+)".*?"num_updates": "(?P<step>\d+)"',
    ),
    sample("fairseq simple", "fairseq", _fairseq_simple, _WPS + r".*?num_updates=(?P<step>\d+)"),
    sample("fairseq older", "fairseq", _fairseq_older, _WPS),
)  # fmt: skip
