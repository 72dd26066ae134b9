"""What is known of the term that loses most, as text: late input, compute, communication."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import plural
from parse.ledger.figures import SMALL, Figures, round_number
from parse.ledger.input import InputCause, InputReading
from parse.ledger.reasons import base_case
from parse.ledger.types import Ledger


def core_wait_text(ledger: Ledger) -> str:
    """`ranks that are ready to run wait for a core (1 % at 1n1g): 4 ranks of 1 core each on a machine with 2 for them`;
    empty where they do not."""
    wait = ledger.core_wait
    if wait is None:
        return ""
    usual = "" if wait.usual is None else f" ({round_number(wait.usual)} % at {base_case(ledger)})"
    reason = ledger.result.oversubscribed or "too few cores are left to them"
    return f"ranks that are ready to run wait for a core{usual}: {reason}"


def explanation(ledger: Ledger, write: Figures) -> Iterator[str]:
    """What is known of the term that loses most; nothing where nothing is, or where nothing is lost."""
    lost = [(term.loss.value, term.name) for term in ledger.causes if term.loss is not None and term.loss.value > 0]
    largest, name = max(lost, default=(0.0, ""))
    if name == "data" and ledger.input is not None:
        yield from late_input(ledger.input, write)
    elif name == "compute":
        yield _compute(ledger, largest, write)
    elif name == "communication" and ledger.standalone is not None:
        yield f"An all-reduce of these gradients takes {write.ms(ledger.standalone.standalone)} standalone"


def late_input(reading: InputReading, write: Figures) -> Iterator[str]:
    """Why input is late, and what to do; nothing where it is not."""
    if reading.usual_workers is not None and reading.workers < reading.usual_workers:
        yield f"Its reader has {reading.workers} of {plural(reading.usual_workers, 'worker')}"
    workers = f"{plural(reading.workers, 'worker')} per rank"
    match reading.cause:
        case InputCause.NO_WORKERS:
            yield "The rank reads and decodes its batches itself"
            yield "To do: --option workers=N"
        case InputCause.BURSTS:
            yield f"Single batches come late, as where an epoch begins: {workers} are not busy all the time"
        case InputCause.STORAGE:
            part = f"{reading.reading / reading.work * 100:.0f} %"
            yield f"Storage is slow: {part} of the {write.ms(reading.work)} that a batch takes are for reading files"
        case InputCause.CORES:
            yield f"Too few cores for the rank and its {plural(reading.workers, 'worker')}"
        case InputCause.WORKERS:
            few = "is too few" if reading.workers == 1 else "are too few"
            yield f"{workers} {few}: {reading.enough} with cores of their own would keep up"
            yield f"To do: --option workers={reading.enough}"


def _compute(ledger: Ledger, lost: float, write: Figures) -> str:
    """What telemetry or no-sync runs show of the ms `lost` in compute; that nothing does, and what would."""
    split = ledger.split
    if split is None:
        return ""
    if split.contention is not None and split.interference is not None:
        parts = f"contention {write.change(split.contention)}, interference {write.change(split.interference)}"
        return f"Of compute, by its no-sync runs: {parts}"
    if lost - split.straggler < SMALL * lost:
        return ""
    if split.explanations:
        shown = split.explanations[0]
        usual = "" if shown.usual is None else f" ({round_number(shown.usual)} at the base)"
        up_to = "" if shown.explains is None else f", which explains up to {write.ms(shown.explains)} of compute"
        return f"Telemetry shows: {shown.quantity} {round_number(shown.value)} {shown.unit}".rstrip() + usual + up_to
    if split.unexplained < SMALL * lost:
        return ""
    unexplained = f"Of compute {write.ms(split.unexplained)} are" if split.straggler else "Compute is"
    return f"{unexplained} unexplained. To do: hpc.sweep --no-sync, to tell contention from interference"
