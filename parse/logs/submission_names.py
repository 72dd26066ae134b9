"""Sizes in the names of MLPerf's submissions: `2xXE9680x8H200-SXM-141GB`, `18xBM.GPU.GB200.4`, `eos_n128`, `ngpu1536`.

Only read for logs with MLPerf's lines: a word as `n4` may mean anything elsewhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from parse.logs.path_facts import PathFacts

LEVELS = 4
"""Names that are looked at: the file's, and those of its folders, the nearest first."""
_DEVICE = r"(?:(?:GB|[HABLVT])\d{2,4}[A-Z]{0,4}|MI\d{3}[A-Z]?|RTX\w*|Gaudi\d?)"
_SYSTEM = r"^(?:(?P<nodes>\d{1,5})x)?[A-Za-z](?:(?!x\d+x\d)[A-Za-z0-9_. -])*?"
_END = r"(?![a-z0-9])"
_SYSTEMS = tuple(
    re.compile(form)
    for form in (
        rf"{_SYSTEM}x(?P<each>\d{{1,2}})x?{_DEVICE}{_END}",  # 2xXE9680x8H200-SXM-141GB
        rf"{_SYSTEM}[-_](?P<each>\d{{1,2}})x{_DEVICE}{_END}",  # 8xR750-2xA100-PCIe-80GB
        rf"^(?P<nodes>\d{{1,5}})x(?P<each>\d{{1,2}})x{_DEVICE}{_END}",  # 6x8xH100-SXM5-80GB
        r"^(?:(?P<nodes>\d{1,5})x)?BM\.GPU\.[A-Z0-9-]+\.(?P<each>\d{1,2})(?![A-Za-z0-9.])",  # 18xBM.GPU.GB200.4
        r"^gaudi-(?P<devices>\d{1,5})$",
    )
)
"""Systems, and the devices of each."""
_DEVICES = tuple(
    re.compile(rf"(?<![A-Za-z0-9.]){form}")
    for form in (
        r"ngpu(?P<devices>\d{1,6})(?![A-Za-z0-9])",  # theia_ngpu16_ngc25.09_nemo
        rf"(?P<devices>\d{{1,4}})x{_DEVICE}{_END}",  # 8xH100
        rf"{_DEVICE}(?:[-_][A-Z0-9]+)*?x(?P<devices>\d{{1,4}})(?![A-Za-z0-9])",  # GX2560M7_H100_SXM_80GBx4
    )
)
"""Devices alone; in a submission_platform `4xNVIDIA DGX-2H` counts systems."""
_NODES = re.compile(r"(?<![A-Za-z0-9.])n(?P<nodes>[1-9]\d{0,4})(?![A-Za-z0-9.])")
"""`eos_n128_ngc24.09_nemo`; `N8` in capitals is part of a machine's name."""
_NUMBERED = re.compile(r"HLS-\w+-N(?P<nodes>[1-9]\d{0,4})(?![A-Za-z0-9])")
"""`HLS-Gaudi2-N48-PT`: so many systems, or devices. A platform that does not fit (`gaudi-8` of 64) is none."""


def is_submission(facts: Mapping[str, str]) -> bool:
    """Whether a log has the lines of one."""
    return "platform" in facts or "submitter" in facts


def with_submission(place: PathFacts, path: Path, facts: Mapping[str, str]) -> PathFacts:
    """The facts of the path, with the sizes of the submission's platform or of its folders' names where it has none; a
    remark says where these are from."""
    if place.devices or not is_submission(facts):
        return place
    names = [*_texts(path, facts)]
    numbered = [int(match["nodes"]) for _, text in names if (match := _NUMBERED.search(text))]
    for source, text in names:
        sizes = sizes_in(text, platform=text == facts.get("platform"))
        if sizes and not any(sizes.get("devices", 0) % nodes for nodes in numbered):
            remark = f"{_sizes_text(sizes)}: by {source} {text}"
            return dataclasses.replace(
                place,
                nodes=sizes.get("nodes", place.nodes),
                gpus_per_node=sizes.get("gpus_per_node", place.gpus_per_node),
                devices=sizes.get("devices"),
                remarks=(*place.remarks, remark),
            )
    return place


def _texts(path: Path, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if platform := facts.get("platform"):
        yield "its submission_platform", platform
    folders = [name for name in path.absolute().parts[-LEVELS - 1 : -1][::-1] if name != "results"]
    yield from (("its folder", name) for name in folders)


def sizes_in(text: str, *, platform: bool = False) -> dict[str, int]:
    """`nodes`, `gpus_per_node` and `devices`, as far as the name of a folder or a platform states them; empty where it
    states none."""
    sizes: dict[str, int] = {}
    forms = _SYSTEMS if platform else (*_SYSTEMS, *_DEVICES)
    if match := next((match for form in forms if (match := form.search(text))), None):
        sizes = {name: int(number) for name, number in match.groupdict().items() if number}
        if each := sizes.pop("each", 0):
            sizes |= {"gpus_per_node": each, "devices": each * sizes.get("nodes", 1)}
    if "nodes" not in sizes and (match := _NODES.search(text)):
        sizes |= _on_nodes(sizes, int(match["nodes"]))
    return {} if 0 in sizes.values() else sizes


def _on_nodes(sizes: Mapping[str, int], nodes: int) -> dict[str, int]:
    """What a number of nodes adds to the other sizes of a name."""
    if each := sizes.get("gpus_per_node"):
        return {"nodes": nodes, "devices": nodes * each}
    devices = sizes.get("devices", 0)
    return {"nodes": nodes} if devices % nodes == 0 else {}


def _sizes_text(sizes: Mapping[str, int]) -> str:
    names = {"nodes": "nodes", "gpus_per_node": "GPUs per node", "devices": "devices"}
    return ", ".join(f"{sizes[name]} {words}" for name, words in names.items() if name in sizes)
