"""tf_cnn_benchmarks (tensorflow/benchmarks).

`total images/sec` is the rate of all workers over all steps after the program's own warm-up (100 steps after 10,
unless it is given other numbers). The `images/sec` of its step lines is the mean since the first of these steps, of one
worker where there are several, and is not read: the total is the only speed, and it is of the whole run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, fact, summary


def _devices(match: re.Match[bytes]) -> Mapping[str, str]:
    """The devices of all ranks under Horovod, else those of one worker, which is the only one without a job's name."""
    count = str(match["devices"].count(b"'") // 2)
    if b"horovod/" in match["devices"]:
        return {"world_size": count}
    return {"gpus_per_node": count} | ({} if b"/job:" in match["devices"] else {"world_size": count, "nodes": "1"})


PATTERNS = (summary(b"images/sec: ", rb"(?P<what>total images/sec): (?P<rate>\d+\.\d+)"),)

FORMAT = LogFormat(
    name="tf-cnn-benchmarks",
    title="tf_cnn_benchmarks",
    steps=(),
    patterns=(
        *PATTERNS,
        fact(b"Model: ", rb"\bModel: +(?P<model>\S{1,60})"),
        fact(b"Dataset: ", rb"\bDataset: +\S{1,60} \(synthetic\)", data="synthetic"),
        fact(b"Mode: ", rb"\bMode: +(?:forward only|evaluation)", forward_only="true"),
        fact(b"Batch size: ", rb"\bBatch size: +(?P<global_batch_size>\d+)(?:\.0)? global\b"),
        fact(b" per device", rb"(?:^|\s)(?P<batch_size>\d+)(?:\.0)? per device\b"),
        fact(b"Devices: ", rb"\bDevices: +\[(?P<devices>[^][\n]{1,8000})\]", _devices),
        fact(b"TensorFlow: ", rb"\bTensorFlow: +(?P<tensorflow>[\w.]{1,24})"),
    ),
)
