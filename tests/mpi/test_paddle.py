"""The particulars of paddle-fleet, on real ranks; what it shares with every backend is in test_contract.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, INNER
from hpc.model.verdict import cause
from hpc.recovery.collect import collect
from tests.mpi.attempts import HERE, STEPS, Attempt, Ranks, assert_refused, spec

pytestmark = pytest.mark.skipif(
    bool(missing_modules("paddle-fleet")), reason="; ".join(missing_modules("paddle-fleet"))
)
ROOT = Path(__file__).resolve().parents[2]
USER, FACTS, RESNET50 = HERE / "user_paddle.py", HERE / "paddle_facts.py", HERE / "resnet50_paddle_facts.py"
NOISE = ("ccache", "Modified FLAGS", "OMP_NUM_THREADS", "tcp_utils", "single-card", "global mean", "Traceback")


TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    # Two weights of 600 × 600 float32, 1.4 MiB each: either fills a bucket.
    {"timing": "step", "options": {"width": "600", "depth": "3", "comm_buffer_mb": "1"}},
    {"workload": f"{USER}:TwoTypes"},
)
_together: list[dict[str, Any]] = []


def facts(ranks: Ranks, *runs: dict[str, Any], size: int = 2, switches: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The facts of each run, of one start of the ranks."""
    done = ranks(size, FACTS, json.dumps(runs), *switches, env={"GLOO_SOCKET_IFNAME": "lo"} if switches else {})
    assert not [noise for noise in NOISE if noise in done.stderr]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(runs) :]]


def on_two_ranks(ranks: Ranks, run: int) -> dict[str, Any]:
    """The facts of a run of TOGETHER."""
    if not _together:
        _together.extend(facts(ranks, *TOGETHER))
    return _together[run]


def test_ranks_of_several_hosts_connect_on_the_named_interface(ranks: Ranks) -> None:
    (result,) = facts(ranks, {}, switches=("apart",))
    assert result["connected"] == ["0100007F"]
    assert result["ordered"]


@pytest.mark.all
def test_a_missing_group_is_an_invalid_run(ranks: Ranks) -> None:
    done = ranks(2, FACTS, "[{}]", "unnamed", check=False)
    assert done.returncode != 0
    assert "InvalidRun: Paddle made no group of the 2 ranks" in done.stderr


def test_the_facts_of_a_default_run(ranks: Ranks) -> None:
    result = on_two_ranks(ranks, 0)
    # Ranks of one host talk on loopback.
    assert (result["interface"], result["connected"], result["others"]) == ("lo", ["0100007F"], [])
    assert not result["catches_termination"]
    # All gradients as one bucket: 85,770 float32 are less than a MiB.
    assert result["options"] == {"comm_buffer_mb": 2, "last_comm_buffer_mb": 2, "loss_scale": "dynamic"}
    assert result["parameters_per_bucket"] == [6]
    assert (result["transport"], result["threads"], result["tf32"]) == ("gloo", 2, False)
    assert (result["absent_stamps"], result["fused"], result["synchronises_every_step"]) == ([], False, False)
    assert result["stamps"] == [[0, 1, 2, 3, 4, 5]] * 3
    assert result["ordered"]


def test_timing_of_steps_uses_the_requested_buckets(ranks: Ranks) -> None:
    result = on_two_ranks(ranks, 1)
    assert result["options"] == {"comm_buffer_mb": 1, "last_comm_buffer_mb": 1, "loss_scale": "dynamic"}
    assert len(result["parameters_per_bucket"]) == 3
    assert (result["absent_stamps"], result["fused"]) == (list(INNER), True)
    assert result["stamps"] == [[0, 1, 5]] * 3


def test_one_rank_reduces_nothing(ranks: Ranks) -> None:
    (result,) = facts(ranks, {}, size=1)
    assert (result["transport"], result["listening"], result["parameters_per_bucket"]) == ("none (one rank)", [], [])
    assert result["stamps"] == [[0, 1, 2, 3, 4, 5]] * 3
    assert result["ordered"]


def test_a_last_gradient_that_one_bucket_cannot_hold_is_not_stamped(ranks: Ranks) -> None:
    result = on_two_ranks(ranks, 2)
    assert result["absent_stamps"] == ["grads_ready"]
    assert result["stamps"] == [[0, 1, 2, 4, 5]] * 3


@pytest.fixture
def attempt(ranks: Ranks, tmp_path: Path) -> Callable[..., Attempt]:
    return lambda run, *switches, **options: Attempt(ranks, tmp_path, run, *switches, **options)


def paddle(**fields: Any) -> Any:
    return spec(**{"backend": "paddle-fleet", "workload": "mlp", **fields})


@pytest.mark.parametrize(
    ("size", "timing", "workload", "options"),
    [
        (2, "step", "mlp", {}),
        pytest.param(4, "phases", "mlp", {}, marks=pytest.mark.all),
        pytest.param(2, "phases", "resnet50", {"image_size": "64"}, marks=pytest.mark.all),
    ],
)
def test_a_run_leaves_a_trace(
    attempt: Callable[..., Attempt], size: int, timing: str, workload: str, options: dict[str, str]
) -> None:
    run = paddle(ranks_per_node=size, workload=workload, options=options, timing=timing, batch_size=2, cpus_per_rank=2)
    ended = attempt(run)
    trace = ended.trace()
    assert trace.outcome is Outcome.OK
    taken = list(range(6)) if timing == "phases" else [0, 1, 5]
    assert (trace.stamps[:, :, taken] != ABSENT).all()
    assert (np.diff(trace.stamps[:, :, taken], axis=2) >= 0).all()
    assert (np.delete(trace.stamps, taken, axis=2) == ABSENT).all()
    assert trace.samples.tolist() == [[2] * STEPS] * size
    assert np.isfinite(trace.losses).all()
    assert (trace.losses[:, -1] < trace.losses[:, 0]).all()
    assert ended.left_nothing_but_its_trace()
    assert not [noise for noise in NOISE if noise in ended.done.stderr]


