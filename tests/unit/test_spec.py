from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.options import Option, OptionError, read_options
from hpc.model.spec import RUN_SETTINGS, Plan, RunSpec, SpecError, Target, shuffled
from launch.sweep import expansion
from launch.sweep.spec import SweepSpec

KNOWN = {"width": Option(default=8, help="", small="2"), "fast": Option(default=True, help="")}
GPUS = Target(site="big", gpus_per_node=8, cpus_per_node=64)
LAPTOP = Target(site="local", gpus_per_node=0, cpus_per_node=2, nodes_simulated=True)
RUN = RunSpec(
    nodes=2, ranks_per_node=8, gpus_per_node=8, cpus_per_rank=8, backend="torch-ddp", workload="resnet50",
    batch_size=128, precision="fp32", scaling="weak", warmup_steps=20, measured_steps=100, repeat=1, seed=0, site="big",
)  # fmt: skip


def plan(target: Target = GPUS, **options: object) -> Plan:
    with mock.patch.object(expansion, "options_of", lambda backend, workload: KNOWN):
        return expansion.expand(SweepSpec.from_mapping(options), target)


def test_reference_protocol_is_the_default_on_gpus() -> None:
    planned = plan(nodes="1,2,4")
    assert [run.case for run in planned.runs[:4]] == ["1n1g", "1n8g", "2n8g", "4n8g"]
    assert len(planned.runs) == 4 * 5
    run = planned.runs[1]
    assert (run.batch_size, run.warmup_steps, run.measured_steps, run.steps) == (128, 20, 100, 120)
    assert (run.gpus_per_node, run.cpus_per_rank, planned.reduced) == (8, 8, ())


def test_sizes_nobody_chose_are_small_without_gpus_and_listed() -> None:
    planned = plan(LAPTOP, nodes="1,2,4")
    run = planned.runs[0]
    assert (run.batch_size, run.steps, run.options) == (4, 16, {"width": "2"})
    assert planned.reduced == (
        "batch-size 4 instead of 128", "repeats 4 instead of 5", "steps 16 instead of 120", "warmup 6 instead of 20",
        "width 2 instead of 8",
    )  # fmt: skip
    assert Plan(**{f.name: getattr(planned, f.name) for f in dataclasses.fields(Plan)}).to_json()["reduced"]


def test_a_workload_has_the_steps_of_its_own_reference() -> None:
    runs = plan(nodes="1", ranks_per_node="1", workload="arcface,mlp", repeats=1).runs
    assert {run.workload: (run.steps, run.warmup_steps) for run in runs} == {"arcface": (150, 50), "mlp": (120, 20)}
    chosen = plan(nodes="1", workload="arcface", steps=40).runs[0]
    assert (chosen.steps, chosen.warmup_steps) == (40, 10)
    assert "steps 16 instead of 150" in plan(LAPTOP, nodes="1", workload="arcface").reduced


def test_sizes_that_were_chosen_stay_without_gpus() -> None:
    planned = plan(LAPTOP, nodes="1", batch_size=64, steps=30, warmup=10, repeats=1, option={"width": "8"})
    assert planned.reduced == ()
    assert (planned.runs[0].batch_size, planned.runs[0].options["width"]) == (64, "8")


def test_baseline_is_added_once_and_can_be_refused() -> None:
    assert [run.case for run in plan(nodes="2", repeats=1).runs] == ["1n1g", "2n8g"]
    assert [run.case for run in plan(nodes="2", repeats=1, no_baseline=True).runs] == ["2n8g"]
    assert [run.case for run in plan(nodes="1,2", ranks_per_node="1", repeats=1).runs] == ["1n1g", "2n1g"]


def test_one_rank_drives_all_gpus_where_the_backend_is_so() -> None:
    planned = plan(nodes="1", ranks_per_node="1,8", backend="torch-dp,torch-ddp", repeats=1)
    cases = [(run.backend, run.case, run.ranks_per_node, run.gpus_per_node) for run in planned.runs]
    assert cases == [
        ("torch-dp", "1n1g", 1, 1), ("torch-ddp", "1n1g", 1, 1),
        ("torch-dp", "1n8g", 1, 8), ("torch-ddp", "1n8g", 8, 8),
    ]  # fmt: skip
    whole = planned.runs[2]
    assert (whole.devices, whole.ranks, whole.rank_batch_size, whole.baseline()) == (8, 1, 8 * 128, planned.runs[0])


def test_on_cpus_a_rank_is_a_device_for_every_backend() -> None:
    planned = plan(LAPTOP, nodes="2", ranks_per_node="2", backend="torch-dp", repeats=1, no_baseline=True)
    assert [(run.case, run.ranks, run.devices) for run in planned.runs] == [("2n2g", 4, 4)]


