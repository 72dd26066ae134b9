"""What the release before had and this one has not, each with what to do instead: answered for one release."""

from __future__ import annotations

COMMANDS = {
    **{name: f"rankwise sweep {name}" for name in ("status", "retry", "cancel", "accept", "find-max", "recover")},
    "airank": "rankwise summarize --airank",
    "parse.airank": "rankwise summarize --airank",
    "hpc.recovery.recover": "rankwise sweep recover",
    "pipeline-trace": "measure the training itself: rankwise observe -- train.py",
}
"""Commands of `rankwise`, and modules that `python -m` ran."""
OF_SWEEP = {"list": "rankwise list"}
"""Words behind `rankwise sweep`."""
AIRANK_RATE = "AI-Rank's report has times to train; speeds are in the table of rankwise summarize"
_OF_SBATCH = ("qos", "constraint", "reservation", "nodelist", "exclude")
OPTIONS: dict[str, dict[str, str]] = {
    "sweep": {
        "--xla": "--option xla=on",
        "--ci": "--repeats auto:1%:20, the half width and the most runs of a point",
        "--max-repeats": "--repeats auto:1%:20, the half width and the most runs of a point",
        "--eval-every": "--epochs 20/2, evaluated after every second epoch",
        "--block-steps": "a block has 500 measured steps",
        **{f"--{name}": f"--sbatch {name}=… (in a file: [sbatch])" for name in _OF_SBATCH},
    },
    "sweep accept": {"--tolerance": "--threshold"},
    "report": {"--request-samples": "--samples"},
    "doctor": {f"--{name}": f"--sbatch {name}=…" for name in _OF_SBATCH},
    "summarize --airank": {
        "--published": "published figures of known documents are in hpc/model/references: --against NAME shows them",
        "--warmup-epochs": AIRANK_RATE,
        "--samples-per-epoch": AIRANK_RATE,
    },
    "data": dict.fromkeys(
        ("--source", "--images", "--classes", "--size"),
        "the set is scikit-learn's digits; --data imagefolder:PATH trains on photographs of your own",
    ),
    "compare": {"--format openmetrics": "--format json has every figure"},
    "history": {
        "--metric": "leave it out: the speed is what is followed",
        "--format csv": "--format json has every measurement",
    },
    "summarize": {
        "--warnings": "--verbose has every warning in full length",
        "--watch": "watch -n 5 rankwise summarize PATH shows the table again and again",
    },
}
"""Options and choices of options, by the command of `rankwise` that had them."""
BACKENDS = {
    "torch-tp": "measure a script of your own that splits its layers: rankwise sweep --script train.py",
}
"""Backends, by their name."""
