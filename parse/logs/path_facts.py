"""Reads a log's case, batch size, precision, model and repeat from the names of its folders and file; its sizes.

It reads the layouts of the reference suite, `<framework>/<model>/bz<BS>/<N>n<G>g/<model>_b<BS>_<precision>_<run>.log`
with its variants, flat files (`GPUx8_time2train_ips.log`), `resnet50_1node_bz128/1n8c_real.log`, and OneFlow's long
folder names. Words must match whole; a folder's name gives facts only if all its words match.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from hpc.system.text import grouped, plural

SUFFIX = re.compile(r"(\.(log|txt|out|err|json|stdout|stderr)|\.[oe][0-9]{1,9})?(\.gz)?$", re.IGNORECASE)
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "amp-fp16", "amp": "amp-fp16"}
"""Names for this project's precisions; the reference suite's fp16 is mixed precision."""
STRATEGIES = ("ddp", "fsdp", "fsdp2", "zero1", "zero2", "zero3")
SWITCHES = {"dali": ("dali", "on"), "xla": ("xla", "on")} | {each: ("strategy", each) for each in STRATEGIES}
"""Words that name an option, with this and its value."""
SYSTEMS = frozenset((
    "ngc", "nvidia", "pytorch", "paddle", "plsc", "tensorflow", "tf", "tf1", "tf2", "mxnet", "oneflow", "mindspore",
    "insightface", "arcface", "logs", "log",
))  # fmt: skip
"""Words that a folder's name may have beside facts; they stay in the name that distinguishes campaigns."""

