"""Files of 10 GB that are no logs, and a log of 1 GB, against `wc -l`: whole processes.

`python -m benchmarks.bench_huge [FOLDER]`; 1 GB is written there and removed. The large files are sparse: only the
parts that are looked at hold what they are called, and `wc -l` reads all of them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.bench_logs import NGC, _words, write_log
from benchmarks.pairs import compare
from parse.logs.formats import FORMATS, HEAD_BYTES, TAIL_BYTES, format_named

LIMIT = 3.0
HUGE_BYTES, LOG_BYTES = 10**10, 10**9
BLOCKS = 3
UNIT_BYTES = 1 << 20


def contents() -> Iterator[tuple[str, bytes]]:
    """What files are made of that are no logs, by name: a text that is repeated."""
    rng = random.Random(0)
    words = "".join(f"{_words(rng)}\n" for _ in range(20_000)).encode()
    markers = [form.marker for name in FORMATS for form in format_named(name).steps]
    yield "zeros", bytes(UNIT_BYTES)
    yield "random bytes", rng.randbytes(UNIT_BYTES)
    yield "one line", b"x" * UNIT_BYTES
    yield "ordinary text", words
    yield "markers of all formats, a line each", b"".join(marker + b"\n" for marker in markers) * 100
    yield "markers of all formats, one line", b"".join(markers) * 100
    yield "marks of MLPerf, lines of 16 KiB", (b":::MLLOG {" * 1638 + b"\n") * 64
    yield "marker and words, no line twice", words.replace(b"\n", b" train.total_ips : \n")


def write_sparse(path: Path, content: bytes) -> None:
    """A file of HUGE_BYTES whose head and tail are made of the content, with a hole between them."""
    with path.open("wb") as file:
        for begin, size in ((0, HEAD_BYTES + 2 * TAIL_BYTES), (HUGE_BYTES - 2 * TAIL_BYTES, 2 * TAIL_BYTES)):
            file.seek(begin)
            for _ in range(-(-size // len(content))):
                file.write(content)
        file.truncate(HUGE_BYTES)


def write_bomb(path: Path) -> None:
    """A .gz that unpacks to HUGE_BYTES of line ends."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(HUGE_BYTES // UNIT_BYTES):
            file.write(b"\n" * UNIT_BYTES)


def _measure(name: str, path: Path, reference: str, between: Callable[[], object] | None = None) -> None:
    def run(*argv: str | Path, check: bool) -> None:
        subprocess.run(argv, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    ratio = compare(
        f"{name}: parse.summarize / {reference.split(' <', maxsplit=1)[0]}",
        lambda: run(sys.executable, "-m", "parse.summarize", path, check=False),
        lambda: run("sh", "-c", reference, "sh", path, check=True),
        limit=LIMIT,
        blocks=BLOCKS,
        between=between,
    )
    print(ratio, flush=True)


def _forgotten(path: Path) -> None:
    """Takes the file out of the memory, so that the next one to read it reads the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    """Prints a line per measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_huge", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        folder = Path(name)
        for title, content in contents():
            path = folder / "huge.log"
            write_sparse(path, content)
            _measure(f"{title}, {HUGE_BYTES / 1e9:.0f} GB, refused", path, 'wc -l <"$1"')
            path.unlink()
        path = folder / "bomb.gz"
        write_bomb(path)
        _measure(f"{HUGE_BYTES / 1e9:.0f} GB of line ends in a .gz, refused", path, 'zcat "$1" | wc -l')
        path.unlink()
        path = folder / "1n8g" / "r50_b128_fp32_1.log"
        write_log(path, NGC, LOG_BYTES)
        _measure(f"{NGC.name}, {LOG_BYTES / 1e9:.0f} GB, in memory", path, 'wc -l <"$1"')
        _measure(f"{NGC.name}, {LOG_BYTES / 1e9:.0f} GB, on the disk", path, 'wc -l <"$1"', lambda: _forgotten(path))


if __name__ == "__main__":
    main()
