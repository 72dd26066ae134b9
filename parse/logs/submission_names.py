"""Sizes in the names of MLPerf's submissions: `2xXE9680x8H200-SXM-141GB`, `18xBM.GPU.GB200.4`, `eos_n128`, `ngpu1536`.

Only read for logs with MLPerf's lines: a word as `n4` may mean anything elsewhere. In a clone of the results the file
of the system counts, `SUBMITTER/systems/SYSTEM.json`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpc.system.regular_file import parse_json, read_text
from parse.logs.path_facts import PathFacts
from parse.logs.sizes import whole_number

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
        r"^(?:ipu-pod|POD)(?P<devices>[1-9]\d{0,4})(?![0-9])",  # Graphcore's IPU-POD16 has 16
    )
)
"""Systems, and the devices of each."""
_DEVICES = tuple(
    re.compile(rf"(?<![A-Za-z0-9.]){form}")
    for form in (
        r"ngpu(?P<devices>\d{1,6})(?![A-Za-z0-9])",  # theia_ngpu16_ngc25.09_nemo
        rf"(?P<devices>\d{{1,4}})x{_DEVICE}{_END}",  # 8xH100
        rf"(?P<nodes>[1-9]\d{{0,4}})_nodes?_(?P<devices>[1-9]\d{{0,5}})_{_DEVICE}{_END}",  # 8_node_64_A100
        rf"{_DEVICE}(?:[-_][A-Z0-9]+)*?x(?P<devices>\d{{1,4}})(?![A-Za-z0-9])",  # GX2560M7_H100_SXM_80GBx4
    )
)
"""Devices alone; in a submission_platform `4xNVIDIA DGX-2H` counts systems."""
_PRODUCTS = tuple(
    (re.compile(rf"^{form}{_END}", re.I), each)
    for form, each in (
        (r"dgx[_-]?(?:a100|h100|h200|b200|b300)", 8), (r"dgx[_-]?1", 8), (r"dgx[_-]?2h?", 16),
        (r"ND(?:96\w{1,6}_A100_v4|_H[12]00_v5)", 8),
        (r"ND_GB200_v6", 4), (r"NC96ads_A100_v4", 4),
    )
)  # fmt: skip
"""Machines of which each has so many GPUs, by NVIDIA's and Azure's data sheets."""
_NODES = re.compile(r"(?<![A-Za-z0-9.])n(?P<nodes>[1-9]\d{0,4})(?![A-Za-z0-9.])")
"""`eos_n128_ngc24.09_nemo`; `N8` in capitals is part of a machine's name."""
_NUMBERED = re.compile(r"HLS-\w+-N(?P<nodes>[1-9]\d{0,4})(?![A-Za-z0-9])")
"""`HLS-Gaudi2-N48-PT`: so many systems. A platform that does not give them 4 or 8 each (`gaudi-8` of 64) is none."""
MAX_SYSTEM_BYTES = 1 << 16


def is_submission(facts: Mapping[str, str]) -> bool:
    """Whether a log has the lines of one."""
    return "platform" in facts or "submitter" in facts


def with_submission(place: PathFacts, path: Path, facts: Mapping[str, str]) -> PathFacts:
    """The facts of the path, with the sizes of the submission's file of its system, else of its platform, else of its
    folders' names where it has none; a remark says where these are from."""
    if place.devices or not is_submission(facts):
        return place
    of_system = _system_file(path)
    if isinstance(of_system, str):
        place = dataclasses.replace(place, remarks=(*place.remarks, of_system))
    elif of_system:
        return _with_sizes(place, *of_system)
    names = [*_texts(path, facts)]
    numbered = [int(match["nodes"]) for _, text in names if (match := _NUMBERED.search(text))]
    known = [(f"{source} {text}", sizes) for source, text in names if (sizes := _sizes(text, facts))]
    fitting = [its for its in known if all(its[1].get("devices", 0) / nodes in (4, 8) for nodes in numbered)]
    if not fitting:
        return place
    counted = whole_number(facts.get("nodes"))
    systems = [(f"its submission_platform {facts.get('platform', '')}", {"nodes": counted})] if counted else []
    if others := [its for its in (*fitting[1:], *systems) if _differ(its[1], fitting[0][1])]:
        (source, sizes), (other, its) = fitting[0], others[0]
        text = f"{_sizes_text(sizes)} by {source}, but {_sizes_text(its)} by {other}: its devices are not known"
        return dataclasses.replace(place, remarks=(*place.remarks, text))
    return _with_sizes(place, *fitting[0])


