"""Words of published results: numbers, cases, batch sizes, precisions, models, systems."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from hpc.model.spec import SAMPLES, TOKENS
from parse.logs.path_facts import PRECISIONS, model_name
from parse.logs.sizes import whole_number

LONG = 1000
"""The maximum of characters read of a cell, a heading or a sentence."""
EPOCH_LINES = 500
"""At most this many lines are searched for the time that epochs took."""

_FIGURE = r"\d[\d,]*(?:\.\d+)?"
EPOCH_TIMES = (
    re.compile(rf"(?P<seconds>{_FIGURE})\s*秒[^。\n]*?(?P<epochs>\d+)\s*个\s*epoch", re.IGNORECASE),
    re.compile(rf"(?P<epochs>\d+) epochs? (?:in|took|take) (?P<seconds>{_FIGURE}) ?s", re.IGNORECASE),
)
"""Sentences that state how many seconds some epochs took."""

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
"""Names of systems; a name that contains another comes before it."""
_NVIDIA = re.compile(r"(?<![a-z])ngc(?![a-z])|nvidia", re.I)
_NGC = frozenset({"pytorch", "tensorflow", "mxnet"})
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"<sup>.*?</sup>|<[^>]*>|\*\*|~~|`|\\(?=[|*_<])", re.I)
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,15})?")
_CASES = (
    (re.compile(r"(\d{1,4})n(\d{1,4})[gc]"), False),
    (re.compile(r"(\d{1,4})\s?(?:机|节点|nodes?)\s?(\d{1,5})\s?(?:卡|gpus?)"), True),
    (re.compile(r"()(\d{1,5})\s?(?:卡|gpus?)"), True),
    (re.compile(r"(?:[a-z][\w-]*\*)?n(\d{1,4})c(\d{1,5})"), True),
)
"""Forms of a case, and whether the count is that of all nodes together."""
_HOSTS = re.compile(r"[a-z][\w.-]*:\d{1,4}(?:[\s,;+]+[a-z][\w.-]*:\d{1,4})*")
"""Hosts with their devices, as for mpirun: `server1:2, server2:2`."""


_RATE = re.compile(
    r"(?<![a-z])([a-z]+?)\)?[\s_]*(?:/|per)[\s_]*(ms|msecs?|milliseconds?|s|secs?|seconds?)(?![a-z])"
    r"|(?<![a-z])(tps|ips|fps|tgs)(?![a-z])",
    re.I,
)
OF_EACH = r"(?:gpu|device|card|chip|accelerator|tpu|npu|hpu|ipu|gcd|rank|process|worker|replica|p)"
"""What one device is called behind `per`."""
_BEFORE_SECONDS = re.compile(rf"\s*(?:/|\bper\b)\s*{OF_EACH}\b(?=\s*(?:/|\bper\b)\s*s(?:ec|\b))", re.I)
"""That of `tokens/gpu/s`."""
_UNIT_BEHIND = re.compile(r"\s*[(\[][^()\[\]]*(?:/|\bper\b)")
"""Of `FPS (it/s)` the unit is that in brackets."""
_SCALES = {"k": 10**3, "thousand": 10**3, "10^3": 10**3, "1000": 10**3, "m": 10**6, "million": 10**6, "10^6": 10**6}
_SCALE = "(?:k|m|thousand|million|10\\^[36]|1,?000)"
_SCALE_BEFORE = re.compile(rf"(?<![a-z0-9.,])({_SCALE})s?[ _-]?$", re.I)
_SCALE_IN_BRACKETS = re.compile(rf"[(\[](?:[x×*] ?)?({_SCALE})s?[)\]]", re.I)
_THROUGHPUT = re.compile(r"throughput|吞吐", re.I)
_NOUNS = (
    (TOKENS, re.compile(r"t|toks?|tokens?|tps|tgs")),
    (
        SAMPLES,
        re.compile(
            r"s|samples?|samps?|images?|imgs?|im|sequences?|seqs?|sentences?|sents?|examples?|items?|records?|data|ips"
        ),
    ),
    ("frames", re.compile(r"frames?|fps")),
    ("mels", re.compile(r"mels?")),
    ("molecules", re.compile(r"mols?|molecules?")),
    ("words", re.compile(r"words?")),
)
"""What speeds count, by its words."""
_MILLISECONDS = re.compile(r"ms|msecs?|milliseconds?", re.I)
_MODELS_OF_DEVICES = r"(?:GH|GB|MI|[ABHPV])\d{2,3}[a-z]*|L40S?|L4|T4|K80|gaudi ?\d?|titan \w+|rtx ?\d{4}|tpu ?v\d\w*"
_DEVICE_NAMES = rf"(?:gpus?|tpus?|npus?|hpus?|gcds?|chips?|cards?|devices?|accelerators?|{_MODELS_OF_DEVICES})"
_DEVICE_COUNT = re.compile(
    rf"(?<![\w.,/-])(?<!\bor )(?<!\band )(?<!\bto )(\d{{1,6}})(?: ?[x×*] ?| )(?!nodes?\b|hosts?\b)"
    rf"(?:[a-z]\S* ){{0,3}}?({_DEVICE_NAMES})(?![a-z])"
    rf"|(?<![\w-])({_DEVICE_NAMES})(?:-\w+)* ?[x×*] ?(\d{{1,6}})(?![\w.])",
    re.I,
)
_NODE_COUNT = re.compile(r"(?<![\w.,/-])(\d{1,5})[- ]?(?:nodes?|hosts?|machines?|servers?)\b", re.I)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What a speed counts, and how often its figure is to be taken for one in a second."""

    unit: str
    factor: int


