"""hpc.observe and parse.summarize of Rankwise: the script runs unchanged under the one, the other's JSON is read.

Each finding `straggler` is one of the answer: its ranks; of its causes the largest, where `compute` is both passes and
what comes behind the update without the loader is `between`, and `release` (a rank that leaves a collective late) is
`collective`; its arrival skew times its share of the steps, a rank's part of it where ranks take turns. One that is
`paced` delays nobody: its steps are no shorter without it. Pauses of some ranks only are `between`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from benchmarks.straggler.adapters.common import Answer, cannot_tell, finding, named, print_answer

ROOT = Path(__file__).resolve().parents[3]
KINDS = {"persistent": "persistent", "transient": "transient", "rotating": "moving"}
PHASES = {"data": "data", "compute": "compute", "optimizer": "optimizer", "release": "collective"}


def environment(python: str) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT)}


def command(python: str, training: list[str], folder: Path) -> list[str]:
    """One rank's: the launcher's variables are set."""
    return [python, "-m", "hpc.observe", "--warmup", "5", "--traces", str(folder / "traces"), "--", *training]


def answer(folder: Path, ranks: int) -> Answer:
    argv = [sys.executable, "-m", "parse.summarize", str(folder / "traces"), "--ledger", "--format", "json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    ledgers = json.loads(done.stdout)["ledgers"] if done.stdout else []
    if not ledgers:
        return cannot_tell(f"no ledger: {done.stderr[-500:]}")
    ledger = ledgers[0]
    findings = [
        each
        for its in ledger["findings"]
        for each in (straggler(its["what"]) if its["kind"] == "straggler" else pauses(its, ranks))
    ]
    verdict = ledger["verdict"]
    if not findings and verdict["kind"] != "none" and not (verdict.get("paced") == "yes" and not verdict["unseen"]):
        return cannot_tell(ledger["sentence"])
    return named(findings, ledger["sentence"])


def straggler(what: dict[str, Any]) -> list[dict[str, Any]]:
    if not what["ranks"] or what["paced"] == "yes":
        return []
    cause = dict(what["cause"])
    behind = what["after_update"] or 0.0
    if what["loader"] is not None:  # what of `data` is no loader comes between the steps, too
        behind += max(0.0, cause.get("data", 0.0) - max(0.0, what["loader"]))
    largest = max(cause, key=cause.__getitem__)
    phase = "between" if behind > 0.5 * sum(cause.values()) else PHASES.get(largest)
    kind = KINDS.get(what["kind"])
    if kind == "persistent" and what["shape"]:
        kind = {"growing": "growing", "begins": "late"}.get(what["shape"]["kind"], kind)
    turns = len(what["ranks"]) if kind == "moving" else 1
    return [finding(what["ranks"], phase, what["arrival_skew"] * what["share"] / turns, kind)]


def pauses(its: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    who = its["what"].get("ranks", []) if its["kind"] == "rank pauses" else []
    return [finding(who, "between", its["costs"], "transient")] if 0 < len(who) < ranks else []


def version() -> str:
    from hpc.system.version import version_line

    return version_line()


if __name__ == "__main__":
    print_answer("hpc.observe", version, answer)