def test_axes_multiply_and_an_environment_axis_makes_points() -> None:
    planned = plan(nodes="2", batch_size="64,128", env={"NCCL_ALGO": "Ring,Tree"}, repeats=1, no_baseline=True)
    assert len({run.point_id for run in planned.runs}) == 4
    assert {run.env["NCCL_ALGO"] for run in planned.runs} == {"Ring", "Tree"}


def test_a_comma_can_be_escaped() -> None:
    planned = plan(nodes="1000", env={"NCCL_IB_HCA": r"mlx5_0\,mlx5_1"}, repeats=1, no_baseline=True)
    assert [(run.case, run.env["NCCL_IB_HCA"]) for run in planned.runs] == [("1000n8g", "mlx5_0,mlx5_1")]


def test_threads_share_the_cores_of_a_node_and_are_the_same_everywhere() -> None:
    assert {run.cpus_per_rank for run in plan(nodes="1,2", cases="1n4g").runs} == {8}
    assert {run.cpus_per_rank for run in plan(LAPTOP, nodes="1,2,4").runs} == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": "0"}, "nodes: '0' is not a whole number from 1 to"),
        ({"nodes": "two"}, "nodes: 'two' is not a whole number"),
        ({"nodes": "1,"}, "an empty value"),
        ({"nodes": 1.5}, "not a whole number"),
        ({"cases": "1x8"}, "not of the form 2n8g"),
        ({}, "nothing to run"),
        ({"nodes": "1", "batch_size": "0"}, "batch_size: '0' is not a whole number from 1 to"),
        ({"nodes": "1", "repeats": "-2"}, "repeats: '-2' is not a whole number from 1 to"),
        ({"nodes": "1", "scaling": "both"}, "scaling 'both' is not one of weak, strong"),
        ({"nodes": "1", "steps": "20", "warmup": "20"}, "no step is left to measure"),
        ({"nodes": "1", "warmup": "4", "steps": "20"}, "warm-up is 4 steps; it must be at least 5"),
        ({"nodes": "1", "ranks_per_node": "9"}, "requests 9 GPUs per node; big has 8"),
        ({"nodes": "3", "scaling": "strong", "batch_size": "128"}, "does not divide by the 24 devices"),
        ({"nodes": "1", "option": {"widht": "3"}}, "unknown option widht"),
        ({"nodes": "1", "env": {"A B": "1"}}, "no name of an environment variable"),
        ({"nodes": "1", "env": {"A": "x\0y"}}, "NUL"),
        ({"nodes": "1", "env": "A=1"}, "must be a table"),
        ({"nodes": "1", "no_baseline": "no"}, "must be true or false"),
        ({"nodes": "1", "no_sync": "yes"}, "must be true or false"),
        ({"nodes": "1", "telemetry": "some"}, "telemetry 'some' is not one of on, off"),
    ],
)
def test_impossible_sweeps_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        plan(**options)


def test_option_of_a_wrong_kind_is_refused() -> None:
    with pytest.raises(OptionError, match="'wide' is not a whole number"):
        plan(nodes="1", option={"width": "wide"})
    with pytest.raises(OptionError, match="neither on nor off"):
        read_options(KNOWN, {"fast": "yes"})
    with pytest.raises(OptionError, match="unknown option slow; known here: fast, width"):
        read_options(KNOWN, {"slow": "on"})
    with pytest.raises(OptionError, match="'c' is not one of a, b"):
        Option(default="a", help="", choices=("a", "b")).read("letter", "c")
    assert read_options(KNOWN, {"fast": "off"}) == {"width": 8, "fast": False}
    assert Option(default=1.5, help="").read("x", "2") == 2.0


@pytest.mark.parametrize(
    ("options", "block_steps", "blocks"),
    [
        ({"steps": 520}, 0, [[20, 520]]),
        ({"steps": 521}, 500, [[20, 271], [276, 526]]),
        ({"steps": 1620}, 500, [[20, 420], [425, 825], [830, 1230], [1235, 1635]]),
    ],
)
def test_long_runs_are_measured_in_blocks_and_one_block_makes_no_other_run(
    options: dict[str, object], block_steps: int, blocks: list[list[int]]
) -> None:
    (run,) = plan(nodes="1", ranks_per_node="1", repeats=1, **options).runs
    assert (run.block_steps, run.blocks, run.steps) == (block_steps, blocks, blocks[-1][1])
    assert run.measured_steps == sum(stop - first for first, stop in blocks)


