"""Looks at running runs as OpenMetrics text, for node_exporter's textfile collector: gauges alone, which both read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from parse.live.recent import RunLook

Labels = dict[str, str]


def openmetrics(looks: Sequence[tuple[RunLook, float | None]]) -> str:
    """The text, of each look and the speed that is expected of its run, where one is known."""
    return "".join([*(_family(*each, looks) for each in FAMILIES), "# EOF\n"])


def _family(name: str, meaning: str, of: Callable[[RunLook, float | None], tuple[Labels, float | None]],
            looks: Iterable[tuple[RunLook, float | None]]) -> str:  # fmt: skip
    samples = []
    for look, expected in looks:
        labels, value = of(look, expected)
        if value is not None:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"run": look.stem, **labels}.items())
            samples.append(f"{name}{{{shown}}} {value:.10g}\n")
    return "".join([f"# TYPE {name} gauge\n", f"# HELP {name} {meaning}\n", *samples])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _in_unit(look: RunLook, speed: float | None) -> tuple[Labels, float | None]:
    return {"unit": look.run.unit if look.run else ""}, speed


def _delay(look: RunLook, _: float | None) -> tuple[Labels, float | None]:
    its = look.delay
    if its is None:
        return {}, None
    return {"ranks": " ".join(map(str, its.ranks)), "cause": its.cause}, its.late_ms / 1e3


FAMILIES: Sequence[tuple[str, str, Callable[[RunLook, float | None], tuple[Labels, float | None]]]] = (
    ("rankwise_copy_age_seconds", "age of the copies that all else is read from; without a finite one none are there",
     lambda look, _: ({}, look.age_s if look.age_s < float("inf") else None)),
    ("rankwise_step", "steps that all ranks have completed, warm-up included",
     lambda look, _: ({}, look.step if look.run else None)),
    ("rankwise_steps", "steps that the run makes, where that is known", lambda look, _: ({}, look.steps)),
    ("rankwise_speed", "samples (or tokens) a second of the recent window",
     lambda look, _: _in_unit(look, look.speed)),
    ("rankwise_expected_speed", "the median of earlier runs of the same point, or that of a reference",
     lambda look, expected: _in_unit(look, expected if look.run else None)),
    ("rankwise_remaining_seconds", "time to the last step at the pace of the recent window",
     lambda look, _: ({}, look.remaining_s)),
    ("rankwise_delay_seconds", "by how much ranks are late that the others wait for, where that is sure", _delay),
)  # fmt: skip
"""Name, meaning, and labels and value of a look and the speed expected of it; None: no sample."""
