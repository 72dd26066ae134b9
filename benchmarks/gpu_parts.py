"""The parts of `make gpu-day`, each a process: `python -m benchmarks.gpu_parts NAME --figures FILE --folder DIR`.

A part writes each figure into FILE as soon as it has it. With `--rehearse` it works on CPUs, in sizes that mean
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_borders import (
    Border,
    Figures,
    PartError,
    border_errors_ns,
    check_borders,
    measure_borders,
    put_borders,
    read_kernels,
    simulated_training,
    torch_training,
)
from benchmarks.gpu_mps import side_by_side
from benchmarks.gpu_windows import LEAD, delayed_terms, host_bound_shares

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu_script.py"
DELAYS = {
    "host-data": "data", "host-forward": "compute", "device-forward": "compute", "device-backward": "compute",
    "device-update": "optimizer",
}  # fmt: skip
"""By the place of a delay: the term of the step that has it."""
PRICE_GOALS = {10: 0.5, 100: 0.1}
"""Of a step of so many ms, in per cent."""


class Job(NamedTuple):
    """What a part is called with."""

    figures: Figures
    folder: Path
    rehearse: bool
    time_slices: Callable[[], str] = str
    """Why kernels of two ranks take turns on the GPU; empty where they do not."""


def machine(job: Job) -> None:
    """Names of drivers, devices and libraries."""
    import torch

    from launch.scheduler.local import launcher

    job.figures.put("cores", len(os.sched_getaffinity(0)))
    job.figures.put("torch", str(torch.__version__))
    job.figures.put("CUDA of torch", torch.version.cuda)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            its = torch.cuda.get_device_properties(index)
            text = f"{its.name}, {its.total_memory / 2**30:.1f} GiB, {its.multi_processor_count} multiprocessors"
            job.figures.put(f"device {index}", text)
        job.figures.put("NCCL", ".".join(map(str, torch.cuda.nccl.version())))  # type: ignore[no-untyped-call]  # torch's
    version = subprocess.run([*launcher(), "--version"], capture_output=True, text=True, check=False).stdout
    job.figures.put("MPI", (version.splitlines() or ["mpiexec states no version"])[0])
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,name,uuid,pstate,power.limit,persistence_mode",
        "--format=csv,noheader",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=15).stdout.strip()
    except OSError:
        answer = ""
    if answer:
        job.figures.put("nvidia-smi", answer)


# tests/gpu

_RESULT = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED)(?= |$)")
_TEST = re.compile(r"tests/gpu/\S+::[^\s]+")


class EndedTests:
    """How many tests have ended how, from the lines of `pytest -v` as they come."""

    def __init__(self) -> None:
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.failed: list[str] = []
        self._seen: set[str] = set()

    def read(self, line: str) -> bool:
        """Whether the line ends a test."""
        result, test = _RESULT.search(line), _TEST.search(line)
        if result is None or test is None or test[0] in self._seen:
            return False
        self._seen.add(test[0])
        state = {"PASSED": "passed", "SKIPPED": "skipped"}.get(result[1], "failed")
        self.counts[state] += 1
        if state == "failed":
            self.failed.append(test[0])
        return True


def tests(job: Job) -> None:
    """Runs tests/gpu, side by side where there are cores for it."""
    argv = [sys.executable, "-m", "pytest", "-v", "--color=no", "tests/gpu"]
    if (os.cpu_count() or 1) >= 8 and not job.rehearse:
        argv += ["-n", "4"]
    counts = EndedTests()
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=_environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if counts.read(line):
                for name, count in counts.counts.items():
                    job.figures.put(name, count)
                if counts.failed:
                    job.figures.put("which failed", counts.failed)
    if process.returncode or not (counts.counts["passed"] or job.rehearse):
        raise PartError(f"pytest ended with {process.returncode}: {counts.counts}; {', '.join(counts.failed)}")


# Time stamps of the device against kernels.


def stamps(job: Job) -> None:
    """Of DeviceStamps, by which Rankwise's own backends time their steps."""
    measure_borders(job.figures, simulated_training() if job.rehearse else torch_training(job.folder))


# Unchanged scripts.


def one_rank(job: Job) -> None:
    """Each shape on one rank."""
    _scripts(job, 1, ("none", *DELAYS, "none"), profile=True)


def two_ranks(job: Job) -> None:
    """Each shape on two ranks that share the GPU: NCCL refuses that, gloo takes tensors of it."""
    with nullcontext(str) if job.rehearse else side_by_side(job.folder / "mps") as time_slices:
        _scripts(
            job._replace(time_slices=time_slices), 2, ("none", "host-data", "device-forward", "device-backward", "none")
        )