def _sizes(text: str, facts: Mapping[str, str]) -> dict[str, int]:
    """The sizes in a platform or the name of a folder."""
    is_platform = text == facts.get("platform")
    sizes = sizes_in(text, platform=is_platform)
    if is_platform or sizes.get("devices"):
        return sizes
    return _of_product(text, sizes.get("nodes") or whole_number(facts.get("nodes"))) or sizes


def _differ(sizes: Mapping[str, int], others: Mapping[str, int]) -> bool:
    return any(sizes[name] != others[name] for name in ("devices", "nodes") if name in sizes and name in others)


def _with_sizes(place: PathFacts, source: str, sizes: Mapping[str, int]) -> PathFacts:
    return dataclasses.replace(
        place,
        nodes=sizes.get("nodes", place.nodes),
        gpus_per_node=sizes.get("gpus_per_node", place.gpus_per_node),
        devices=sizes.get("devices"),
        remarks=(*place.remarks, f"{_sizes_text(sizes)}: by {source}"),
    )


def _texts(path: Path, facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if platform := facts.get("platform"):
        yield "its submission_platform", platform
    folders = [name for name in path.absolute().parts[-LEVELS - 1 : -1][::-1] if name != "results"]
    yield from (("its folder", name) for name in folders)


def _system_file(path: Path) -> tuple[str, dict[str, int]] | str | None:
    """The file of a submission that describes its system, in `systems` beside `results`, and the sizes in it; a remark
    where it cannot be read, None where it is not there or has none."""
    folders = path.absolute().parents
    if len(folders) < LEVELS or folders[2].name != "results":
        return None
    try:
        system = parse_json(read_text(folders[3] / "systems" / f"{folders[1].name}.json", MAX_SYSTEM_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        return f"the submission's systems/{folders[1].name}.json cannot be read, and its sizes are not used: {reason}"
    values = system if isinstance(system, dict) else {}
    nodes, each = (whole_number(str(values.get(key, ""))) for key in ("number_of_nodes", "accelerators_per_node"))
    if not nodes or not each:
        return None
    return f"the submission's systems/{folders[1].name}.json", {
        "nodes": nodes,
        "gpus_per_node": each,
        "devices": nodes * each,
    }


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


def _of_product(folder: str, nodes: int | None) -> dict[str, int]:
    """The sizes of so many machines that the folder names; a platform alone may be a placeholder."""
    each = next((each for product, each in _PRODUCTS if product.search(folder)), 0)
    return {"nodes": nodes, "gpus_per_node": each, "devices": nodes * each} if nodes and each else {}


def _on_nodes(sizes: Mapping[str, int], nodes: int) -> dict[str, int]:
    """What a number of nodes adds to the other sizes of a name."""
    if each := sizes.get("gpus_per_node"):
        return {"nodes": nodes, "devices": nodes * each}
    devices = sizes.get("devices", 0)
    return {"nodes": nodes} if devices % nodes == 0 else {}


def _sizes_text(sizes: Mapping[str, int]) -> str:
    names = {"nodes": "nodes", "gpus_per_node": "GPUs per node", "devices": "devices"}
    return ", ".join(f"{sizes[name]} {words}" for name, words in names.items() if name in sizes)
