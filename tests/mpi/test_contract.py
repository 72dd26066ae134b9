"""What every backend of the table must do, each on real ranks; and that the checks find a backend that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Container
from pathlib import Path

import pytest

from hpc.backends import BACKENDS, TRAINERS, missing_modules
from hpc.model.outcome import Outcome
from hpc.recovery.collect import collect
from hpc.recovery.recover import main as recover
from tests.mpi.attempts import HERE, Attempt, Ranks, spec
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = HERE / "contract.py"
ON_CPUS = [name for name, entry in TRAINERS.items() if not entry.one_rank_per_node]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """A backend of the table; skips, with the command that helps, where this machine lacks what it needs."""
    name: str = request.param
    if missing := missing_modules(name):
        pytest.skip("; ".join(missing))
    return name


def over(names: list[str], *, usual: Container[str] = ON_CPUS) -> pytest.MarkDecorator:
    """Those that are not `usual` are for `make test-all`."""
    each = [pytest.param(name, marks=() if name in usual else pytest.mark.all) for name in names]
    return pytest.mark.parametrize("backend", each, indirect=True)


CHECKS = {
    "joined:3:fp32": "ranks learn what one process learns from the joined batch",
    "joined:3:fp64": "to the last digits",
    "joined:3:fp32:step": "with the limits of a step alone timed",
    # A rank begins when the one before it has ended: any waiting would last until the time limit, and nothing is timed.
    "alone:3:fp32": "without reduction ranks learn from their own data and wait for nobody",
    "alone:3:fp32:step": "with the limits of a step alone timed",
    # Another rank begins its step when this one has sent its t3: were that late, both would wait until the time limit.
    "complete:5": "a rank's own gradients are complete whatever the others do",
    "resnet50:3": "ranks that train ResNet-50 agree with one another",
    "falls:20": "the loss falls on a fixed batch",
    "samples:2": "samples are those really seen",
    "facts:2": "facts have the fields and values of earlier traces",
    "broken:1:fp32": "a backend that does not average is rejected",
}
"""The checks of ranks/contract.py, and what each shows."""
FURTHER = {"resnet50:3", "joined:3:fp64", "joined:3:fp32:step", "alone:3:fp32:step"}
"""Under most backends these are for `make test-all`."""
_outputs: dict[str, str] = {}


def further(backend: str, check: str) -> bool:
    """Whether another backend shows it as well: a check of torch's, all of TensorFlow's other backend."""
    return backend == "tensorflow-multiworker" or (check in FURTHER and backend not in ("mpi", "torch-ddp"))


def checks_of(backend: str) -> list[str]:
    without = {"resnet50:3"} if BACKENDS[backend].framework == "numpy" else set()
    if backend == "torch-fsdp":
        without.add("complete:5")  # no rank has a layer's parameters before the others have begun that step
    return [
        check
        for check in CHECKS
        if check not in without and not (BACKENDS[backend].no_sync_unsupported and "alone" in check)
    ]


@pytest.mark.parametrize(
    ("backend", "check"),
    [
        pytest.param(name, check, marks=pytest.mark.all if further(name, check) else ())
        for name in ON_CPUS
        for check in checks_of(name)
    ],
    indirect=["backend"],
)
def test_two_ranks_keep_the_contract(ranks: Ranks, request: pytest.FixtureRequest, backend: str, check: str) -> None:
    """One start of two ranks makes all checks of a backend that are to be made."""
    if backend not in _outputs:
        tests = [each for each in request.session.items if isinstance(each, pytest.Function)]
        same = [each.callspec.params for each in tests if each.originalname == request.function.__name__]
        done = ranks(2, CONTRACT, backend, *(its["check"] for its in same if its["backend"] == backend), check=False)
        _outputs[backend] = f"{done.stdout}\n{done.stderr}"
    output = _outputs[backend]
    if check.startswith("broken"):
        assert "off the joined batch" in output
        assert f"{check} does not hold on 2 ranks" in output
    else:
        assert f"{check} holds on 2 ranks" in output, f"{CHECKS[check]}\n{output}"
    if check.startswith("facts"):
        facts = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        for versions in {"versions", "horovod_built_against"} & set(facts):
            facts[versions] = sorted(facts[versions])
        if "horovod_mpi_libraries" in facts:
            facts["horovod_mpi_libraries"] = len(facts["horovod_mpi_libraries"])
        assert facts == json.loads((ROOT / "tests/golden/backend_facts.json").read_text())[backend]


# Of torch, test_gpt.py shows it.
@over(ON_CPUS, usual=("mpi",))
def test_one_rank_learns_what_one_process_learns(ranks: Ranks, backend: str) -> None:
    """Four ranks do so on two nodes of a Slurm: tests/slurm/test_contract.py."""
    assert "joined:3:fp32 holds on 1 ranks" in ranks(1, CONTRACT, backend, "joined:3:fp32").stdout


@pytest.mark.all
@over(["tensorflow-horovod"])
def test_the_contract_rejects_horovods_optimizer_around_one_of_keras(ranks: Ranks, backend: str) -> None:
    broken = f"{HERE / 'broken_keras.py'}:KerasDistributedOptimizer"
    done = ranks(2, CONTRACT, broken, "joined:1:fp32")
    assert "off the joined batch" in done.stdout
    # On one rank nothing is to be averaged, and the same backend is right.
    assert "joined:1:fp32 holds on 1 ranks" in ranks(1, CONTRACT, broken, "joined:1:fp32").stdout


# The ranks of one framework that MPI connects are ended in one way.
@over(ON_CPUS, usual=("mpi", "torch-ddp"))
def test_a_killed_rank_ends_the_run_with_an_outcome_and_hangs_nobody(
    ranks: Ranks, backend: str, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    workload = f"{HERE / 'user_killed.py'}:{BACKENDS[backend].framework}"
    # The time limit is that of a hang: nothing here is timed.
    attempt = Attempt(ranks, tmp_path, spec(backend=backend, workload=workload), check=False, env={"PIDS": str(pids)})
    assert attempt.done.returncode != 0
    started = [int(path.name) for path in pids.iterdir()]
    assert len(started) == 2
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "the ranks end with their run")
    assert collect(attempt.traces, attempt.stem) == 2
    assert recover([str(attempt.traces)]) == 0
    trace = attempt.trace()
    assert trace.outcome is Outcome.RANK_FAIL
    assert trace.steps_completed[1] == 7


# Of TensorFlow's, tests/mpi/test_tensorflow.py shows it.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.all if name in ("torch-dp", "torch-fsdp") else ())
        for name in TRAINERS
        if BACKENDS[name].framework != "tensorflow"
    ],
)
def test_a_backend_imports_its_own_framework_and_no_other(name: str) -> None:
    if missing := missing_modules(name):
        pytest.skip("; ".join(missing))
    module = BACKENDS[name].where.partition(":")[0]
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    frameworks = {"torch", "tensorflow", "paddle", "horovod", "mxnet", "jax"} & set(done.stdout.split())
    assert frameworks <= set(BACKENDS[name].modules)
