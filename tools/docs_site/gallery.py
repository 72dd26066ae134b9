"""Six examples for the documents: what the commands print, and the page, made when the documents are built.

Five are of traces that the tests' machine simulates, one of a published table. Nothing in them was measured here.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.spec import RunSpec
from parse.report.__main__ import main as report
from parse.summarize import main as summarize
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.page_folders import put_sweep
from tests.unit.simulated import MS
from tests.unit.simulated_graph import Delay, Mesh, Model, simulate_graph
from tests.unit.traces import put, put_plan, repeats

ROOT = Path(__file__).parents[2]
SERIES = "InternLM 7B tp=1 zero1=8"
TABLE = "internlm.md"


@dataclass(frozen=True)
class Example:
    """`put` writes the inputs into a folder; `text` is the command whose output is shown, `page` the one that writes
    page.html."""

    name: str
    title: str
    says: str
    put: Callable[[Path], object]
    text: str = "rankwise summarize traces/ --ledger"
    page: str = "rankwise report traces/ --out page.html"


@dataclass(frozen=True)
class Shown:
    """An example as Markdown, and the files beside it: its page, the figure of its section."""

    name: str
    title: str
    says: str
    markdown: str
    files: dict[str, str]


def put_points(folder: Path, nodes: tuple[int, ...], longer: dict[str, Any], first_late: int = 2) -> None:
    """Three runs of each node count, 1n1g and then two ranks a node; phases are `longer` from `first_late` nodes on.
    Communication grows by 0.8 ms for each doubling."""
    plan: list[RunSpec] = []
    for number in nodes:
        ranks = 1 if number == 1 else 2
        run = run_of(nodes=number, ranks_per_node=ranks, workload="resnet50", backend="torch-ddp", measured_steps=60)
        communication = 0.05 if number == 1 else 1.0 + 0.8 * float(np.log2(number))
        late = longer if number >= first_late else {}
        plan += repeats(run, 3)
        for each in plan[-3:]:
            seed = 10 * number + each.repeat
            put(folder / "traces", trace_of(each, noise=0.05, seed=seed, communication=communication, **late))
    put_plan(folder / "traces", plan)


def put_demo(folder: Path) -> None:
    put_sweep(folder / "traces", nodes=(1, 2, 4))


def put_slow_loader(folder: Path) -> None:
    put_points(folder, (1, 2, 4), {"data": on(1, ms=12.0, every=4)})


def put_slow_node(folder: Path) -> None:
    put_points(folder, (1, 2, 4), {"backward": on(2, 3, ms=3.0)})


def put_groups(folder: Path) -> None:
    """FSDP2 × TP: weights are gathered a layer ahead in replicas of two ranks; on two nodes rank 5 is late."""
    plan: list[RunSpec] = []
    for nodes in (1, 2):
        run = run_of(nodes=nodes, ranks_per_node=4, workload="gpt", backend="torch-fsdp")
        late = [Delay(ranks=(5,), phase="backward", ns=6 * MS)] if nodes > 1 else []
        plan += repeats(run, 3)
        for each in plan[-3:]:
            random = np.random.default_rng(each.repeat)
            mesh = Mesh(dp=2 * nodes, tp=2)
            put(folder / "traces", simulate_graph(mesh, Model(gathers=True), random, run=each, delays=late).trace)
    put_plan(folder / "traces", plan)


def put_published(folder: Path) -> None:
    """The table of a published series, from the file that scores the forecasts."""
    with (ROOT / "benchmarks" / "forecast_series.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == SERIES]
    lines = [f"| {row['nodes']} | {row['devices']} | {row['speed_per_device']} |" for row in rows]
    (folder / TABLE).write_text("\n".join(["| nodes | GPUs | tokens/s per GPU |", "|---|---|---|", *lines, ""]))


def put_proposal(folder: Path) -> None:
    put_points(folder, (1, 2, 4, 8), {})


COLUMNS = '--columns "nodes=nodes,gpus=GPUs,tokens_per_s_per_gpu=tokens/s per GPU"'
EXAMPLES = (
    Example(
        "demo",
        "A late rank",
        "The traces of the picture on the first page: rank 3 computes 6 ms longer in every step, and one run of nine "
        "ended for lack of memory.",
        put_demo,
    ),
    Example("slow-loader", "A slow loader", "Rank 1 waits 12 ms for its data in one of four steps.", put_slow_loader),
    Example(
        "slow-node",
        "A slow node",
        "Both ranks of node n1 compute 3 ms longer in every step.",
        put_slow_node,
    ),
    Example(
        "groups",
        "FSDP2 × tensor parallelism",
        "Eight ranks on two nodes, in four replicas of two ranks that share each layer. Rank 5 computes 6 ms longer: "
        "its partner waits in `tp`, then everybody in `dp`.",
        put_groups,
    ),
    Example(
        "published",
        "A published series",
        f"Tokens/s per GPU of {SERIES} as its authors print them (doc/en/train_performance.md of InternLM/InternLM).",
        put_published,
        text=f"rankwise summarize {TABLE} {COLUMNS}",
        page=f"rankwise report --published {TABLE} {COLUMNS} --out page.html",
    ),
    Example(
        "proposal",
        "A proposal for compute time",
        "The section that a proposal asks for: speedup by nodes, the recommended size, its node hours.",
        put_proposal,
        text="rankwise report traces/ --format markdown-report --samples 9e9 --forecast 16,32 --out section.md",
        page="rankwise report traces/ --forecast 16,32 --out page.html",
    ),
)


def run(command: str, folder: Path) -> str:
    """What the command prints in the folder. Raises RuntimeError where its exit status is not 0."""
    _, name, *arguments = shlex.split(command)
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        status = {"report": report, "summarize": summarize}[name](arguments)
    if status:
        raise RuntimeError(f"{command}: exit status {status}\n{printed.getvalue()}")
    return printed.getvalue()


def shown(examples: tuple[Example, ...], folder: Path) -> Iterator[Shown]:
    """Each example, made in a folder of its own below this one."""
    for example in examples:
        place = folder / example.name
        (place / "traces").mkdir(parents=True)
        example.put(place)
        text = run(example.text, place)
        run(example.page, place)
        section = place / "section.md"
        printed = f"```console\n$ {example.text}\n{'' if section.exists() else text}```"
        if section.exists():
            printed += "\n\nwrites:\n\n" + re.sub(r"^#+ .*\n", "", section.read_text(), flags=re.MULTILINE)
        real = "Published figures; nothing was measured here." if example.name == "published" else "Simulated traces."
        yield Shown(
            example.name,
            example.title,
            example.says,
            f"# {example.title}\n\n{example.says} *{real}*\n\n{printed}\n\n## Its page\n\n"
            f"```console\n$ {example.page}\n```\n\n[Open it](page-{example.name}.html) by itself.\n\n"
            f'<iframe class="page" src="page-{example.name}.html" title="{example.title}: its page" '
            f'loading="lazy"></iframe>\n',
            {
                f"page-{example.name}.html": (place / "page.html").read_text(),
                **{path.name: path.read_text() for path in place.glob("*.svg")},
            },
        )
