"""What explains a finding, as clauses about a straggler with what to do: telemetry, hosts and devices, input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpc.system.text import capitalized, plural
from parse.ledger.causes import Cause
from parse.ledger.finding import Pacer, Paces, Symptom
from parse.ledger.input import InputCause, InputReading
from parse.ledger.verdict import Straggler
from parse.say.numbers import LITTLE, digits, ms, percent, round_number

LOADER = "its loader, "


def evidence_words(evidence: Symptom | Paces | InputReading, straggler: Straggler) -> tuple[str, str]:
    """What it shows of a straggler, and what to do, empty where that is not known."""
    delay_ms = straggler.arrival_skew
    if isinstance(evidence, Paces):
        return pace_text(evidence), ""
    if isinstance(evidence, InputReading):
        return input_words(evidence)
    known = EVIDENCE.get(evidence.quantity) or EvidenceText(f"{evidence.quantity} {{}} {evidence.unit}".rstrip())
    is_itself = evidence.usual is None or evidence.quantity == Cause.SLEEPS
    usual = "" if is_itself or evidence.usual is None else f" (others {round_number(evidence.usual)})"
    text = f"{known.clause(round_number(evidence.value), evidence.detail)}{usual}"
    if evidence.explains is not None and delay_ms > 0:
        text = f"{text}: {percent(evidence.explains / delay_ms)} of its delay"
    by_loader = straggler.loader is None or straggler.loader >= LITTLE * delay_ms
    return capitalized(text), known.advice if by_loader else known.advice.replace(LOADER, "")


def pace_text(paces: Paces) -> str:
    """`Its host is slow: Python and launches take 21.6 ms there, and its device waits up to 9.80 ms (others 0)`."""
    usual = f"up to {ms(paces.idle)} (others {digits(paces.usual_idle)})"
    host = f"Python and launches take {ms(paces.host)} there, and its device waits {usual}"
    match paces.pacer:
        case Pacer.HOST:
            return f"Its host is slow: {host}"
        case Pacer.DEVICE:
            waits = f"{ms(paces.idle)} at most (others {digits(paces.usual_idle)})"
            return f"Its device is slow: there it waits for its host {waits}"
        case Pacer.UNKNOWN:
            return f"Its host or its device is slow: {host}, unless a full queue holds the host back"


def input_words(reading: InputReading) -> tuple[str, str]:
    """Why input is late, and what to do."""
    few, advice = "", ""
    if reading.usual_workers is not None and reading.workers < reading.usual_workers:
        few = f"Its reader has {reading.workers} of {plural(reading.usual_workers, 'worker')}: "
    workers = f"{plural(reading.workers, 'worker')} per rank"
    match reading.cause:
        case InputCause.NO_WORKERS:
            text, advice = "the rank reads and decodes its batches itself", "--option workers=N"
        case InputCause.BURSTS:
            text = f"single batches come late, as where an epoch begins: {workers} are not busy all the time"
        case InputCause.STORAGE:
            part = percent(reading.reading / reading.work)
            text = f"storage is slow: {part} of the {ms(reading.work)} that a batch takes are for reading files"
        case InputCause.CORES:
            text = f"too few cores for the rank and its {plural(reading.workers, 'worker')}"
        case InputCause.WORKERS:
            are = "is too few" if reading.workers == 1 else "are too few"
            text = f"{workers} {are}: {reading.enough} with cores of their own would keep up"
            advice = f"--option workers={reading.enough}"
        case None:
            text = ""
    return capitalized(f"{few}{text}".removesuffix(": ")), advice


def input_text(reading: InputReading) -> str:
    """`input is late by 12.1 ms a step, in 40 % of the steps, with 4 workers per rank busy 95 % of the time. A batch
    takes 80.0 ms, 40 % of it for reading files`; or that a batch is ready when a step needs it."""
    busy = "" if reading.busy is None else f"{plural(reading.workers, 'worker')} per rank busy {percent(reading.busy)}"
    if reading.cause is None:
        ready = "" if reading.ready is None else f", {reading.ready:.1f} batches on average"
        return f"input is ready when a step needs it{ready}{f'; {busy} of the time' if busy else ''}"
    late = f"input is late by {ms(reading.late)} a step, in {percent(reading.late_share)} of the steps"
    takes = f"a batch takes {ms(reading.work)}, {percent(reading.reading / reading.work)} of it for reading files"
    text = f"{late}{f', with {busy} of the time' if busy else ''}. {capitalized(takes)}"
    if reading.cause is InputCause.CORES:
        text += f". A worker that decodes has a core for {percent(reading.processor / reading.decoding)} of the time"
        text += ", or its threads wait for each other in Python" if reading.threads else ""
    return text


@dataclass(frozen=True)
class EvidenceText:
    """A quantity of the telemetry as a clause about the straggler, with its value; what to do about it.

    `{}` is the value, `{detail:…}` what is behind it in place of the `%`, nothing where that is not known.
    """

    phrase: str
    advice: str = ""

    def clause(self, value: str, detail: str) -> str:
        """The clause with these."""
        return re.sub(
            r"\{detail:(.*?)\}", lambda match: match[1].replace("%", detail) if detail else "", self.phrase
        ).format(value)


EVIDENCE: Mapping[str, EvidenceText] = {
    Cause.QUOTA: EvidenceText(
        "a CPU quota holds it back {} ms a step",
        "raise the limit of its control group, or ask for more CPUs (--cpus-per-task, the container's limit)",
    ),
    Cause.STOPPED: EvidenceText(
        "its process is stopped {} ms a step",
        "find what stops it: SIGSTOP of a scheduler or script, a debugger, a frozen container",
    ),
    Cause.STORAGE: EvidenceText(
        "it waits for storage {} ms a step",
        "write less often (fsync, checkpoints, logs), in the background, or to faster storage",
    ),
    Cause.COMPUTE_THREADS: EvidenceText(
        "its other compute threads{detail: (%)} take {} ms of CPU time a step",
        "set OMP_NUM_THREADS or torch.set_num_threads to the number of cores that it may use",
    ),
    Cause.PYTHON_THREADS: EvidenceText(
        "its Python thread{detail: %} takes {} ms of CPU time a step",
        "a Python thread that computes holds the GIL: move its work to another process",
    ),
    Cause.OTHER_THREADS: EvidenceText(
        "its other threads take {} ms of CPU time a step",
        "set OMP_NUM_THREADS or torch.set_num_threads to its number of cores; move the work of Python threads, which "
        "hold the GIL, to another process",
    ),
    Cause.CHILDREN: EvidenceText(
        "processes that it started take {} ms of CPU time a step",
        "give it more cores (--cpus-per-rank), or start fewer workers",
    ),
    Cause.NEIGHBOURS: EvidenceText(
        "other ranks{detail: (%)} take {} ms a step of its cores", "bind every rank to cores of its own"
    ),
    Cause.OTHERS: EvidenceText(
        "other processes{detail: (%)} take {} ms a step of its cores",
        "see the check `load`, bind ranks to cores, take nodes exclusively",
    ),
    Cause.GARBAGE: EvidenceText(
        "in these steps Python collects garbage for {} ms{detail:, %}",
        "call gc.freeze() once all is built; or gc.disable(), and gc.collect() in the same steps on all ranks",
    ),
    Cause.SAMPLES: EvidenceText(
        "it trains on {} samples a step",
        "give every rank as many samples, or as long ones: see its batches and its share",
    ),
    Cause.COMPUTES: EvidenceText(
        "its main thread takes {} ms of CPU time a step",
        "compare its work with the others': batch size, lengths, tokens; if equal, its core is slower",
    ),
    Cause.SLEEPS: EvidenceText(
        "its main thread sleeps {} ms a step longer in its own work",
        f"find what it waits for: {LOADER}a lock, a file, the network, another process, a sleep",
    ),
    Cause.QUEUED: EvidenceText(
        "it is ready to run but not running {} ms a step",
        "see what takes its core: a CPU quota, its own threads, another process (check `load`)",
    ),
    "a rank loses its core": EvidenceText("it loses its core {} times a step"),
    "minor page faults of a rank": EvidenceText(
        "it has {} page faults a step",
        "keep buffers, raise MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_, or preload another allocator",
    ),
    "a rank does not run": EvidenceText(
        "its process does not run for {} s",
        "it was stopped (SIGSTOP, a debugger, a container that is frozen), or waits for storage: see its node's log",
    ),
    "major page faults of a rank": EvidenceText(
        "it reads {} pages a step from the disk",
        "too little memory on its node, or mapped files that the cache does not hold",
    ),
    "SM clock": EvidenceText("its SM clock is {} MHz", "see its power limit, temperature and throttle reasons"),
    "GPU clock": EvidenceText("its GPU clock is {} MHz", "see its power limit, temperature and throttle reasons"),
    "CPU frequency": EvidenceText("its CPU frequency is {} MHz", "see the node's power settings and temperature"),
    "swapped out": EvidenceText("its node swaps out {} MB a step", "too little memory on its node"),
    "the hypervisor takes from the ranks": EvidenceText(
        "the hypervisor takes {} ms a step from its node", "the machine below the node is shared"
    ),
}
"""By the names of `parse.ledger.telemetry.QUANTITIES`; a phrase holds the unit that its quantity has in a step."""
