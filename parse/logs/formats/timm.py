"""timm's train.py (huggingface/pytorch-image-models), and the programs that took it over.

`Time: 0.345s, 742.03/s` are of the last update alone (of its last batch, where gradients were not yet accumulated); in
brackets are the means since the epoch began, which are not read. The rate is that of all ranks; one rank prints.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, fact, pause, step

_STAMP = rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^<\n]{0,80}?)?"

FORMAT = LogFormat(
    name="timm",
    title="timm train.py",
    steps=(
        step(
            b"/s  (",
            _STAMP + rb"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<epoch_steps>\d+) \( *\d+%\)\] +"
            rb"Loss: +\S{1,24} +\(\S{1,24}\) +Time: (?P<duration_s>\d+\.\d+)s, +(?P<rate>\d+\.\d+)/s  \(",
        ),
    ),
    patterns=(
        fact(b"Training in distributed mode", rb"Process (?P<rank>\d+), total (?P<world_size>\d+)\b"),
        fact(b"Training with a single process", rb"single process on (?P<world_size>\d+) (?:GPUs|device)\b"),
        fact(b" created, param count:", rb"Model (?P<model>[\w.:/-]{1,80}) created, param count:"),
        fact(b"effective global batch size (", rb"effective global batch size \((?P<global_batch_size>\d+)\)"),
        fact(b"global batch size (", rb"and global batch size \((?P<global_batch_size>\d+)\)"),
        fact(b"AMP not enabled. ", rb"AMP not enabled\. Training in (?:torch\.)?float32\b", precision="fp32"),
        fact(b"Scheduled epochs: ", rb"Scheduled epochs: (?P<epochs>\d+)\b"),
        pause(b"Test", _STAMP + rb"(?P<reason>Test)[^:\[\n]{0,40}: \[ *\d+/\d+\]"),
        pause(b"Current checkpoints:", rb"(?P<reason>Current checkpoints):"),
    ),
)
"""Updates are numbered from 0 in every epoch. Which half precision AMP uses is not printed. An update takes in the
effective global batch, with the gradients that are accumulated in it."""