@given(st.integers(1, 3000), st.integers(0, 700), st.integers(5, 50))
def test_blocks_are_as_equal_as_can_be_with_unmeasured_steps_before_each(steps: int, longest: int, warmup: int) -> None:
    run = dataclasses.replace(RUN, measured_steps=steps, block_steps=longest, warmup_steps=warmup)
    lengths = [stop - first for first, stop in run.blocks]
    assert sum(lengths) == steps
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) <= (longest or steps)
    assert len(lengths) == -(-steps // (longest or steps))
    assert run.blocks[0][0] == warmup
    assert all(later[0] - earlier[1] == 5 for earlier, later in itertools.pairwise(run.blocks))
    assert run.steps == warmup + steps + 5 * (len(lengths) - 1)


def test_a_no_sync_run_is_the_same_on_several_ranks_without_reduction() -> None:
    planned = plan(LAPTOP, nodes="1,2", backend="torch-ddp,torch-horovod", telemetry="on,off", repeats=2, no_sync=True)
    no_sync = [run for run in planned.runs if run.diagnostic == "no-sync"]
    assert {(run.backend, run.case, run.telemetry, run.repeat) for run in no_sync} == {
        (backend, "2n1g", telemetry, repeat)
        for backend in ("torch-ddp", "torch-horovod")
        for telemetry in ("on", "off")
        for repeat in (1, 2)
    }
    trained = {run.run_id for run in planned.runs if run.ranks == 2 and not run.diagnostic}
    assert {dataclasses.replace(run, reduction="on").run_id for run in no_sync} == trained
    without = plan(LAPTOP, nodes="2", backend="torch-dp,torch-ddp", no_sync=True)
    assert {run.backend for run in without.runs if run.diagnostic} == {"torch-ddp"}
    assert not any(run.diagnostic for run in plan(LAPTOP, nodes="1,2").runs)


def test_strong_scaling_keeps_the_global_batch() -> None:
    planned = plan(nodes="1,2", ranks_per_node="4", scaling="strong", batch_size="64", repeats=1)
    assert {(run.case, run.global_batch_size, run.local_batch_size) for run in planned.runs} == {
        ("1n1g", 64, 64), ("1n4g", 64, 16), ("2n4g", 64, 8),
    }  # fmt: skip


def test_the_run_id_depends_on_every_requested_setting_and_nothing_else() -> None:
    ids = {RUN.run_id}
    changes: dict[str, object] = {
        "nodes": 4, "ranks_per_node": 4, "gpus_per_node": 4, "cpus_per_rank": 4, "backend": "mpi", "workload": "mlp",
        "batch_size": 64, "precision": "bf16", "scaling": "strong", "warmup_steps": 10, "measured_steps": 50,
        "repeat": 2, "seed": 1, "site": "other", "data": "imagefolder", "timing": "step", "container": "x.sif",
        "code_digest": "ab", "options": {"a": "1"}, "env": {"A": "1"}, "block_steps": 20, "reduction": "off",
        "telemetry": "off", "placement": "nested", "search": "batch-size", "data_cache": "device", "epochs": 9,
        "target_accuracy": 75.9, "eval_every": 3, "arguments": ("--lr", "0.1"), "tokens_per_sample": 7,
        "job_options": {"cpu_bind": "none"}, "by_nodes": ("env.A",),
    }  # fmt: skip
    assert set(changes) == {f.name for f in dataclasses.fields(RunSpec)}
    for name, value in changes.items():
        ids.add(dataclasses.replace(RUN, **{name: value}).run_id)  # type: ignore[arg-type]
    assert len(ids) == len(changes) + 1
    assert dataclasses.replace(RUN, repeat=2).point_id == RUN.point_id


def test_ids_stay_from_version_to_version() -> None:
    assert RUN.run_id == "2n8g_torch-ddp_resnet50_b128_fp32_c928d99720_r1"


def test_samples_of_a_script_may_be_counted_in_tokens() -> None:
    assert (RUN.unit, dataclasses.replace(RUN, tokens_per_sample=1024).unit) == ("samples", "tokens")
    with pytest.raises(SpecError, match=r"tokens_per_sample is -1; it must be 0 \(its samples are no tokens\) or more"):
        dataclasses.replace(RUN, tokens_per_sample=-1)


def test_data_of_a_persons_own_file_is_unknown() -> None:
    mine = dataclasses.replace(RUN, workload="/home/a/mine.py:F", code_digest="0123456789ab")
    assert (mine.data, RUN.data) == ("unknown", "synthetic")
    assert RunSpec.from_json(mine.to_json()) == mine
    assert dataclasses.replace(RUN, data="unknown").run_id != RUN.run_id


def test_a_repeat_of_a_point_is_the_same_point() -> None:
    _ = RUN.run_id
    assert RUN.repeated(3) == dataclasses.replace(RUN, repeat=3)
    assert RUN.repeated(3).run_id == dataclasses.replace(RUN, repeat=3).run_id


@given(st.text(min_size=1), st.text(min_size=1))
def test_ids_are_safe_as_file_names(backend: str, workload: str) -> None:
    run_id = dataclasses.replace(RUN, backend=backend, workload=workload).run_id
    assert run_id.isascii()
    assert not set(run_id) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"batch_size": 256}, "was changed by hand"), ({"backend": None}, "backend is missing"),
     ({"colour": "red"}, "unknown key colour")],
)  # fmt: skip
def test_json_changed_by_hand_is_refused(changes: dict[str, object], message: str) -> None:
    values = json.loads(json.dumps(RUN.to_json()))
    assert RunSpec.from_json(values) == RUN
    with pytest.raises(SpecError, match=message):
        RunSpec.from_json({name: value for name, value in (values | changes).items() if value is not None})


