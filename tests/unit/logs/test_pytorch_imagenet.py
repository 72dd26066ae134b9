"""pytorch/examples imagenet: its meters through the years and in the programs that took them over."""

from __future__ import annotations

from functools import partial

import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import format_named
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import LOGS, facts

read = partial(text_logs.read, "pytorch-imagenet")


NEWER = (
    "Epoch: [{epoch}][{step:4d}/5005]\tTime {time:6.3f} ( 2.123)\tData  0.106 ( 0.077)\tLoss 6.9e+00 (7.1e+00)"
    "\tAcc@1   1.56 (  2.23)\tAcc@5  11.72 ( 10.94)"
)
OLDER = (
    "Epoch: [{epoch}][{step}/5005]\tTime {time:.3f} (2.123)\tData 0.106 (0.077)\tLoss 6.9000 (7.1000)\t"
    "Prec@1 1.562 (2.230)\tPrec@5 11.719 (10.938)"
)
TSM = "Epoch: [{epoch}][{step}/5005], lr: 0.00250\tTime {time:.3f} (0.633)\tData 0.000 (0.048)\tLoss 6.3717 (6.3603)"
APEX = "Epoch: [{epoch}][{step}/5005]\tTime {time:.3f} (0.562)\tSpeed 773.481 (355.693)\tLoss 0.6968704462 (0.6852)"
WITH_UNIT = "Epoch: [{epoch}][{step}/5005]\tTime {time:.3f}s (0.562s)\tSpeed 26.2 samples/s\tData 0.001s (0.002s)"
NO_ACCURACY = "Epoch: [{epoch}][{step:4d}/5005]\tTime {time:6.3f} ( 2.123)\tData  0.106 ( 0.077)"
PIPES = "Lr: 4.1e-05 | Epoch: [{epoch}][{step}/5005] | Time {time:.3f} (1.434) | Data 0.036 (0.045)"


@pytest.mark.parametrize("form", [NEWER, OLDER, TSM, APEX, WITH_UNIT, NO_ACCURACY, PIPES])
@pytest.mark.parametrize("blank", ["\t", "    "])
def test_a_step(tmp_path, form, blank):
    lines = [form.format(epoch=3, step=step, time=time) for step, time in ((0, 12.35), (10, 0.403), (990, 155.944))]
    steps, records = read(tmp_path, "\n".join(lines).replace("\t", blank) + "\n")
    assert (steps.epoch.tolist(), steps.step.tolist()) == ([3, 3, 3], [0, 10, 990])
    assert steps.epoch_steps.tolist() == [5005] * 3
    assert steps.duration_s.tolist() == pytest.approx([12.35, 0.403, 155.944])
    assert not records


def test_ten_seconds_and_more_are_read_whole(tmp_path):
    steps, _ = read(tmp_path, "Epoch: [0][ 6/53]\tTime 12.350 ( 2.123)\tData  0.106 ( 0.077)\n")
    assert steps.duration_s.tolist() == [12.35]


@pytest.mark.parametrize("cut", [
    "Epoch: [0][ 6/53]\tTime  0.4", "Epoch: [0][ 6/53]\tTime  0.403", "Epoch: [0][ 6/5", "Epoch: [0][ 6/53]",
    "Epoch: [0]  [  10/5005]  eta: 4:43:31  lr: 0.1  img/s: 13.6  loss: 6.8 (6.9)  time: 2.5401  data: 0.0336",
    "Epoch: [0][10/75]\tLoss 1.9952e+00 (1.9952e+00)",
])  # fmt: skip
def test_other_lines_are_no_steps(tmp_path, cut):
    steps, _ = read(tmp_path, cut)
    assert not len(steps.step)


def test_two_ranks_on_one_line(tmp_path):
    line = NEWER.format(epoch=0, step=7, time=0.5)
    steps, _ = read(tmp_path, f"{line}{NEWER.format(epoch=0, step=7, time=0.75)}\n\n")
    assert (steps.step.tolist(), steps.duration_s.tolist()) == ([7, 7], [0.5, 0.75])


def test_a_header_cut_off_by_another_ranks_line_takes_no_time_of_it(tmp_path):
    steps, _ = read(tmp_path, f"Epoch: [0][   6/5005]\t{NEWER.format(epoch=0, step=7, time=0.5)}\n")
    assert (steps.step.tolist(), steps.duration_s.tolist()) == ([7], [0.5])


def test_time_stamp_and_rank_in_front(tmp_path):
    line = NEWER.format(epoch=0, step=7, time=0.5)
    steps, _ = read(tmp_path, f"[1,3]<stdout>:{line}\n2021-04-09 10:16:49,500 INFO main: {line}\n")
    assert steps.rank.tolist() == [3, -1]
    assert steps.time_s[1] == pytest.approx(1617963409.5)