DEVICE = r"(?:[gnt]pus?|(?:[vahpk][0-9]{2,3}|[tl]40?|(?:b(?=[0-9]{3})|gh|gb|mi|rtx)[0-9]{3,4})[a-z]{0,2})"
"""Devices as names say them, `8xA100`."""
_PRECISION = "|".join(PRECISIONS)
_HALF = re.compile(r"(?<![a-z0-9])(?:fp16|amp)(?![a-z0-9])")
_BATCH = r"b(?:s|z|sz)?(?P<batch_size>[0-9]{1,9})"
_LAYOUT = re.compile(rf"(?P<model>[a-z][a-z0-9.-]*)_{_BATCH}_(?P<precision>{_PRECISION})(?P<rest>_.*)?", re.IGNORECASE)
"""`r50_b128_fp32_1`; of a packed job `r50_b128_fp32_7_9`."""
_RUNS = re.compile(r"(?:_[0-9]{1,4})+")
_INSIGHTFACE = re.compile(
    rf"(?P<first>[a-z0-9]+)_(?P<precision>{_PRECISION})_{_BATCH}_oneflow_model_parallel_(?P<model_parallel>0|1|true|false)"
    r"_partial_fc_(?P<partial_fc>0|1|true|false)(?:_(?P<sample_ratio>[0-9]\.[0-9]+))?",
    re.IGNORECASE,
)
"""`{classes}_{precision}_b{b}_oneflow_model_parallel_{0|1}_partial_fc_{0|1}`; later ones begin with the model."""
_WORKER = re.compile(r"workerlog\.[0-9]{1,5}")
"""A rank's output, by Paddle's launcher."""
_RANK = re.compile(r"rank[._-]?[0-9]{1,6}")
"""A rank's folder, by Open MPI's --output-filename."""
_OF_RANK = re.compile(r"(?P<source>.+)\.global_rank_(?P<rank>[0-9]{1,6})\.[0-9]{8}-[0-9]{6}-\w{1,20}\.jsonl(?:\.gz)?")
"""A rank's structured log, by torchtitan: with the time of the launch."""
_OUTPUT = re.compile(r"(?:(?P<job>.+)\.)?(?:out|err|stdout|stderr|[oe](?P<number>[0-9]{1,9}))(?:\.gz)?")
"""Standard output or error of a job, by Slurm (`slurm-7.out`, `.err`), PBS (`train.o7`, `train.e7`) or the person."""
_WORD_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<nodes>[0-9]{1,5})n(?P<gpus_per_node>[0-9]{1,4})[gc]",
        r"n(?P<nodes>[0-9]{1,5})g(?P<gpus_per_node>[0-9]{1,4})",
        r"n(?P<nodes>[0-9]{1,5})c(?P<cards>[0-9]{1,6})",
        r"(?P<nodes>[0-9]{1,5})nodes?",
        rf"{DEVICE}x(?P<devices>[0-9]{{1,6}})",
        rf"(?P<devices>[0-9]{{1,6}})x ?{DEVICE}",
        rf"(?P<nodes>[0-9]{{1,5}})x(?P<gpus_per_node>[0-9]{{1,4}})(?:x ?)?{DEVICE}",
        r"(?P<devices>[0-9]{1,6})gpus?",
        _BATCH,
        rf"(?P<precision>{_PRECISION})",
        rf"(?P<option>{'|'.join(SWITCHES)})",
    )
)
_COUNTED = re.compile(r"gpu(?P<devices>[0-9]{1,6})", re.IGNORECASE)
"""The number of GPUs, if the same name has a precision; else it could be the file of one GPU."""
_RESNET = re.compile(r"(?:i|fres)?res?n(?:et)?[-_]?(?P<depth>18|34|50|100|101|152)(?:[-_]?v[0-9.]+[a-d]?)?")
_SHORT = re.compile(r"rn?(?P<depth>18|34|50|100|101|152)")
_OTHER_MODELS = frozenset(("bert", "gpt", "gpt2", "transformer", "tsm", "vgg16", "alexnet", "yolov3", "resnext101"))
_REPEAT_FOLDER = re.compile(r"(?:run|repeat|rep|trial|test|r)?[-_]?(?P<repeat>[0-9]{1,4})", re.IGNORECASE)
_SIZE_OR_LAUNCH = re.compile(
    r"(?<![a-z0-9])(?:[0-9]+[-_]?(?:nodes?|gpus?|ranks?|devices?|n(?:[0-9]+[gc])?|g)"
    rf"|(?:[0-9]+x ?){{1,2}}{DEVICE}"
    r"|(?:nodes?|gpus?|ranks?|devices?|nnodes|np|nproc|n|g)[-_=]?[0-9]+"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[-_t][0-9]{2}[-:]?[0-9]{2}(?:[-:]?[0-9]{2})?)?|[0-9]{8}[-_t][0-9]{4,6}"
    r"|(?:job|slurm|run|jobid)[-_.]?[0-9]+)(?![a-z0-9])|(?<![^/])[0-9]+(?![^/])",
    re.IGNORECASE,
)
"""Sizes anywhere in a name (`run_2nodes`, `nodes4-final`, `job-16gpus`, `n8`), and what only names a launch: its date,
the number of its job (`2025-11-01_10-00-00`, `slurm-1234`, a folder that is a number)."""
_SIZES = ("nodes", "gpus_per_node", "devices")
_NUMBERS = (*_SIZES, "batch_size")


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """The facts in a path; None or empty where names do not state them.

    `half` has the words for half precision: logs of `fp16` beside others of `amp` are no repeats. `packed` holds the
    runs of a job that ran several at once on the same GPUs. `folder` has the folders' names without
    the words that were read as facts, from the root on; `name` has the remaining words of the file's name, which
    distinguish it from others. `remarks` name contradictions and words that do not parse.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    devices: int | None = None
    batch_size: int | None = None
    precision: str = ""
    half: str = ""
    model: str = ""
    repeat: int | None = None
    packed: tuple[int, ...] = ()
    folder: tuple[str, ...] = ()
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _NameFacts:
    """The facts in a file's name or those of its folders; the words, or the folders, without a fact."""

    values: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    runs: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()


