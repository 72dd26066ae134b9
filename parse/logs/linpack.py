"""The results of HPL and HPL-MxP (HPL-AI): a dense system solved, its operations per second, and whether it holds.

Forms: NVIDIA's HPL-MxP (`GFLOPS = …, per GPU = …` below `||Ax-b||_oo / (…) = … PASSED`, with words behind it or none),
HPL's table with the residual below each row (HPL, rocHPL, rocHPL-MxP), and the reference of HPL-AI (`Effective
operation per sec`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from parse.logs.mlperf import finite
from parse.logs.nccl_tests import MAX_LINE, unlabelled

MARKS = (b"HPL-MxP", b"HPL MxP", b"HPL-MXP", b"HPL-AI", b"HPLinpack", b"||Ax-b||")
"""One of them is in every such output."""
TIME_AGREES = 0.02
"""Share by which operations over the printed time may miss the printed rate."""

_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?"
_MIXED = re.compile(r"HPL[- ]?MxP|HPL-AI", re.IGNORECASE)
_DOUBLE = re.compile(r"HPLinpack|HPL-NVIDIA")
_RESIDUAL = re.compile(
    rf"\|\|Ax-b\|\|_oo ?/.{{10,80}}= *(?P<value>{_NUMBER}[0-9]?|-?nan|inf) *\.{{3,6}} *(?P<verdict>PASSED|FAILED)"
)
_SIZES = re.compile(r"N = (?P<n>\d{1,9}), NB = (?P<nb>\d{1,6}), NPROW = (?P<p>\d{1,6}), NPCOL = (?P<q>\d{1,6})\b")
_RATES = re.compile(rf"(?P<lu>LU )?GFLOPS = (?P<rate>{_NUMBER}), per GPU = +(?P<each>{_NUMBER})(?: +-{{3,}} .*)?")
_ROW = re.compile(
    r"(?:HPL_AI +)?W[RC]\w{1,14} +(?P<n>\d{1,9}) +(?P<nb>\d{1,6}) +(?P<p>\d{1,6}) +(?P<q>\d{1,6}) +"
    rf"(?P<time>{_NUMBER}) +(?P<rate>{_NUMBER})(?: +\( *(?P<each>{_NUMBER})\))?"
)
_REFERENCE = re.compile(rf"Effective operation per sec +: +(?P<rate>{_NUMBER}) GFLOPs")


class ResidualCheck(StrEnum):
    """What is known of the solution."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Linpack:
    """One solved system in the output `file`; `benchmark` is `HPL-MxP` or `HPL`.

    `gflops` (10^9 operations/s) are 2/3 N^3 + 3/2 N^2 operations, whatever was calculated, over the whole time,
    refinement included; `lu_gflops` are those of the factorisation alone, `per_gpu` the program's own division; None
    where not printed, and all of them None where the check did not pass or the printed time contradicts.
    """

    file: str
    benchmark: str
    n: int | None = None
    nb: int | None = None
    p: int | None = None
    q: int | None = None
    gflops: float | None = None
    lu_gflops: float | None = None
    per_gpu: float | None = None
    residual: float | None = None
    check: ResidualCheck = ResidualCheck.MISSING
    contradicts: bool = False


def linpacks(text: str, file: str) -> tuple[Linpack, ...]:
    """The solved systems that the text prints, in its order; empty where there are none. Lines may have labels."""
    mixed = False
    last_residual: re.Match[str] | None = None
    read: list[Linpack] = []
    sizes: dict[str, int] = {}
    for whole in text.splitlines():
        line, _ = unlabelled(whole[:MAX_LINE])
        if _MIXED.search(line) or _DOUBLE.search(line):
            mixed = bool(_MIXED.search(line))
        if row := _ROW.fullmatch(line):
            read.append(_of_row(row, file, mixed=mixed))
        elif reference := _REFERENCE.fullmatch(line):
            read.append(Linpack(file=file, benchmark="HPL-MxP", gflops=float(reference["rate"])))
        elif residual := _RESIDUAL.match(line):
            if "(EPS" in line:
                last_residual = residual  # NVIDIA's HPL-MxP prints it before the rates
            elif read and read[-1].check is not ResidualCheck.FAILED:
                read[-1] = _checked(read[-1], residual)  # several of one row (HPL 1) must all pass
        elif printed := _SIZES.search(line):
            sizes = {name: int(value) for name, value in printed.groupdict().items()}
        elif rates := _RATES.fullmatch(line):
            if rates["lu"]:
                if read:
                    read[-1] = replace(read[-1], lu_gflops=float(rates["rate"]))
                continue
            solved = Linpack(
                file=file, benchmark="HPL-MxP", gflops=float(rates["rate"]), per_gpu=float(rates["each"]),
                n=sizes.get("n"), nb=sizes.get("nb"), p=sizes.get("p"), q=sizes.get("q"),
            )  # fmt: skip
            read.append(_checked(solved, last_residual) if last_residual else solved)
            last_residual, sizes = None, {}
    return tuple(map(_believed, read))


def _of_row(row: re.Match[str], file: str, *, mixed: bool) -> Linpack:
    """A row of HPL's table; its rate is held against its size and time."""
    n, seconds, rate = int(row["n"]), float(row["time"]), float(row["rate"])
    operations = 2 / 3 * n**3 + 3 / 2 * n**2
    # Small systems print a time of two decimals, which says little of the rate.
    precise = seconds >= 1
    contradicts = precise and abs(operations / seconds / 1e9 / rate - 1) > TIME_AGREES if rate else True
    return Linpack(
        file=file, benchmark="HPL-MxP" if mixed else "HPL", n=n, nb=int(row["nb"]), p=int(row["p"]), q=int(row["q"]),
        gflops=rate, per_gpu=float(row["each"]) if row["each"] else None, contradicts=contradicts,
    )  # fmt: skip


def _checked(solved: Linpack, residual: re.Match[str]) -> Linpack:
    value = finite(residual["value"])
    passed = residual["verdict"] == "PASSED" and value is not None
    return replace(solved, residual=value, check=ResidualCheck.PASSED if passed else ResidualCheck.FAILED)


def _believed(solved: Linpack) -> Linpack:
    """Without rates where they are not to be believed."""
    if solved.check is ResidualCheck.PASSED and not solved.contradicts:
        return solved
    return replace(solved, gflops=None, lu_gflops=None, per_gpu=None)
