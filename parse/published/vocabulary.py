"""What words of a document say: a case, a batch size, a precision, a model, a system, a number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from parse.logs.path_facts import PRECISIONS, model_name

LONG = 1000
"""Characters of a cell or heading that are looked at."""

IMAGENET = 1_281_167
"""Images of ImageNet's training set, of which an epoch is one pass."""
_FIGURE = r"\d[\d,]*(?:\.\d+)?"
EPOCH_TIMES = (
    re.compile(rf"(?P<seconds>{_FIGURE})\s*秒[^。\n]*?(?P<epochs>\d+)\s*个\s*epoch", re.IGNORECASE),
    re.compile(rf"(?P<epochs>\d+) epochs? (?:in|took|take) (?P<seconds>{_FIGURE}) ?s", re.IGNORECASE),
)
"""How texts say that so many epochs took so many seconds."""

_BATCH = re.compile(
    r"(?:batch[ _-]?size(?:[ _-]?per[ _-]?(?:device|gpu))?|\b(?:max )?(?:bsz?|bz))\s*[=:]\s*(\d{1,6})(?![\d.])", re.I
)
_PRECISION = re.compile(rf"(?<![a-z0-9])({'|'.join(PRECISIONS)})(?![a-z0-9])|(mixed[ -]precision|混合精度)", re.I)
_MODEL = re.compile(
    r"(?<![a-z0-9])((?:res|i?resn|fresresn)(?:net)?[ -]?\d{2,3}|rn?(?:18|34|50|100|101|152)|bert|gpt)(?!\d)", re.I
)
_TASK = re.compile(r"arcface|insightface|partial[ _-]?fc|partailfc", re.I)
_SYSTEMS = (
    ("plsc", r"plsc"), ("paddle", r"paddle(?:paddle)?"), ("pytorch", r"pytorch"), ("tensorflow", r"tensorflow"),
    ("mxnet", r"mxnet"), ("oneflow", r"oneflow"), ("mindspore", r"mindspore"), ("megatron-lm", r"megatron[- ]?lm"),
)  # fmt: skip
"""Names of systems, those before that contain another one's."""
_NVIDIAS = re.compile(r"(?<![a-z])ngc(?![a-z])|nvidia", re.I)
_NGC = frozenset({"pytorch", "tensorflow", "mxnet"})
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"<sup>.*?</sup>|<[^>]*>|\*\*|~~|`|\\(?=[|*_<])", re.I)
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,15})?")
_CASES = (
    (re.compile(r"(\d{1,4})n(\d{1,4})[gc]"), False),
    (re.compile(r"(\d{1,4})\s?(?:机|节点|nodes?)\s?(\d{1,5})\s?(?:卡|gpus?)"), True),
    (re.compile(r"()(\d{1,5})\s?(?:卡|gpus?)"), True),
)
"""Forms of a case, and whether what they count are the devices of all nodes together."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """How many devices, and on how many nodes where that is said."""

    devices: int
    nodes: int | None

    @property
    def devices_per_node(self) -> int:
        """Of each node, or, where no nodes are said, all."""
        return self.devices // (self.nodes or 1)


def plain_text(markdown: str) -> str:
    """The words without markup: links, line breaks, footnotes, emphasis; full-width signs as plain ones."""
    text = _MARKUP.sub(" ", _LINK.sub(r"\1", markdown[:LONG]))
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


def number(text: str) -> Decimal | None:
    """The number that a cell holds and nothing else: `148,720`, `26.50`, `1.9x`; None where it holds a word."""
    match = _NUMBER.fullmatch(text.removesuffix("%").removesuffix("x").strip())
    return Decimal(match[0].replace(",", "")) if match else None


def decimals(value: Decimal) -> int:
    """How many digits are printed behind the point."""
    return max(0, -int(value.as_tuple().exponent))


def case(text: str) -> Case | None:
    """The case that a cell names: `1n8g`, `2机16卡`, `单机8卡`, `32卡`; None where it names none."""
    normalized = text.replace("单", "1").lower()
    for pattern, together in _CASES:
        if match := pattern.fullmatch(normalized):
            nodes, count = int(match[1]) if match[1] else None, int(match[2])
            return sized(nodes, count if together or nodes is None else nodes * count)
    return None


def sized(nodes: int | None, devices: int) -> Case | None:
    """The case of so many devices in all; None where they do not divide by the nodes, or are none."""
    if devices < 1 or nodes == 0 or (nodes and devices % nodes):
        return None
    return Case(devices=devices, nodes=1 if devices == 1 else nodes)


def batch_size(texts: Iterable[str]) -> int | None:
    """Of the first text that says one: `batch_size = 128`, `bsz=96`."""
    match = next((match for text in texts if (match := _BATCH.search(text))), None)
    return (int(match[1]) or None) if match else None


def precision(texts: Iterable[str]) -> str:
    """By the first text that names one, in our words; empty where none does, or where that one names several."""
    for text in texts:
        precisions = {PRECISIONS[name.lower()] if name else "amp-fp16" for name, _ in _PRECISION.findall(text)}
        if precisions:
            return precisions.pop() if len(precisions) == 1 else ""
    return ""


def model(texts: Iterable[str]) -> str:
    """By the first text that names one, `arcface_` before it where any of them is of face recognition."""
    texts = list(texts)
    match = next((match for text in texts if (match := _MODEL.search(text))), None)
    if match is None:
        return ""
    name = model_name(re.sub(r"[ -]", "", match[1]))
    return f"arcface_{name}" if any(_TASK.search(text) for text in texts) else name


def system(texts: Iterable[str]) -> str:
    """By the first text that names just one; NVIDIA's own examples are told from the framework's."""
    for text in texts:
        if names := _systems(text):
            (name, *others) = names
            if others:
                return ""
            return f"ngc-{name}" if name in _NGC and _NVIDIAS.search(text) else name
    return ""


def _systems(text: str) -> list[str]:
    """The systems that the text names; a name inside of a longer one's is none."""
    names = []
    for name, pattern in _SYSTEMS:
        text, count = re.subn(pattern, " ", text, flags=re.I)
        if count:
            names.append(name)
    return ["plsc"] if names == ["plsc", "paddle"] else names
