"""What a step takes in, in the unit of the log's format: samples or tokens."""

from __future__ import annotations

from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat
from parse.logs.sizes import whole_number
from parse.logs.window import Window

TOKEN_DIGITS = 11
WHOLE = 1e-9
"""A number of samples that is no further from a whole one is that."""


def with_printed_batch(facts: Mapping[str, str], log_format: LogFormat, window: Window | None) -> Mapping[str, str]:
    """The facts with the samples of a step, where no header has them but step lines or its tokens do."""
    tokens, length = (
        whole_number(facts.get("tokens_per_step"), TOKEN_DIGITS),
        whole_number(facts.get("sequence_length"), TOKEN_DIGITS),
    )
    if facts.get("global_batch_size"):
        return facts
    if tokens and length and tokens % length == 0:
        return {**facts, "global_batch_size": str(tokens // length)}
    if window is None or not window.taken_in or log_format.unit != "samples":
        return facts
    each = window.taken_in / window.steps
    return {**facts, "global_batch_size": str(round(each))} if abs(each - round(each)) < WHOLE * each else facts


def taken_in_per_step(
    log_format: LogFormat, facts: Mapping[str, str], samples: int | None, window: Window | None, remarks: list[str]
) -> float | None:
    """What all devices take in per step in the format's unit, a mean over the window; None if unknown.

    `samples` are those of a step by the header. What step lines print is believed over it.
    """
    by_header = samples if log_format.unit == "samples" else _tokens(facts, samples)
    if window is None or not window.taken_in:
        return by_header
    each = window.taken_in / window.steps
    if by_header and abs(each / by_header - 1) > WHOLE and log_format.unit == "samples":
        remarks.append(
            f"it says {by_header} samples a step, and its steps took in {each:.6g} on average: the latter is taken"
        )
    return each


def _tokens(facts: Mapping[str, str], samples: int | None) -> int | None:
    """The tokens of a step, as printed, else of its samples."""
    printed = whole_number(facts.get("tokens_per_step"), TOKEN_DIGITS)
    length = whole_number(facts.get("sequence_length"), TOKEN_DIGITS)
    return printed or (samples * length if samples and length else None)
