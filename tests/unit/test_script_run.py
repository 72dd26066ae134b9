"""The parts of a script's run that need no other rank: its process, its environment, its window, its journal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from hpc.measure.connections import Connections
from hpc.measure.world import LaunchError
from hpc.model.groups import Call
from hpc.model.spec import SCRIPT, UNKNOWN, script_blocks, without_last
from hpc.model.timestamps import ABSENT, GRADS_READY, STAMPS
from hpc.model.verdict import WHO_KILLS
from hpc.observe.events import (
    BACKWARD_IN,
    BACKWARD_OUT,
    ENDING,
    FORWARD_IN,
    NO_ROOT,
    STEPS_CELL,
    UNCLEAR,
    UPDATE_OUT,
    ProcessEvents,
    Recorder,
)
from hpc.observe.remarks import MANY_BACKWARDS, TOKENS_HINT, remarks_on_process
from hpc.observe.stamps import (
    NO_REDUCTION,
    NOT_REDUCED,
    CollectiveCall,
    ObservedStep,
    ObservedSteps,
    Pause,
    why_no_device,
)
from hpc.recovery.journal import Journal
from hpc.run.script import ScriptRun
from hpc.run.script_process import (
    SITE,
    Agreement,
    ScriptProcess,
    ScriptSignals,
    describe_status,
    first_to_fail,
    script_environment,
)
from hpc.run.script_steps import (
    MAX_PATTERNS,
    RankSteps,
    ScriptStepCount,
    differing_steps,
    early_collectives,
    meetings_of,
    meets_unseen,
    patterns_of,
    pauses_of,
    read_steps,
    step_collectives,
    unlike_others,
    usual_collectives,
    waits_at_pauses,
    write_steps,
)
from hpc.system.import_guard import ROOT
from tests.processes import lives
from tests.unit.traces import make_run
from tests.waiting import LIMIT_S, until

PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1234"}


def step(number: int, *names: str, pause: Pause | None = None) -> ObservedStep:
    """Step `number`, of 100 ns; its collectives are called 10, 20, … ns after its begin and end 5 ns later."""
    begin = 100 * number
    collectives = [
        CollectiveCall(name=name, root=NO_ROOT, arrives_ns=begin + at, waits_ns=ABSENT, ends_ns=begin + at + 5, bytes=8)
        for at, name in zip(range(10, 100, 10), names, strict=False)
    ]
    return ObservedStep(
        stamps=(begin, begin + 12, begin + 25, begin + 50, begin + 80, begin + 100), absent={}, samples=4, fetches=1,
        fetch_ns=12, backwards=1, updates=(0,), skipped=False, new_epoch=False, collectives=tuple(collectives),
        pause=pause,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "paused", "blocks"),
    [
        (100, [], [[20, 100]]),
        (100, [50], [[20, 50], [55, 100]]),
        (100, [50, 52, 98], [[20, 50], [57, 98]]),
        (100, [3, 18], [[23, 100]]),
        (100, [100, 120], [[20, 100]]),
        (20, [], []),
        (21, [], [[20, 21]]),
        (24, [19], []),
    ],
)
def test_no_block_spans_a_pause_and_each_is_entered_through_five_steps(
    steps: int, paused: list[int], blocks: list[list[int]]
) -> None:
    assert script_blocks(20, steps, paused) == blocks


def test_the_last_step_of_a_block_is_left_out_where_it_lacks_a_collective() -> None:
    gathers = ("all-gather", "all-gather")
    steps = [step(at, *gathers[: 1 if at in (3, 9) else 2]) for at in range(10)]
    blocks = [[1, 4], [6, 8], [9, 10]]
    unlike = unlike_others(steps, blocks, usual_collectives(steps))
    assert unlike == [3, 9]
    assert without_last(blocks, unlike) == [[1, 3], [6, 8]]


def test_a_script_has_torchruns_variables_and_the_hooks(tmp_path: Path) -> None:
    environment = script_environment({"HOME": "/h", "PYTHONPATH": "/a:/b"}, PLACE, tmp_path, in_job=False)
    assert environment == {
        **PLACE, "HOME": "/h", "PYTHONPATH": f"{SITE}:/a:/b", "RANKWISE_OBSERVE": str(tmp_path),
    }  # fmt: skip


def test_variables_that_somebody_set_stay_and_a_contradiction_is_refused(tmp_path: Path) -> None:
    environment = script_environment({"MASTER_PORT": "99", "RANK": "1"}, PLACE, tmp_path, in_job=False)
    assert environment["MASTER_PORT"] == "99"
    with pytest.raises(LaunchError, match="RANK is 0 in the environment and 1 by MPI"):
        script_environment({"RANK": "0"}, PLACE, tmp_path, in_job=False)


def test_a_script_imports_without_this_project(tmp_path: Path) -> None:
    """The job script puts the checkout on the path, where `parse` would hide a package of that name."""
    checkout = str(SITE.parents[2])
    inherited = {"PYTHONPATH": f"{checkout}:/a", "PYTHONSAFEPATH": "1"}
    environment = script_environment(inherited, {}, tmp_path, in_job=True)
    assert environment["PYTHONPATH"] == f"{SITE}:/a"
    assert "PYTHONSAFEPATH" not in environment
    assert script_environment(inherited, {}, tmp_path, in_job=False)["PYTHONSAFEPATH"] == "1"


def started(folder: Path, text: str, *arguments: str) -> ScriptProcess:
    (folder / "script.py").write_text(text)
    return ScriptProcess([sys.executable, str(folder / "script.py"), *arguments], os.environ)


WORDS = ['it\'s "quoted" $(id)', "", "two  spaces", "*"]


@pytest.mark.parametrize(
    ("text", "status", "described"),
    [
        (f"import sys\nsys.exit(7 if sys.argv[1:] == {WORDS!r} else 1)", 7, "exit status 7"),
        ("import os; os.kill(os.getpid(), 9)", -9, f"signal 9 (SIGKILL){WHO_KILLS}"),
    ],
)
def test_a_script_gets_its_arguments_as_they_are_and_its_status_is_known(
    tmp_path: Path, text: str, status: int, described: str
) -> None:
    process = started(tmp_path, text, *WORDS)
    process.wait(LIMIT_S)
    assert (process.status, describe_status(status)) == (status, described)


@pytest.mark.parametrize(
    ("facts", "ending"),
    [({}, " after its last step, at its very end"), ({"exception": {"type": "Lost", "message": "no"}}, ": Lost: no")],
)
def test_a_script_that_is_aborted_behind_an_exception_has_failed_by_that(facts: dict[str, Any], ending: str) -> None:
    run = ScriptRun.__new__(ScriptRun)
    run._rank = cast("Any", SimpleNamespace(training=True, arguments=SimpleNamespace(script="train.py")))
    recorded = RankSteps(observed=ObservedSteps(steps=(step(0),), remarks=()), facts={ENDING: 1, **facts})
    error = run._failure(cast("Any", SimpleNamespace(status=-6)), recorded)
    assert str(error) == f"the script ended with signal 6 (SIGABRT){ending}"


def test_a_script_is_looked_at_while_other_ranks_are_waited_for() -> None:
    """Else it would seem that one which ends without a word may have failed before those that made it fail."""
    others = iter((False, False, True))
    request = SimpleNamespace(Test=lambda: next(others))
    comm = Mock(spec=Connections, Imaximum=lambda mine, largest: request)
    comm.Dup = lambda: comm
    run = ScriptRun.__new__(ScriptRun)
    run._process = process = ScriptProcess([sys.executable, "-c", "import time; time.sleep(7200)"], os.environ)
    begin_ns = process.alive_ns
    Agreement(comm, run._pause).largest(1)
    assert process.alive_ns > begin_ns
    process.end(0)


def test_a_script_that_runs_is_rarely_looked_at_and_its_end_wakes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ends when the third wait has begun, whose time is not over: by a pipe, whatever the machine's speed. A signal
    is pending in the second."""
    os.mkfifo(pipe := tmp_path / "pipe")
    signals = Mock(spec=ScriptSignals, wake=os.pipe()[0], is_pending=False)
    process = ScriptProcess([sys.executable, "-c", f"open({str(pipe)!r}).read()"], os.environ, signals)
    look, begin_ns, end, waits = Mock(wraps=process._process.poll), process.alive_ns, process._wakes, []

    def poll(limit_ms: float) -> list[tuple[int, int]]:
        waits.append(limit_ms)
        signals.is_pending = len(waits) == 1
        if len(waits) < 3:
            return []
        pipe.write_text("")
        return end.poll()

    monkeypatch.setattr(process._process, "poll", look)
    monkeypatch.setattr(process, "_wakes", Mock(poll=poll))
    process.wait(600)
    assert process.status == 0 and waits == [pytest.approx(ms, rel=0.1) for ms in (600_000, 300, 600_000)]
    assert look.call_count <= 3 * len(waits) and begin_ns < process.alive_ns <= process.ended_ns


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ({1: (ABSENT, 30, 40)}, 1),
        ({0: (52, 60, 70), 1: (50, 90, 110)}, 1),  # its process ends last
        ({0: (52, 60, 70), 1: (ABSENT, 45, 65)}, 1),  # killed at some time from 45 on: 0 has lost it
        ({0: (52, 60, 70), 1: (ABSENT, 55, 65)}, 1),  # dying, it was still seen
        ({0: (52, 60, 70), 1: (ABSENT, 68, 69)}, 0),
        ({0: (ABSENT, 40, 62), 1: (ABSENT, 45, 60), 2: (52, 60, 70)}, 1),
    ],
)
def test_the_first_to_fail_is_who_said_so_first_or_was_killed_before(
    ends: dict[int, tuple[int, int, int]], first: int
) -> None:
    others = (0, 10, 20, 30)  # they did not fail
    table = np.array([(1, *ends[rank]) if rank in ends else others for rank in range(4)])
    table[:, 1:] = np.where(table[:, 1:] == ABSENT, ABSENT, table[:, 1:] * 10**7)  # in units of 10 ms
    assert first_to_fail(table) == first