def rate(text: str) -> Rate | None:
    """Returns the unit of a speed in a text (`img/s`, `tok/sec`, `mol/ms`, `TPS`); None if it has no known one."""
    known = _first_rate(text)
    return known and known[0]


def _first_rate(text: str) -> tuple[Rate, re.Match[str]] | None:
    for match in _RATE.finditer(_BEFORE_SECONDS.sub("", text)):
        if match[3] and _UNIT_BEHIND.match(match.string, match.end()):
            continue
        if unit := _unit(match):
            return Rate(unit=unit, factor=1000 if match[2] and _MILLISECONDS.fullmatch(match[2]) else 1), match
    return None


def _unit(match: re.Match[str], begin: int = 0) -> str:
    """What the noun of a speed counts, with or without a `k` or `m` before it (`ktok`)."""
    noun = (match[1] or match[3]).lower()[begin:]
    unit = next((unit for unit, words in _NOUNS if words.fullmatch(noun)), "")
    return unit or (_unit(match, 1) if not begin and noun[0] in "km" and len(noun) > 2 else "")


_OF_OTHER_FIGURES = re.compile(
    r"accuracy|\bacc\b|loss|memory|latency|perplexity|\bbleu\b|\bmap\b|error|准确率|显存", re.I
)


def names_unit(text: str) -> bool:
    """Whether a text gives what is below it a unit of speeds (`throughput (img/s)`), and none of other figures; `at 200
    img/s` gives none."""
    known = _first_rate(text)
    return (
        known is not None
        and not re.search(r"\d[ ~]?[km]?[ _-]?$", known[1].string[: known[1].start()], re.I)
        and not _OF_OTHER_FIGURES.search(text)
    )


def scaled_rate(head: str) -> Rate | None:
    """The unit of a head, which may count thousands or millions (`ktok/s`, `Tokens/s (M)`, `10^3 samples/s`)."""
    if (known := _first_rate(head)) is None:
        return None
    its, match = known
    before = _SCALE_BEFORE.search(match.string[: match.start()]) or _SCALE_IN_BRACKETS.search(match.string)
    scale = _joined_scale(match) or (before[1].lower().replace(",", "") if before else "")
    return replace(its, factor=its.factor * _SCALES.get(scale, 1))


def _joined_scale(match: re.Match[str]) -> str:
    """The `k` of `ktok/s`."""
    noun = (match[1] or match[3]).lower()
    return "" if any(words.fullmatch(noun) for _, words in _NOUNS) else noun[0]


def without_rate(text: str) -> str:
    """The text without units of speeds that are known; of `95 ktok/s` the `k` stays."""
    plain = _BEFORE_SECONDS.sub("", text)
    return _RATE.sub(lambda match: _joined_scale(match) if _unit(match) else match[0], plain)


def other_rate(text: str) -> bool:
    """Whether a text has a unit of something else in a second (`GB/s`, `it/s`, `petaFLOP/s`) and none of speeds."""
    return rate(text) is None and bool(_RATE.search(_BEFORE_SECONDS.sub("", text)))


def is_speed(text: str) -> bool:
    """Whether a head is that of speeds: a unit that is known, or throughput in no other unit."""
    return rate(text) is not None or (bool(_THROUGHPUT.search(text)) and not other_rate(text))


_RANKS = re.compile(r"(?:^|(?<=[\s_-]))(1|2|4|8|16|32|64|128)p(?=$|[\s_-])", re.I)


def ranks_in(text: str) -> int | None:
    """The devices of a name as Ascend's tables have them: `8p-NPU`, `GPU_1P`; None of another."""
    counts = _RANKS.findall(text)
    return int(counts[0]) if len(counts) == 1 else None


def device_name(text: str) -> str:
    """Returns the model of device that a text names, `a100` of `8x A100s`, `npu` of `8p-NPU`; empty for none."""
    if ranks_in(text):
        return _RANKS.sub("", text).strip(" _-").lower()
    match = re.search(rf"(?<![a-z0-9])(?:{_MODELS_OF_DEVICES})(?![a-z0-9])", text, re.I)
    return match[0].lower().removesuffix("s") if match else ""


