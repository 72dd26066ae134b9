"""What the programs of fuzz share: seeds tried one after another, each watched, and a command line."""

from __future__ import annotations

import argparse
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, Literal

HANG_S = 30
"""No input of a megabyte takes a hundredth of it."""


class Defect(AssertionError):
    """What is looked for: something was read that should not have been, or not so, or it did harm."""


def require(so: bool, otherwise: str) -> None:
    if not so:
        raise Defect(otherwise)


@contextmanager
def watched() -> Iterator[None]:
    """Raises Defect where what is within takes HANG_S of processor time: other work makes nothing hang."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Defect(f"it takes more than {HANG_S} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def try_seeds(
    first: int, count: int, attempt: Callable[[int], str], about: Callable[[int], str], *, failures: int = 10,
    on_warning: Literal["error", "ignore"] = "error",
) -> int:  # fmt: skip
    """Tries so many seeds, `about` which says what they are; counts what came of each, and prints what fails. Returns
    how many did."""
    came: Counter[str] = Counter()
    failed, begin = 0, perf_counter()
    for number, seed in enumerate(range(first, first + count), 1):
        try:
            with watched(), warnings.catch_warnings(action=on_warning):
                came[attempt(seed)] += 1
        except Exception:  # noqa: BLE001 - whichever it is, the seed fails, which is counted and printed
            failed += 1
            print(f"seed {seed} ({about(seed)}):\n{traceback.format_exc()}", flush=True)
            if failed >= failures:
                break
        if number % max(1, count // 10) == 0:
            print(f"{number} in {perf_counter() - begin:.0f} s, {failed} failed: {dict(came)}", flush=True)
    return failed


def command(
    about: str | None, usual: int, run: Callable[[argparse.Namespace, int, int, Path], int],
    *more: tuple[str, Mapping[str, Any]], text_of: Callable[[int], bytes] | None = None,
) -> int:  # fmt: skip
    """The command line, with `more` options: 0 where nothing failed. `run` gets the options, the first seed, how many
    are tried, and an empty folder; `text_of` is the input of a seed where that is a text."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=usual)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    where = "its input is left in ./fuzz-SEED.log" if text_of else "with all that is printed"
    parser.add_argument("--seed", type=int, help=f"this one alone; {where}")
    for name, values in more:
        parser.add_argument(name, **values)
    options = parser.parse_args()
    if text_of and options.seed is not None:
        Path(f"fuzz-{options.seed}.log").write_bytes(text_of(options.seed))
    first, count = (options.first, options.count) if options.seed is None else (options.seed, 1)
    with tempfile.TemporaryDirectory() as folder:
        return 1 if run(options, first, count, Path(folder)) else 0
