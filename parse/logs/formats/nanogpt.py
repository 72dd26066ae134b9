"""nanoGPT: `iter 10: loss 4.1, time 123.45ms, mfu 12.3%` (karpathy/nanoGPT, train.py).

The time is that of the one iteration, evaluation before it included; numbers begin at 0. The lines have no time stamps.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, fact, pause, step
from parse.logs.engine.shared_patterns import digits

FORMAT = LogFormat(
    name="nanogpt",
    title="nanoGPT",
    unit="tokens",
    mean="durations",
    steps=(step(b": loss ", rb"\biter (?P<step>\d+): loss [-\w.]{1,20}, time (?P<duration_ms>\d+\.\d+)ms"),),
    patterns=(
        fact(
            b"tokens per iteration will be: ",
            rb"tokens per iteration will be: (?P<tokens_per_step>[\d,]{1,20})",
            digits,
        ),
        pause(b": train loss ", rb"\bstep \d+: (?P<reason>train loss) [-\w.]{1,20}, val loss "),
        pause(b"saving checkpoint to ", rb"(?P<reason>saving checkpoint) to "),
    ),
    numbered="run",
    from_zero=True,
)
