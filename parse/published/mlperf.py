"""MLPerf Training's benchmarks: the quality each must reach, and the samples of its data set.

Source: the closed division's rules in mlcommons/logging, compliance_checker/training_<round>/closed_*.yaml, check
ATLEAST_ONE_CHECK of eval_accuracy; for rounds 0.5 and 0.6, which state none there, the rounds' training rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parse.published.tables import IMAGENET

ROUNDS = {"0.5": 2018.0, "0.6": 2019.0, "0.7": 2020.0, "1.0": 2021.0, "2.0": 2022.0, "5.0": 2025.0}
"""The rounds that changed a target, each by the year of its runs: a log does not name its round."""
COCO, OPEN_IMAGES, CRITEO = 117_266, 1_170_301, 4_195_197_692
SECONDS_OF_YEAR = 365.2425 * 86_400
FIRST_YEAR = 2017
"""Earlier times are those of a clock that does not count from 1970."""
LARGE_BATCH = 8192
"""The global batch size from which round 0.7 required less of BERT."""


@dataclass(frozen=True, kw_only=True)
class QualityTarget:
    """The quality to reach: at least `value`, or at most if `lower`; `second` is the minimum of a second metric.

    Both are in percent if `percent`. `source` says where the target is from.
    """

    value: float
    metric: str = "accuracy"
    second_metric: str = ""
    second: float | None = None
    percent: bool = True
    lower: bool = False
    source: str = ""

    @property
    def is_accuracy(self) -> bool:
        """Whether it is one accuracy in percent."""
        return self.percent and not self.lower and self.second is None

    def reached(self, value: float, second: float | None) -> bool:
        """Whether an evaluation is at the target."""
        if self.second is not None and (second is None or second < self.second):
            return False
        return value <= self.value if self.lower else value >= self.value

    def text(self, value: float | None = None, second: float | None = None, digits: str = "g") -> str:
        """Returns a quality with its metric and unit, the target's own if none is given."""
        unit = " %" if self.percent else ""
        name = "" if self.is_accuracy else f"{self.metric} "
        text = f"{name}{self.value if value is None else value:{digits}}{unit}"
        if self.second is None:
            return text
        other = self.second if value is None else second
        return f"{text} and {self.second_metric} {0 if other is None else other:{digits}}{unit}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark: `targets` and `samples` of its data set by the round that introduced them.

    Its quality is printed as a fraction if `percent`. `max_epochs` is the maximum of epochs that are trained; larger
    numbers count samples if `counts_samples`, else steps, tokens or parts of an epoch.
    """

    targets: Mapping[str, float]
    metric: str = "accuracy"
    percent: bool = True
    lower: bool = False
    second_metric: str = ""
    second: float | None = None
    samples: Mapping[str, int] | None = None
    max_epochs: float = 20_000
    counts_samples: bool = False

    def target(self, name: str, time_s: float | None, batch_size: int | None) -> QualityTarget:
        """Returns the target of the round in which a run at `time_s` (seconds since 1970) was made."""
        in_round = _round(self.targets, time_s)
        value, condition = self.targets[in_round], ""
        if (name, in_round) == ("bert", "0.7") and (batch_size or 0) >= LARGE_BATCH:
            value, condition = 70.6, f" and batches of {LARGE_BATCH} and more"
        since = f" since round {in_round}" if len(self.targets) > 1 else ""
        return self.with_value(value, f"MLPerf's of {name}{since}{condition}")

    def with_value(self, value: float, source: str) -> QualityTarget:
        """Returns a target of this benchmark's kind."""
        return QualityTarget(
            value=value,
            metric=self.metric,
            second_metric=self.second_metric,
            second=self.second,
            percent=self.percent,
            lower=self.lower,
            source=source,
        )

    def data_set(self, time_s: float | None) -> int | None:
        """Returns the samples of its data set; None if the rules leave them open."""
        return self.samples[_round(self.samples, time_s)] if self.samples else None


def _round(by_round: Mapping[str, object], time_s: float | None) -> str:
    """Returns the last round of an ascending mapping that had begun at that time; the last of all if it is no date."""
    year = 1970 + (time_s or 0) / SECONDS_OF_YEAR
    year = year if year >= FIRST_YEAR else math.inf
    return [name for name in by_round if ROUNDS[name] <= year or name == next(iter(by_round))][-1]


def _loss(value: float) -> Benchmark:
    return Benchmark(targets={"5.0": value}, metric="loss", percent=False, lower=True, max_epochs=0)


_DETECTION = Benchmark(
    targets={"0.5": 37.7}, metric="BBOX", second_metric="SEGM", second=33.9, samples={"0.5": COCO}
)  # fmt: skip
_GRAPHS = Benchmark(targets={"0.7": 72.0})
BENCHMARKS: Mapping[str, Benchmark] = {
    "resnet": Benchmark(targets={"0.5": 74.9, "0.6": 75.9}, samples={"0.5": IMAGENET}),
    "ssd": Benchmark(
        targets={"0.5": 21.2, "0.6": 23.0, "2.0": 34.0}, samples={"0.5": COCO, "2.0": OPEN_IMAGES}
    ),
    "retinanet": Benchmark(targets={"5.0": 34.0}, samples={"5.0": OPEN_IMAGES}),
    "maskrcnn": _DETECTION,
    "mask": _DETECTION,
    "gnmt": Benchmark(targets={"0.5": 21.8, "0.6": 24.0}),
    "transformer": Benchmark(targets={"0.5": 25.0}),
    "ncf": Benchmark(targets={"0.5": 63.5}),
    "minigo": Benchmark(targets={"0.5": 40.0, "0.6": 50.0}, max_epochs=0),
    "bert": Benchmark(targets={"0.7": 71.2, "1.0": 72.0}, max_epochs=100, counts_samples=True),
    "dlrm": Benchmark(targets={"0.7": 80.25}, samples={"0.7": CRITEO}, max_epochs=1),
    "dlrm_dcnv2": Benchmark(targets={"0.7": 80.275}, samples={"0.7": CRITEO}, max_epochs=1),
    "rnnt": Benchmark(targets={"1.0": 5.8}, metric="word error rate", lower=True),
    "unet3d": Benchmark(targets={"1.0": 90.8}, samples={"1.0": 168}, counts_samples=True),
    "gpt3": Benchmark(targets={"2.0": 2.69}, metric="log perplexity", percent=False, lower=True, max_epochs=0),
    "stable_diffusion": Benchmark(
        targets={"2.0": 90.0}, metric="FID", percent=False, lower=True, second_metric="CLIP", second=0.15, max_epochs=0
    ),
    "gnn": _GRAPHS,
    "rgat": _GRAPHS,
    "llama2_70b_lora": _loss(0.925),
    "llama31_405b": _loss(5.6),
    "llama31_8b": _loss(3.3),
    "flux1": _loss(0.586),
    "gpt_oss_20b": _loss(3.34),
    "deepseekv3_671b": _loss(3.6),
    "qwen35_397b_grpo": Benchmark(targets={"5.0": 69.0}, max_epochs=0),
}  # fmt: skip
"""By the name in submission_benchmark."""
