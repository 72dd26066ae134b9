"""What the windows of gpu_script.py show of a rank: how much longer a delay makes each part of a step, and in how
much of it the host paces the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc.model.timestamps import ABSENT, DEVICE_PHASES

LEAD = 10
"""Steps of gpu_script.py before each window."""


def delayed_terms(stamps: Any, delays: Sequence[str], window: int) -> dict[str, dict[str, float]]:
    """By delay: how much longer each part of a step was than without a delay, in ms, medians of one rank's steps.

    `stamps` [step, 6]. Parts whose time stamps are absent are absent.
    """
    spans = {"data": (0, 1), "compute": (1, 3), "reduction": (3, 4), "optimizer": (4, 5), "step": (0, 5)}
    medians: dict[str, dict[str, list[float]]] = {}
    for number, name in enumerate(delays):
        first = number * (LEAD + window) + LEAD
        its = stamps[first : first + window]
        for span, (begin, end) in spans.items():
            if len(its) and (its[:, [begin, end]] != ABSENT).all():
                value = float(np.median(its[:, end] - its[:, begin])) / 1e6
                medians.setdefault(name, {}).setdefault(span, []).append(value)
    usual = {span: sum(values) / len(values) for span, values in medians.get("none", {}).items()}
    return {
        name: {span: values[0] - usual[span] for span, values in its.items() if span in usual}
        for name, its in medians.items()
        if name != "none"
    }


def host_bound_shares(stamps: Any, paced: Any, delays: Sequence[str], window: int) -> dict[str, dict[str, float]]:
    """By delay: the share of the step in which the host of one rank sets its device's pace, in per cent, data left out;
    and in which phase, in ms. Means over the steps of which that is known.

    `stamps` [step, 6], `paced` [step, phase] as in a trace. A delay without such steps is absent.
    """
    steps: dict[str, list[int]] = {}
    for number, name in enumerate(delays):
        first = number * (LEAD + window) + LEAD
        its = range(first, min(first + window, len(paced)))
        steps.setdefault(name, []).extend(step for step in its if (paced[step] != ABSENT).all())
    shares = {}
    for name, known in steps.items():
        if known:
            ms = dict(zip(DEVICE_PHASES, (paced[known].mean(axis=0) / 1e6).tolist(), strict=True))
            step_ms = float(np.mean(stamps[known, 5] - stamps[known, 0])) / 1e6
            behind = sum(value for phase, value in ms.items() if phase != "data")
            shares[name] = {
                "of the step %": 100 * behind / step_ms,
                **{f"{phase} ms": ms[phase] for phase in DEVICE_PHASES},
            }
    return shares