def test_a_script_that_ignores_sigterm_is_ended_with_its_children(tmp_path: Path) -> None:
    process = started(tmp_path, (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child: open(sys.argv[1] + '.new', 'w').write(str(child)); os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(7200)\n"
    ), str(tmp_path / "child"))  # fmt: skip
    until((tmp_path / "child").exists, "the script starts")
    child = int((tmp_path / "child").read_text())
    process.end(patience_s=0.1)
    assert process.status == -signal.SIGKILL
    until(lambda: not lives(child), "the child of the script ends")


def kinds_of(steps: Sequence[ObservedStep]) -> list[tuple[Call, ...]]:
    return [tuple(Call(call.name, call.root) for call in each.collectives) for each in steps]


def test_collectives_of_a_step_become_its_meetings_each_in_the_steps_that_have_it() -> None:
    steps = [step(0, "gather", "scatter"), step(1, "gather", "metric", "scatter"), step(2), step(3, "other")]
    collectives = step_collectives(kinds_of(steps), measured=range(3))
    assert collectives.kinds == (Call("gather", NO_ROOT), Call("metric", NO_ROOT), Call("scatter", NO_ROOT))
    assert collectives.columns == [(0, 2), (0, 1, 2), (), (None,)]
    assert not collectives.unmatched
    meetings = meetings_of(steps, collectives)
    assert meetings.names == ("gather", "metric", "scatter")
    none = [ABSENT] * 3
    first = [10, ABSENT, 15, *none, 20, ABSENT, 25]
    second = [110, ABSENT, 115, 120, ABSENT, 125, 130, ABSENT, 135]
    assert array("q", meetings.stamps).tolist() == [*first, *second, *none * 6]