def test_sweep_id_does_not_depend_on_order() -> None:
    planned = plan(nodes="1,2")
    turned = dataclasses.replace(planned, runs=planned.runs[::-1])
    assert planned.sweep_id == turned.sweep_id != plan(nodes="1,4").sweep_id


def test_nested_sweeps_shuffle_every_block_by_seed() -> None:
    planned = plan(nodes="1,2,4,8", placement="nested", repeats=6)
    blocks = [planned.runs[first : first + 5] for first in range(0, 30, 5)]
    assert [{run.repeat for run in block} for block in blocks] == [{repeat} for repeat in range(1, 7)]
    orders = [tuple(run.case for run in block) for block in blocks]
    assert {frozenset(order) for order in orders} == {frozenset(("1n1g", "1n8g", "2n8g", "4n8g", "8n8g"))}
    assert len(set(orders)) > 3
    assert plan(nodes="1,2,4,8", placement="nested", repeats=6).runs == planned.runs
    assert [run.case for run in plan(nodes="1,2,4,8", placement="nested", repeats=6, seed=1).runs] != [
        run.case for run in planned.runs
    ]


def test_a_shuffle_is_the_same_in_every_version() -> None:
    """The same sweep, requested again, must find its scripts."""
    assert shuffled(range(8), 0, "nodes 0") == [4, 6, 7, 1, 5, 0, 3, 2]
    assert shuffled([], 0, "") == []


def test_nested_and_separate_runs_are_different_points_and_old_ids_stay() -> None:
    separate, nested = plan(nodes="1,2"), plan(nodes="1,2", placement="nested")
    assert {run.point_id for run in separate.runs}.isdisjoint(run.point_id for run in nested.runs)
    assert [run.run_id for run in plan(nodes="1,2", placement="separate").runs] == [run.run_id for run in separate.runs]
    assert {run.baseline().placement for run in nested.runs} == {"nested"}
    assert RunSpec.from_json(nested.runs[0].to_json()) == nested.runs[0]
    with pytest.raises(SpecError, match="placement 'packed' is not one of separate, nested"):
        plan(nodes="1", placement="packed")
    with pytest.raises(SpecError, match="placement 'packed' is not one of separate, nested"):
        dataclasses.replace(RUN, placement="packed")


HEAD = "| setting | meaning | default | column |\n|---|---|---|---|\n"


def test_the_settings_of_a_run_are_those_of_the_document(request: pytest.FixtureRequest) -> None:
    """`--rewrite-golden` writes the table of docs/formats.md anew."""
    rows = []
    for each in dataclasses.fields(RunSpec):
        setting = RUN_SETTINGS[each.name]
        words = f"{setting.meaning}: {', '.join(setting.choices)}" if setting.choices else setting.meaning
        meaning = f"{words}; 0: {setting.zero}" if setting.zero else words
        default = "" if each.default is dataclasses.MISSING else json.dumps(each.default)
        rows.append(f"| `{each.name}` | {meaning} | {default} | {'yes' if setting.is_column else ''} |\n")
    document = Path(__file__).parents[2] / "docs" / "formats.md"
    before, head, table = document.read_text().partition(HEAD)
    written, after = table.partition("\n## ")[0], "\n## " + table.partition("\n## ")[2]
    if request.config.getoption("--rewrite-golden"):
        document.write_text(before + head + "".join(rows) + after)
        return
    assert head and written == "".join(rows)
