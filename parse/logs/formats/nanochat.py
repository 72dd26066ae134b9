"""nanochat: `step 00010/21400 (0.05%) | loss: … | lrm: … | dt: 123.4ms | tok/sec: 456,789` (scripts/base_train.py).

`dt` is the time of the one step, evaluation not included, `tok/sec` the tokens of a step on all devices divided by it;
numbers begin at 0. autoresearch prints the same without the total.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, fact, pause, step
from parse.logs.engine.shared_patterns import digits

FORMAT = LogFormat(
    name="nanochat",
    title="nanochat",
    unit="tokens",
    mean="durations",
    steps=(
        step(
            b"| tok/sec: ",
            rb"\bstep (?P<step>\d+)(?:/\d+)? \([\d.]{1,8}%\) \| loss: [-\w.]{1,20} \| lrm: [\d.]{1,12} "
            rb"(?:\| lr\([^)\n]{1,80}\) )?"
            rb"\| dt: (?P<duration_ms>[\d.]{1,16})ms \| tok/sec: (?P<rate>[\d,]{1,20})(?:\s|$)",
        ),
    ),
    patterns=(
        fact(
            b"Tokens / micro-batch / rank: ",
            rb"micro-batch / rank: (?P<micro_batch_size>[\d,]{1,12}) x (?P<sequence_length>[\d,]{1,12}) = ",
            digits,
        ),
        fact(
            b"gradient accumulation steps: ",
            rb"batch size (?P<tokens_per_step>[\d,]{1,20}) => gradient accumulation steps: (?P<micro_batches>\d{1,6})",
            digits,
        ),
        fact(b" | Peak FLOPS", rb"GPU: (?P<device>[^|\n]{1,60}?) \| Peak FLOPS"),
        pause(b"| Validation bpb: ", rb"Step \d+ \| (?P<reason>Validation) bpb: "),
        pause(b"| CORE metric: ", rb"Step \d+ \| (?P<reason>CORE metric): "),
        pause(b"Saved ", rb"(?P<reason>Saved) (?:model|optimizer|meta)\w* "),
    ),
    numbered="run",
    from_zero=True,
)