def _scripts(job: Job, ranks: int, delays: Sequence[str], *, profile: bool = False) -> None:
    problems = []
    for shape in ("ddp", "gpt", "fsdp2"):
        folder = job.folder / shape
        folder.mkdir()
        try:
            _run_script(job, folder, shape, ranks, delays, profile and shape == "ddp")
        except PartError as error:
            problems.append(f"{shape}: {error}")
            job.figures.put(f"{shape} failed", str(error))
    if problems:
        raise PartError("\n".join(problems))


def _run_script(job: Job, folder: Path, shape: str, ranks: int, delays: Sequence[str], profile: bool) -> None:
    from launch.scheduler.local import launcher

    window, delay_ms = (15, 30.0) if job.rehearse else (30, 10.0)
    size = ["--width", "64", "--batch-size", "16"] if job.rehearse else []
    place = ["cpu", "gloo"] if job.rehearse else ["cuda", "nccl" if ranks == 1 else "gloo"]
    argv = [*launcher(), "-n", str(ranks), sys.executable, "-m", "hpc.observe", "--traces", str(folder / "traces")]
    argv += ["--warmup", str(LEAD)]
    argv += ["--gpus-per-node", "0"] if ranks > 1 else []  # as many GPUs as ranks are demanded where any are stated
    argv += ["--batch-size", "16" if job.rehearse else "256"] if shape == "gpt" else []  # no DataLoader counts it
    argv += ["--", str(SCRIPT), "--shape", shape, "--device", place[0], "--backend", place[1], *size]
    argv += ["--delays", *delays, "--window", str(window), "--delay-ms", str(delay_ms)]
    argv += ["--truth", str(folder / "truth.json"), *(["--profile", str(folder / "profile.json")] if profile else [])]
    _call(argv)
    (path,) = (folder / "traces").glob("*.h5")
    from hpc.model.trace_file import read_trace

    trace = read_trace(path)
    truth = json.loads((folder / "truth.json").read_text())
    job.figures.put(f"{shape}, delays in ms", truth)
    rows = delayed_terms(trace.stamps[ranks - 1], delays, window)
    reasons: Mapping[str, str] = (trace.ranks[ranks - 1].get("script") or {}).get("absent", {})
    wrong = []
    for where, row in rows.items():
        expected = DELAYS[where]
        measured = row.get(expected)
        job.figures.put(
            f"{shape}, {where}",
            {"expected in": expected, **{f"{name} ms": value for name, value in row.items()}},
        )
        reads_loss = shape != "gpt" or job.rehearse  # else the host's delay hides behind the device's work
        if measured is None or not (reads_loss or where.startswith("device")):
            continue
        true_ms = truth[where.partition("-")[0]]
        if off(measured, true_ms, 0.5 if job.rehearse else 0.03):
            wrong.append(f"{where}: {measured:+.2f} ms of {expected}, not {true_ms:.2f}")
    _put_device(job, shape, trace, delays, window)
    if reasons:
        job.figures.put(f"{shape}, absent time stamps", {name: str(text) for name, text in reasons.items()})
    if ranks > 1:
        wrong = _wrongly_named(job, shape, trace, delays, window, folder)
    if profile and not job.rehearse:
        try:
            hooks_against_kernels(job.figures, trace.stamps[0], folder / "profile.json")
        except PartError as error:
            wrong.append(str(error))
    if wrong:
        raise PartError("; ".join(wrong))


def _put_device(job: Job, shape: str, trace: Any, delays: Sequence[str], window: int) -> None:
    """Puts what the last rank's device shows: its clock, and how far its host is behind."""

    script = trace.ranks[-1].get("script") or {}
    if "device_clock" in (facts := script.get("facts", {})):
        job.figures.put(f"{shape}, clock of the device", facts["device_clock"])
    if "clock_contradiction" in script:
        job.figures.put(f"{shape}, the clocks of device and host contradict each other", script["clock_contradiction"])
    if trace.host_bound_ns is not None:
        stamps = trace.stamps[-1]
        shares = host_bound_shares(stamps, trace.host_bound_ns[-1], delays, window)
        job.figures.put(f"{shape}, host-bound", shares)
    if (syncs := script.get("host_bound", {}).get("syncs")) is not None:
        job.figures.put(f"{shape}, waits for the device a step", syncs)


def off(measured_ms: float, true_ms: float, share: float) -> bool:
    """Whether by more than 0.3 ms and that share."""
    return abs(measured_ms - true_ms) > max(0.3, share * true_ms)


