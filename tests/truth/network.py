"""Faults of a real network against what the ledger says of it: three hosts with a network each, on this machine.

`python -m tests.truth.network [--keep DIR] [--backend torch-ddp] [--only NAME]`; `--folder DIR` looks once more at what
an earlier run kept. Prints a table; ends with 1 where a fault is not named, or one is named that is not there, 2 where
the runs could not be made. Needs what benchmarks.network needs: root, namespaces, /dev/net/tun, Open MPI 4.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.network import Network, NetworkError, Paths, refused
from hpc.model.spec import RunSpec
from hpc.workloads import code_digest
from parse.ledger.network import Fault, NetworkFinding
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.runs.load import load
from parse.runs.result import results
from parse.say.findings import words
from tests.truth.programs import TruthError, command, named

HOSTS, REPEATS, STEPS, WARMUP = 3, 2, 250, 10
MODELS = Path(__file__).with_name("network_models.py")
MODEL_OF = {"mpi": "Numpy", "torch-ddp": "Torch"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, and what must be named: kinds with the node that a slow link must name; nothing else. Where no
    `collectives` are run beside, what the trainings record must do."""

    paths: Paths
    kinds: tuple[Fault, ...] = ()
    node: str = ""
    collectives: bool = True

    @property
    def name(self) -> str:
        return self.paths.name


CASES = (
    Case(paths=Paths(name="no fault")),
    Case(paths=Paths(name="3 ms delay", delay_us=3000), kinds=(Fault.LATENCY,)),
    Case(paths=Paths(name="50 Mbit/s", rate_mbit=50), kinds=(Fault.BANDWIDTH,)),
    Case(paths=Paths(name="1 % loss", loss_percent=1), kinds=(Fault.LOSS,)),
    Case(paths=Paths(name="3 ms delay of host 2", delay_us=3000, of_host=2), kinds=(Fault.SLOW_LINK,), node="h2"),
    Case(paths=Paths(name="20 Mbit/s of host 1", rate_mbit=20, of_host=1), kinds=(Fault.SLOW_LINK,), node="h1"),
    Case(paths=Paths(name="no fault and no collectives"), collectives=False),
    Case(
        paths=Paths(name="1 Mbit/s of host 2 and no collectives", rate_mbit=1, of_host=2), kinds=(Fault.SLOW_LINK,),
        node="h2", collectives=False,
    ),
)  # fmt: skip


def main() -> int:
    """Command line: 0 where all are named, 1 where not, 2 where the runs could not be made."""
    backend = {"choices": [*MODEL_OF], "default": "mpi", "help": "whose all-reduce (%(default)s)"}
    return command(__doc__, judge_all, ("--backend", backend))


def judge_all(options: argparse.Namespace, folder: Path, scratch: Path) -> int:
    """Runs the chosen cases, or looks at what is there. Returns how many are not right."""
    cases = named(CASES, options.only)
    try:
        if options.folder is None:
            run_all(cases, folder, options.backend)
        lines = [judged(case, folder) for case in cases]
    except NetworkError as error:
        raise TruthError(str(error)) from None
    print("| network | step | communication | says | |\n|---|---|---|---|---|")
    print("\n".join(line for line, _ in lines))
    wrong = sum(not right for _, right in lines)
    print(f"\n{len(lines) - wrong} of {len(lines)} right")
    return wrong


def run_all(cases: Sequence[Case], folder: Path, backend: str) -> None:
    """The runs of each case: two trainings and the collectives of three hosts; one training on one host for all.

    Raises NetworkError.
    """
    if reason := refused():
        raise NetworkError(f"no hosts with networks of their own can be had here: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    baseline: Path | None = None
    for number, case in enumerate(cases, 1):
        print(f"{number} of {len(cases)}: {case.name}", flush=True)
        traces = traces_of(case, folder)
        traces.mkdir(parents=True)
        with Network(case.paths, HOSTS) as network:
            if baseline is None:
                train(network, spec(backend, nodes=1, repeat=1), traces)
                (baseline,) = traces.glob("*.h5")
            else:
                shutil.copy(baseline, traces)
            for repeat in range(1, REPEATS + 1):
                train(network, spec(backend, nodes=HOSTS, repeat=repeat), traces)
            if not case.collectives:
                continue
            network.run(
                "-m", "hpc.collectives", "--backend", backend, "--gpus-per-node", "0", "--site", "hosts",
                "--operations", "all-reduce,pairs", "--min-bytes", "1K", "--max-bytes", "1M", "--traces", traces,
            )  # fmt: skip


def spec(backend: str, *, nodes: int, repeat: int, steps: int = STEPS) -> RunSpec:
    """A training of one rank per node."""
    workload = f"{MODELS}:{MODEL_OF[backend]}"
    return RunSpec(
        nodes=nodes, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend=backend, workload=workload,
        batch_size=4, precision="fp32", scaling="weak", warmup_steps=WARMUP, measured_steps=steps, repeat=repeat,
        seed=0, site="hosts", code_digest=code_digest(workload),
    )  # fmt: skip


def train(network: Network, run: RunSpec, traces: Path, *words: str) -> None:
    """Makes the run on the first hosts. Raises NetworkError."""
    described, script = traces.parent / f"{run.run_id}.json", traces.parent / "job.sh"
    described.write_text(json.dumps(run.to_json()))
    script.write_text("#!/bin/sh\n")
    network.run(
        "-m", "hpc.rank", described, "--attempt", "1", "--traces", traces, "--script", script, *words, ranks=run.ranks
    )


def ledger_of(traces: Path) -> Ledger:
    """The ledger of the point on all hosts. Raises NetworkError where there is none."""
    read = results(load([traces]))
    points = [result for result in read if not result.run.diagnostic]
    made = ledgers(points, [result for result in read if result.run.diagnostic])
    for ledger in made:
        if ledger.result.run.nodes == HOSTS:
            return ledger
    raise NetworkError(f"{traces} holds no run on {HOSTS} hosts that ended ok")


def traces_of(case: Case, folder: Path) -> Path:
    """The traces of a case in the folder of all."""
    return folder / case.name.replace(" ", "-").replace("/", "-").replace("%", "percent") / "traces"


def judged(case: Case, folder: Path) -> tuple[str, bool]:
    """A row of the table, and whether just what there is was named."""
    ledger = ledger_of(traces_of(case, folder))
    assert ledger.network is not None
    kinds = {finding.kind for finding in ledger.network.findings}
    named = {node for finding in ledger.network.findings for node in finding.nodes if finding.kind is Fault.SLOW_LINK}
    right = kinds == {*case.kinds} and named == {case.node} - {""}
    exposed = next(term.mean.value for term in ledger.terms if term.name == "communication")
    text = ". ".join(words(each, ledger).what for each, _ in ledger.findings_of(NetworkFinding)) or "nothing"
    mark = "right" if right else "WRONG"
    return f"| {case.name} | {ledger.step.value:.1f} ms | {exposed:.1f} ms | {text} | {mark} |", right


if __name__ == "__main__":
    sys.exit(main())
