"""Writes the class folders of argv[1] as TFRecord files of five images in their place, as `rankwise data` does."""

import sys
from pathlib import Path

from hpc.data import write_tfrecord
from hpc.workloads.image_sets import list_images

OF_FILE = 5


def as_records(folder: Path) -> None:
    splits = [split for split in ("train", "val") if (folder / split).is_dir()]
    listings = {split: list_images(str(folder), split) for split in splits}
    (folder / "tfrecord").mkdir()
    for split, listing in listings.items():
        samples = [(f"{split}/{name}", label) for name, label in zip(listing.names, listing.labels, strict=True)]
        files = [samples[at : at + OF_FILE] for at in range(0, len(samples), OF_FILE)]
        for number, each in enumerate(files):
            write_tfrecord(folder / "tfrecord" / f"{split}-{number:05d}-of-{len(files):05d}", folder, each)
        (folder / split).rename(folder / f"unused-{split}")


if __name__ == "__main__":
    as_records(Path(sys.argv[1]))
