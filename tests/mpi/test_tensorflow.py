"""The particulars of TensorFlow's backends and workloads; what they share with all others is in test_contract.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, INNER, REDUCED
from hpc.model.verdict import cause
from hpc.recovery.collect import collect
from tests.mpi.attempts import HERE, STEPS, Attempt, Ranks, assert_refused, spec
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
USERS = HERE / "user_tensorflow.py"
HOROVOD, STRATEGY = "tensorflow-horovod", "tensorflow-multiworker"
# What leads TensorFlow astray where it is looked at: a way round by a proxy, other ranks, another framework.
NUISANCES = {
    "http_proxy": "http://127.0.0.1:9",
    "KERAS_BACKEND": "torch",
    "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}',
}
KERAS = f"{USERS}:KerasDense"
TOGETHER: dict[str, list[dict[str, Any]]] = {
    HOROVOD: [
        {},
        {"timing": "phases", "workload": KERAS},
        {"precision": "bf16", "workload": KERAS},
    ],
    STRATEGY: [{}, {"timing": "step", "workload": KERAS}, {"precision": "bf16"}],
}
_cache: dict[str, dict[str, Any]] = {}


@pytest.fixture(autouse=True)
def tensorflow(request: pytest.FixtureRequest) -> None:
    """Skips, with the command that helps, where this machine lacks what a test needs."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if missing := missing_modules(parameters.get("backend", STRATEGY)):
        pytest.skip("; ".join(missing))


def facts(ranks: Ranks, backend: str, **fields: Any) -> dict[str, Any]:
    """What ranks/tensorflow_facts.py prints on two ranks; runs TOGETHER come from one start, with NUISANCES."""

    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))

    def key(run: dict[str, Any]) -> str:
        return json.dumps([backend, run], sort_keys=True)

    if key(fields) not in _cache:
        together = fields in TOGETHER[backend]
        runs = TOGETHER[backend] if together else [fields]
        argument = json.dumps([{"backend": backend, **run} for run in runs])
        done = ranks(2, HERE / "tensorflow_facts.py", argument, env=NUISANCES if together else {})
        lines = done.stdout.splitlines()[-len(runs) :]
        _cache.update({key(run): json.loads(line) for run, line in zip(runs, lines, strict=True)})
    return _cache[key(fields)]


