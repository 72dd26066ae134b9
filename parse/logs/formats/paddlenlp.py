"""The Trainer of PaddleNLP (paddlenlp/trainer/trainer.py, `_maybe_log_save_evaluate`): a line per `logging_steps`.

`interval_runtime` are the seconds since the line before. Of its rates none is taken: until 2023
`interval_samples_per_second` counted one step of an interval of several.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, fact, pause, step, summary
from parse.logs.engine.shared_patterns import DATED, TRAINER_BATCHES, digits

FORMAT = LogFormat(
    name="paddlenlp",
    title="PaddleNLP Trainer",
    mean="durations",
    steps=(
        step(
            b"interval_runtime: ",
            rb"(?:" + DATED + rb"[^\n]{0,60}?)?\bloss: [-\w.]{1,24}, learning_rate: [-\w.]{1,24}, "
            rb"global_step: (?P<step>\d+), [^\n]{0,400}?interval_runtime: (?P<elapsed_s>\d+\.\d+)",
        ),
    ),
    patterns=(
        fact(b"world_size ", rb"\bworld_size +: ?(?P<world_size>\d+)"),
        fact(
            b"batch size per device = ",
            rb"Instantaneous batch size per device = (?P<micro_batch_size>[\d,]{1,12})",
            digits,
        ),
        *TRAINER_BATCHES,
        pause(b"***** Running Evaluation", rb"(?P<reason>Running Evaluation)"),
        pause(b"Saving model checkpoint to ", rb"(?P<reason>Saving model checkpoint) to "),
        summary(b"train_samples_per_second", rb"\b(?P<what>train_samples_per_second)(?: += +|: )(?P<rate>[\d.]{1,20})"),
    ),
    numbered="run",
)
