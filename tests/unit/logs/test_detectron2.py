"""detectron2: its two forms of step lines, and which of its numbers is a step's."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol, read_log
from parse.runs.log_attempt import attempt_of
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

read = partial(text_logs.read, "detectron2")

LINES = {
    # github.com/facebookresearch/detectron2/issues/195
    "[11/01 11:23:38 d2.utils.events]: eta: 8:08:27  iter: 639  total_loss: 1.194  loss_cls: 0.831  loss_box_reg: 0.355  time: 0.3326  data_time: 0.0328  lr: 0.006394  max_mem: 3961M":
        (639, None, -2056451782.0),
    # github.com/facebookresearch/detectron2/issues/1345
    "\x1b[32m[05/01 07:04:51 d2.utils.events]: \x1b[0m eta: N/A  iter: 197900  total_loss: 0.035  loss_box_reg: 0.015  loss_cls: 0.017      lr: 0.002500  max_mem: 5937M":
        (197900, None, -2072364909.0),
    # github.com/ChenhongyiYang/QueryDet-PyTorch/issues/17: the log's file
    "[04/14 09:05:02] d2.utils.events INFO:  eta: 0:11:54  iter: 119  total_loss: 9.214  loss_cls: 2.549  time: 0.8153  data_time: 0.0220  lr: 0.001199  max_mem: 28515M":
        (119, None, -2073826498.0),
    # Of the form of detectron2/utils/events.py today
    "[11/08 10:14:26 d2.utils.events]:  eta: 1 day, 5:56:07  iter: 339  total_loss: 0.9507  loss_cls: 0.4049  loss_rpn_loc: 0.1279    time: 0.2416  last_time: 0.2381  data_time: 0.0091  last_data_time: 0.0092   lr: 0.0067932  max_mem: 4212M":
        (339, 0.2381, -2055851134.0),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_step_has_its_own_seconds_and_not_the_mean_of_the_run(tmp_path, line):
    steps, records = read(tmp_path, line)
    step, duration_s, time_s = LINES[line]
    assert (steps.step.tolist(), steps.epoch.tolist()) == ([step], [-1])
    assert steps.duration_s[0] == pytest.approx(np.nan if duration_s is None else duration_s, nan_ok=True)
    assert steps.time_s.tolist() == [time_s] and not records


@pytest.mark.parametrize("line", LINES)
def test_it_is_recognised(tmp_path, line):
    (path := tmp_path / "x.log").write_text(line + "\n")
    assert recognise(path).name == "detectron2"


# The texts of detectron2/engine/defaults.py and of a whole configuration, shortened.
HEADER = """\
[11/08 10:00:00 detectron2]: Rank of current process: 0. World size: 8
[11/08 10:00:00 detectron2]: Command line arguments: Namespace(config_file='configs/COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml', dist_url='tcp://127.0.0.1:50152', eval_only=False, machine_rank=0, num_gpus=4, num_machines=2, opts=['SOLVER.IMS_PER_BATCH', '32'], resume=False)
[11/08 10:00:00 detectron2]: Contents of args.config_file=configs/COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml:
SOLVER:
  IMS_PER_BATCH: 16
  BASE_LR: 0.02
[11/08 10:00:00 detectron2]: Running with full config:
CUDNN_BENCHMARK: false
SOLVER:
  AMP:
    ENABLED: {amp}
  BASE_LR: 0.02
  GAMMA: 0.1
  IMS_PER_BATCH: 32
  LR_SCHEDULER_NAME: WarmupMultiStepLR
"""


@pytest.mark.parametrize(("amp", "precision"), [("false", "fp32"), ("true", "amp-fp16"), ("False", "fp32")])
def test_the_whole_configuration_is_believed_and_not_the_file_that_was_overridden(tmp_path, amp, precision):
    assert facts(read(tmp_path, HEADER.format(amp=amp))[1]) == {
        "world_size": "8", "gpus_per_node": "4", "nodes": "2", "model": "faster_rcnn_R_50_FPN_1x",
        "global_batch_size": "32", "precision": precision,
    }  # fmt: skip


def test_pauses(tmp_path):
    lines = (
        "[11/08 10:20:00 d2.evaluation.evaluator]: Start inference on 625 batches",
        "[11/08 10:20:00 fvcore.common.checkpoint]: Saving checkpoint to ./output/model_0004999.pth",
    )
    assert [record["reason"] for record in values(read(tmp_path, *lines)[1], "pause")] == [
        "Start inference",
        "Saving checkpoint",
    ]


def test_a_speed_by_time_stamps(tmp_path):
    lines = [
        f"[11/01 11:{minute:02d}:38 d2.utils.events]:  eta: 8:08:27  iter: {20 * minute - 1}  total_loss: 1.194  "
        "time: 0.9999  data_time: 0.0328  lr: 0.006394  max_mem: 3961M"
        for minute in range(1, 9)
    ]
    (path := tmp_path / "x.log").write_text(HEADER.format(amp="false") + "\n".join(lines) + "\n")
    attempt = attempt_of(path, read_log(path, format_named("detectron2"), Protocol()), PathFacts(), Protocol())
    assert (attempt.log.window, attempt.log.wall_clock) == ("steps 39 to 139", pytest.approx(32 * 100 / 300))
    assert attempt.log.printed is None
