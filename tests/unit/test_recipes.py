"""Recipes: what is in them, a sweep from one, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpc.backends.refusals import refuse_invalid
from hpc.model.reference import Reference, ReferenceFileError, known_recipes, read_recipe
from hpc.model.spec import Plan, SpecError, Target
from launch import catalog
from launch.sweep.cli import read_arguments
from launch.sweep.expansion import expand, expand_all
from launch.sweep.recipes import departures, refuse_impossible
from launch.sweep.spec import SweepSpec, joined
from parse.logs.formats import FORMATS
from tests.unit.sweep_command import plan_of
from tests.unit.sweep_command import sweep as command

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no published documents at {REFERENCE}")
NAMES = ("ngc-pytorch-resnet50", "ngc-tensorflow-resnet50", "paddle-resnet50", "plsc-arcface",
         "pytorch-examples-resnet50")  # fmt: skip
DOCUMENTS = dict(zip(NAMES, ("000", "004", "002", "003", "001"), strict=True))
GPUS = Target(site="big", gpus_per_node=8, cpus_per_node=64)
CPUS = Target(site="small", gpus_per_node=0, cpus_per_node=64)


def sweeps(name: str, *argv: str) -> tuple[SweepSpec, ...]:
    return read_arguments(["--recipe", name, *argv]).sweeps


def points(requested: tuple[SweepSpec, ...], target: Target = GPUS) -> set[tuple[str, str, int, str]]:
    """Case, backend, batch size and precision of every point of a plan, less the added baselines."""
    plain = [SweepSpec(**{**vars(sweep), "no_baseline": True}) for sweep in requested]
    return {(run.case, run.backend, run.batch_size, run.precision) for run in planned(plain, target).runs}


def planned(requested: Sequence[SweepSpec], target: Target) -> Plan:
    return expand_all(requested, joined(requested), target)


def refuse(name: str, target: Target, *argv: str, unable: dict[str, str] | None = None) -> None:
    def plan(sweep: SweepSpec) -> None:
        refuse_invalid(expand(sweep, target).runs)

    refuse_impossible(read_recipe(name), sweeps(name, *argv), plan, unable or {})


def test_the_five_references_have_a_recipe() -> None:
    assert tuple(known_recipes()) == NAMES
    with pytest.raises(ReferenceFileError, match=r"unknown recipe 'plsc-arc'; known: .*Did you mean plsc-arcface"):
        read_recipe("plsc-arc")
    with pytest.raises(
        ReferenceFileError, match=r"torchtitan has speeds to compare with .*no sweeps to repeat; recipes: "
    ):
        read_recipe("torchtitan")


@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_a_recipe_is_a_row_of_one_table_and_every_row_a_point(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.log_format in FORMATS
    assert len({table.heading for table in recipe.tables}) == len(recipe.tables)
    for point in recipe.swept:
        assert [table.has(point) for table in recipe.tables].count(True) == 1, point
    for table in recipe.tables:
        assert set(table.cases) == {point.case for point in recipe.swept if table.has(point)}
        assert {speed.case for speed in table.speeds} <= set(table.cases)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_that_nothing_replaces_departs_from_nothing(name: str) -> None:
    requested = sweeps(name)
    assert departures(read_recipe(name), requested, GPUS) == ()
    refuse(name, GPUS)
    assert len({sweep.repeats for sweep in requested}) == 1
    of_recipe = {(each.case, each.backend, each.batch_size, each.precision) for each in read_recipe(name).swept}
    assert points(requested) == of_recipe


@needs_reference
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_printed_in_the_lines_that_they_name(name: str) -> None:
    (document,) = REFERENCE.glob(f"{DOCUMENTS[name]}_*.txt")
    lines = document.read_text(encoding="utf-8").splitlines()
    tables = read_recipe(name).tables
    named = [(each.line, str(each.value)) for table in tables for each in table.figures]
    named += [(each.line, str(each.speed)) for table in tables for each in table.speeds]
    assert named and [each for each in named if each[1] not in lines[each[0] - 1].replace(",", "")] == []


ALL_OF_NGC = {(case, "torch-ddp", 128, "fp32") for case in ("1n1g", "1n4g", "1n8g")}


@pytest.mark.parametrize(
    ("name", "argv", "expected"),
    [
        ("ngc-pytorch-resnet50", "", ALL_OF_NGC),
        ("ngc-pytorch-resnet50", "--nodes 1", ALL_OF_NGC),
        ("ngc-pytorch-resnet50", "--ranks-per-node 4", {("1n4g", "torch-ddp", 128, "fp32")}),
        ("ngc-pytorch-resnet50", "--cases 2n8g", {("2n8g", "torch-ddp", 128, "fp32")}),
        ("ngc-pytorch-resnet50", "--nodes 2 --ranks-per-node 4", {("2n4g", "torch-ddp", 128, "fp32")}),
        ("ngc-pytorch-resnet50", "--cases 1n1g --batch-size 4,8",
         {("1n1g", "torch-ddp", 4, "fp32"), ("1n1g", "torch-ddp", 8, "fp32")}),
        ("paddle-resnet50", "--nodes 4", {
            ("4n8g", "paddle-fleet", 128, "fp32"), ("4n8g", "paddle-fleet", 224, "amp-fp16"),
            ("4n8g", "paddle-fleet", 196, "amp-fp16")}),
        ("paddle-resnet50", "--cases 1n2g", {("1n2g", "paddle-fleet", 128, "fp32")}),
        ("paddle-resnet50", "--nodes 4 --precision fp32", {("4n8g", "paddle-fleet", 128, "fp32")}),
        ("pytorch-examples-resnet50", "--cases 1n8g,2n8g --batch-size 32",
         {("1n8g", "torch-dp", 32, "fp32"), ("2n8g", "torch-ddp", 32, "fp32")}),
        ("pytorch-examples-resnet50", "--cases 1n8g --batch-size 4 --backend torch-ddp",
         {("1n8g", "torch-ddp", 4, "fp32")}),
    ],
)  # fmt: skip
def test_options_choose_among_the_points_or_replace_settings(name: str, argv: str, expected: set[object]) -> None:
    assert points(sweeps(name, *argv.split())) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--nodes 1,3", "has no case with 3 nodes, but it has others that were requested: request some of 1n1g, 1n2g"),
        ("--cases 1n1g,3n8g", "has no case 3n8g, but it has others"),
        ("--batch-size 128,4", "has no batch size 4, but it has others that were requested: request some of 128, "),
        ("--nodes 3", r"has no case with 3 nodes; say whole cases \(--cases 3n8g\)"),
        ("--precision fp32 --batch-size 224", "has no point with all that was requested; it has 1n1g, 1n2g"),
        ("--nodes x", "nodes: 'x' is not a whole number"),
    ],
)  # fmt: skip
def test_what_is_neither_a_choice_nor_a_departure_is_refused(argv: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        sweeps("paddle-resnet50", *argv.split())


@pytest.mark.parametrize(
    ("name", "argv", "expected"),
    [
        ("ngc-pytorch-resnet50", "--cases 1n1g --batch-size 4 --steps 60", ("batch_size 4, not 128",
         "steps 60 with 20 of warm-up, not 120 with 20 of warm-up")),
        ("ngc-pytorch-resnet50", "--option image_size=64 --option sgd=fused",
         ("image_size 64, not 224", "sgd fused, not its default")),
        ("ngc-pytorch-resnet50", "--env NCCL_ALGO=Ring", ("env.NCCL_ALGO Ring, not unset",)),
        ("ngc-pytorch-resnet50", "--precision bf16", ("precision bf16, not fp32",)),
        ("ngc-pytorch-resnet50", "--timing phases --scaling strong --batch-size 256",
         ("batch_size 256, not 128", "scaling strong, not weak", "timing phases, not step")),
        ("ngc-pytorch-resnet50", "--cases 2n8g", ("2n8g with resnet50, no point of it",)),
        ("ngc-pytorch-resnet50", "--repeats 2", ("repeats 2, not 5",)),
        ("ngc-pytorch-resnet50", "--seed 3 --cpus-per-rank 2", ()),
        ("paddle-resnet50", "--precision amp-fp16 --option loss_scale=64", ("loss_scale 64, not dynamic",)),
        ("paddle-resnet50", "--precision fp32 --env FLAGS_fraction_of_gpu_memory_to_use=0.5",
         ("env.FLAGS_fraction_of_gpu_memory_to_use 0.5, not 0.98",)),
    ],
)  # fmt: skip
def test_a_departure_is_named(name: str, argv: str, expected: tuple[str, ...]) -> None:
    assert departures(read_recipe(name), sweeps(name, *argv.split()), GPUS) == expected


def test_cpus_are_a_departure() -> None:
    name = "ngc-pytorch-resnet50"
    assert departures(read_recipe(name), sweeps(name), CPUS) == ("devices CPUs, not GPUs",)


FOUR_GPUS = Target(site="half", gpus_per_node=4, cpus_per_node=64)


@pytest.mark.parametrize(
    ("name", "target", "argv", "message"),
    [
        ("paddle-resnet50", CPUS, "", "^15 of 21 points of recipe paddle-resnet50 cannot run here: 1n1g, .*: precision "
         "amp-fp16 was requested; .* it trains in fp32. --precision fp32 leaves out what cannot run"),
        ("paddle-resnet50", FOUR_GPUS, "", "1n8g, 2n8g, 4n8g: requests 8 GPUs per node; half has 4. "
         "--cases 1n1g,1n2g,1n4g leaves out"),
        ("ngc-tensorflow-resnet50", CPUS, "", "3 of 3 points .*: precision amp-fp16 .* Nothing of it is left"),
        ("pytorch-examples-resnet50", CPUS, "", "16 of 24 .*: it splits a batch .* --cases 2n8g,4n8g leaves out"),
    ],
)  # fmt: skip
def test_what_the_target_cannot_do_is_refused_with_a_way_out(
    name: str, target: Target, argv: str, message: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        refuse(name, target, *argv.split())
    assert re.search(message, str(refusal.value)), refusal.value


def test_the_way_out_is_one() -> None:
    refuse("paddle-resnet50", CPUS, "--precision", "fp32")
    refuse("paddle-resnet50", FOUR_GPUS, "--cases", "1n1g,1n2g,1n4g")
    refuse("pytorch-examples-resnet50", CPUS, "--nodes", "1", "--backend", "torch-ddp")
    refuse("ngc-tensorflow-resnet50", CPUS, "--precision", "fp32")


def test_a_backend_that_is_not_installed_is_refused() -> None:
    unable = {"tensorflow-horovod": "backend tensorflow-horovod cannot run: horovod is not installed here"}
    with pytest.raises(SpecError, match=r"3 of 3 points .*: backend tensorflow-horovod cannot run: horovod is not"):
        refuse("ngc-tensorflow-resnet50", GPUS, unable=unable)


def test_the_sweeps_of_a_recipe_share_cores_and_baselines() -> None:
    runs = planned(sweeps("pytorch-examples-resnet50", "--batch-size", "128"), GPUS).runs
    assert {run.cpus_per_rank for run in runs} == {8}
    assert [(run.case, run.backend) for run in runs if run.repeat == 5] == [
        ("1n1g", "torch-dp"), ("1n1g", "torch-ddp"), ("1n2g", "torch-dp"), ("1n4g", "torch-dp"), ("1n8g", "torch-dp"),
        ("2n8g", "torch-ddp"), ("4n8g", "torch-ddp"),
    ]  # fmt: skip
    nested = planned(sweeps("pytorch-examples-resnet50", "--batch-size", "128", "--placement", "nested"), GPUS)
    assert len(nested.runs) == len(runs)


def test_a_dry_run_of_a_recipe(tmp_path: Path) -> None:
    argv = ("--cluster", "local", "--recipe", "plsc-arcface", "--nodes", "1", "--ranks-per-node", "1")
    done = command(tmp_path, *argv, "--dry-run", "--option", "image_size=32")
    assert done.returncode == 0, done.stderr
    assert "recipe plsc-arcface: PaddlePaddle PLSC, ArcFace" in done.stdout
    assert "departs from the recipe: devices CPUs, not GPUs; image_size 32, not 112\n" in done.stdout
    assert "unlike the document: input: random images" in done.stdout
    (run, *_) = plan_of(tmp_path)["runs"]
    assert (run["batch_size"], run["warmup_steps"], run["measured_steps"]) == (128, 50, 100)
    assert run["options"]["classes"] == "85742" and run["options"]["image_size"] == "32"


def test_refusals_come_before_anything_is_written(tmp_path: Path) -> None:
    done = command(tmp_path, "--cluster", "local", "--gpus-per-node", "0", "--recipe", "paddle-resnet50")
    assert done.returncode == 2 and "--precision fp32 leaves out what cannot run" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_may_name_a_recipe_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "sweep.toml"
    config.write_text('recipe = "plsc-arcface"\nnodes = 1\n[option]\nclasses = 10\n')
    (sweep,) = read_arguments(["--config", str(config), "--nodes", "2"]).sweeps
    assert (sweep.cases, sweep.option["classes"], sweep.option["head"]) == (((2, 8),), ("10",), ("sharded",))


def test_list_shows_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert catalog.main([]) == 0
    shown = capsys.readouterr().out
    assert "\nrecipes: ngc-pytorch-resnet50, " in shown
    assert all(name in shown for name in ("torch-ddp", "resnet50", "example")) and "image_size" not in shown
    assert catalog.main(["recipes"]) == 0
    assert "3 points; devices: Tesla V100-SXM2-16GB, 8 per node" in capsys.readouterr().out
    assert catalog.main(["workloads"]) == 0
    assert "    image_size: " in capsys.readouterr().out


def test_a_broken_recipe_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("title = 1\n")
    with pytest.raises(ReferenceFileError, match=r"x.toml: title is missing, or no text"):
        read_recipe("x", tmp_path)
    assert isinstance(read_recipe(NAMES[0]), Reference)