def test_steps_in_which_ranks_call_different_collectives_are_matched_with_nothing() -> None:
    steps = kinds_of([step(at, "a", *["b"] * (at in (3, 7))) for at in range(10)])
    others = kinds_of([step(at, "a", *["b"] * (at in (3, 8))) for at in range(10)])
    differing = differing_steps(steps, patterns_of(others))
    assert differing == [7, 8]
    collectives = step_collectives(steps, range(2, 10), differing)
    assert collectives.kinds == (Call("a", NO_ROOT), Call("b", NO_ROOT))
    assert collectives.columns[6:9] == [(0,), (), ()]
    assert collectives.unmatched == {"collectives that differ between ranks": [7, 8]}


def test_a_collective_now_and_then_in_which_nobody_knows_who_waits_is_not_matched() -> None:
    """One that all steps have stays: that ranks' times cannot be compared then is said of the whole run."""
    seldom = [(Call("gather", UNCLEAR),) if at == 4 else () for at in range(8)]
    collectives = step_collectives(seldom, range(8))
    assert (collectives.kinds, collectives.columns[4]) == ((), (None,))
    assert collectives.unmatched == {"gather": [4]}
    always = step_collectives([(Call("gather", UNCLEAR),)] * 8, range(8))
    assert (always.kinds, always.unmatched) == ((Call("gather", UNCLEAR),), {})


def test_of_too_many_different_steps_the_rarest_are_not_matched() -> None:
    steps = [tuple(Call(f"c{number}", NO_ROOT) for number in {0, at}) for at in range(MAX_PATTERNS + 3)]
    collectives = step_collectives(steps, range(len(steps)))
    assert collectives.unmatched == {"collectives of too many different steps": [64, 65, 66]}


def test_the_last_step_of_a_block_stays_where_others_have_its_collectives() -> None:
    steps = [step(at, *["metric"] * (at % 3 == 2)) for at in range(9)]
    assert unlike_others(steps, [[0, 9]], usual_collectives(steps)) == []
    assert unlike_others(steps[:3], [[0, 3]], usual_collectives(steps[:3])) == [2]