def place_of(path: Path) -> PathFacts:
    """The facts in the absolute path, up to the root."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100  # ten thousand paths: strings are fast
    file, above = _facts_of_file(SUFFIX.sub("", name)), _facts_of_folders(folder)
    values, remarks = dict(file.values), [*file.remarks]
    if "nodes" in values and "gpus_per_node" in values and (differing := _differing_case(values, above.values)):
        remarks.append(differing)
    for key, value in above.values.items():
        if values.setdefault(key, value) != value and key in ("batch_size", "precision"):
            what = key.replace("_", " ")
            remarks.append(f"its name says {what} {values[key]}, its folder {value}: the name is taken")
    repeat = next(iter(file.runs if len(file.runs) == 1 else above.runs), None)
    numbers = {key: int(values[key]) for key in _NUMBERS if key in values}
    if 0 in numbers.values():
        remarks.append("there is a size of 0 in its names: none of them is taken")
        numbers = {}
    if ranks := _logs_of_ranks(path):
        numbers.setdefault("devices", len(ranks))
    return PathFacts(
        **_sizes(numbers, remarks),
        precision=values.get("precision", ""),
        half="-".join(sorted({*_HALF.findall(f"{folder}/{name}".lower())})),
        model=values.get("model", ""),
        repeat=repeat or None,
        packed=file.runs if len(file.runs) > 1 else (),
        folder=above.unknown,
        name="_".join(file.unknown) if file.values else "",
        options={**above.options, **file.options},
        remarks=(*remarks, *above.remarks),
    )


def case_of(text: str) -> PathFacts | None:
    """The sizes of a case as people write it, `2n8g`; None for any other text."""
    match = _WORD_PATTERNS[0].fullmatch(text)
    nodes, each = (int(match["nodes"]), int(match["gpus_per_node"])) if match else (0, 0)
    return PathFacts(nodes=nodes, gpus_per_node=each, devices=nodes * each) if nodes and each else None


def name_of_setting(name: str) -> str:
    """The name without sizes, dates and job numbers, so that names which differ in these alone are equal."""
    return _SIZE_OR_LAUNCH.sub("#", name)


def run_of_output(path: Path) -> Path | None:
    """A path that is the same for all outputs of one run; None where the name is not known to be one of several."""
    folder, name = path.parent, path.name
    if _WORKER.fullmatch(name):
        return folder / "workerlog"
    if ranks := _logs_of_ranks(path):
        launch = next(names.index(name) for names in ranks.values() if name in names)
        return folder / f"{name.partition('.global_rank_')[0]} {launch}"
    if match := _OUTPUT.fullmatch(name):
        name = f"{match['job'] or ''}.{match['number'] or ''}"
    elif not _RANK.fullmatch(folder.name):
        return None
    return (folder.parent if _RANK.fullmatch(folder.name) else folder) / name


def _logs_of_ranks(path: Path) -> Mapping[str, Sequence[str]]:
    """The names of the structured logs of each rank beside this one, in the order of launches; none beside others."""
    match = _OF_RANK.fullmatch(path.name)
    if match is None or not os.access(path.parent, os.R_OK):
        return {}
    names = map(_OF_RANK.fullmatch, sorted({path.name, *(other.name for other in path.parent.iterdir())}))
    return grouped((its["rank"], its[0]) for its in names if its and its["source"] == match["source"])


def model_name(name: str) -> str:
    """The model by the name that workloads have here: `r50`, `rn50`, `FresResNet50` are all resnet50."""
    match = _RESNET.fullmatch(name.lower()) or _SHORT.fullmatch(name.lower())
    return f"resnet{match['depth']}" if match else name.lower()


def _sizes(numbers: dict[str, int], remarks: list[str]) -> dict[str, int | None]:
    nodes, each, devices = (numbers.get(name) for name in _SIZES)
    if nodes and each:
        if devices not in (None, nodes * each):
            remarks.append(f"its names say {nodes}n{each}g and {devices} GPUs: the case is taken")
        devices = nodes * each
    elif nodes and nodes > 1 and devices:
        remarks.append(f"its names say {nodes} nodes and {devices} GPUs, in all or of each: neither is taken")
        nodes = devices = None
    elif nodes and devices:
        each = devices
    return {"nodes": nodes, "gpus_per_node": each, "devices": devices, "batch_size": numbers.get("batch_size")}


def _differing_case(file: Mapping[str, str], above: Mapping[str, str]) -> str:
    cases = ["{nodes}n{gpus_per_node}g".format(**values) for values in (file, above) if {*_SIZES[:2]} <= {*values}]
    return f"its name says {cases[0]}, its folder {cases[1]}: the name is taken" if len({*cases}) > 1 else ""


def _facts_of_file(stem: str) -> _NameFacts:
    if match := _LAYOUT.fullmatch(stem):
        rest = match["rest"] or ""
        if not rest or _RUNS.fullmatch(rest):
            return _NameFacts(
                values={
                    "model": model_name(match["model"]),
                    "batch_size": match["batch_size"],
                    "precision": PRECISIONS[match["precision"].lower()],
                },
                runs=tuple(map(int, rest.split("_")[1:])),
            )
    words = [part for part in stem.split("_") if part]
    numbers = [*takewhile(lambda part: part.isdecimal() and part.isascii(), reversed(words))][::-1]
    facts = _facts_of_words(words[: len(words) - len(numbers)])
    remarks = list(facts.remarks)
    before = words[-len(numbers) - 1].lower() if len(words) > len(numbers) else ""
    packed = len(numbers) > 1 and before in PRECISIONS
    is_run = (len(numbers) == 1 or packed) and all(len(number) <= 4 for number in numbers)
    runs = tuple(map(int, numbers)) if is_run else ()
    unknown = facts.unknown if runs else (*facts.unknown, *numbers)
    if match and unknown:
        remarks.append(
            f"its name begins like MODEL_bBATCH_PRECISION_RUN, but {'_'.join(unknown)} is neither a run's number nor "
            f"an option: it is kept apart as name={'_'.join(unknown)}"
        )
    return _NameFacts(values=facts.values, options=facts.options, unknown=unknown, runs=runs, remarks=tuple(remarks))


def _facts_of_words(tokens: Sequence[str]) -> _NameFacts:
    """The facts in words, each by itself; words joined by hyphens are tried together, then one by one."""
    values_by_key: dict[str, dict[str, str]] = {}
    options: dict[str, str] = {}
    unknown: list[str] = []
    for token in tokens:
        rest = []
        for part in [token] if _facts_of_word(token) is not None else token.split("-"):
            facts = _facts_of_word(part)
            if facts is None:
                rest.append(part)
            for key, value in (facts or {}).items():
                if key == "option":
                    options |= [SWITCHES[value.lower()]]
                else:
                    values_by_key.setdefault(key, {})[value] = part
        if rest:
            unknown.append("-".join(rest))
    if "precision" in values_by_key:
        for token in unknown.copy():
            if match := _COUNTED.fullmatch(token):
                values_by_key.setdefault("devices", {})[match["devices"]] = token
                unknown.remove(token)
    unclear = {key for key, values in values_by_key.items() if len(values) > 1}
    remarks = [
        f"its name has {' and '.join(dict.fromkeys(values_by_key[key].values()))}: neither is taken" for key in unclear
    ]
    unclear |= {*_SIZES} if unclear & {*_SIZES} else set()
    return _NameFacts(
        values={key: next(iter(values)) for key, values in values_by_key.items() if key not in unclear},
        options=options,
        unknown=tuple(unknown),
        remarks=tuple(dict.fromkeys(sorted(remarks))),
    )


@lru_cache(maxsize=4096)
def _facts_of_word(token: str) -> Mapping[str, str] | None:
    """The facts in a word; None if it is unknown."""
    for pattern in _WORD_PATTERNS:
        if match := pattern.fullmatch(token):
            values = match.groupdict()
            if cards := int(values.pop("cards", 0)):  # Paddle's N4C32: 4 nodes, 32 cards in all
                each, rest = divmod(cards, int(values["nodes"]) or cards + 1)
                values = {"devices": str(cards)} if rest else {**values, "gpus_per_node": str(each)}
            values |= {key: values[key].lstrip("0") or "0" for key in _NUMBERS if key in values}
            if "precision" in values:
                values["precision"] = PRECISIONS[values["precision"].lower()]
            return values
    name = model_name(token)
    return {"model": name} if name != token.lower() or _RESNET.fullmatch(name) or name in _OTHER_MODELS else None


@lru_cache(maxsize=4096)
def _facts_of_folders(folder: str) -> _NameFacts:
    """The nearest folder that states a fact is believed; contradictions stay in the folders' names."""
    parts = [part for part in Path(folder).parts if part != os.sep]
    facts_per_folder = [_facts_of_folder(part) for part in parts]
    sized = max(
        (at for at, facts in enumerate(facts_per_folder) if facts and "nodes" in facts.values), default=len(parts)
    )
    repeat: int | None = None
    values: dict[str, str] = {}
    options: dict[str, str] = {}
    unread: list[str] = []
    remarks: list[str] = []
    for at in reversed(range(len(parts))):
        facts = facts_per_folder[at]
        if facts is None:
            match = _REPEAT_FOLDER.fullmatch(parts[at]) if at > sized and repeat is None else None
            if match:
                repeat = int(match["repeat"]) or None
            else:
                unread.append(parts[at])
            continue
        other = {key: value for key, value in facts.values.items() if values.get(key, value) != value}
        if other:
            unread.append(parts[at])
            if "model" not in other:
                remarks.append(f"its folder {parts[at]} contradicts one nearer to the file, which is taken")
        else:
            values |= facts.values
            options = {**facts.options, **options}
            remarks += facts.remarks
            if facts.unknown:
                unread.append("_".join(facts.unknown))
    runs = (repeat,) if repeat else ()
    return _NameFacts(
        values=values, options=options, unknown=tuple(reversed(unread)), runs=runs, remarks=tuple(remarks)
    )


