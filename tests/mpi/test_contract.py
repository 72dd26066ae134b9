"""What every backend of the table must do, each on real ranks; and that the checks find a backend that does not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc.backends import BACKENDS, missing_modules
from hpc.model.outcome import Outcome
from hpc.recovery.collect import collect
from hpc.recovery.recover import main as recover
from tests.mpi.attempts import HERE, Attempt, Ranks, spec

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = HERE / "contract.py"
ON_CPUS = [name for name, entry in BACKENDS.items() if not entry.one_rank_per_node]
WITH_TWINS = [name for name in ON_CPUS if not BACKENDS[name].no_sync_unsupported]
TRAINS_RESNET50 = [name for name in ON_CPUS if BACKENDS[name].framework != "numpy"]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """A backend of the table; skips, with the command that helps, where this machine lacks what it needs."""
    name: str = request.param
    if missing := missing_modules(name):
        pytest.skip("; ".join(missing))
    return name


def over(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("backend", names, indirect=True)


def holds(ranks: Ranks, size: int, backend: str, check: str, steps: int, kind: str = "fp32") -> None:
    done = ranks(size, CONTRACT, backend, check, str(steps), kind)
    assert f"{check} holds on {size} ranks" in done.stdout


@pytest.mark.parametrize("size", [1, 2, 4])
@over(ON_CPUS)
def test_ranks_learn_what_one_process_learns_from_the_joined_batch(ranks: Ranks, backend: str, size: int) -> None:
    holds(ranks, size, backend, "joined", 3)


@over(ON_CPUS)
def test_they_do_so_to_the_last_digits_in_fp64(ranks: Ranks, backend: str) -> None:
    holds(ranks, 2, backend, "joined", 3, "fp64")


@over(ON_CPUS)
def test_they_do_so_with_timing_of_steps(ranks: Ranks, backend: str) -> None:
    done = ranks(2, CONTRACT, backend, "joined", "3", "fp32", "step")
    assert "joined holds on 2 ranks" in done.stdout


@over(WITH_TWINS)
def test_without_reduction_ranks_learn_from_their_own_data_and_wait_for_nobody(ranks: Ranks, backend: str) -> None:
    # A rank begins when the one before it has ended: any waiting would last until the time limit, and nothing is timed.
    done = ranks(2, CONTRACT, backend, "alone", "3", "fp32", timeout_s=120)
    assert "alone holds on 2 ranks" in done.stdout


@over([name for name in WITH_TWINS if name not in ("mpi", "torch-ddp", "paddle-fleet")])
def test_they_do_so_where_timing_of_steps_takes_another_way(ranks: Ranks, backend: str) -> None:
    done = ranks(2, CONTRACT, backend, "alone", "3", "fp32", "step", timeout_s=120)
    assert "alone holds on 2 ranks" in done.stdout


@over(ON_CPUS)
def test_a_ranks_own_gradients_are_complete_whatever_the_others_do(ranks: Ranks, backend: str) -> None:
    # Another rank begins its step when this one has told its t3: were that late, both would wait until the time limit.
    done = ranks(2, CONTRACT, backend, "complete", "5", "fp32", timeout_s=120)
    assert "complete holds on 2 ranks" in done.stdout


@over(ON_CPUS)
def test_the_contract_rejects_a_backend_that_does_not_average(ranks: Ranks, backend: str) -> None:
    done = ranks(2, CONTRACT, backend, "broken", "1", "fp32", check=False)
    assert done.returncode != 0
    assert "off the joined batch" in done.stdout


@over(["tensorflow-horovod"])
def test_the_contract_rejects_horovods_optimizer_around_one_of_keras(ranks: Ranks, backend: str) -> None:
    broken = f"{HERE / 'broken_keras.py'}:KerasDistributedOptimizer"
    done = ranks(2, CONTRACT, broken, "joined", "1", "fp32", check=False)
    assert done.returncode != 0
    assert "off the joined batch" in done.stdout
    # On one rank nothing is to be averaged, and the same backend is right.
    holds(ranks, 1, broken, "joined", 1)


@over(TRAINS_RESNET50)
def test_ranks_that_train_resnet50_agree_with_one_another(ranks: Ranks, backend: str) -> None:
    holds(ranks, 2, backend, "resnet50", 3)


@over(ON_CPUS)
def test_the_loss_falls_on_a_fixed_batch(ranks: Ranks, backend: str) -> None:
    holds(ranks, 2, backend, "falls", 20)


@over(ON_CPUS)
def test_samples_are_those_really_seen(ranks: Ranks, backend: str) -> None:
    holds(ranks, 2, backend, "samples", 2)


@over(ON_CPUS)
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
    limit = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < limit, "a rank outlived its run"
        time.sleep(0.05)
    assert collect(attempt.traces, attempt.stem) == 2
    assert recover([str(attempt.traces)]) == 0
    trace = attempt.trace()
    assert trace.outcome is Outcome.RANK_FAIL
    assert trace.steps_completed[1] == 7


@over(ON_CPUS)
def test_facts_have_the_fields_and_values_of_earlier_traces(ranks: Ranks, backend: str) -> None:
    facts = json.loads(ranks(2, CONTRACT, backend, "facts", "2", "fp32").stdout.splitlines()[0])
    for versions in {"versions", "horovod_built_against"} & set(facts):
        facts[versions] = sorted(facts[versions])
    if "horovod_mpi_libraries" in facts:
        facts["horovod_mpi_libraries"] = len(facts["horovod_mpi_libraries"])
    assert facts == json.loads((ROOT / "tests/golden/backend_facts.json").read_text())[backend]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_imports_its_own_framework_and_no_other(name: str) -> None:
    if missing := missing_modules(name):
        pytest.skip("; ".join(missing))
    module = BACKENDS[name].where.partition(":")[0]
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    frameworks = {"torch", "tensorflow", "paddle", "horovod", "mxnet", "jax"} & set(done.stdout.split())
    assert frameworks <= set(BACKENDS[name].modules)


def test_one_process_for_all_devices_of_a_node_is_invalid_on_cpus(ranks: Ranks, tmp_path: Path) -> None:
    attempt = Attempt(ranks, tmp_path, spec(backend="torch-dp", workload="mlp"), check=False)
    (note, *_) = attempt.notes()
    assert (note.outcome, attempt.done.returncode) == (Outcome.INVALID, 3)
    assert "bare model" in note.message
    collect(attempt.traces, attempt.stem)