@pytest.mark.parametrize(
    ("facts", "marked", "reason", "steps", "meets"),
    [
        ({"ddp": True}, False, "DDP does not name the parameter whose gradient comes last", 1, True),
        ({"ddp": True}, False, NO_REDUCTION, 1, True),
        ({"ddp": True}, False, NO_REDUCTION, 2, False),
        ({"ddp": True, "devices": ["cuda"]}, False, why_no_device({"devices": ["cuda"]}), 3, False),
        ({}, False, NOT_REDUCED, 1, False),
        ({}, True, "of a step its end alone is marked, and waits inside it are not seen apart", 1, True),
        ({"ddp": True}, True, "", 0, False),
    ],
)
def test_ranks_meet_unseen_where_steps_are_marked_or_ddp_reduces_and_that_is_not_seen(
    facts: dict[str, Any], marked: bool, reason: str, steps: int, meets: bool
) -> None:
    """So many of three `steps` lack the stamp."""
    lacking = [replace(step(at), absent={STAMPS[GRADS_READY]: reason}) for at in range(steps)]
    observed = ObservedSteps(steps=(*lacking, *map(step, range(steps, 3))), remarks=(), marked=marked)
    assert meets_unseen(RankSteps(observed=observed, facts=facts)) is meets


def test_early_collectives_are_those_before_the_gradients() -> None:
    late = step(0, "a", "a", "a", "a", "a", "b")  # the gradients are complete at 50 ns
    assert early_collectives([late, late]) == ["4 a a step"]


def test_samples_are_those_that_were_seen_else_those_that_were_stated(tmp_path: Path) -> None:
    steps = [step(0), replace(step(1), samples=None)]
    journal = Journal(tmp_path, "script_samples.1", 0, 3)
    try:
        run = make_run(backend=SCRIPT, workload="train.py", batch_size=0, precision=UNKNOWN)
        assert write_steps(journal, steps, run) == 2
        assert journal.samples.tolist() == [4, 0, ABSENT]
        assert write_steps(journal, steps, replace(run, batch_size=32)) == 2
        assert journal.samples.tolist() == [4, 32, ABSENT]
        assert write_steps(journal, steps, replace(run, batch_size=32, tokens_per_sample=1024)) == 2
        assert journal.samples.tolist() == [4096, 32768, ABSENT]
        assert journal.stamps.tolist()[:12] == [*steps[0].stamps, *steps[1].stamps]
    finally:
        journal.remove()


def test_pauses_are_facts() -> None:
    steps = [step(0), step(1, pause=Pause(kind="evaluation", begin_ns=100, end_ns=2_000_000_100))]
    assert pauses_of(steps) == [{"step": 1, "kind": "evaluation", "seconds": 2.0, "waited_s": 0.0}]


def test_waits_beside_a_pause_of_others_are_those_between_two_reductions() -> None:
    """Step 0 is reduced at 80 ns and waits from 10, 20, … 90 ns on; step 1, until its gradients, from 110, … to 150."""
    steps = [waiting(step(number, *["barrier"] * 9)) for number in range(3)]
    (facts,) = waits_at_pauses([*steps[:2], replace(steps[2], pause=Pause(kind="x", begin_ns=0, end_ns=1))], {1, 2, 7})
    assert facts == {"step": 1, "waited_s": (2 + 5) * 5e-9}


def waiting(observed: ObservedStep) -> ObservedStep:
    calls = (replace(call, waits_ns=call.arrives_ns) for call in observed.collectives)
    return replace(observed, collectives=tuple(calls))


def test_a_script_without_torch_has_no_steps_and_the_reason_is_there(tmp_path: Path) -> None:
    recorded = read_steps(tmp_path)
    assert not recorded.steps
    assert "imported torch" in recorded.observed.reason


def test_a_rank_is_one_process_that_trains(tmp_path: Path) -> None:
    for steps in (3, 5, 0):
        Recorder(str(tmp_path)).cells[STEPS_CELL] = steps
    recorded = read_steps(tmp_path)
    assert recorded.observed.reason.startswith("2 processes of one rank's script train")
    assert recorded.unmeasurable == recorded.observed.reason


def test_another_framework_is_named_as_soon_as_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "jax.py").touch()
    paths = f"{SITE}:{tmp_path / 'modules'}"
    environment = {**os.environ, "PYTHONPATH": paths, "RANKWISE_OBSERVE": str(tmp_path)}
    program = "import jax, os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import jax'])"  # the same process
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert not done.stderr
    recorded = read_steps(tmp_path)
    assert recorded.unmeasurable == recorded.observed.reason
    assert "it imports JAX and no torch" in recorded.unmeasurable
    assert "`for batch in data(loader):`" in recorded.unmeasurable and "`step()`" in recorded.unmeasurable
    Recorder(str(tmp_path))  # torch is imported, too
    assert "JAX" not in read_steps(tmp_path).observed.reason


