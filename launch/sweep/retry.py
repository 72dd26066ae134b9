"""`rankwise sweep retry`: the sweeps of a folder of which runs ended with given outcomes, once more."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from hpc.model.outcome import MAX_PLAN_BYTES, read_object
from hpc.model.spec import Plan, SpecError
from hpc.model.typed import TypeMismatchError, read_fields
from launch.sweep.prepare import Prepared, Say
from launch.sweep.request import Command, Request, make_request
from launch.sweep.run_status import describe_states, ended_so, run_statuses
from launch.sweep.status import Selection, select
from launch.sweep.submit import Batches, Producer


def if_any_ended_so(produce: Producer) -> Producer:
    """What `produce` makes of a plan, where a run of it ended with the requested outcomes; else raises SpecError."""

    def batches(prepared: Prepared, say: Say) -> Batches:
        _retried(prepared.request, prepared.plan)
        return (yield from produce(prepared, say))

    return batches


def retry(request: Request, run: Callable[[Request], int]) -> int:
    """Runs the commands again that planned sweeps of the folder of which runs ended so; the exit status of the command
    line. Raises SpecError where no run did, or a plan does not keep its command, and what `run` raises."""
    selection, sweep_ids = _retried(request)
    status, out, process = 0, request.launch.out.absolute(), os.getpid()
    for command in _commands(selection, sweep_ids):
        if not os.access(command.folder, os.X_OK):
            raise SpecError(
                f"{command.folder}, where the sweep was planned and to which its paths are relative, cannot be "
                "entered: bring it back, or give the options of the sweep behind retry and the outcomes"
            )
        with contextlib.chdir(command.folder):
            operand = command.operand or ",".join(request.options.retry)
            before = Path(command.values.get("out", "."))  # as it is in the scripts, unless the folder was moved
            values = {**command.values, "out": str(before if before.exists() and before.samefile(out) else out)}
            planning = make_request(command.subcommand or request.subcommand, operand, values)
            status = max(status, run(replace(planning, options=request.options)))
        if status > 1 or os.getpid() != process:  # interrupted, or --detach on this machine: a child with one sweep
            break
    return status


def _retried(request: Request, plan: Plan | None = None) -> tuple[Selection, list[str]]:
    """The sweep of the plan, or where there is none all of the folder, and the ids of those with a run that ended so.
    Raises SpecError where there are none."""
    selection = select(request, plan)
    runs, statuses = selection.runs, run_statuses(selection.run_ids, selection.folders.traces)
    matching = {
        status.run_id for status in statuses
        if status.record is not None and not status.held
        and ended_so(runs[status.run_id], status.record, request.options)
    }  # fmt: skip
    if not matching:
        problems = "".join(f"; {problem}" for problem in selection.problems)
        raise SpecError(
            f"no run in {selection.folders.traces} ended {' or '.join(request.options.retry)}; there are "
            f"{describe_states(statuses)}{problems}"
        )
    holding = (each for each, planned in selection.sweeps.items() if matching & {run.run_id for run in planned})
    return selection, list(holding)


def _commands(selection: Selection, sweep_ids: Iterable[str]) -> list[Command]:
    """The commands that planned these sweeps, each once."""
    commands = {}
    for sweep_id in sweep_ids:
        places = (folder / f"plan.{sweep_id}.json" for folder in (selection.folders.traces, selection.folders.jobs))
        path = next(place for place in places if place.exists())
        values = read_object(path, MAX_PLAN_BYTES).get("command")
        try:
            commands[json.dumps(values)] = Command(**read_fields(Command, values, "its command"))
        except TypeMismatchError as error:
            raise SpecError(
                f"{path} keeps no command to give again ({error}), as those of earlier versions and of accept: give "
                "it with retry and the outcomes before the options of its sweep, or accept with another --out"
            ) from None
    return list(commands.values())
