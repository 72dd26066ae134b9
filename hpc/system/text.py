"""Numbers in sentences, names in their order, and sentences' beginnings and lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar


def plural(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {inflect(number, noun)}"


def inflect(number: int, noun: str) -> str:
    """The noun for that many: `node` for 1, else `nodes`."""
    return noun if number == 1 else f"{noun}s"


def capitalized(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def ranges(numbers: Iterable[int], max_shown: int | None = None) -> str:
    """`0-3, 8`: different whole numbers as ranges; of more than `max_shown` ranges the first, and `…`."""
    parts = []
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        parts.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0]))
    return ", ".join(parts[:max_shown] + ["…"] * (max_shown is not None and len(parts) > max_shown))


def read_ranges(text: str) -> list[int]:
    """The numbers in `0-3,8`, as the kernel writes lists of cores. Raises ValueError on anything else."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort by: `node2` is before `node10`."""
    return [(int(part[:18]) if part.isdecimal() else -1, part) for part in re.split(r"([0-9]+)", name)]


def first_of(texts: Sequence[str], max_shown: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: the first `max_shown` of the texts, and the number of the others."""
    more = f" and {len(texts) - max_shown} more" if len(texts) > max_shown else ""
    return f"{separator.join(texts[:max_shown])}{more}"


def filled(text: str, width: int, hanging: int = 2) -> list[str]:
    """The text in lines of `width` characters, those after the first moved in by `hanging` more than it.

    A longer word, such as a path, stays whole, to be copied.
    """
    indent = len(text) - len(text.lstrip()) + hanging
    lines = textwrap.wrap(
        text, max(1, width), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return lines or [text]


# Values by their keys.

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys and values in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


# The known name that was probably meant: for messages about unknown options, values and commands.


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