@pytest.mark.parametrize(
    ("folder", "loader", "printed"),
    [
        ("events", "[object(), type('Batch', (), {'values': lambda self, of: of})()]", ""),
        ("events", "type('Loader', (list,), {'batch_size': property(lambda self: 1 / 0)})([1])", ""),
        ("none", "[1]", "observe: this process is not measured: FileNotFoundError"),
    ],
)
def test_a_marked_script_goes_on_whatever_its_batches_and_the_folder_are(
    tmp_path: Path, folder: str, loader: str, printed: str
) -> None:
    (tmp_path / "events").mkdir()
    paths = {"PYTHONPATH": f"{SITE}:{ROOT}", "RANKWISE_OBSERVE": str(tmp_path / folder)}
    program = f"from hpc.observe import data, step\nfor _ in data({loader}): step()\nprint('done')"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert ended.stderr.startswith(printed) and bool(ended.stderr) == bool(printed)


def test_a_script_goes_on_where_keras_does_not_say_what_it_is(tmp_path: Path) -> None:
    package = tmp_path / "keras" / "src" / "callbacks"
    package.mkdir(parents=True)
    (tmp_path / "keras" / "__init__.py").write_text(
        "from keras.src.callbacks import callback_list\n"
        "backend = type('Backend', (), {'backend': staticmethod(lambda: 1 / 0)})\n"
    )
    (package / "callback_list.py").write_text("class CallbackList:\n    def on_train_begin(self): print('done')\n")
    (tmp_path / "events").mkdir()
    paths = {"PYTHONPATH": f"{SITE}:{ROOT}:{tmp_path}", "RANKWISE_OBSERVE": str(tmp_path / "events")}
    program = "import keras\nkeras.callback_list.CallbackList().on_train_begin()"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "observe: Keras is not measured: ZeroDivisionError" in ended.stderr


@pytest.mark.parametrize(
    ("facts", "backwards", "updates", "reason"),
    [
        ({}, MANY_BACKWARDS, 0, "updated by hand"),
        ({}, MANY_BACKWARDS - 1, 0, ""),
        ({}, MANY_BACKWARDS, 1, ""),
        ({"rpc": True}, 0, 0, ""),  # it may fetch its data so, and has not begun to train
        ({"rpc": True, "rpc_backward": True}, 0, 0, "it trains by torch.distributed.rpc"),
        ({"rpc": True, "rpc_backward": True}, 0, 1, ""),
    ],
)
def test_what_makes_no_step_is_named_while_it_runs(
    tmp_path: Path, facts: dict[str, bool], backwards: int, updates: int, reason: str
) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.state(**facts)
    for ns in range(1, backwards + 1):
        recorder.note(2 * ns, BACKWARD_IN)
        recorder.note(2 * ns + 1, BACKWARD_OUT)
    for _ in range(updates):
        recorder.note(2 * backwards + 2, UPDATE_OUT)
    assert (reason in (shown := read_steps(tmp_path).unmeasurable)) and bool(shown) is bool(reason)


@pytest.mark.parametrize(("optimizers", "expected"), [((1, 2), [20, 40]), ((1,), [40, 80])])
def test_turns_of_optimizers_are_counted_as_the_trace_counts_them(
    tmp_path: Path, optimizers: Sequence[int], expected: list[int]
) -> None:
    recorder, made = Recorder(str(tmp_path)), ScriptStepCount(tmp_path, limit=40)
    counted = []
    for update in range(81):
        if update in (40, 80):
            recorder.cells[STEPS_CELL] = update
            counted.append(made.now())
        for at, kind in enumerate((FORWARD_IN, BACKWARD_IN, BACKWARD_OUT, UPDATE_OUT)):
            which = optimizers[update % len(optimizers)] if kind == UPDATE_OUT else 0
            recorder.note(1 + 10 * update + at, kind, which)
    assert counted == expected


def test_batches_of_integers_are_a_hint_at_tokens() -> None:
    recorded = ProcessEvents(process=1, events=[], facts={"integers_per_sample": 1024}, names=[])
    [remark] = remarks_on_process(recorded)
    assert remark == "a sample has 1024 integers: if they are tokens, --tokens-per-sample 1024 has speeds in tokens/s"
    assert remark.startswith(TOKENS_HINT)