@pytest.mark.all
def test_ranks_do_not_wait_before_the_last_gradient(attempt: Callable[..., Attempt]) -> None:
    trace = attempt(paddle(workload=f"{USER}:AnswersInTheMiddle")).trace()
    assert trace.outcome is Outcome.OK
    assert (np.diff(trace.stamps, axis=2) >= 0).all()


def test_memory_that_is_not_there_ends_with_a_note(attempt: Callable[..., Attempt]) -> None:
    ended = attempt(paddle(workload=f"{USER}:AsksForTooMuch"), check=False)
    note = cause(ended.notes())  # a rank that lost another one may leave a note, too, before it is ended
    assert note is not None, ended.done.stderr
    assert (note.outcome, ended.done.returncode) == ("oom", 4)
    assert "ResourceExhausted" in note.message
    assert not list(ended.traces.glob("*.h5"))
    collect(ended.traces, ended.stem)


def test_a_build_without_gpus_is_refused_on_them(ranks: Ranks) -> None:
    on_a_gpu = {"backend": "paddle-fleet", "gpus_per_node": 1}
    assert_refused(ranks, [(on_a_gpu, "InvalidRun", "Install a CUDA build of Paddle")])


def test_a_taken_address_is_a_failed_launch_that_names_it(ranks: Ranks, tmp_path: Path) -> None:
    def with_its_address_taken(size: int, _: Path, __: str, *switches: str, **options: Any) -> Any:
        return ranks(size, FACTS, "taken", *switches, **options)

    ended = Attempt(with_its_address_taken, tmp_path, paddle(), check=False)
    (note,) = ended.notes()
    assert (note.rank, note.outcome, note.exception, ended.done.returncode) == (0, "launch_fail", "PortTaken", 5)
    assert "127.0.0.1:" in note.message


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the comparison of ResNet-50 in torch and in Paddle finds."""
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))
    values = tmp_path_factory.mktemp("resnet50") / "torch.npz"
    for framework in ("torch", "paddle"):
        done = subprocess.run(
            [sys.executable, str(RESNET50), framework, str(values)], cwd=ROOT, capture_output=True, text=True,
            check=False, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


@pytest.mark.all
def test_resnet50_computes_what_torch_computes_from_the_same_weights(result: dict[str, Any]) -> None:
    assert result["parameters"] == 25_557_032
    assert result["all_taken"]
    assert max(result["distance"][mode] for mode in ("eval", "train")) <= 1e-4
    # Running statistics are torch's but for the biased variance.
    assert (result["running_mean"] <= 1e-6, result["running_var"] <= 1e-5) == (True, True)


@pytest.mark.all
@pytest.mark.parametrize(
    ("recipe", "rate", "momentum", "decays", "gradient"),
    [
        # Smoothing 0.1: softmax of equal logits, less 0.9 + 0.1 / 1000.
        ("ngc", 0.256 * 2 / 256 / 8, 0.875, {"3.05e-05": 55, "0": 106}, 0.001 - 0.9001),
        ("pytorch-examples", 0.002, 0.9, {"0.0001": 161}, 0.001 - 1),
    ],
)
def test_resnet50_is_trained_by_its_recipe(
    result: dict[str, Any], recipe: str, rate: float, momentum: float, decays: dict[str, int], gradient: float
) -> None:
    its = result[recipe]
    assert its["rate"] == pytest.approx(rate)
    assert its["momentum"] == pytest.approx(momentum, rel=1e-3)
    assert its["decays"] == decays
    assert its["gradient_of_the_label"] == pytest.approx(gradient)
    assert (its["images"], its["samples"]) == ([2, 3, 64, 64], 2)


@pytest.mark.all
@pytest.mark.parametrize("recipe", ["ngc", "pytorch-examples"])
def test_resnet50_learns_what_torch_learns_in_fp64(result: dict[str, Any], recipe: str) -> None:
    # Paddle keeps rate, momentum, smoothing and epsilon in float32 even then; the model makes more of it every step.
    assert max(result[recipe]["losses"]) <= 1e-5


@pytest.mark.all
def test_ranks_begin_to_learn_resnet50_as_torchs_do(ranks: Ranks) -> None:
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))
    losses = {}
    for backend in ("torch-ddp", "paddle-fleet"):
        losses[backend] = np.array(json.loads(ranks(2, RESNET50, "losses", backend).stdout.splitlines()[-1]))
    apart = np.abs(losses["paddle-fleet"] / losses["torch-ddp"] - 1)
    # In fp32, with two images to each batch norm, rounding grows fast: torch itself is 1.3 % off in the second step and
    # 3.6 % in the third where only its memory format is another.
    assert (apart[:, 0] <= 1e-4).all()
    assert (apart[:, 1:] <= 0.1).all()