VALIDATION = """\
Test: [  0/196]\tTime  3.112 ( 3.112)\tLoss 9.1e-01 (9.1e-01)\tAcc@1  76.56 ( 76.56)\tAcc@5  92.58 ( 92.58)
Test: [ 10/196]\tTime  0.112 ( 0.412)\tLoss 9.1e-01 (9.1e-01)\tAcc@1  76.56 ( 76.56)\tAcc@5  92.58 ( 92.58)
 * Acc@1 75.900 Acc@5 92.810
 * Prec@1 75.910 Prec@5 92.820
Testing Results: Prec@1 48.436 Prec@5 75.187 Loss 2.24418
"""


def test_validation_is_a_pause_and_its_end_an_evaluation(tmp_path):
    steps, records = read(tmp_path, VALIDATION)
    assert not len(steps.step)
    assert [record.kind for record in records] == ["pause", "pause", "evaluation", "evaluation", "evaluation"]
    assert [record.values["top1"] for record in records[2:]] == ["75.900", "75.910", "48.436"]


def test_an_accuracy_cut_off_is_none(tmp_path):
    assert not read(tmp_path, " * Acc@1 75.9")[1]


HEADER = """\
Use GPU: 6 for training
=> creating model 'resnet50'
Use GPU: 1 for training
=> creating model 'resnet50'
"""


def test_header(tmp_path):
    _, records = read(tmp_path, HEADER)
    assert facts(records) == {"model": "resnet50"}


@pytest.mark.parametrize(("line", "expected"), [
    ("=> using pre-trained model 'resnet18'", {"model": "resnet18"}),
    ("=> Dummy data is used!", {"data": "synthetic"}),
    ("storing name: TSM_kinetics_RGB_resnet50_shift8_blockres_avg_segment8_e50",
     {"model": "TSM-resnet50", "data": "kinetics"}),
    ("====rank=4    device_id=4 storing name: TSM_something_RGB_resnet50_shift8",
     {"model": "TSM-resnet50", "data": "something"}),
    ("opt_level = O1", {"precision": "amp-fp16"}),
    ("opt_level              : O2", {"precision": "amp-fp16"}),
    ("opt_level = O0", {"precision": "fp32"}),
    ("opt_level = O3", {"opt_level": "O3"}),
])  # fmt: skip
def test_facts_of_other_programs(tmp_path, line, expected):
    assert facts(read(tmp_path, line + "\n")[1]) == expected


ARGUMENTS = (
    "Namespace(arch='resnet50', batch_size=256, data='/data', dist_backend='nccl', dist_url='{url}', dummy=False, "
    "epochs=90, evaluate=False, gpu=None, multiprocessing_distributed={spawned}, print_freq=10, rank=0, seed=None, "
    "workers=8, world_size={world})\n"
)
COMMON = {"model": "resnet50", "epochs": "90", "print_every": "10"}


@pytest.mark.parametrize(("spawned", "world", "url", "expected"), [
    (False, -1, "tcp://10.0.0.1:2", {"global_batch_size": "256"}),
    (True, 1, "tcp://10.0.0.1:2", {"global_batch_size": "256", "nodes": "1"}),
    (True, 4, "tcp://10.0.0.1:2", {"global_batch_size": "1024", "nodes": "4"}),
    (False, 4, "tcp://10.0.0.1:2", {"global_batch_size": "1024", "world_size": "4"}),
    (False, -1, "env://", {}),
    (True, -1, "env://", {}),
])  # fmt: skip
def test_the_batch_of_printed_arguments_is_a_nodes_or_a_processes(tmp_path, spawned, world, url, expected):
    _, records = read(tmp_path, ARGUMENTS.format(spawned=spawned, world=world, url=url))
    assert facts(records) == COMMON | expected


def test_arguments_of_unknown_programs_state_no_batch(tmp_path):
    _, records = read(tmp_path, "Namespace(arch='resnet50', batch_size=64, dummy=True, gpus=None, seed=7)\n")
    assert facts(records) == {"model": "resnet50", "seed": "7", "data": "synthetic"}
    assert not read(tmp_path, "Namespace(batch_size=8, network='darknet53', seed=233)\n")[1]


@pytest.mark.parametrize("name", [
    "airank-format_tsm_pytorch_1n1g_fp32.log", "pytorch-examples-imagenet_dlperf-readme_excerpt_2n8g_4n8g.log",
])  # fmt: skip
def test_every_step_line_of_real_logs_is_read(name):
    path = LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    steps = [batch.steps for batch in batches(path, format_named("pytorch-imagenet"))]
    assert sum(len(columns.step) for columns in steps) == path.read_bytes().count(b"Epoch: [") > 0
    assert all((columns.duration_s > 0).all() and (columns.step <= columns.epoch_steps).all() for columns in steps)
