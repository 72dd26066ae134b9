"""The known name that was probably meant: for messages about unknown options, values and commands."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SYNONYMS = {
    "--batch-size": "bs batch mbs micro-batch-size per-device-train-batch-size",
    "--ranks-per-node": "np n nproc nproc-per-node ntasks-per-node tasks-per-node ppn ranks processes world-size",
    "--nodes": "nnodes num-nodes n-nodes", "--workload": "model arch network", "--backend": "framework strategy",
    "--precision": "dtype amp fp16 bf16", "--steps": "iterations iters max-steps num-steps", "--warmup": "warmup-steps",
    "--out": "output output-dir outdir o folder", "--time": "walltime time-limit", "--partition": "queue",
    "--account": "project", "--repeats": "runs repetitions trials", "--gpus-per-node": "gpus ngpus num-gpus devices",
    "--cpus-per-rank": "cpus threads cpus-per-task num-threads", "--env": "export", "--cluster": "local slurm",
    "amp-fp16": "fp16 half float16 amp mixed", "bf16": "bfloat16", "fp32": "float32 single full float",
    "torch-ddp": "pytorch torch ddp nccl gloo", "torch-fsdp": "fsdp2 zero deepspeed",
    "gpt": "llm gpt2 transformer llama bert", "sweep": "run bench benchmark train launch measure scaling scale",
    "cancel": "stop kill scancel", "report": "page html plot", "summarize": "summary table show analyse analyze parse",
    "list": "ls", "doctor": "check diagnose", "observe": "profile", "compare": "diff", "status": "ps squeue",
}  # fmt: skip
"""What others call it."""
_MIN_LETTERS = 4
"""Of a name that begins another."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is meant by `name`; empty where none is near.

    In this order: the same but for case, dashes and underscores; a synonym; one with a wrong letter; one that has its
    words and more, or fewer; one that it begins, or that begins it; one spelled alike.
    """
    import difflib  # only a message needs it

    spelled, requested = {_spelling(each): each for each in known}, _spelling(name)
    same = (name for each, name in spelled.items() if each.replace("-", "") == requested.replace("-", ""))
    synonyms = (spelled.get(_spelling(each)) for each, others in _SYNONYMS.items() if requested in others.split())
    if meant := next(filter(None, (*same, *synonyms)), ""):
        return meant
    related = [each for each in spelled if f"-{requested}-" in f"-{each}-" or f"-{each}-" in f"-{requested}-"]
    related = related or [
        each for each in spelled if min(len(each), len(requested)) >= _MIN_LETTERS
        and (each.startswith(requested) or requested.startswith(each))
    ]  # fmt: skip
    related.sort(key=lambda each: (abs(len(each) - len(requested)), each))
    alike = difflib.get_close_matches(requested, list(spelled), n=1, cutoff=0.7 if len(requested) > 4 else 0.65)
    almost = difflib.get_close_matches(requested, alike, n=1, cutoff=0.85)
    return next((spelled[each] for each in (*almost, *related, *alike)), "")


def _spelling(name: str) -> str:
    return re.sub(r"[_. -]+", "-", name.strip("-").lower())