def _facts_of_folder(part: str) -> _NameFacts | None:
    """The facts in a folder's name, if each of its words states one or names a system."""
    if match := _INSIGHTFACE.fullmatch(part):
        return _insightface(match)
    facts = _facts_of_words([token for token in part.split("_") if token])
    if not (facts.values or facts.options) or any(
        part.lower() not in SYSTEMS for token in facts.unknown for part in token.split("-")
    ):
        return None
    return facts


def _insightface(match: re.Match[str]) -> _NameFacts:
    first = match["first"]
    switch = {"true": "1", "false": "0"}
    options = {name: switch.get(match[name].lower(), match[name]) for name in ("model_parallel", "partial_fc")}
    if match["sample_ratio"]:
        options["sample_ratio"] = match["sample_ratio"]
    values = {"batch_size": match["batch_size"], "precision": PRECISIONS[match["precision"].lower()]}
    if first.isdecimal():
        options["classes"] = first
    elif facts := _facts_of_word(first):
        values |= {key: value for key, value in facts.items() if key == "model"}
    else:
        options["classes"] = first
    return _NameFacts(values=values, options=options, unknown=("oneflow",))


# The sizes of a run: nodes, devices, batch sizes, by what a log says, else its names, else the command line.


NOWHERE = PathFacts()


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes, None if unknown. `batch_size` is per device; `per_step` is what all devices take in per printed step, in
    the unit of the log's format."""

    nodes: int | None
    devices: int | None
    batch_size: int | None
    per_step: float | None


