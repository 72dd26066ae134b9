"""Programs that train language models: Megatron-LM, torchtitan, NeMo, DeepSpeed, fairseq, nanoGPT, nanochat."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, line, pause, step
from parse.logs.engine.shared_patterns import BAR, DATED, LIGHTNING_WORLD, RUNTIME, arguments, digits, table

# Megatron-LM and its descendants: Megatron-DeepSpeed, GPT-NeoX, Megatron-Bridge, FlagScale, MindSpeed.
#
# One rank prints a line every `log_interval` iterations (megatron/training/training.py, `training_log`): the time is
# the mean over the iterations since the line before, `consumed samples` those of the run so far. A batch that grows
# (`--rampup-batch-size`) is counted by the latter. In `271.2/270.1` the second time is a mean over more lines.

_MEGATRON_SETTINGS = {
    "global_batch_size": "global_batch_size", "train_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size", "train_micro_batch_size_per_gpu": "micro_batch_size",
    "seq_length": "sequence_length", "num_layers": "num_layers", "hidden_size": "hidden_size",
    "tensor_model_parallel_size": "tensor_parallel", "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel", "params_dtype": "precision", "fp8": "fp8",
    "log_interval": "print_every",
}  # fmt: skip
_PRECISIONS = {"torch.float32": "fp32", "torch.float16": "amp-fp16", "torch.half": "amp-fp16", "torch.bfloat16": "bf16"}


def _megatron_facts(setting: Mapping[str, str]) -> Mapping[str, str]:
    return {name: _PRECISIONS.get(value, value) if name == "precision" else value for name, value in setting.items()}


_MEGATRON_STEP = (
    rb"(?:" + DATED + rb"[^|\n]{0,120}?)?\biteration +(?P<step>\d+)/ *\d+ \|"
    rb"(?: consumed samples: +(?P<consumed>\d+) \|)?(?: consumed tokens: +\d+ \|)?"
)

MEGATRON = LogFormat(
    name="megatron",
    title="Megatron-LM",
    printed="durations",
    steps=(
        step(
            b"elapsed time per iteration (ms): ",
            _MEGATRON_STEP + rb" elapsed time per iteration \(ms\): +(?P<duration_ms>\d+\.\d+)",
        ),
        # Megatron-DeepSpeed: BigScience's since September 2021, and JUPITER's benchmark suite.
        step(
            b"elapsed time per iteration (s): ",
            _MEGATRON_STEP + rb" elapsed time per iteration \(s\): +(?P<duration_s>\d+\.\d+)",
        ),
    ),
    patterns=(
        fact(b"using world size: ", rb"using world size: (?P<world_size>\d+)"),
        fact(b"batch size: ", rb"\| glob\w{1,2} batch size: +(?P<global_batch_size>\d+) \|"),
        *table(_MEGATRON_SETTINGS, _megatron_facts),
        evaluation(b" loss at iteration ", rb"\b(?:validation|test) loss at iteration \d"),
        pause(b"saving checkpoint at iteration ", rb"(?P<reason>saving checkpoint) at iteration "),
    ),
    numbered="run",
)
"""A world of model-parallel ranks: a batch is that of a device only on the average."""


# torchtitan: `step: 10  loss: …  tps: 3,456` (torchtitan/components/metrics.py, `MetricsProcessor.log`).
#
# `tps` (`wps` in 2024) are tokens per second of one device, of all its parallel dimensions, since the line before; the
# ranks that LOG_RANK names print, with colours. Validation, checkpoints and profiler traces have lines of their own.

_TORCHTITAN_STAMP = rb"(?:" + DATED + rb"[^\n]{0,60}?)?"
_RANKS = re.compile(rb"\d+")


def _mesh(match: re.Match[bytes]) -> Mapping[str, str]:
    """The devices of a mesh: the product of its dimensions."""
    return {"world_size": str(math.prod(int(size) for size in _RANKS.findall(match["sizes"])))}


def _model(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"model": match["model"].decode(errors="replace").replace(" ", "_")}


TORCHTITAN = LogFormat(
    name="torchtitan",
    title="torchtitan",
    unit="tokens",
    rates="rank",
    steps=(
        step(
            b"  loss: ",
            _TORCHTITAN_STAMP
            + rb"(?<!validate )\bstep: +(?P<step>\d+) +loss: +[-\w.]{1,20} +(?:grad_norm: +[-\w.]{1,40} +)?"
            rb"memory: [^\n]{1,40}? +[tw]ps: (?P<rate>[\d,]{1,20})(?:\s|$)",
        ),
    ),
    patterns=(
        fact(
            b"-D device mesh with ",
            rb"Building \d-D device mesh with \[[^]\n]{1,200}\], \[(?P<sizes>[\d, ]{1,60})\]",
            _mesh,
        ),
        fact(
            b"device mesh with parallelism: ",
            rb"with parallelism: (?P<sizes>pp=\d{1,6}, dp_replicate=\d{1,6}, dp_shard=\d{1,6}, cp=\d{1,6}, tp=\d{1,6})",
            _mesh,
        ),
        fact(
            b"global batch size",
            rb"local batch size:? (?P<local_batch_size>\d+), (?:\w+ accumulation steps:? \d+, )?"
            rb"global batch size:? (?P<global_batch_size>\d+), (?:\w+ accumulation steps:? \d+, )?"
            rb"(?:sequence length:? (?P<sequence_length>\d+), )?total steps",
        ),
        fact(
            b" tokens per train step",
            rb"tokens per DP rank, (?P<tokens_per_step>[\d,]{1,20}) tokens per train step",
            digits,
        ),
        fact(
            b" total parameters",
            rb"Model (?P<model>[\w.-]{1,40} [\w.-]{1,40}) size: [\d,]{1,20} total parameters",
            _model,
        ),
        fact(b" capacity: ", rb"\w capacity: (?P<device>[^\n]{1,60}?) with [\d.]{1,12}GiB memory"),
        pause(b"validate step: ", _TORCHTITAN_STAMP + rb"(?P<reason>validate) step: "),
        pause(b" checkpoint", _TORCHTITAN_STAMP + rb"(?P<reason>Saving (?:the|a)(?: full)? checkpoint)"),
        pause(b" profiler ", _TORCHTITAN_STAMP + rb"(?P<reason>Dumping profiler traces) at step "),
    ),
    numbered="run",
)


# NVIDIA NeMo: lines of NeMo 2 (nemo/lightning/pytorch/callbacks/progress_printer.py), the progress bar of NeMo 1.
#
# `train_step_timing in s` are the seconds of the last step. NeMo 2 numbers from 0, up to `max_steps - 1`, in each
# epoch. The bar's values are rounded to three digits where that is shorter, and lag a step behind its number: of them
# only the batch is read, from a line that has `consumed_samples` and `global_step` (from 0) whole.

_NEMO_SETTINGS = {
    "global_batch_size": "global_batch_size", "micro_batch_size": "micro_batch_size",
    "encoder_seq_length": "sequence_length", "seq_length": "sequence_length", "num_layers": "num_layers",
    "hidden_size": "hidden_size", "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel", "context_parallel_size": "context_parallel",
}  # fmt: skip
_LINE = (
    rb"(?:" + DATED + rb"[^\n]{0,40}?)?Training epoch (?P<epoch>\d+), iteration (?P<step>\d+)/\d+ \|"
    rb"[^\n]{0,400}? "
)
_CONSUMED = rb"consumed_samples: (?P<consumed>\d{1,15}) \|"
_TIMING = rb"train_step_timing in s: (?P<duration_s>[\d.]{1,16}(?:e[+-]?\d{1,3})?)(?:\s|$)"


def _batch(match: re.Match[bytes]) -> Mapping[str, str]:
    """The samples of a step. Raises ValueError where the numbers are not whole."""
    steps, consumed = int(match["step"]) + 1, int(match["consumed"])
    if consumed % steps or not consumed:
        raise ValueError("the batch is not the same in all steps")
    return {"global_batch_size": str(consumed // steps)}


NEMO = LogFormat(
    name="nemo",
    title="NVIDIA NeMo",
    printed="durations",
    steps=(
        step(b"train_step_timing in s: ", _LINE + _CONSUMED + rb"[^\n]{0,400}? " + _TIMING),
        step(
            b"train_step_timing in s: ",
            _LINE + _TIMING + rb"(?:[^\n]{0,200}?consumed_samples: (?P<consumed>\d{1,15})(?:\s|$))?",
        ),
        step(
            b"reduced_train_loss=",
            rb"\bEpoch (?P<epoch>\d+): :? *"
            + BAR
            + rb"(?P<step>\d+)/[\d?]+"
            + RUNTIME
            + rb"[^\n]{0,200}?reduced_train_loss=",
        ),
    ),
    patterns=(
        fact(
            b"consumed_samples=",
            rb"\bglobal_step=(?P<step>\d{1,9})\.0*, consumed_samples=(?P<consumed>\d{1,12})\.0*[,\]]",
            _batch,
        ),
        fact(b"global_batch_size: ", rb"\| global_batch_size: (?P<global_batch_size>\d{1,9}) \|"),
        *LIGHTNING_WORLD,
        *table(_NEMO_SETTINGS, dict),
        pause(b"Validation DataLoader", rb"(?P<reason>Validation) DataLoader"),
        pause(b"Validation: ", rb"(?P<reason>Validation): iteration "),
        pause(b"Saving ", rb"(?P<reason>Saving) (?:model )?checkpoint"),
    ),
    bars=True,
)


# DeepSpeed (deepspeed/utils/timer.py, `ThroughputTimer`; runtime/pipe/engine.py): a line per `steps_per_print`.
#
# `CurrSamplesPerSec` is all devices' rate in that one step, without the time between steps; `RunningAvgSamplesPerSec`
# is that of all steps behind the second, and is differenced where several are between lines. `0/20, SamplesPerSec=`
# (2021) is a mean since the beginning and not taken. Before `global_step` was printed the number counted micro-batches.

_DEEPSPEED_STAMP = rb"(?:" + DATED + rb"\] [^\n]{0,120}?)?"
_RATE = rb"\d{1,15}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?"
_DEEPSPEED_SETTINGS = {
    "train_batch_size": "global_batch_size", "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batches", "steps_per_print": "print_every",
    "bfloat16_enabled": "bf16", "fp16_enabled": "amp-fp16",
}  # fmt: skip


def _deepspeed_facts(setting: Mapping[str, str]) -> Mapping[str, str]:
    (name,) = setting
    return {"precision": name} if name in ("bf16", "amp-fp16") else setting


DEEPSPEED = LogFormat(
    name="deepspeed",
    title="DeepSpeed",
    steps=(
        step(
            b"RunningAvgSamplesPerSec=",
            _DEEPSPEED_STAMP + rb"epoch=(?P<epoch>\d+)/micro_step=\d+/global_step=(?P<step>\d+), "
            rb"RunningAvgSamplesPerSec=(?:(?P<mean_rate>" + _RATE + rb")|[^,\s]{1,30}), "
            rb"CurrSamplesPerSec=(?P<rate>" + _RATE + rb"),",
        ),
        step(
            b"SamplesPerSec=",
            _DEEPSPEED_STAMP + rb"(?<![=\d])(?P<epoch>\d+)/(?P<step>\d+), (?:RunningAvg)?SamplesPerSec=[^,\s]{1,30}"
            rb"(?:, CurrSamplesPerSec=(?P<rate>" + _RATE + rb"))?(?:,|\s|$)",
        ),
        step(
            b" iter time (s): ",
            _DEEPSPEED_STAMP + rb"\bsteps: (?P<step>\d+) loss: [-\w.]{1,20} iter time \(s\): (?P<duration_s>\d+\.\d+) "
            rb"samples/sec: (?P<rate>\d+\.\d+)",
        ),
    ),
    patterns=(
        fact(b"dist_world_size=", rb"\bdist_world_size=(?P<world_size>\d{1,7})"),
        fact(b"num_local_procs=", rb"\bnnodes=(?P<nodes>\d{1,6}), num_local_procs=(?P<gpus_per_node>\d{1,4})"),
        fact(b"DeepSpeed info: version=", rb"DeepSpeed info: version=(?P<deepspeed>[\w.+-]{1,40})"),
        *table(_DEEPSPEED_SETTINGS, _deepspeed_facts),
        fact(b"world_size .", rb"print\] +world_size \.{2,40} (?P<data_parallel>\d{1,7})"),
        pause(b" is about to be saved", rb"(?P<reason>Checkpoint) [^\n]{1,200} is about to be saved"),
    ),
    numbered="run",
    mean_from=2,
)


# fairseq (fairseq/logging/progress_bar.py): JSON and simple lines of `train_inner`, and those before version 0.9.
#
# `wps` are tokens per second of all workers, `wpb` tokens per update: means over the updates since the line before.
# Before 0.9 both are means since the epoch began: the differences of `wps` count.

_FAIRSEQ_STAMP = rb"(?:" + DATED + rb" \| [^\n]{0,40}?)?"
_NUMBER = rb"[\d.]{1,16}(?:e\+?\d{1,3})?"
_NAMES = {"distributed_world_size": "world_size", "arch": "model", "seed": "seed", "log_interval": "print_every"}
RUNNING_MEANS = (
    "its wps are means since the epoch began, as fairseq printed before 0.9: their differences make the speed"
)


def _fairseq_facts(flags: Mapping[str, str]) -> Mapping[str, str]:
    facts = {name: flags[flag] for flag, name in _NAMES.items() if flags.get(flag, "") not in ("", "None")}
    return {**facts, "precision": "amp-fp16"} if flags.get("fp16") == "True" else facts


FAIRSEQ = LogFormat(
    name="fairseq",
    title="fairseq",
    unit="tokens",
    steps=(
        step(
            b'"num_updates": "',
            _FAIRSEQ_STAMP + rb'train_inner \| \{"epoch": (?P<epoch>\d+), "update": [^\n]{0,1200}?"wps": "(?P<rate>'
            + _NUMBER + rb')", [^\n]{0,100}?"wpb": "(?P<batch>' + _NUMBER
            + rb')", [^\n]{0,200}?"num_updates": "(?P<step>\d+)"',
        ),
        step(
            b", num_updates=",
            _FAIRSEQ_STAMP + rb"train_inner \| epoch (?P<epoch>\d+): +\d+ / \d+ [^\n]{0,1500}?\bwps=(?P<rate>" + _NUMBER
            + rb"), [^\n]{0,60}?\bwpb=(?P<batch>" + _NUMBER + rb"), [^\n]{0,100}?\bnum_updates=(?P<step>\d+)",
        ),
        step(
            b", wps=",
            rb"(?<!train_inner )\| epoch (?P<epoch>\d+):? +(?P<step>\d+) / (?P<epoch_steps>\d+) [^|\n]{0,1500}?"
            rb"\bwps=(?P<mean_rate>" + _NUMBER + rb")[,/ ]",
        ),
    ),
    patterns=(
        line(
            "remark", b", wps=", rb"(?<!train_inner )\| epoch \d+:? +\d+ / \d+ [^|\n]{0,1500}?\bwps=",
            text=RUNNING_MEANS,
        ),
        fact(b"training on ", rb"\btraining on (?P<world_size>\d{1,6}) (?:GPUs|devices)"),
        arguments(b"Namespace(", rb"", _fairseq_facts),
        pause(b"begin validation on ", rb"(?P<reason>begin validation) on "),
        pause(b"| valid ", rb"\| (?P<reason>valid) (?:\||on )"),
        pause(b"aved checkpoint", rb"(?P<reason>[Ss]aved checkpoint)"),
        pause(b"| train ", rb"\| (?P<reason>train) (?:loss|\| )"),
    ),
    numbered="run",
)  # fmt: skip


# nanoGPT: `iter 10: loss 4.1, time 123.45ms, mfu 12.3%` (karpathy/nanoGPT, train.py).
#
# The time is that of the one iteration, evaluation before it included; numbers begin at 0. The lines have no time
# stamps.

NANOGPT = LogFormat(
    name="nanogpt",
    title="nanoGPT",
    unit="tokens",
    printed="durations",
    steps=(step(b": loss ", rb"\biter (?P<step>\d+): loss [-\w.]{1,20}, time (?P<duration_ms>\d+\.\d+)ms"),),
    patterns=(
        fact(
            b"tokens per iteration will be: ",
            rb"tokens per iteration will be: (?P<tokens_per_step>[\d,]{1,20})",
            digits,
        ),
        pause(b": train loss ", rb"\bstep \d+: (?P<reason>train loss) [-\w.]{1,20}, val loss "),
        pause(b"saving checkpoint to ", rb"(?P<reason>saving checkpoint) to "),
    ),
    numbered="run",
    from_zero=True,
)


# nanochat: `step 00010/21400 (0.05%) | loss: … | lrm: … | dt: 123.4ms | tok/sec: 456,789` (scripts/base_train.py).
#
# `dt` is the time of the one step, evaluation not included, `tok/sec` the tokens of a step on all devices divided by
# it; numbers begin at 0. autoresearch prints the same without the total.

NANOCHAT = LogFormat(
    name="nanochat",
    title="nanochat",
    unit="tokens",
    printed="durations",
    steps=(
        step(
            b"| tok/sec: ",
            rb"\bstep (?P<step>\d+)(?:/\d+)? \([\d.]{1,8}%\) \| loss: [-\w.]{1,20} \| lrm: [\d.]{1,12} "
            rb"(?:\| lr\([^)\n]{1,80}\) )?"
            rb"\| dt: (?P<duration_ms>[\d.]{1,16})ms \| tok/sec: (?P<rate>[\d,]{1,20})(?:\s|$)",
        ),
    ),
    patterns=(
        fact(
            b"Tokens / micro-batch / rank: ",
            rb"micro-batch / rank: (?P<micro_batch_size>[\d,]{1,12}) x (?P<sequence_length>[\d,]{1,12}) = ",
            digits,
        ),
        fact(
            b"gradient accumulation steps: ",
            rb"batch size (?P<tokens_per_step>[\d,]{1,20}) => gradient accumulation steps: (?P<micro_batches>\d{1,6})",
            digits,
        ),
        fact(b" | Peak FLOPS", rb"GPU: (?P<device>[^|\n]{1,60}?) \| Peak FLOPS"),
        pause(b"| Validation bpb: ", rb"Step \d+ \| (?P<reason>Validation) bpb: "),
        pause(b"| CORE metric: ", rb"Step \d+ \| (?P<reason>CORE metric): "),
        pause(b"Saved ", rb"(?P<reason>Saved) (?:model|optimizer|meta)\w* "),
    ),
    numbered="run",
    from_zero=True,
)