def _wrongly_named(job: Job, shape: str, trace: Any, delays: Sequence[str], window: int, folder: Path) -> list[str]:
    """Puts the ledger's verdict on each window; returns the delays whose rank or phase it does not name."""
    from tests.truth.delays import describe_all
    from tests.truth.windows import cut, ledger_of

    wrong, verdicts = [], {}
    if time_slices := job.time_slices():
        job.figures.put(f"{shape}, why no delay of the device is judged", time_slices)
    for number, (name, its) in enumerate(zip(delays, cut(trace, window, apart=LEAD), strict=False)):
        ledger = ledger_of([its], folder / f"window{number}")
        verdicts[f"{number} {name}"] = text = describe_all(ledger)
        job.figures.put(f"{shape}, who is named", verdicts)
        cause = ledger.stragglers[0].cause if ledger.stragglers else {}
        phase = max(cause, key=lambda each: cause[each]) if cause else ""
        judged = name != "none" and not (time_slices and name.startswith("device"))
        if judged and (ledger.verdict.ranks, phase) != ((trace.run.ranks - 1,), DELAYS[name]):
            wrong.append(f"{name}: {text}, not rank {trace.run.ranks - 1} by its {DELAYS[name]}")
    return wrong


def hooks_against_kernels(figures: Figures, of_rank: Any, profile: Path) -> None:
    """Puts how far the hooks' stamps of the profiled steps are from the kernels; `of_rank` [step, 6]. Raises PartError
    where they are too far, or where there are none."""
    from hpc.model.timestamps import ABSENT

    beside = json.loads(profile.with_suffix(".marks").read_text())
    offset, steps, profiled = beside["unix_offset_ns"], beside["steps"], beside["profiled"]
    kernels = read_kernels(profile)
    columns = {"forward": 1, "reduced": 4, "end": 5}
    borders = [
        Border(marked + offset, int(of_rank[step, columns[name]]) + offset)
        for name, its in beside["marks"].items()
        for step, marked in zip(range(steps - profiled, steps), its, strict=False)
        if step < len(of_rank) and of_rank[step, columns[name]] != ABSENT
    ]
    figures.put("ddp, kernels of the profiled steps", len(kernels))
    errors = border_errors_ns(borders, kernels)
    put_borders(figures, "ddp, borders of the hooks", errors)
    check_borders(errors)


# The price of the hooks.


