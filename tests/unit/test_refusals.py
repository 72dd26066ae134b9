"""Refusals and warnings of a sweep before anything is submitted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hpc import sweep
from hpc.backends import BACKENDS
from hpc.backends.refusals import options_of, refusal, refuse_invalid
from hpc.model.options import OptionError
from hpc.model.spec import SpecError, Target
from launch.sweep.expansion import expand
from launch.sweep.spec import MAX_RUNS, SweepSpec
from tests.leaves import PACKAGES
from tests.unit.sweep_command import plan_of
from tests.unit.traces import make_run

GPUS = Target(site="big", gpus_per_node=8, cpus_per_node=64)
CPUS = Target(site="small", gpus_per_node=0, cpus_per_node=64)
ON_GPUS = ("--cluster", "slurm", "--gpus-per-node", "4", "--cpus-per-rank", "1", "--repeats", "1", "--dry-run")


ROOT = Path(__file__).resolve().parents[2]
OWN = re.compile(r"hpc/backends/(?:torch|tensorflow|paddle)_\w+\.py")
NAMING = {
    "hpc/backends/__init__.py": "the table",
    "hpc/backends/limits.py": "the default one",
    "hpc/system/text.py": "words that a person may take for one",
    "parse/command_options.py": "an example",
    "parse/export/__main__.py": "an example",
}


def texts_of(path: Path) -> str:
    """The texts of a file that are no documentation."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation)
    return "\n".join(node.value for node in nodes if isinstance(node.value, str))