def devices_in(text: str) -> int | None:
    """Returns the number of devices that a text names (`8x A100`, `256 H100s`, `2 nodes with 8 GPUs each`); None if it
    names none, several, or nodes beside devices of which it does not say whether they are those of each."""
    if match := re.fullmatch(r".*?(?<!\d)(\d{1,4})\s?(?:机|节点)\s?(\d{1,5})\s?卡.*|.*单机(\d{1,3})卡.*", text):
        return int(match[2] or match[3])
    counts = {int(first or last) for first, _, _, last in _DEVICE_COUNT.findall(text)} - {0}
    nodes = {int(count) for count in _NODE_COUNT.findall(text)} - {1}
    if len(counts) != 1 or len(nodes) > 1:
        return None
    count = counts.pop()
    if not nodes:
        return count
    each = re.search(r"nodes? (?:with|of|[x×*]) ?\d|\beach\b|per node", text, re.I)
    return count * nodes.pop() if each else None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A number of devices, 0 if the document does not say it, and of nodes if the document prints it."""

    devices: int
    nodes: int | None

    @property
    def devices_per_node(self) -> int:
        """Devices of each node; all devices if `nodes` is None."""
        return self.devices // (self.nodes or 1)


def plain_text(markdown: str) -> str:
    """Returns the text without links, line breaks, footnotes and emphasis, with full-width signs as ASCII."""
    text = _MARKUP.sub(" ", _LINK.sub(r"\1", markdown[:LONG]))
    text = re.sub(r"^\s*\*(?!\s)([^*]+)\*\s*$", r"\1", text)
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


def number(text: str) -> Decimal | None:
    """Returns the number that a cell holds (`148,720`, `26.50`, `1.9x`, `77%`); None if it holds any word."""
    match = _NUMBER.fullmatch(text.removesuffix("%").removesuffix("x").removesuffix("×").strip())
    return Decimal(match[0].replace(",", "")) if match else None


def integer(value: Decimal | None) -> int | None:
    """Returns the value as a count; None for a fraction, 0 or None."""
    return int(value) if value and value == int(value) else None


def stated_times(lines: Iterable[str]) -> Iterator[tuple[int, float]]:
    """Yields (epochs, seconds) where a line states how long epochs took; both are above 0."""
    texts = [line[:LONG] for line in lines if "epoch" in line[:LONG].lower()][:EPOCH_LINES]
    for match in (match for form in EPOCH_TIMES for text in texts for match in form.finditer(text)):
        epochs, figure = whole_number(match["epochs"], max_digits=6), match["seconds"]
        if epochs and len(figure) < 20 and (seconds := float(figure.replace(",", ""))):
            yield epochs, seconds


def case(text: str) -> Case | None:
    """Returns the case of a cell: `1n8g`, `2机16卡`, `单机8卡`, `32卡`, `host1:4, host2:4`; None if it names none."""
    normalized = text.replace("单", "1").lower()
    if _HOSTS.fullmatch(normalized):
        hosts = re.findall(r"([\w.-]+):(\d+)", normalized)
        counts = {int(count) for _, count in hosts}
        return (
            sized(len(hosts), len(hosts) * counts.pop()) if len({*hosts}) == len(hosts) and len(counts) == 1 else None
        )
    for pattern, together in _CASES:
        if match := pattern.fullmatch(normalized):
            nodes, count = int(match[1]) if match[1] else None, int(match[2])
            return sized(nodes, count if together or nodes is None else nodes * count)
    return None


def sized(nodes: int | None, devices: int) -> Case | None:
    """Returns the case of `devices` in all; None if they are 0 or not a multiple of the nodes."""
    if devices < 1 or nodes == 0 or (nodes and devices % nodes):
        return None
    return Case(devices=devices, nodes=1 if devices == 1 else nodes)


def batch_size(texts: Iterable[str]) -> int | None:
    """Returns the batch size of the first text that has one: `batch_size = 128`, `bsz=96`."""
    match = next((match for text in texts if (match := _BATCH.search(text))), None)
    return (int(match[1]) or None) if match else None


def precision(texts: Iterable[str]) -> str:
    """Returns Rankwise's name for the precision in the first text that has one; empty if that text has several."""
    for text in texts:
        precisions = {PRECISIONS[name.lower()] if name else "amp-fp16" for name, _ in _PRECISION.findall(text)}
        if precisions:
            return precisions.pop() if len(precisions) == 1 else ""
    return ""


def precisions_in(text: str) -> int:
    """How often the text names a precision."""
    return len(_PRECISION.findall(text))


def model(texts: Iterable[str]) -> str:
    """Returns the model of the first text that has one; `arcface_` is before it if any text names face recognition."""
    texts = list(texts)
    match = next((match for text in texts if (match := _MODEL.search(text))), None)
    if match is None:
        return ""
    name = model_name(re.sub(r"[ -]", "", match[1]))
    return f"arcface_{name}" if any(_TASK.search(text) for text in texts) else name


def system(texts: Iterable[str]) -> str:
    """Returns the system of the first text that has one, `ngc-` before it for NVIDIA's examples; empty for several."""
    for text in texts:
        if names := _systems(text):
            (name, *others) = names
            if others:
                return ""
            return f"ngc-{name}" if name in _NGC and _NVIDIA.search(text) else name
    return ""


def _systems(text: str) -> list[str]:
    """Returns the systems in the text; a name inside a longer name does not count."""
    names = []
    for name, pattern in _SYSTEMS:
        text, count = re.subn(pattern, " ", text, flags=re.I)
        if count:
            names.append(name)
    return ["plsc"] if names == ["plsc", "paddle"] else names
