"""Makes an image set without network: `python -m hpc.data make --out DIR --images N`, or `--source digits`.

The images are random crops of the photographs that scikit-image and scikit-learn ship, a photograph to a class, or the
handwritten digits that scikit-learn ships. DIR has them as class folders (train/, val/), as tar shards (webdataset/)
and as TFRecord files (tfrecord/), with a manifest.

Exit status 0: the set is written; 1: it cannot be; 2: usage.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.data.image_set import DIGITS, MANIFEST, PHOTOGRAPHS, SOURCES, ImageSetSpec, digits_spec, make
from hpc.data.photographs import MissingPackage
from hpc.model.output_option import OutputFolder
from hpc.system.command_line import called, run
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import plain
from hpc.system.version import with_version

MAX_CLASSES = 1000
"""Those of the workload that reads the set."""
DEFAULT_CLASSES, DEFAULT_SIZE = 9, 500
PHOTOGRAPHS_ONLY = ("images", "classes", "size")
"""Options of photographs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.data`."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    out: Path = arguments.out
    try:
        spec = _spec(arguments, parser)
    except MissingPackage as error:
        return _refuse(str(error))
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
    except MissingPackage as error:
        return _refuse(str(error))
    print(
        f"{plain(str(out))}: {spec.images} training and {spec.val_images} validation images in {spec.classes} classes, "
        f"{_size(float(str(manifest['mean_bytes'])))} each; {MANIFEST} has sha256 {manifest['sha256']}"
    )
    left_out = manifest["left_out"]
    assert isinstance(left_out, dict)
    for form, reason in left_out.items():
        print(f"left out: {form} ({reason})")
    return 0


def _spec(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> ImageSetSpec:
    """The requested set. Ends the command where options do not fit together; raises MissingPackage."""
    if arguments.source == DIGITS:
        if requested := [f"--{name}" for name in PHOTOGRAPHS_ONLY if getattr(arguments, name) is not None]:
            parser.error(
                f"{', '.join(requested)} is for photographs: the digits are 1,797 images of 8 × 8 pixels in 10 classes"
            )
        return digits_spec(arguments.seed)
    if arguments.images is None:
        parser.error("--images is missing: how many training images to make")
    classes, size = arguments.classes or DEFAULT_CLASSES, arguments.size or DEFAULT_SIZE
    if arguments.images < classes:
        parser.error(f"--images {arguments.images} is less than --classes {classes}: a class would be empty")
    return ImageSetSpec(
        source=PHOTOGRAPHS, images=arguments.images, val_images=max(classes, arguments.images // 10), classes=classes,
        size=size, seed=arguments.seed,
    )  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(prog="python -m hpc.data", description=__doc__)
    parser.add_argument("action", choices=("make",), help="make: write a new set")
    add = parser.add_argument
    add("--out", action=OutputFolder, type=Path, required=True, metavar="DIR",
        help="the folder of the set, which must not exist")  # fmt: skip
    add("--source", choices=SOURCES, default=PHOTOGRAPHS,
        help="photographs: JPEG crops, as many as --images; digits: scikit-learn's 1,797 handwritten digits, PNG of "
        "8 × 8 pixels, a fifth of them for validation (default %(default)s)")  # fmt: skip
    add("--images", type=_whole(1, 100_000_000), metavar="N",
        help="photographs: training images; a tenth as many for validation, at least one per class")  # fmt: skip
    add(
        "--classes",
        type=_whole(1, MAX_CLASSES),
        metavar="K",
        help=f"photographs: classes; beyond nine a photograph makes several (default {DEFAULT_CLASSES})",
    )
    add("--size", type=_whole(16, 65_500), metavar="PX",
        help="photographs: width of an image, four to three "
        f"(default {DEFAULT_SIZE}: about 90 kB)")  # fmt: skip
    add("--seed", type=_whole(0, 2**31 - 1), default=0, metavar="N",
        help="seed of the crops, or of which digits are for validation (default %(default)s)")  # fmt: skip
    return with_version(parser)


def _whole(minimum: int, maximum: int) -> type[int]:
    def read(text: str) -> int:
        number = int(text)
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(f"{text} is out of range; it must be from {minimum} to {maximum}")
        return number

    read.__name__ = "whole number"
    return read  # type: ignore[return-value]  # argparse takes any function


def _size(mean_bytes: float) -> str:
    return f"{mean_bytes / 1e3:.0f} kB" if mean_bytes >= 1e3 else f"{mean_bytes:.0f} bytes"


def _refuse(reason: str) -> int:
    print(f"{called('hpc.data')}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(run(main, "hpc.data"))
