"""Makes a set of JPEG photographs without network: `python -m hpc.data make --out DIR --images N`.

The images are random crops of the photographs that scikit-image and scikit-learn ship, a photograph to a class. DIR has
them as class folders (train/, val/), as tar shards (webdataset/) and as TFRecord files (tfrecord/), with a manifest.

Exit status 0: the set is written; 1: it cannot be; 2: usage.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.data.image_set import MANIFEST, ImageSetSpec, make
from hpc.data.photographs import MissingPhotographs
from hpc.system.command_line import run
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import plain

MAX_CLASSES = 1000
"""Those of the workload that reads the set."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.data`."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.images < arguments.classes:
        parser.error(f"--images {arguments.images} is less than --classes {arguments.classes}: a class would be empty")
    out: Path = arguments.out
    spec = ImageSetSpec(
        images=arguments.images, val_images=max(arguments.classes, arguments.images // 10), classes=arguments.classes,
        size=arguments.size, seed=arguments.seed,
    )  # fmt: skip
    beside = out.with_name(f".{out.name}.part")
    try:
        if out.exists():
            return _refuse(f"{plain(str(out))} exists; name a folder that does not, nothing is overwritten")
        beside.mkdir(parents=True)
        try:
            manifest = make(beside, spec)
            beside.rename(out)
        finally:
            if beside.exists():
                shutil.rmtree(beside)
    except FileExistsError:
        return _refuse(f"{plain(str(beside))} exists: another command writes the set, or was killed; remove it then")
    except OSError as error:
        return _refuse(f"{plain(str(error.filename or out))} cannot be written ({error.strerror})")
    except MissingPhotographs as error:
        return _refuse(str(error))
    print(
        f"{plain(str(out))}: {spec.images} training and {spec.val_images} validation images in {spec.classes} classes, "
        f"{float(str(manifest['mean_bytes'])) / 1e3:.0f} kB each; {MANIFEST} has sha256 {manifest['sha256']}"
    )
    left_out = manifest["left_out"]
    assert isinstance(left_out, dict)
    for form, reason in left_out.items():
        print(f"left out: {form} ({reason})")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m hpc.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("make",), help="make: write a new set")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="the folder of the set, which must not exist")
    add("--images", type=_whole(1, 100_000_000), required=True, metavar="N",
        help="training images; a tenth as many for validation, at least one per class")  # fmt: skip
    add("--classes", type=_whole(1, MAX_CLASSES), default=9, metavar="K",
        help="classes; beyond nine a photograph makes several (default %(default)s)")  # fmt: skip
    add("--size", type=_whole(16, 65_500), default=500, metavar="PX",
        help="width of an image, four to three (default %(default)s: about 90 kB)")  # fmt: skip
    add("--seed", type=_whole(0, 2**31 - 1), default=0, metavar="N", help="seed of the crops (default %(default)s)")
    return parser


def _whole(minimum: int, maximum: int) -> type[int]:
    def read(text: str) -> int:
        number = int(text)
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(f"{text} is out of range; it must be from {minimum} to {maximum}")
        return number

    read.__name__ = "whole number"
    return read  # type: ignore[return-value]  # argparse takes any function


def _refuse(reason: str) -> int:
    print(f"hpc.data: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(run(main, "hpc.data"))