def price(job: Job) -> None:
    """By turns with hooks and without, in steps of 10 and of 100 ms."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from benchmarks.bench_observe import TIMED, batch_for, measure
    from benchmarks.pairs import against_limit

    missed = []
    for step_ms, goal in PRICE_GOALS.items():
        device = "cpu" if job.rehearse else "cuda"
        blocks, width = (2, 16) if job.rehearse else (54, 1024)
        turns = 4 if job.rehearse else {10: 60, 100: 12}[step_ms]
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # hooks stay on to the end of their process
            batch = 8 if job.rehearse else pool.submit(batch_for, step_ms, blocks, width, device).result()
            hooked, bare = pool.submit(measure, turns * TIMED, blocks, width, batch, False, None, device).result()
        bare_ms = sorted(bare)[len(bare) // 2]
        shares = [100 * (a - b) / bare_ms for a, b in zip(hooked, bare, strict=True)]
        text = against_limit("hooks", shares, goal, "% of a step")
        job.figures.put(f"step of {step_ms} ms", {"in fact ms": bare_ms, "price": text})
        if text.endswith("missed") and not job.rehearse:
            missed.append(text)
    if missed:
        raise PartError("; ".join(missed))


# Torch's own record of collectives.

TIMING = "TORCH_NCCL_ENABLE_TIMING"


def collectives(job: Job) -> None:
    """DDP in a group that times its collectives and in one that does not, by turns; the record of the first."""
    import tempfile

    import torch
    import torch.distributed as dist

    from benchmarks.bench_observe import WARM_UP, on_turn, training
    from benchmarks.pairs import against_limit

    device, backend = ("cpu", "gloo") if job.rehearse else ("cuda", "nccl")
    blocks, width, batch, turns = (2, 16, 8, 4) if job.rehearse else (54, 1024, 512, 60)
    if not job.rehearse:
        torch.cuda.set_device(0)
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop(TIMING, None)
        dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=0, world_size=1)
        for timed in ("1", "0"):  # read when a group is made
            os.environ[TIMING] = timed
            group = dist.new_group([0], group_desc=f"timing {timed}")
            steps.append(training(blocks, width, batch, device, group))
            for _ in range(WARM_UP):
                steps[-1]()
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                taken[which].extend(on_turn(device)(steps[which]))
        plain_ms = sorted(taken[1])[len(taken[1]) // 2]
        shares = [100 * (a - b) / plain_ms for a, b in zip(*taken, strict=True)]
        price = against_limit("timing of collectives", shares, PRICE_GOALS[10], "% of a step")
        job.figures.put("price", {"step ms": plain_ms, "timing": price})
        _put_record(job, folder)
        dist.destroy_process_group()


def _put_record(job: Job, folder: str) -> None:
    """The kinds of the record, each with its durations. Raises PartError where NCCL has measured none."""
    from hpc.observe import flight_record

    events = Path(folder) / "1.1.events"
    flight_record.write(events, 0)
    record = flight_record.read(events)
    if record is None:
        raise PartError("torch has recorded nothing")
    its = [entry for entry in record.entries if entry.group == "timing 1"]
    durations = sorted(entry.duration_ms for entry in its if entry.duration_ms is not None)
    value: dict[str, Any] = {"recorded": len(its), "with a duration": len(durations)}
    if durations:
        value |= {"median ms": durations[len(durations) // 2], "largest ms": durations[-1]}
    job.figures.put("collectives of the group that times them", value)
    if not durations and not job.rehearse:
        raise PartError(f"none of {len(its)} collectives has a duration")


# Rankwise's own runs.


def resnet50(job: Job) -> None:
    """In each precision."""
    _precisions(job, "off")


def resnet50_compiled(job: Job) -> None:
    """The same through torch.compile."""
    _precisions(job, "on")


def _precisions(job: Job, compiled: str) -> None:
    problems = []
    precisions = ("fp32",) if job.rehearse else ("bf16", "fp32", "amp-fp16", "tf32")
    for precision in precisions:
        options = {"compile": compiled}
        run = {"workload": "resnet50", "precision": precision, "batch_size": 128}
        if job.rehearse:  # ResNet-50 takes a minute to compile there
            run |= {"workload": "mlp", "batch_size": 8}
        try:
            result = _measured(job, {**run, "options": options}, 30)
            value = {"images/s": result.median_speed}
            value |= {"of an mlp": True} if job.rehearse else _published(precision)
            job.figures.put(precision, {**value, **_telemetry_of(job, precision)})
        except PartError as error:
            problems.append(f"{precision}: {error}")
            job.figures.put(f"{precision} failed", str(error).splitlines()[-1])
    if problems:
        raise PartError("\n".join(problems))


def gpt(job: Job) -> None:
    """Tokens per second and MFU of the smallest GPT, eager and compiled."""
    size, length, batch = ("tiny", "64", 2) if job.rehearse else ("125m", "1024", 16)
    problems = []
    for compiled in ("off",) if job.rehearse else ("off", "on"):
        options = {"size": size, "sequence_length": length, "compile": compiled}
        name = "eager" if compiled == "off" else "compiled"
        try:
            result = _measured(
                job, {"workload": "gpt", "precision": "bf16", "batch_size": batch, "options": options}, 20
            )
        except PartError as error:
            problems.append(f"{name}: {error}")
            continue
        value = {"tokens/s": result.median_speed, "MFU": result.mfu, "no MFU": result.no_mfu}
        job.figures.put(name, {key: each for key, each in value.items() if each not in (None, "")})
    if problems:
        raise PartError("\n".join(problems))


def _measured(job: Job, changes: Mapping[str, Any], steps: int) -> Any:
    """The result of one run on one device, its trace in a folder of its own. Raises PartError."""
    from hpc.model.spec import MIN_WARMUP_STEPS, RunSpec
    from launch.scheduler.local import launcher
    from parse.runs.load import load
    from parse.runs.result import results

    usual: dict[str, Any] = {
        "nodes": 1, "ranks_per_node": 1, "gpus_per_node": 1, "cpus_per_rank": 2, "backend": "torch-ddp",
        "scaling": "weak", "warmup_steps": 10, "measured_steps": steps, "repeat": 1, "seed": 0, "site": "local",
    }  # fmt: skip
    if job.rehearse:
        usual |= {"gpus_per_node": 0, "cpus_per_rank": 1, "warmup_steps": MIN_WARMUP_STEPS, "measured_steps": 3}
    run = RunSpec(**usual | dict(changes))
    folder = job.folder / f"{run.precision}-{run.options['compile']}"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(run.to_json()))
    (folder / "job.sh").write_text("#!/bin/bash\n")
    argv = [*launcher(), "-n", "1", sys.executable, "-m", "hpc.rank", str(folder / "run.json"), "--attempt", "1"]
    _call([*argv, "--traces", str(folder), "--script", str(folder / "job.sh")])
    (result,) = results(load([folder]))
    if result.median_speed is None:
        raise PartError("the run has left no speed")
    return result


def _published(precision: str) -> dict[str, float]:
    """What documents print of one device at batch size 128, each under its name and devices."""
    from hpc.model.reference import known_recipes

    speeds = {}
    for name, recipe in known_recipes().items():
        if "resnet50" not in name:
            continue
        for table in recipe.tables:
            if (table.batch_size, table.precision) == (128, precision):
                its = [figure.value for figure in table.figures if (figure.case, figure.what) == ("1n1g", "median")]
                if its:
                    speeds[f"published by {name} on {recipe.devices}"] = float(its[0])
    return speeds


def _telemetry_of(job: Job, precision: str) -> dict[str, float]:
    """Medians over the samples of the run with this precision that the GPU's series have."""
    import numpy as np

    from hpc.model.trace_file import read_trace

    (path,) = [path for folder in job.folder.glob(f"{precision}-*") for path in folder.glob("*.h5")]
    telemetry = read_trace(path).telemetry
    if telemetry is None:
        return {}
    wanted = [name for name in telemetry.series if name in ("gpu0.sm_clock_mhz", "gpu0.power_w", "gpu0.temperature_c")]
    values = {name: telemetry.values[0, :, telemetry.series.index(name)] for name in wanted}
    return {name: float(np.nanmedian(its)) for name, its in values.items() if np.isfinite(its).any()}


