"""An image set on the disk: class folders, tar shards, TFRecord files, indices for DALI, a manifest of checksums."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from hpc.data.photographs import CLASSES, SIZE, crop, digits, encoded, photographs, split_digits
from hpc.system.import_guard import install_command
from hpc.workloads.image_sets import index_text, read_headers

# Index files of an image set's shards, for DALI.

_LENGTH, _CHECKSUM_BYTES = struct.Struct("<Q"), 4


def index_tar(shard: Path) -> None:
    """Writes SHARD.idx beside SHARD.tar: suffix, offset, size and name of each component, a line per sample."""
    shard.with_suffix(".idx").write_text(index_text([*read_headers(shard)]))


def index_records(records: Path, index: Path) -> None:
    """Writes offset and size of each record of a TFRecord file, a line for each. Raises ValueError where it is cut."""
    size, at, lines = records.stat().st_size, 0, []
    with records.open("rb") as file:
        while at < size:
            file.seek(at)
            header = file.read(_LENGTH.size)
            if len(header) < _LENGTH.size:
                raise ValueError(f"{records} is cut off at byte {at}")
            # the length and its checksum, the record and its checksum
            stop = at + _LENGTH.size + 2 * _CHECKSUM_BYTES + _LENGTH.unpack(header)[0]
            if stop > size:
                raise ValueError(f"{records} is cut off: a record ends at byte {stop} of {size}")
            lines.append(f"{at} {stop - at}\n")
            at = stop
    index.write_text("".join(lines))


SPLITS = ("train", "val")
PHOTOGRAPHS, DIGITS = SOURCES = ("photographs", "digits")
SHARD_IMAGES = 256
MANIFEST = "manifest.json"
NO_TENSORFLOW = f"tensorflow, which writes its framing, is not installed here: {install_command('tensorflow')}"


@dataclass(frozen=True, kw_only=True)
class ImageSetSpec:
    """The requested set: where its images are from, training images, validation images, classes, width, seed."""

    source: str
    images: int
    val_images: int
    classes: int
    size: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """One image: its name below the set's folder, its class, its encoded content."""

    name: str
    label: int
    content: bytes


def digits_spec(seed: int) -> ImageSetSpec:
    """The set of all digits. Raises MissingPackage."""
    _, labels = digits()
    counts = [sum(1 for _ in split_digits(labels, split, seed)) for split in SPLITS]
    return ImageSetSpec(
        source=DIGITS, images=counts[0], val_images=counts[1], classes=CLASSES, size=SIZE, seed=seed
    )  # fmt: skip


def make(folder: Path, spec: ImageSetSpec) -> dict[str, object]:
    """Writes the set into an empty folder; returns its manifest. Equal for equal specs and versions of Pillow.

    Raises MissingPackage.
    """
    samples_of = _digit_samples(spec) if spec.source == DIGITS else _photograph_samples(spec)
    digest, sizes = hashlib.sha256(), []
    tfrecord = find_spec("tensorflow") is not None
    for split in SPLITS:
        samples = []
        for sample in samples_of(split):
            path = folder / sample.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample.content)
            digest.update(f"{sample.name}\0{hashlib.sha256(sample.content).hexdigest()}\n".encode())
            sizes.append(len(sample.content))
            samples.append(StoredImage(name=sample.name, label=sample.label, content=b""))
        # Shards hold the classes mixed, as a reader that shuffles within a buffer needs them.
        random.Random(f"{spec.seed} {split}").shuffle(samples)
        shards = [samples[at : at + SHARD_IMAGES] for at in range(0, len(samples), SHARD_IMAGES)]
        for number, shard in enumerate(shards):
            tar = _made(folder / "webdataset") / f"{split}-{number:06d}.tar"
            _write_tar(tar, folder, shard)
            index_tar(tar)
            if tfrecord:
                records = _made(folder / "tfrecord") / f"{split}-{number:05d}-of-{len(shards):05d}"
                write_tfrecord(records, folder, shard)
                index_records(records, _made(folder / "tfrecord-idx") / f"{records.name}.idx")
    manifest: dict[str, object] = {
        "schema": "rankwise-images",
        "schema_version": 1,
        "sha256": digest.hexdigest(),
        **asdict(spec),
        "bytes": sum(sizes),
        "mean_bytes": round(sum(sizes) / len(sizes)),
        "pillow": _pillow_version(),
        "forms": ["imagefolder", "webdataset", *(["tfrecord"] if tfrecord else [])],
        "left_out": {} if tfrecord else {"tfrecord": NO_TENSORFLOW},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _photograph_samples(spec: ImageSetSpec) -> Callable[[str], Iterator[StoredImage]]:
    """The images of a split, class after class; a class is one photograph, or a further one of the same."""
    sources = list(photographs().items())

    def samples(split: str) -> Iterator[StoredImage]:
        count = spec.images if split == "train" else spec.val_images
        for label in range(spec.classes):
            name, photograph = sources[label % len(sources)]
            for number in range(label, count, spec.classes):
                random_numbers = random.Random(f"{spec.seed} {split} {number}")
                path = f"{split}/{label:03d}-{name}/{number:07d}.jpg"
                yield StoredImage(name=path, label=label, content=crop(photograph, spec.size, random_numbers))

    return samples


def _digit_samples(spec: ImageSetSpec) -> Callable[[str], Iterator[StoredImage]]:
    """The digits of a split, class after class, named by their number in scikit-learn's set."""
    images, labels = digits()

    def samples(split: str) -> Iterator[StoredImage]:
        for number in split_digits(labels, split, spec.seed):
            label = int(labels[number])
            yield StoredImage(name=f"{split}/{label}/{number:04d}.png", label=label, content=encoded(images[number]))

    return samples


def _write_tar(path: Path, folder: Path, shard: Sequence[StoredImage]) -> None:
    """A shard as the webdataset package reads it: an image and its class under one key."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in shard:
            key = Path(sample.name).stem
            image = Path(sample.name).suffix.removeprefix(".")
            for suffix, content in ((image, (folder / sample.name).read_bytes()), ("cls", str(sample.label).encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_tfrecord(path: Path, folder: Path, shard: Sequence[StoredImage]) -> None:
    """A shard with the features of TensorFlow's ImageNet files, whose labels count from 1."""
    from hpc.workloads.tensorflow_base import tf

    def feature(*content: bytes) -> object:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=content))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for sample in shard:
            features = {
                "image/encoded": feature((folder / sample.name).read_bytes()),
                "image/filename": feature(Path(sample.name).name.encode()),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[sample.label + 1])),
            }
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
            )


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _pillow_version() -> str:
    import PIL

    return PIL.__version__
