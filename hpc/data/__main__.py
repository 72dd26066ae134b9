"""Makes an image set without network: `python -m hpc.data make --out DIR`.

The images are the 1,797 handwritten digits that scikit-learn ships: PNG of 8 × 8 pixels in ten classes, a fifth of them
for validation. DIR has them as class folders (train/, val/) and as TFRecord files (tfrecord/), with a manifest.

Exit status 0: the set is written; 1: it cannot be; 2: usage.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.data.image_set import MANIFEST, MissingPackage, make
from hpc.model.output_option import OutputFolder
from hpc.system.command_line import called, run
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import plain
from hpc.system.version import with_version


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.data`."""
    arguments = make_parser().parse_args(argv)
    out: Path = arguments.out
    beside = out.with_name(f".{out.name}.part")
    try:
        if out.exists():
            return _refuse(f"{plain(str(out))} exists; name a folder that does not, nothing is overwritten")
        beside.mkdir(parents=True)
        try:
            manifest = make(beside, arguments.seed)
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
        f"{plain(str(out))}: {manifest['images']} training and {manifest['val_images']} validation images in "
        f"{manifest['classes']} classes, {manifest['mean_bytes']} bytes each; "
        f"{MANIFEST} has sha256 {manifest['sha256']}"
    )
    left_out = manifest["left_out"]
    assert isinstance(left_out, dict)
    for form, reason in left_out.items():
        print(f"left out: {form} ({reason})")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(prog="python -m hpc.data", description=__doc__)
    parser.add_argument("action", choices=("make",), help="make: write a new set")
    add = parser.add_argument
    add("--out", action=OutputFolder, type=Path, required=True, metavar="DIR",
        help="the folder of the set, which must not exist")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N",
        help="chooses the digits for validation (default %(default)s)")  # fmt: skip
    return with_version(parser)


def _refuse(reason: str) -> int:
    print(f"{called('hpc.data')}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(run(main, "hpc.data"))