def on_one_rank(script: str, *switches: str) -> Any:
    """The JSON that a script prints in one process, without mpiexec."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *switches], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None


@pytest.mark.parametrize("backend", [HOROVOD, STRATEGY])
def test_the_facts_of_a_default_run(ranks: Ranks, backend: str) -> None:
    result = facts(ranks, backend)
    assert result["frameworks"] == (["horovod"] if backend == HOROVOD else [])
    assert result["versions"]["tensorflow"].startswith("2.")
    assert result["device"] == {"kind": "cpu"}
    assert result["transport"] == {HOROVOD: "mpi", STRATEGY: "grpc ring"}[backend]
    assert (result["threads"], result["inter_op_threads"], result["tf32"]) == (1, 2, False)
    assert (result["absent_stamps"], result["fused"], result["synchronises_every_step"]) == (
        ["forward_end"],
        False,
        False,
    )
    assert result["options"] == {
        "xla": False,
        "loss_scale": "dynamic",
        **{
            HOROVOD: {"fusion_threshold_mb": 128.0, "cycle_time_ms": 1.0, "compression": "none"},
            STRATEGY: {"collective": "auto", "bytes_per_pack_mb": 0.0},
        }[backend],
    }
    assert (result["compiled_calls"], result["ranks_agree"]) == (0, True)


def losses(result: dict[str, Any]) -> list[float]:
    values: list[float] = result["losses"]
    assert np.isnan(values[4:]).all()
    return values[:4]


def test_both_backends_learn_the_same(ranks: Ranks) -> None:
    assert losses(facts(ranks, HOROVOD)) == pytest.approx(losses(facts(ranks, STRATEGY)))


@pytest.mark.all
@pytest.mark.parametrize(("backend", "timing"), [(HOROVOD, "step"), (STRATEGY, "phases")])
def test_options_do_not_change_what_is_learned(ranks: Ranks, backend: str, timing: str) -> None:
    options = {HOROVOD: {"fusion_threshold_mb": "0"}, STRATEGY: {"collective": "ring", "bytes_per_pack_mb": "0.01"}}
    result = facts(ranks, backend, timing=timing, options={"xla": "on", **options[backend]})
    assert result["options"]["xla"] is True
    assert result["compiled_calls"] >= 2  # the loss and its gradients
    assert result["fused"] is (timing == "step")
    assert losses(result) == pytest.approx(losses(facts(ranks, backend)), rel=1e-5)


@pytest.mark.all
@pytest.mark.parametrize(
    ("backend", "fields"),
    [(HOROVOD, {"options": {"compression": "fp16"}}), (STRATEGY, {"precision": "bf16"})],
)
def test_lower_precision_and_compression_change_the_losses(ranks: Ranks, backend: str, fields: dict[str, Any]) -> None:
    few, many = losses(facts(ranks, backend, **fields)), losses(facts(ranks, backend))
    assert few == pytest.approx(many, rel=0.02)
    assert few != pytest.approx(many, rel=1e-6)


@pytest.mark.parametrize(("backend", "timing"), [(HOROVOD, "phases"), (STRATEGY, "step")])
def test_keras_on_two_ranks_learns_what_one_process_learns(ranks: Ranks, backend: str, timing: str) -> None:
    result = facts(ranks, backend, timing=timing, workload=KERAS)
    assert result["ranks_agree"]
    assert result["off_alone"] <= 1e-6


@pytest.mark.all
def test_keras_computes_in_the_precision_of_the_run(ranks: Ranks) -> None:
    result = facts(ranks, HOROVOD, precision="bf16", workload=KERAS)
    assert 1e-6 < result["off_alone"] < 0.05


@pytest.mark.all
def test_a_rank_that_does_not_answer_for_seconds_ends_no_run(ranks: Ranks, tmp_path: Path) -> None:
    attempt = Attempt(ranks, tmp_path, spec(backend=STRATEGY, workload=f"{USERS}:StopsForAWhile"))
    trace = attempt.trace()
    assert trace.outcome is Outcome.OK
    assert (trace.stamps[1, :, BATCH_READY] - trace.stamps[1, :, BEGIN]).max() > 15e9, "it was not stopped"


# test_input_tensorflow.py has a trace of a run on files.
@pytest.mark.all
@pytest.mark.parametrize(
    ("timing", "taken", "absent"),
    [
        ("step", [BEGIN, BATCH_READY, END], INNER),
        ("phases", [BEGIN, BATCH_READY, GRADS_READY, REDUCED, END], ("forward_end",)),
    ],
)
def test_a_run_leaves_a_trace(
    ranks: Ranks, tmp_path: Path, timing: str, taken: list[int], absent: tuple[str, ...]
) -> None:
    if missing := missing_modules(HOROVOD):
        pytest.skip("; ".join(missing))
    attempt = Attempt(ranks, tmp_path, spec(backend=HOROVOD, workload="mlp", timing=timing, precision="bf16"))
    trace = attempt.trace()
    assert (trace.outcome, trace.run) == (Outcome.OK, attempt.run)
    assert (np.diff(trace.stamps[:, :, taken], axis=2) > 0).all()
    assert trace.environment["backend"]["absent_stamps"] == list(absent)
    assert (trace.stamps[:, :, FORWARD_END] == ABSENT).all()
    assert trace.samples.tolist() == [[4] * STEPS] * 2
    assert (trace.losses[:, -1] < trace.losses[:, 0]).all()
    assert attempt.left_nothing_but_its_trace()


@pytest.mark.all
def test_a_taken_port_is_named(ranks: Ranks) -> None:
    done = ranks(2, HERE / "tensorflow_facts.py", json.dumps([{"backend": STRATEGY}]), "taken", check=False)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if "PortTaken:" in line]
    assert "rank 1 of" in line
    assert "chose 127.0.0.1:" in line


def test_an_impossible_run_is_refused_with_the_reason(ranks: Ranks) -> None:
    if missing := missing_modules(HOROVOD):
        pytest.skip("; ".join(missing))
    bf16 = {"backend": STRATEGY, "precision": "bf16"}
    refused: list[tuple[dict[str, Any], str, str, str]] = [
        ({"gpus_per_node": 1}, "", "InvalidRun", "finds none"),
        ({}, "LacksLossAndSamples", "WorkloadError", "has no loss, samples"),
        ({}, "IsNotBuilt", "WorkloadError", "keras.Input"),
        ({}, "LeavesAPartOut", "WorkloadError", "/kernel:0"),
        ({}, "GivesALossPerSample", "WorkloadError", "has the shape (4,)"),
        ({}, "ChoosesItsOwnPrecision", "InvalidRun", "computes in bfloat16 too"),
        (bf16, "MakesItsOptimizerAtOnce", "WorkloadError", "make it in optimizer()"),
        (bf16, "IgnoresThePrecision", "InvalidRun", "nothing in the step"),
    ]
    runs = (
        ({"backend": HOROVOD, **fields, **({"workload": f"{USERS}:{name}"} if name else {})}, kind, text)
        for fields, name, kind, text in refused
    )
    assert_refused(ranks, runs)


@pytest.mark.parametrize(
    ("workload", "size", "outcome", "step", "message"),
    [
        ("AsksForTooMuch", 1, "oom", -1, "OOM when allocating"),
        pytest.param("RaisesAtStep7", 2, "rank_fail", 6, "my data is gone", marks=pytest.mark.all),
    ],
)
def test_a_failure_ends_all_ranks_with_a_note(
    ranks: Ranks, tmp_path: Path, workload: str, size: int, outcome: str, step: int, message: str
) -> None:
    run = spec(backend=STRATEGY, ranks_per_node=size, workload=f"{USERS}:{workload}")
    attempt = Attempt(ranks, tmp_path, run, check=False)
    assert attempt.done.returncode != 0
    note = cause(attempt.notes())  # the rank that lost the other one leaves a note, too
    assert note is not None and (note.outcome, note.step) == (outcome, step)
    assert message in note.message
    collect(attempt.traces, attempt.stem)


def test_momentum_and_loss_scale_follow_torchs_formulas() -> None:
    result = on_one_rank("tensorflow_pieces.py")
    assert result["taken_along"] == []  # by Keras: sklearn, matplotlib
    assert result["found_later"] == [name for name in ("sklearn", "matplotlib") if find_spec(name)]
    assert result["momentum"] < 1e-14
    assert result["scaled"] == [2.0**15, "float32"]
    # Steps whose gradients are not finite are left out and halve the scale; 2000 good ones in a row double it.
    first, half, quarter = 2.0**16, 2.0**15, 2.0**14
    assert result["dynamic"] == [[first, [0.5, 1]], [half, [0.5, 1]], [quarter, [0.5, 1]], [quarter, [-1.5, 1]]]
    assert result["static"] == [[8, [0.5, 1]], [8, [0.5, 1]], [8, [0, 1]]]
    assert result["grown"] == [half, first, first]


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))
    artifacts = str(tmp_path_factory.mktemp("resnet50") / "torch.npz")
    on_one_rank("resnet50_tensorflow_facts.py", "torch", artifacts)
    result: dict[str, Any] = on_one_rank("resnet50_tensorflow_facts.py", "tensorflow", artifacts)
    return result


@pytest.mark.all
def test_resnet50_computes_what_torch_computes_from_the_same_weights(resnet50: dict[str, Any]) -> None:
    assert resnet50["parameters"] == 25_557_032
    assert resnet50["all_taken"]
    assert max(resnet50["distance"][mode] for mode in ("eval", "train")) <= 1e-5
    assert resnet50["distance"]["statistics"] <= 1e-4


@pytest.mark.all
def test_its_gradients_are_as_good_as_torchs(resnet50: dict[str, Any]) -> None:
    # Batch norm over few samples loses digits: in fp32 torch's own are 3 % off those that it finds in fp64.
    off = resnet50["gradients_off"]
    assert off["tensorflow"] <= 2 * off["torch"]
    assert resnet50["compared"] > 100


@pytest.mark.all
def test_it_is_trained_by_the_recipes_of_the_references(resnet50: dict[str, Any]) -> None:
    rate, momentum, decays = resnet50["recipes"]["ngc"]
    assert (rate, momentum) == (pytest.approx(0.256 * 128 / 256 / 8), 0.875)
    # 53 convolutions, the classifier's weight and bias decay; 53 batch norms do not.
    assert decays == {str(1 / 32768): 55, "0.0": 106}
    rate, momentum, decays = resnet50["recipes"]["pytorch-examples"]
    assert (rate, momentum, decays) == (pytest.approx(0.128), 0.9, {"0.0001": 161})


@pytest.mark.all
def test_two_ranks_train_resnet50_as_torch_does(ranks: Ranks, tmp_path: Path, resnet50: dict[str, Any]) -> None:
    fields = {"workload": "resnet50", "options": {"image_size": "64"}, "warmup_steps": 5, "measured_steps": 1}
    trace = Attempt(ranks, tmp_path, spec(backend=STRATEGY, **fields)).trace()
    first, *later = resnet50["losses"]
    assert trace.losses[:, 0].tolist() == pytest.approx(first, rel=1e-5)
    # What the gradients are off, the losses are after two steps: torch's own in fp32 and fp64 differ by up to 3 %.
    assert trace.losses[:, 1:3].T.tolist() == [pytest.approx(per_step, rel=0.1) for per_step in later]
