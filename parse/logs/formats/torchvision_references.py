"""torchvision's references (classification, detection, segmentation, …), and the many programs that took over their
MetricLogger: DETR, DeiT, DINO, MAE, BEiT, ConvNeXt, …

`time` is the mean of the last 20 steps (`SmoothedValue(fmt="{avg:.4f}")`), with the wait for input; where fewer are
between two lines, neighbouring numbers share steps. `img/s` is one rank's, of the last step alone and without the wait
for input (`batch_size / (time.time() - start_time)`), and is not read. One rank prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step
from parse.logs.engine.shared_patterns import ABSENT, END_OF_EPOCH, arguments

_STAMP = (
    rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d(?:\.\d+)?(?=\]))"
    rb"[^<\n\[]{0,80}?)?"
)
_TIME = rb" +\[ *(?P<step>\d+)/(?P<epoch_steps>\d+)\] +eta: [^\[\n]{1,8000}? time: (?P<duration_s>\d+\.\d+) +data: "
_NAMES = {
    "batch_size": "batch_size", "batch_size_per_gpu": "batch_size", "world_size": "world_size", "model": "model",
    "arch": "model", "epochs": "epochs", "print_freq": "print_every", "seed": "seed", "accum_iter": "accumulation",
    "update_freq": "accumulation",
}  # fmt: skip
"""Arguments and facts; the batch is that of a process, each of which drives one device."""
_LINES = ("batch_size", "batch_size_per_gpu", "world_size", "model", "arch", "accum_iter", "epochs")
"""Arguments that some programs print on a line each."""


def _facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
    facts = {
        name: arguments[argument] for argument, name in _NAMES.items() if arguments.get(argument, "") not in ABSENT
    }
    if arguments.get("amp") in ("True", "False"):
        facts["precision"] = "amp-fp16" if arguments["amp"] == "True" else "fp32"
    elif arguments.get("apex") == "True" and arguments.get("apex_opt_level") in ("O1", "O2"):
        facts["precision"] = "amp-fp16"
    return facts


def _line(match: re.Match[bytes]) -> Mapping[str, str]:
    return _facts({match["name"].decode(): match["value"].decode()})


FORMAT = LogFormat(
    name="torchvision",
    title="torchvision references (MetricLogger: DETR, DeiT, DINO, MAE, …)",
    steps=(
        step(b" eta: ", _STAMP + rb"poch: ?\[ *(?P<epoch>\d+)(?:/\d+)?\]" + _TIME),
        step(b" eta: ", rb"(?:[IWE](?P<time>\d{8} \d\d:\d\d:\d\d) [^\[\n]{0,80})?\bTraining" + _TIME),
    ),
    patterns=(
        arguments(b"Namespace(", b"", _facts),
        *(
            fact(
                name.encode(),
                rb"^(?:Namespace\()?(?P<name>" + name.encode() + rb")(?:: |=)'?(?P<value>[\w.-]{1,80})'?[,)]?\s*$",
                _line,
            )
            for name in _LINES
        ),
        pause(b"Test:", _STAMP + rb"(?P<reason>Test): +\[ *\d+/\d+\]"),
        pause(b" Total time: ", _STAMP + rb"poch: ?\[ *\d+(?:/\d+)?\] Total time: ", reason=END_OF_EPOCH),
        evaluation(b"Acc@1 ", _STAMP + rb"(?:\*|Test: +) ?Acc@1 (?P<top1>\d+\.\d+) Acc@5 "),
    ),
    mean="durations",
)
"""Steps are numbered from 0 in every epoch, and count the passes that gradients are accumulated over one by one."""
