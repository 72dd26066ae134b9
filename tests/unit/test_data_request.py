"""--data: what is understood, what is refused before anything is submitted, and what it does to ids and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc.backends import options_of_run
from hpc.backends.refusals import refuse_invalid
from hpc.model.options import DataSource, OptionError, data_source, workers_of
from hpc.model.spec import RunSpec, SpecError, Target
from hpc.workloads import mlp
from launch.sweep.expansion import expand
from launch.sweep.spec import SweepSpec
from tests.unit.traces import make_run

TARGET = Target(site="here", gpus_per_node=0, cpus_per_node=4)


def planned(**options: Any) -> tuple[RunSpec, ...]:
    sweep = SweepSpec.from_mapping({"nodes": "1", "repeats": 1, **options})
    runs = expand(sweep, TARGET).runs
    refuse_invalid(runs)
    return runs


def test_a_request_names_a_kind_and_a_path() -> None:
    assert data_source("imagefolder:/a/b:c") == DataSource("imagefolder", "/a/b:c")
    assert data_source("synthetic") is None and data_source("unknown") is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("lmdb:/x", "'lmdb:/x' is not one of synthetic, imagefolder:PATH, tfrecord:PATH, dali:PATH"),
        ("imagefolders:/x", "Did you mean imagefolder"),
        ("imagefolder", "names no path"),
        ("imagefolder:", "names no path"),
    ],
)
def test_other_requests_are_refused(data: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        planned(data=data)


READERS = {
    "imagefolder": r"resnet50 \(torch, tensorflow, paddle\), mlp \(torch, tensorflow, paddle\)",
    "tfrecord": r"resnet50 \(tensorflow\), mlp \(tensorflow\)",
    "dali": r"resnet50 \(torch\), mlp \(torch\)",
}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("imagefolder", {"workload": "arcface"}),
        ("imagefolder", {"backend": "mpi", "workload": "delay"}),
        ("tfrecord", {"workload": "resnet50"}),
        ("tfrecord", {"workload": "mlp", "backend": "paddle-fleet"}),
        ("dali", {"workload": "mlp", "backend": "tensorflow-horovod"}),
        ("dali", {"workload": "resnet50", "backend": "paddle-fleet"}),
    ],
)
def test_what_would_not_read_the_files_is_refused(kind: str, changes: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=rf"does not read it in \w+; what reads it: {READERS[kind]}"):
        planned(data=f"{kind}:/x", **changes)


@pytest.mark.parametrize("kind", ["imagefolder", "tfrecord"])
@pytest.mark.parametrize("backend", ["tensorflow-horovod", "tensorflow-multiworker"])
@pytest.mark.parametrize("workload", ["resnet50", "mlp"])
def test_tensorflow_reads_both_kinds(kind: str, backend: str, workload: str) -> None:
    (run,) = planned(data=f"{kind}:/x", backend=backend, workload=workload)
    assert run.data == f"{kind}:/x"


def test_the_image_size_of_the_perceptron_is_that_of_files() -> None:
    synthetic, files = planned(data="synthetic,imagefolder:/x", workload="mlp", option={"image_size": "12"})
    assert "image_size" not in synthetic.options and options_of_run(files)["image_size"] == 12
    assert (mlp.features(synthetic), mlp.features(files)) == (64, 3 * 12 * 12)
    assert mlp.initial_values(files)[0][0].shape == (256, 432)
    with pytest.raises(SpecError, match="unknown option image_size"):
        planned(workload="mlp", option={"image_size": "12"})
    assert mlp.features(planned(data="imagefolder:/x", workload="mlp")[0]) == 3 * 8 * 8


def test_augmentation_is_an_axis_of_runs_that_read() -> None:
    runs = planned(data="imagefolder:/x", option={"augmentation": "imagenet,off"})
    assert [run.options["augmentation"] for run in runs] == ["imagenet", "off"]
    with pytest.raises(SpecError, match="unknown option augmentation"):
        planned(option={"augmentation": "off"})


def test_a_file_of_ones_own_reads_by_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    with pytest.raises(SpecError, match="leave out --data"):
        planned(data="imagefolder:/x", workload=f"{tmp_path}/mine.py:Mine")


def test_data_is_an_axis_and_part_of_the_point() -> None:
    synthetic, files = planned(data="synthetic,imagefolder:/x")
    assert (synthetic.data, files.data) == ("synthetic", "imagefolder:/x")
    assert synthetic.point_id == planned()[0].point_id != files.point_id
    assert files.baseline().data == files.data


def test_runs_on_synthetic_data_keep_their_ids() -> None:
    run = make_run(backend="torch-ddp", workload="resnet50", options={"image_size": "64"})
    assert run.point_id == "1n1g_torch-ddp_resnet50_b4_fp32_8dba467714"  # of the version before
    assert RunSpec.from_json(run.to_json()).point_id == run.point_id


def test_the_cache_is_an_axis_of_what_reads_files() -> None:
    runs = planned(data="synthetic,imagefolder:/x", data_cache="off,device")
    assert [(run.data, run.data_cache) for run in runs] == [
        ("synthetic", "off"), ("imagefolder:/x", "off"), ("imagefolder:/x", "device"),
    ]  # fmt: skip
    assert len({run.point_id for run in runs}) == 3 and runs[2].baseline().data_cache == "device"
    with pytest.raises(SpecError, match="no --data names files that could be cached"):
        planned(data_cache="off,device")
    with pytest.raises(SpecError, match="data_cache 'ram' is not one of off, device"):
        planned(data="imagefolder:/x", data_cache="ram")


def test_workers_are_an_option_of_runs_that_read() -> None:
    (run,) = planned(data="imagefolder:/x", option={"workers": "3"}, cpus_per_rank="2")
    assert options_of_run(run)["workers"] == "3" and workers_of(run) == 3
    (run,) = planned(data="imagefolder:/x", cpus_per_rank="2")
    assert options_of_run(run)["workers"] == "auto" and workers_of(run) == 2
    with pytest.raises(SpecError, match="unknown option workers"):
        planned(option={"workers": "3"})


@pytest.mark.parametrize("workers", ["many", "-1", "1.5", "1025"])
def test_no_number_of_workers_is_refused(workers: str) -> None:
    with pytest.raises(OptionError, match="neither auto nor a number of workers up to 1024"):
        planned(data="imagefolder:/x", option={"workers": workers})


def test_a_relative_path_is_that_of_the_sweeps_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = SweepSpec.from_mapping({"nodes": "1", "data": "synthetic,imagefolder:set"})
    assert sweep.data == ("synthetic", f"imagefolder:{tmp_path}/set")