def test_names_of_backends_stand_in_their_table_alone() -> None:
    """A backend's own file may name it in its messages."""
    names = re.compile("|".join(name for name in BACKENDS if "-" in name))
    files = {path.relative_to(ROOT).as_posix(): path for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    naming = {name for name, path in files.items() if not OWN.fullmatch(name) and names.search(texts_of(path))}
    assert naming == NAMING.keys()


def refuse(target: Target, **options: object) -> None:
    refuse_invalid(expand(SweepSpec.from_mapping({"nodes": "1", "repeats": 1, **options}), target).runs)


def command(out: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of a dry run on a cluster of four GPUs a node."""
    status = sweep.main([*ON_GPUS, "--out", str(out), *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_the_smoke_test_of_the_readme_runs_on_a_gpu_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--nodes", "1,2", "--ranks-per-node", "2", "--backend", "mpi", "--workload", "delay")
    status, stdout, error = command(tmp_path, capsys, *argv)
    assert status == 0, error
    assert "backend mpi runs on CPUs: its runs use none of the nodes' GPUs" in stdout
    assert {(run["case"] if "case" in run else run["ranks_per_node"], run["gpus_per_node"])
            for run in plan_of(tmp_path)["runs"]} == {(1, 0), (2, 0)}  # fmt: skip
    assert "#SBATCH --gpus" not in stdout and "--gpus" not in stdout.replace("--gpus-per-node N", "")


def test_runs_on_cpus_can_request_gpus_where_a_submit_filter_wants_it_and_others_do_by_the_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--nodes", "1", "--ranks-per-node", "2", "--workload", "delay", "--sbatch", "gres=tmpfs:1G,gpu:a100:4")
    status, stdout, error = command(tmp_path, capsys, *argv, "--backend", "mpi")
    assert status == 0, error
    assert "#SBATCH --gres=tmpfs:1G,gpu:a100:4\n" in stdout and "needs --sbatch gres=gpu:N" in stdout
    status, _, error = command(tmp_path / "gpus", capsys, *argv, "--backend", "torch-ddp")
    assert status == 2 and "gres = 'tmpfs:1G,gpu:a100:4' requests GPUs, and so do the runs: use gpu_request" in error


def test_only_the_backend_without_gpus_runs_on_cpus() -> None:
    spec = SweepSpec.from_mapping({"cases": "1n8g", "backend": "mpi,torch-ddp", "workload": "delay", "repeats": 1})
    runs = expand(spec, GPUS).runs
    assert {(run.backend, run.gpus_per_node) for run in runs} == {
        ("mpi", 0), ("torch-ddp", 1), ("torch-ddp", 8),
    }  # fmt: skip
    more_ranks = SweepSpec.from_mapping({"cases": "1n16g", "backend": "mpi", "workload": "delay", "repeats": 1})
    assert {run.ranks_per_node for run in expand(more_ranks, GPUS).runs} == {1, 16}


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (CPUS, {"precision": "tf32"}, "precision tf32 was requested; on CPUs, .* it trains in fp32, bf16"),
        (CPUS, {"precision": "fp32,amp-fp16"}, "backend torch-ddp: precision amp-fp16"),
        (GPUS, {"precision": "bf16", "backend": "mpi", "workload": "delay"}, "backend mpi: precision bf16"),
        (CPUS, {"backend": "torch-dp"}, "backend torch-dp: it splits a batch over the GPUs"),
        (GPUS, {"backend": "torch-dp", "nodes": "2"}, "2n8g with backend torch-dp: it is one rank"),
        (GPUS, {"backend": "torch-dp", "option": {"compile": "on"}}, "torch.compile does not go with DataParallel"),
        (CPUS, {"backend": "torch-fsdp", "option": {"channels_last": "on"}}, "leave it out, or take torch-ddp"),
        (GPUS, {"backend": "torch-fsdp", "precision": "amp-fp16"}, "take bf16, or torch-ddp"),
        (
            GPUS,
            {"backend": "torch-fsdp", "workload": "arcface"},
            "not among FSDP2's shards: take torch-ddp, or head=re",
        ),
        (GPUS, {"backend": "torch-fsdp", "option": {"shard_group": "3"}}, "8 ranks make no whole groups of 3"),
        (GPUS, {"backend": "torch-tp", "workload": "gpt"}, "backend torch-tp is gone: measure a script of your own"),
        (CPUS, {"workload": "gpt", "data": "imagefolder:x"}, "workload gpt does not read it in torch"),
        (CPUS, {"backend": "tensorflow-multiworker", "option": {"collective": "nccl"}}, "take auto or ring"),
        (
            CPUS,
            {"backend": "mpi", "workload": "delay", "cases": "1n2g", "option": {"data_ms": "5@rank=2"}},
            "1n2g with backend mpi: data_ms: rank 2 is none of the 2 ranks",
        ),
        (
            GPUS,
            {"backend": "torch-dp", "workload": "arcface"},
            "no ranks over which the head of arcface",
        ),
        (GPUS, {"workload": "arcface", "nodes": "2", "option": {"classes": "15"}}, "2n8g .* 15 classes on 16 ranks"),
        (GPUS, {"workload": "arcface", "nodes": "2", "no_sync": True}, "a sharded head has no no-sync run"),
        (GPUS, {"workload": "arcface", "nodes": "2", "precision": "amp-fp16"}, "would skip different steps: take bf16"),
    ],
)
def test_runs_that_would_end_as_invalid_are_refused(target: Target, options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        refuse(target, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backend": "mpi", "gpus_per_node": 2}, "2 GPUs per node were requested; it runs on CPUs only"),
        ({"gpus_per_node": 2, "ranks_per_node": 1}, "2 GPUs and 1 ranks per node .* it drives one GPU per rank"),
        (
            {"backend": "torch-dp", "gpus_per_node": 2, "ranks_per_node": 2},
            "it is one rank that drives the GPUs of one node",
        ),
        ({"backend": "torch-fsdp", "reduction": "off"}, "it has no no-sync run: every rank holds a shard"),
    ],
)
def test_runs_that_no_plan_makes_are_refused(fields: dict[str, object], message: str) -> None:
    run = make_run(**{"backend": "torch-ddp", "workload": "resnet50", "gpus_per_node": 0, **fields})
    assert re.search(message, refusal(run))


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (CPUS, {"precision": "fp32,bf16"}),
        (GPUS, {"precision": "tf32,amp-fp16,bf16"}),
        (GPUS, {"backend": "torch-dp", "option": {"compile": "off"}}),
        (GPUS, {"workload": "arcface", "nodes": "2"}),
        (GPUS, {"backend": "torch-fsdp", "precision": "tf32,bf16", "option": {"reshard_after_forward": "off"}}),
        (GPUS, {"backend": "torch-fsdp", "workload": "gpt", "nodes": "2", "option": {"shard_group": "node,4"}}),
        (CPUS, {"backend": "torch-fsdp", "workload": "gpt", "option": {"compile": "on,off"}}),
        (GPUS, {"backend": "torch-dp", "workload": "arcface", "option": {"head": "replicated"}}),
        (GPUS, {"backend": "tensorflow-multiworker", "option": {"collective": "nccl"}}),
        (CPUS, {"backend": "mpi", "workload": "delay", "nodes": "2", "option": {"data_ms": "5@rank=1;every=2+1"}}),
    ],
)
def test_runs_that_are_possible_are_not_refused(target: Target, options: dict[str, object]) -> None:
    refuse(target, **options)


@pytest.mark.parametrize(
    ("backend", "workload", "option", "text", "message"),
    [
        ("torch-ddp", "resnet50", "bucket_cap_mb", "nan", "'nan' is out of range"),
        ("torch-ddp", "resnet50", "bucket_cap_mb", "-1", "'-1' is out of range: it must be from 0"),
        ("torch-ddp", "resnet50", "bucket_cap_mb", "wide", "'wide' is not a number"),
        ("torch-ddp", "resnet50", "image_size", "0", "'0' is out of range: it must be from 1 to 65536"),
        ("torch-ddp", "resnet50", "image_size", "64.0", "'64.0' is not a whole number"),
        ("torch-ddp", "resnet50", "image_size", "9" * 5000, "is not a whole number"),
        ("torch-ddp", "resnet50", "image_size", "9" * 30, "is out of range"),
        ("torch-ddp", "resnet50", "recipe", "ngcc", "Did you mean ngc?"),
        ("torch-ddp", "resnet50", "loss_scale", "dynamc", "neither dynamic nor a number above 0"),
        ("torch-ddp", "resnet50", "loss_scale", "0", "neither dynamic nor a number above 0"),
        ("torch-ddp", "mlp", "width", "0", "it must be from 1"),
        ("torch-fsdp", "gpt", "shard_group", "none", "'none' is neither all nor node nor a number of ranks"),
        ("torch-fsdp", "gpt", "shard_group", "0", "'0' is neither all nor node nor a number of ranks"),
        ("torch-ddp", "gpt", "size", "7b", "'7b' is not one of tiny, 125m, 1b, 8b"),
        ("torch-horovod", "mlp", "cycle_time_ms", "1e3", "'1e3' must be written as 0.5 or 64"),
        ("mpi", "delay", "compute_ms", "soon", "is not MS or MS@rank=R"),
        ("mpi", "delay", "compute_ms", "1e300", "milliseconds must be from 0"),
        ("mpi", "delay", "compute_ms", "5@every=0", "every at least 1"),
    ],
)
def test_option_values_that_no_run_could_use_are_refused(
    backend: str, workload: str, option: str, text: str, message: str
) -> None:
    with pytest.raises(OptionError) as error:
        options_of(backend, workload)[option].read(option, text)
    assert message in str(error.value) and str(error.value).startswith(f"option {option}: ")


@pytest.mark.parametrize("value", ["dynamic", "128", "0.5", "1e3", "65536."])
def test_valid_loss_scales_are_accepted(value: str) -> None:
    assert options_of("torch-ddp", "resnet50")["loss_scale"].read("loss_scale", value) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "-1"}, "seed: '-1' is not a whole number from 0 to 2147483647"),
        ({"seed": str(2**31)}, "seed: '2147483648' is not a whole number from 0 to"),
        ({"gpus_per_node": "-1"}, "gpus_per_node: '-1' is not a whole number from 0 to 10000"),
        ({"batch_size": "1" + "0" * 12}, "batch_size: '1000000000000' is not a whole number from 1 to"),
        ({"batch_size": 10**400}, "batch_size: '10{39}' is not a whole number"),
        ({"batch_size": "9" * 5000}, "is not a whole number"),
        ({"batch_size": float("nan")}, "'nan' is not a whole number"),
        ({"steps": "100000000"}, "steps: '100000000' is not a whole number from 1 to 10000000"),
        ({"warmup": "0"}, "warmup: '0' is not a whole number from 1 to"),
        ({"warmup": True}, "warmup: 'True' is not a whole number"),
        ({"nodes": "1,2,2"}, "nodes: 2 is there 2 times; name each value once"),
        ({"nodes": "2,02"}, "nodes: 2 is there 2 times"),
        ({"cases": "1n2g,1n2g"}, "cases: 1n2g is there 2 times"),
        ({"env": {"A": "1,1"}}, "env A: 1 is there 2 times"),
        ({"option": {"image_size": "64,064"}}, "option image_size: 64 is there 2 times"),
        ({"precision": "bf-16"}, r"not one of fp32, tf32, bf16, amp-fp16\. Did you mean bf16\?"),
        ({"option": {"imagesize": "64"}}, r"unknown option imagesize; .*\. Did you mean image_size\?"),
        ({"repeats": str(MAX_RUNS)}, rf"2 points or more with {MAX_RUNS} repeats each, 200000 runs; at most"),
        ({"nodes": list(range(1, 1001)), "repeats": 101}, "991 points or more with 101 repeats each"),
    ],
)
def test_sizes_that_no_run_could_have_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((SpecError, OptionError), match=message):
        expand(SweepSpec.from_mapping({"nodes": "1", "repeats": 1, **options}), GPUS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--copy-s", "soon"], "copy_s: 'soon' is not a number from 0 to 31536000"),
        (["--start-limit-s", "0"], "start_limit_s: '0' is not a number from 1 to 31536000"),
        (["--hang-steps", "nan"], "hang_steps: 'nan' is not a number from 1 to"),
        (["--max-jobs", "0"], "max_jobs: '0' is not a whole number from 1 to"),
        (["--max-jobs", "²"], "max_jobs: '²' is not a whole number"),
        (["--time", "0"], "time: '0' is not a whole number from 1 to 525600"),
        (["--copy-s", "-1"], "copy_s: '-1' is not a number from 0 to"),
        (["--copy-s", "inf"], "copy_s: 'inf' is not a number from 0 to 31536000"),
        (["--time", "1.5"], "time: '1.5' is not a whole number from 1 to"),
        (["--time", "999999999"], "time: '999999999' is not a whole number from 1 to 525600"),
        (["--max-jobs", "9" * 5000], "' is not a whole number from 1 to 2147483647"),
    ],
)
def test_invalid_limits_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, _, error = command(tmp_path, capsys, "--nodes", "1", *arguments)
    assert (status, message in error) == (2, True), error
    assert not (tmp_path / "jobs").exists()


def test_a_factory_that_the_file_lacks_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import helper\nclass MyTraining: pass\n")
    status, _, error = command(tmp_path, capsys, "--nodes", "1", "--workload", f"{mine}:MyTrain")
    assert (status, "Did you mean MyTraining?" in error) == (2, True), error
    (tmp_path / "helper.py").write_text("x = 1\ndef f(:\n")
    status, _, error = command(tmp_path, capsys, "--nodes", "1", "--workload", f"{mine}:MyTraining")
    assert (status, "helper.py, line 2: " in error) == (2, True), error
    assert not (tmp_path / "jobs").exists()
