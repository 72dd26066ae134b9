"""parse.summarize --against: published figures beside own ones, and what tells the two apart."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc.model.reference import read_recipe
from hpc.model.spec import RunSpec
from parse.report.against import against
from parse.report.summary import Summary
from parse.report.table import FORMATS, text
from parse.summarize import main
from parse.text import Page
from tests.unit.logs import made
from tests.unit.traces import judged, make_run, make_trace, point

NGC = make_run(
    backend="torch-ddp", workload="resnet50", batch_size=128, warmup_steps=20, measured_steps=100, timing="step",
    options={"recipe": "ngc", "image_size": "224"}, gpus_per_node=1,
)  # fmt: skip
PADDLE_ENV = {
    "FLAGS_fraction_of_gpu_memory_to_use": "0.98", "FLAGS_conv_workspace_size_limit": "4000",
    "FLAGS_cudnn_exhaustive_search": "1", "FLAGS_cudnn_batchnorm_spatial_persistent": "1",
}  # fmt: skip


def on(devices: int, run: RunSpec = NGC, **changes: Any) -> RunSpec:
    return dataclasses.replace(run, ranks_per_node=devices, gpus_per_node=devices, **changes)


def summary(name: str, *runs: RunSpec, speed: float = 732.28) -> Summary:
    """The summary of those points, each run at the speed of 2.00 times the published 1n1g of NGC."""
    results = judged([trace for run in runs for trace in point(run, [speed])])
    return Summary(results=results, against=against(read_recipe(name), results))


def shown(of: Summary) -> str:
    """The text of the table with wrapped lines joined."""
    return text(of).replace("\n  ", " ")


def json_of(of: Summary) -> Any:
    return json.loads(FORMATS["json"](of))


def differences(name: str, run: RunSpec, **changes: Any) -> list[str]:
    results = judged([make_trace(run, **changes)])
    (beside,) = against(read_recipe(name), results).points.values()
    return [difference.text for difference in beside.differences]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"backend": "torch-horovod"}, ["backend torch-horovod, not torch-ddp"]),
        ({"precision": "bf16"}, ["precision bf16, not fp32"]),
        ({"scaling": "strong"}, ["scaling strong, not weak"]),
        ({"timing": "phases"}, ["timing phases, not step"]),
        ({"measured_steps": 40}, ["steps 60 with 20 of warm-up, not 120 with 20 of warm-up"]),
        ({"gpus_per_node": 0}, ["devices CPUs, not GPUs"]),
        ({"options": {"image_size": "64"}}, ["recipe its default, not ngc", "image_size 64, not 224"]),
        ({"options": {**NGC.options, "compile": "on"}}, ["compile on, not its default"]),
        ({"env": {"NCCL_ALGO": "Ring"}}, ["env.NCCL_ALGO Ring, not unset"]),
        ({}, []),
    ],
)
def test_settings_that_differ(changes: dict[str, Any], expected: list[str]) -> None:
    assert differences("ngc-pytorch-resnet50", dataclasses.replace(NGC, **changes)) == expected


def test_options_are_compared_as_they_were_in_effect() -> None:
    run = dataclasses.replace(NGC, options={})
    environment = {"options": {"image_size": 224, "recipe": "ngc", "static_graph": True}}
    assert differences("ngc-pytorch-resnet50", run, environment=environment) == []
    environment["options"]["image_size"] = 160
    assert differences("ngc-pytorch-resnet50", run, environment=environment) == ["image_size 160, not 224"]


def test_the_table_with_the_nearest_settings_is_taken() -> None:
    fp16 = dataclasses.replace(NGC, backend="paddle-fleet", precision="amp-fp16", batch_size=224, env=PADDLE_ENV)
    medians = {}
    for loss_scale, batch_size in (("dynamic", 224), ("128.0", 224), ("dynamic", 200)):
        run = dataclasses.replace(fp16, batch_size=batch_size, options={**NGC.options, "loss_scale": loss_scale})
        (result,) = json_of(summary("paddle-resnet50", run))["results"]
        medians[loss_scale, batch_size] = result["against"]["median_speed"], len(result["against"]["differences"])
    assert medians == {("dynamic", 224): (1034.64, 0), ("128.0", 224): (1001.23, 0), ("dynamic", 200): (887.17, 2)}


def two_bases() -> Summary:
    """The own base, 1n2g, has no figure there: published speedups are against one device, and one that is not known."""
    of = summary("ngc-pytorch-resnet50", on(2), on(4), on(8))
    assert of.against is not None
    eight = of.results[-1].requested.point
    beside = of.against.points[eight]
    unknown = dataclasses.replace(
        beside, printed_base=None, published=dataclasses.replace(beside.published, speedup=None)
    )
    points = {**of.against.points, eight: unknown}
    return dataclasses.replace(of, against=dataclasses.replace(of.against, points=points))


DP = dataclasses.replace(NGC, backend="torch-dp", gpus_per_node=8, batch_size=32)
OTHER = dataclasses.replace(NGC, backend="mpi", workload="delay", options={})
SUMMARIES: dict[str, Callable[[], Summary]] = {
    "settings as published": lambda: summary("ngc-pytorch-resnet50", NGC),
    "other batch sizes and cases": lambda: summary(
        "ngc-pytorch-resnet50", NGC, on(8), dataclasses.replace(on(8), batch_size=16), on(2)
    ),
    "other workloads": lambda: summary("ngc-pytorch-resnet50", on(8), on(2), OTHER),
    "no speed printed": lambda: summary(
        "ngc-tensorflow-resnet50",
        on(8, backend="tensorflow-horovod", batch_size=256, precision="amp-fp16", options={}),
    ),
    "no speedup printed": lambda: summary("pytorch-examples-resnet50", DP),
    "a speedup printed": lambda: summary("pytorch-examples-resnet50", dataclasses.replace(DP, batch_size=128)),
    "without one device": lambda: summary("ngc-pytorch-resnet50", on(4), on(8)),
    "with one device": lambda: summary("ngc-pytorch-resnet50", NGC, on(4), on(8)),
    "two bases": two_bases,
}


def test_summaries_beside_published_figures_are_as_in_the_golden_file(golden: Callable[[str, str], None]) -> None:
    written = ""
    for title, make in SUMMARIES.items():
        of = make()
        beside = [json.dumps(result["against"]) for result in json_of(of)["results"]]
        written += "\n".join([f"# {title}", text(of, Page(width=140)), *beside, json.dumps(json_of(of)["against"]), ""])
    golden("summary_against.txt", written)


def test_machine_formats_have_the_columns() -> None:
    of = SUMMARIES["other workloads"]()
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](of))))
    assert [row["against_median_speed"] for row in rows] == ["", "", "2802.14"]
    assert "packed jobs" in rows[2]["against_alarms"]
    assert "| published (samples/s) | ratio | published speedup (against 1n1g) |" in FORMATS["markdown"](of)
    assert "* published 1n8g (ResNet50 v1.5" in FORMATS["markdown"](of)


def test_a_precision_that_a_log_does_not_state_is_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1n1g").mkdir()
    (tmp_path / "1n1g" / "resnet50.log").write_text(made.pytorch_imagenet(made.steps(347.12, 128)))
    argv = [str(tmp_path), "--against", "pytorch-examples-resnet50", "--batch-size", "128"]
    assert main(argv) == 0
    page = capsys.readouterr().out.replace("\n  ", " ")
    assert "(1.000)" in page and "1n1g: precision not stated, fp32 in the recipe\n" in page