def size_of(facts: Mapping[str, str], place: PathFacts, otherwise: PathFacts, remarks: list[str]) -> Size:
    """Sizes by the log, else its names, else the command line; a remark where log and names differ.

    Batch sizes of one of several workers, whose number it does not print, are not those of all.
    """
    if facts.get("worker"):
        facts = {name: value for name, value in facts.items() if name != "global_batch_size"}
    devices, nodes = _devices(facts, place, otherwise, remarks)
    batch_size, per_step = _batch(_of_each(facts, devices, nodes), place, otherwise, devices, remarks)
    return Size(nodes=nodes, devices=devices, batch_size=batch_size, per_step=per_step)


def _devices(
    facts: Mapping[str, str], place: PathFacts, otherwise: PathFacts, remarks: list[str]
) -> tuple[int | None, int | None]:
    world, nodes, each = (whole_number(facts.get(name)) for name in ("world_size", "nodes", "gpus_per_node"))
    if world and nodes and each and world != nodes * each:
        remarks.append(f"it says world size {world}, and {nodes} nodes of {each} GPUs: the world size is taken")
        nodes = each = None
    devices = (
        world
        or (nodes * each if nodes and each else None)
        or _by_processes(facts, remarks)
        or _by_micro_batches(facts, remarks)
    )
    if devices and place.devices and place.devices != devices:
        remarks.append(f"it ran on {devices} devices, its name says {place.devices}: the log is believed")
    elif nodes and place.nodes and place.nodes != nodes:
        remarks.append(f"it ran on {nodes} nodes, its name says {place.nodes}: the log is believed")
    if devices is None and place.devices is None:
        devices = _by_batches(facts, nodes or place.nodes, each or place.gpus_per_node, remarks)
    if devices is None:
        sized = place if place.devices else otherwise
        devices = nodes * sized.gpus_per_node if nodes and sized.gpus_per_node else sized.devices
    if devices is None:
        return None, nodes or place.nodes
    if nodes is None and each and devices % each == 0:
        nodes = devices // each
    if nodes is None and devices > 1:
        nodes = next(
            (source.nodes for source in (place, otherwise) if source.devices == devices and source.nodes), None
        )
    return devices, 1 if devices == 1 else nodes if nodes and devices % nodes == 0 else None


