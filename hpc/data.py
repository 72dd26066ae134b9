"""Makes an image set without network: `rankwise data make --out DIR`.

The images are the 1,797 handwritten digits that scikit-learn ships: PNG of 8 × 8 pixels in ten classes, a fifth of them
for validation. DIR has them as class folders (train/, val/) and as TFRecord files (tfrecord/), with a manifest.

Exit status 0: the set is written; 1: it cannot be; 2: usage.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.output_option import OutputFolder
from hpc.system.command_line import called, run
from hpc.system.command_parser import CommandParser
from hpc.system.import_guard import install_command
from hpc.system.sanitize import plain
from hpc.system.version import with_version

SPLITS = ("train", "val")
CLASSES, SIZE = 10, 8
LEVELS = 16
"""The brightest pixel; the darkest is 0."""
HELD_OUT = 5
"""One of so many images is for validation."""
FILE_IMAGES = 256
"""Images in a TFRecord file."""
MANIFEST = "manifest.json"
NO_TENSORFLOW = f"tensorflow, which writes its framing, is not installed here: {install_command('tensorflow')}"


class MissingPackage(Exception):
    """A package that makes the set is not installed; the text has the command that installs it."""


def make(folder: Path, seed: int) -> dict[str, object]:
    """Writes the set into an empty folder; returns its manifest. Equal for equal seeds and versions of Pillow.

    Raises MissingPackage.
    """
    images, labels = digits()
    digest, sizes, counts = hashlib.sha256(), [], dict.fromkeys(SPLITS, 0)
    tfrecord = find_spec("tensorflow") is not None
    for split in SPLITS:
        samples = []
        for number in split_digits(labels, split, seed):
            label, content = int(labels[number]), encoded(images[number])
            name = f"{split}/{label}/{number:04d}.png"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
            sizes.append(len(content))
            samples.append((name, label))
        counts[split] = len(samples)
        # Files hold the classes mixed, as a reader that shuffles within a buffer needs them.
        random.Random(f"{seed} {split}").shuffle(samples)
        files = [samples[at : at + FILE_IMAGES] for at in range(0, len(samples), FILE_IMAGES)]
        for number, file in enumerate(files if tfrecord else ()):
            (folder / "tfrecord").mkdir(exist_ok=True)
            write_tfrecord(folder / "tfrecord" / f"{split}-{number:05d}-of-{len(files):05d}", folder, file)
    manifest: dict[str, object] = {
        "schema": "rankwise-images",
        "schema_version": 1,
        "sha256": digest.hexdigest(),
        "source": "digits",
        "images": counts["train"],
        "val_images": counts["val"],
        "classes": CLASSES,
        "size": SIZE,
        "seed": seed,
        "bytes": sum(sizes),
        "mean_bytes": round(sum(sizes) / len(sizes)),
        "pillow": _pillow_version(),
        "forms": ["imagefolder", *(["tfrecord"] if tfrecord else [])],
        "left_out": {} if tfrecord else {"tfrecord": NO_TENSORFLOW},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def digits() -> tuple[Any, Any]:
    """Pixels [N, 8, 8] from 0 to 16 and digits [N]. Raises MissingPackage."""
    try:
        loaded = import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{error.name} is not installed here: {install_command('data')}") from None
    return loaded.images, loaded.target


def split_digits(labels: Any, split: str, seed: int) -> Iterator[int]:
    """The numbers of the digits of a split, class after class.

    Each class is shuffled by the seed; of all digits in that order every fifth is for validation, so that every class
    has a fifth of its digits there.
    """
    order = []
    for label in range(CLASSES):
        of_class = np.flatnonzero(labels == label).tolist()
        random.Random(f"{seed} {label}").shuffle(of_class)
        order += of_class
    for place, number in enumerate(order):
        if (place % HELD_OUT == 0) == (split == "val"):
            yield number


def encoded(pixels: Any) -> bytes:
    """A digit as a grey PNG of 8 bits."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.rint(pixels * (255 / LEVELS)).astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def write_tfrecord(path: Path, folder: Path, samples: Sequence[tuple[str, int]]) -> None:
    """A file with the features of TensorFlow's ImageNet files, whose labels count from 1; of samples by their names
    below the folder, with classes."""
    from hpc.workloads.tensorflow_base import tf

    def feature(*content: bytes) -> object:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=content))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, label in samples:
            features = {
                "image/encoded": feature((folder / name).read_bytes()),
                "image/filename": feature(Path(name).name.encode()),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label + 1])),
            }
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
            )


def _pillow_version() -> str:
    import PIL

    return PIL.__version__


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `rankwise data`."""
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
    parser = CommandParser(prog="rankwise data", description=__doc__)
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