def telemetry(job: Job) -> None:
    """What the helper beside the ranks reads, and the driver's energy counter against its power, under load."""
    import numpy as np
    import torch

    from hpc.node_agent.agent import NodeAgent, TelemetryRequest
    from hpc.node_agent.sources import RankProcess

    size, device, wait = (256, "cpu", int) if job.rehearse else (8192, "cuda", torch.cuda.synchronize)
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    agent = NodeAgent([RankProcess.this_process()], telemetry=TelemetryRequest(gpus=None if job.rehearse else ()))
    agent.start()
    before, begin_s = _energy_j(), time.perf_counter()
    while time.perf_counter() - begin_s < 5:
        for _ in range(20):
            torch.mm(matrix, matrix)
        wait()
    after, seconds = _energy_j(), time.perf_counter() - begin_s
    recording = agent.stop_telemetry()
    agent.end()
    if before is not None and after is not None:
        value = {"J": after - before, "s": seconds, "W": (after - before) / seconds}
        job.figures.put("energy counter", value)
    if recording is None:
        raise PartError("the helper recorded nothing")
    job.figures.put("samples", len(recording.local_ns))
    for name, values in zip(recording.series, recording.values.T, strict=True):
        if name.startswith("gpu0.") and np.isfinite(values).any():
            job.figures.put(name, float(np.nanmedian(values)))
    if absent := {name: text for name, text in recording.facts.get("absent", {}).items() if name.startswith("gpu0.")}:
        job.figures.put("absent", absent)
    if problem := recording.facts.get("problem"):
        raise PartError(str(problem))
    if before is None and not job.rehearse:
        raise PartError("the driver has no energy counter")


def _energy_j() -> float | None:
    """By NVML since the driver was loaded; None where it has no such counter."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0))) / 1e3
    except pynvml.NVMLError:
        return None


def _environment() -> dict[str, str]:
    """That of ranks on this machine, free of a launcher's variables."""
    from launch.scheduler.local import ranks_env

    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMI", "SLURM_"))
    }
    return {**inherited, **ranks_env()}


def _call(argv: Sequence[str]) -> None:
    """Runs ranks. Raises PartError with their last lines."""
    lines: list[str] = []
    with subprocess.Popen(
        argv, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:  # at once, so that a part which is ended has shown how far it came
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        last = [line for line in lines if line][-5:]
        raise PartError("\n".join([f"exit status {process.returncode}", *last]))


PARTS: Mapping[str, Callable[[Job], None]] = {
    "machine": machine, "tests": tests, "stamps": stamps, "one-rank": one_rank, "two-ranks": two_ranks, "price": price,
    "collectives": collectives,
    "resnet50": resnet50, "gpt": gpt, "telemetry": telemetry, "resnet50-compiled": resnet50_compiled,
}  # fmt: skip


def main() -> int:
    """Command line: 0 where all was measured, 1 where something was not, with the reason as the last lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    try:
        PARTS[arguments.part](Job(Figures(arguments.figures), arguments.folder, arguments.rehearse))
    except PartError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