def _by_micro_batches(facts: Mapping[str, str], remarks: list[str]) -> int | None:
    """The devices, where a header has the batch, and of a device its passes per step and their size."""
    names = "global_batch_size", "micro_batch_size", "micro_batches"
    whole, size, passes = (whole_number(facts.get(name)) for name in names)
    if not (whole and size and passes) or whole % (size * passes):
        return None
    devices = whole // (size * passes)
    remarks.append(f"its {plural(devices, 'device')}: {whole} samples a step / {size} a pass / {passes} passes a step")
    return devices


def _by_processes(facts: Mapping[str, str], remarks: list[str]) -> int | None:
    """The devices of all processes, where each prints its rank and the log says how many devices one has.

    One process may print for all, so that a single rank says nothing.
    """
    processes, each = whole_number(facts.get("processes")), whole_number(facts.get("gpus_per_process"))
    if not processes or not each or processes == 1:
        return None
    devices, by_batches = processes * each, _quotient(facts)
    if by_batches in (None, devices):
        return devices
    remarks.append(
        f"ranks 0 to {processes - 1} print in it, which makes {devices} devices, but its batch sizes make "
        f"{by_batches}: neither is taken"
    )
    return None


def _by_batches(facts: Mapping[str, str], nodes: int | None, each: int | None, remarks: list[str]) -> int | None:
    """The global batch size / that of a device, where it is whole and fits the nodes and the devices of one."""
    devices = _quotient(facts)
    if devices is None or (nodes and devices % nodes) or (each and devices % each) or (nodes and each):
        return None
    if not whole_number(facts.get("accumulation")):
        remarks.append(
            f"{facts['global_batch_size']} samples a step, {facts['batch_size']} on each device: {devices} devices, if "
            "no gradients are accumulated"
        )
    return devices


def _quotient(facts: Mapping[str, str]) -> int | None:
    whole, local = whole_number(facts.get("global_batch_size")), whole_number(facts.get("batch_size"))
    each = (local or 0) * (whole_number(facts.get("accumulation")) or 1)
    return whole // each if whole and each and whole % each == 0 else None


def _of_each(facts: Mapping[str, str], devices: int | None, nodes: int | None) -> Mapping[str, str]:
    """The facts with the batch of a device, if the log has that of a node."""
    of_node = whole_number(facts.get("node_batch_size"))
    if not (of_node and devices and nodes) or of_node % (devices // nodes):
        return facts
    return {"batch_size": str(of_node // (devices // nodes)), **facts}


def _batch(
    facts: Mapping[str, str], place: PathFacts, otherwise: PathFacts, devices: int | None, remarks: list[str]
) -> tuple[int | None, int | None]:
    local, whole = whole_number(facts.get("batch_size")), whole_number(facts.get("global_batch_size"))
    accumulated = whole_number(facts.get("accumulation")) or 1
    named = place.batch_size
    if local is None and whole and devices and whole % (devices * accumulated) == 0:
        local = whole // (devices * accumulated)
        if named and local > named and local % named == 0:
            remarks.append(
                f"{local} samples a step and device are {local // named} times the batch size {named} of its name: "
                "gradients are accumulated"
            )
            return named, whole // accumulated
    if local and named and local != named:
        remarks.append(f"it ran with batch size {local}, its name says {named}: the log is believed")
    local = local or (None if whole else named or otherwise.batch_size)
    product = local * devices if local and devices else None
    if whole is None or (product and whole in (product, product * accumulated)):
        return local, product
    if product is None:
        return local, whole // accumulated if whole % accumulated == 0 else None
    remarks.append(
        f"it says {whole} samples a step, and batch size {local} on {devices} devices, which is {product}: the former "
        "is taken"
    )
    return whole // devices if devices and whole % devices == 0 else None, whole


def whole_number(value: object, max_digits: int = 9) -> int | None:
    """The count that a text or a JSON value holds; None if it holds none, 0 or too many digits."""
    text = str(value).strip()
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) <= max_digits else None
