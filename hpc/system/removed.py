"""What the release before had and this one has not, each with what to do instead: answered for one release."""

from __future__ import annotations

COMMANDS = {
    "pipeline-trace": "measure the training itself: rankwise observe -- train.py",
    "simulate": "in a checkout, python -m tools.simulation draws such traces",
}
"""Commands of `rankwise`."""
AIRANK_RATE = "AI-Rank's report has times to train; speeds are in the table of parse.summarize"
OPTIONS: dict[str, dict[str, str]] = {
    "parse.airank": {
        "--published": "compare with the document's figures by eye: hpc/model/references has those of known documents",
        "--warmup-epochs": AIRANK_RATE,
        "--samples-per-epoch": AIRANK_RATE,
    },
}
"""Options, by the command that had them as `python -m` names it: "parse.forecast", "hpc.sweep accept"."""
