"""Unchanged scripts with the hooks: plain processes, one or two, over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpc.model.timestamps import ABSENT, END, REDUCED
from hpc.observe.events import NO_ROOT, WRITTEN, read_events
from hpc.observe.stamps import ObservedSteps
from hpc.run.script_steps import read_steps
from tests.mpi.conftest import further
from tests.mpi.observed import ROOT, SITE, Ended, run

pytest.importorskip("torch")
ODD = "a 'b' \"c\" $d"


def succeeded(ended: Ended) -> Ended:
    assert not any(ended.statuses), ended.errors
    assert not any("observe:" in text for text in ended.errors), ended.errors
    return ended


def counts(ended: Ended) -> list[tuple[int, int]]:
    """The steps and samples that each rank prints at its end."""
    words = [line.split() for text in ended.output for line in text.splitlines() if " made " in line]
    return [(int(line[3]), int(line[6])) for line in words]


def complete(observed: ObservedSteps, first: int = 4) -> bool:
    """All steps from `first` on have all time stamps."""
    return all(ABSENT not in step.stamps and not step.absent for step in observed.steps[first:])


def pauses(observed: ObservedSteps) -> list[tuple[int, str]]:
    return [(at, step.pause.kind) for at, step in enumerate(observed.steps) if step.pause]


def test_a_ddp_loop_is_seen_and_its_losses_are_bit_equal(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path / "with", "ddp_loop.py", "--evaluate-every", "5", "--save-every", "4", ranks=2))
    plain = succeeded(run(tmp_path / "without", "ddp_loop.py", "--evaluate-every", "5", "--save-every", "4", ranks=2,
                          hooks=False))  # fmt: skip
    assert ended.output == plain.output
    assert "loss" in plain.output[0]
    observed = ended.observed
    assert counts(ended) == [(len(rank.steps), sum(step.samples or 0 for step in rank.steps)) for rank in observed]
    assert [rank.facts["rank"] for rank in ended.recorded] == [0, 1]
    assert all(complete(rank) for rank in observed)
    assert pauses(observed[0]) == [(4, "checkpoint"), (5, "another loader and evaluation"), (8, "checkpoint"),
                                   (10, "another loader and evaluation")]  # fmt: skip
    assert pauses(observed[1]) == [(5, "another loader and evaluation"), (10, "another loader and evaluation")]
    assert [at for at, step in enumerate(observed[1].steps) if step.new_epoch] == [0, 6]
    for rank in observed:
        for at, step in enumerate(rank.steps):
            # After an evaluation DDP's buffers are equal already.
            expected = [] if at in (5, 10) else [("broadcast of buffers", 0)]
            assert [(call.name, call.root) for call in step.collectives] == expected


@pytest.mark.all
def test_one_rank_that_evaluates_what_ddp_wraps_pauses(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "ddp_loop.py", "--evaluate-alone-every", "5", ranks=2))
    assert [pauses(rank) for rank in ended.observed] == [[(5, "evaluation"), (10, "evaluation")], []]
    assert all(complete(rank) for rank in ended.observed)


@pytest.mark.parametrize(
    "arguments",
    [("--no-sync", "around"), *(pytest.param(its, marks=pytest.mark.all) for its in ((), ("--no-sync", "late")))],
)
def test_accumulation(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = succeeded(run(tmp_path, "ddp_loop.py", "--accumulate", "2", *arguments, ranks=2))
    for observed, count in zip(ended.observed, counts(ended), strict=True):
        assert (len(observed.steps), sum(step.samples or 0 for step in observed.steps)) == count
        assert {step.backwards for step in observed.steps} == {2}
        assert complete(observed)


def test_checkpoints_of_torch_distributed_are_pauses_for_as_long_as_the_script_waits(tmp_path: Path) -> None:
    """What a thread writes while the script trains on is none, and for how long torch's own writes is recorded. In what
    such threads call the ranks meet, but in no step."""
    (tmp_path / "out").mkdir()
    ended = succeeded(run(tmp_path, "checkpoints.py", str(tmp_path / "out"), ranks=2))
    assert ended.output == ["written first second third\n"] * 2
    for rank, (recorded, observed) in enumerate(zip(ended.recorded, ended.observed, strict=True)):
        assert pauses(observed) == [(10, "checkpoint"), (20, "checkpoint")]
        first = observed.steps[10].pause
        assert first is not None and first.end_ns - first.begin_ns >= 200_000_000
        (events,) = (tmp_path / f"events{rank}").glob("*.events")
        (written,) = read_events(events).apart[WRITTEN]
        assert written.number >= 200_000  # µs
        begin, _ = observed.steps[20].called_ns
        assert begin < written.ns
        assert not any(step.collectives for step in observed.steps)
        assert not recorded.facts.get("unseen_ways")  # they are too few for that


@pytest.mark.all
def test_a_thread_that_meets_other_ranks_in_each_step_is_a_way_that_no_hook_sees(tmp_path: Path) -> None:
    ended = run(tmp_path, "unseen_meeting.py", "--way", "thread", "--folder", str(tmp_path), "--steps", "24", ranks=2)
    for recorded, observed in zip(ended.recorded, succeeded(ended).observed, strict=True):
        assert not any(step.collectives for step in observed.steps[1:])  # which thread trains shows in the first
        assert recorded.facts["unseen_ways"] == ["collectives of another thread"]


def test_a_gradient_scaler_skips_updates(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "ddp_loop.py", "--overflow-every", "3"))
    assert len(ended.only.steps) == counts(ended)[0][0] == 24
    assert [at for at, step in enumerate(ended.only.steps) if step.skipped] == list(range(2, 24, 3))


def test_workers_of_a_loader_record_nothing(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "ddp_loop.py", "--workers", "2", "--evaluate-every", "6"))
    assert len(list((tmp_path / "events0").glob("*.events"))) == 1
    assert len(ended.only.steps) == counts(ended)[0][0] == 24
    assert complete(ended.only)
    assert [at for at, kind in pauses(ended.only) if "evaluation" in kind] == [6, 12, 18]


@pytest.mark.all
def test_a_loader_with_an_iter_of_its_own_is_known_by_its_iterators(tmp_path: Path) -> None:
    observed = succeeded(run(tmp_path, "own_loader.py", "stateful")).only
    assert [(step.samples, step.fetches) for step in observed.steps] == [(4, 1)] * 15
    assert [at for at, step in enumerate(observed.steps) if step.new_epoch] == [0, 5, 10]


def test_of_a_loader_that_is_none_of_torch_the_samples_are_requested(tmp_path: Path) -> None:
    observed = succeeded(run(tmp_path, "own_loader.py", "generator")).only
    assert [step.samples for step in observed.steps] == [None] * 15
    assert any("--batch-size N states how many samples" in text for text in observed.remarks)


@pytest.mark.all
def test_an_outer_optimizer_ends_no_step(tmp_path: Path) -> None:
    observed = succeeded(run(tmp_path, "optimizers.py", "outer")).only
    assert len(observed.steps) == 16
    assert any("stepped behind others in 1 of 4 steps: an outer one" in text for text in observed.remarks)


def test_a_compiled_model_under_ddp(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "ddp_loop.py", "--compile", ranks=2))
    assert [len(rank.steps) for rank in ended.observed] == [12, 12]
    assert all(complete(rank) for rank in ended.observed)


@pytest.mark.all
def test_a_rank_that_exits_at_once_leaves_its_events(tmp_path: Path) -> None:
    ended = run(tmp_path, "ddp_loop.py", "--exit-at", "5", ranks=2)
    assert ended.statuses[1] == 7
    assert len(ended.observed[1].steps) == 5
    assert len(ended.observed[0].steps) >= 4  # whether its fifth reduction came through is the network's


@pytest.mark.all
def test_fsdp2_prints_what_it_prints_without_hooks(tmp_path: Path) -> None:
    ended, plain = (run(tmp_path / str(hooks), "fsdp2.py", "--clip", ranks=2, hooks=hooks) for hooks in (True, False))
    assert succeeded(ended).output == succeeded(plain).output


def test_fsdp2_its_collectives_and_the_norm_of_its_gradients(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "fsdp2.py", "--clip", ranks=2))
    for observed in ended.observed:
        assert len(observed.steps) == 10
        assert complete(observed, first=1)
        assert all(step.stamps[2] < step.stamps[3] < step.stamps[4] for step in observed.steps)
        (names,) = {tuple(call.name for call in step.collectives) for step in observed.steps[2:]}
        assert {*names[:-1]} == {"all-gather", "reduce-scatter"}
        for step in observed.steps[2:]:
            *sharded, norm = step.collectives
            assert all(call.waits_ns == call.arrives_ns for call in sharded)
            assert (norm.name, norm.root) == ("functional all-reduce", NO_ROOT)
            assert step.stamps[REDUCED] < norm.arrives_ns < norm.waits_ns < norm.ends_ns < step.stamps[END]


@pytest.mark.parametrize(
    "kind",
    [
        "turns", "lbfgs", "in-backward",
        pytest.param("both", marks=pytest.mark.all), pytest.param("marked", marks=pytest.mark.all),
    ],
)  # fmt: skip
def test_other_updates(tmp_path: Path, kind: str) -> None:
    observed = succeeded(run(tmp_path, "optimizers.py", kind, path=ROOT)).only
    assert [step.samples for step in observed.steps] == [4] * 16
    assert complete(observed, first=1)


@pytest.mark.all
def test_a_compiled_update_ends_with_the_next_fetch(tmp_path: Path) -> None:
    observed = succeeded(run(tmp_path, "optimizers.py", "compiled-step", path=ROOT)).only
    assert len(observed.steps) == 15  # of 16: whether there is an optimizer is asked after the second backward
    assert [step.samples for step in observed.steps[1:]] == [4] * 14
    assert complete(observed, first=1)
    assert any(text.startswith("15 updates that no hook saw") for text in observed.remarks)


@pytest.mark.all
def test_updates_that_are_not_seen(tmp_path: Path) -> None:
    observed = succeeded(run(tmp_path, "optimizers.py", "by-hand", path=ROOT)).only
    assert observed.steps == ()
    assert observed.reason.startswith("backwards and no step of an optimizer were seen")


def test_training_by_rpc_is_known_by_its_backwards(tmp_path: Path) -> None:
    succeeded(run(tmp_path, "by_rpc.py", str(tmp_path / "group")))
    assert read_steps(tmp_path / "events0").unmeasurable.startswith("it trains by torch.distributed.rpc")


# test_own_script.py shows it.
@pytest.mark.all
def test_a_script_that_never_steps(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "optimizers.py", "never"))
    assert ended.recorded == []


# test_own_script.py shows it.
@pytest.mark.all
def test_ranks_of_spawn_are_recorded_each(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "spawned.py", str(tmp_path / "group"), "--steps", "6", "--sleep-ms", "0"))
    assert sorted(rank.facts["rank"] for rank in ended.recorded) == [0, 1]
    assert [len(rank.steps) for rank in ended.observed] == [6, 6]


@pytest.mark.all
def test_a_forked_process_that_trains_is_recorded(tmp_path: Path) -> None:
    ended = succeeded(run(tmp_path, "processes.py", "fork"))
    assert sorted(len(rank.steps) for rank in ended.observed) == [3, 5]


@pytest.mark.parametrize(
    "kind",
    [
        "subprocess",
        pytest.param("exec", marks=pytest.mark.all),
        pytest.param("plain", marks=pytest.mark.all),
        pytest.param("catches", marks=pytest.mark.all),
    ],
)
def test_processes(tmp_path: Path, kind: str) -> None:
    ended = succeeded(run(tmp_path, "processes.py", kind, ODD))
    assert len(ended.only.steps) == 6
    if kind == "plain":
        assert ended.output == [f"{[ODD]}\n"]


@pytest.mark.all
def test_models_behave_as_without(tmp_path: Path) -> None:
    flags = ["--cloudpickle"] if find_spec("cloudpickle") else []
    hooked, plain = (run(tmp_path / str(hooks), "unchanged.py", *flags, hooks=hooks) for hooks in (True, False))
    assert plain.statuses == [0], plain.errors
    assert succeeded(hooked).output == plain.output
    assert len(hooked.only.steps) == 12


@pytest.mark.parametrize("how", ["error", *further("loader")])
def test_a_hook_that_raises_is_taken_off_and_the_script_goes_on(tmp_path: Path, how: str) -> None:
    ended, plain = (run(tmp_path / str(hooks), "broken_hook.py", how, hooks=hooks) for hooks in (True, False))
    assert succeeded(ended).output == plain.output
    assert len(ended.only.steps) == 4
    assert any("ZeroDivisionError: division by zero" in remark for remark in ended.only.remarks)


@pytest.mark.all
def test_a_hidden_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.hidden = __name__\n")
    (tmp_path / "other").mkdir()
    ended = succeeded(run(tmp_path / "other", "hidden.py", path=tmp_path))
    assert ended.output == ["sitecustomize True\n"]
    assert len(ended.only.steps) == 2


def test_the_two_lines_need_no_installation(tmp_path: Path) -> None:
    """Without site-packages, where the project may be installed."""
    code = "import sitecustomize, hpc.observe as o; print(o.__file__); o.step(); print(list(o.data([1])))"
    environment = {"PYTHONPATH": str(SITE), "RANKWISE_OBSERVE": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{ROOT / 'hpc' / 'observe' / '__init__.py'}\n[1]\n"), done.stderr


def test_a_folder_without_room_leaves_the_script_alone(tmp_path: Path) -> None:
    ended = run(tmp_path, "processes.py", "plain", events=tmp_path / "missing")
    assert ended.statuses == [0]
    assert "observe: this process is not measured: FileNotFoundError" in ended.errors[0]


def test_samples_of_batches() -> None:
    import torch

    from hpc.observe.recording import Count, nominal_size

    images, label = torch.zeros(8, 3, 4, 4), torch.zeros(8)
    image = torch.zeros(3, 4, 5)
    assert Count(8).samples([images, label]) == 8
    assert Count(None).samples({"input_ids": torch.zeros(5, 7), "labels": label}) == 5
    assert Count(2).samples(((image, image), ({"boxes": image}, {"boxes": image}))) == 2  # images of unequal sizes
    assert Count(3).samples([[images[:3], images[:3]], label]) == 3
    assert Count(4).samples([image, image, image, image]) == 4
    assert Count(7).samples([images, label]) == 0  # 8 is not what the loader states
    assert Count(None).samples(["a", "b"]) == Count(None).samples(torch.tensor(1.0)) == 0
    rule = Count(8)
    assert [rule.samples([images, label]), rule.samples([images[:5], label[:5]])] == [8, 5]
    four: Any = torch.zeros(4, 1)
    loader: Any = torch.utils.data.DataLoader(four, batch_size=2)
    assert nominal_size(loader) == 2 and nominal_size(iter(loader)) is None
