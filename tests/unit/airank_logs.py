"""Logs that keep AI-Rank's rules, as texts."""

from __future__ import annotations

import json

from hpc.model.training import FIELDS

BEGIN_S = 1_558_631_910.0
EPOCH_S = 100.0
SAMPLES = 64_000
"""Samples of an epoch: 640 samples/s."""
ACCURACIES = (0.30, 0.55, 0.7590, 0.77)
CHECKSUM = "d41d8cd98f00b204e9800998ecf8427e"
INFORMATION = {name: "8" if name == "accelerators_per_node" else "4" for name in FIELDS}


def marks(accuracies=ACCURACIES, epoch_s=EPOCH_S):
    """Marks of a training that keeps all rules and goes on after the target is reached: name to time and text."""
    made = [("load_data", BEGIN_S - 1, f"load_data, checksum:{CHECKSUM}"), ("test_begin", BEGIN_S, "test_begin")]
    target = None
    for epoch, accuracy in enumerate(accuracies, 1):
        time_s = BEGIN_S + epoch * epoch_s
        made.append((f"eval {epoch}", time_s, f"eval_accuracy:{accuracy:.4f}, total_epoch_cnt:{epoch}"))
        if target is None and accuracy >= 0.759:
            target = time_s
            made.append(("target_quality_time", time_s, f"target_quality_time:{time_s - BEGIN_S:.2f}sec"))
    end_s = BEGIN_S + len(accuracies) * epoch_s
    made += [
        ("test_finish", end_s, "test_finish"),
        ("total_use_time", end_s, f"total_use_time:{end_s - BEGIN_S:.2f}sec"),
        ("avg_ips", end_s, f"avg_ips:{SAMPLES / epoch_s:.0f}images/sec"),
    ]
    return {name: (time_s, mark_text) for name, time_s, mark_text in made}


def text(log_marks):
    """The log of these marks."""
    lines = [f"- AI-Rank-log {time_s:.3f} {mark_text}" for time_s, mark_text in log_marks.values()]
    return "\n".join([*lines, ""])


def submission(root):
    """A folder that keeps all rules: three cases, 8 and 26 times as fast as one device."""
    folder = root / "linux" / "resnet50" / "log"
    folder.mkdir(parents=True)
    for devices, epoch_s in ((1, 800.0), (8, 100.0), (32, 30.0)):
        (folder / f"GPUx{devices}.log").write_text(text(marks(epoch_s=epoch_s)))
    (root / "linux" / "system_information.json").write_text(json.dumps(INFORMATION))
    return folder
