"""PyTorch Lightning's progress bar, `Epoch 0:   4%|▍ | 42/1000 [00:12<04:45, …]`.

A step is a batch of every device; the bar knows whole seconds since the epoch began. Before version 2 what it counts to
holds the batches of the validation, so that nothing says how many steps an epoch has.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, pause, step
from parse.logs.engine.shared_patterns import BAR, LIGHTNING_WORLD, RUNTIME

FORMAT = LogFormat(
    name="lightning",
    title="PyTorch Lightning",
    steps=(step(b"Epoch ", rb"\bEpoch (?P<epoch>\d+): :? *" + BAR + rb"(?P<step>\d+)/[\d?]+" + RUNTIME),),
    patterns=(
        *LIGHTNING_WORLD,
        pause(b"Validation DataLoader", rb"(?P<reason>Validation) DataLoader"),
        pause(b"Validating: ", rb"(?P<reason>Validating): "),
    ),
    bars=True,
    anywhere=True,
)
