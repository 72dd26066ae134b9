"""`python -m hpc.data make`: an image set whose files, shards and checksum are what the manifest says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hpc.backends import missing_modules
from hpc.data import image_set, photographs
from hpc.data.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--images", "20", "--classes", "11", "--size", "64")
READ_RECORDS = """
import json, sys
from hpc.workloads.tensorflow_base import tf
for path in sys.argv[1:]:
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        image = tf.io.decode_jpeg(features["image/encoded"].bytes_list.value[0])
        name = features["image/filename"].bytes_list.value[0].decode()
        print(json.dumps([name, features["image/class/label"].int64_list.value[0], image.shape.as_list()]))
"""


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test process imports no framework."""
    monkeypatch.setattr(image_set, "find_spec", lambda name: None)


def made(out: Path, *arguments: str) -> Path:
    assert main(["make", "--out", str(out), *SMALL, *arguments]) == 0
    return out


def jpegs(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jpg"))}


def test_the_set_is_the_requested_one(tmp_path, capsys):
    folder = made(tmp_path / "set")
    printed = capsys.readouterr().out
    images = jpegs(folder)
    assert len([name for name in images if name.startswith("train/")]) == 20
    assert len([name for name in images if name.startswith("val/")]) == 11
    for split in ("train", "val"):
        labels = [path.name[:3] for path in sorted((folder / split).iterdir())]
        assert labels == [f"{label:03d}" for label in range(11)]
    for name in images:
        with Image.open(folder / name) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (64, 48))
    assert len({*images.values()}) == len(images), "a crop is there twice"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["forms"] == ["imagefolder", "webdataset"]
    assert manifest["left_out"] == {"tfrecord": image_set.NO_TENSORFLOW}
    assert "left out: tfrecord (tensorflow" in printed and manifest["sha256"] in printed


def test_the_checksum_is_that_of_names_and_contents(tmp_path):
    folder = made(tmp_path / "set")
    digest = hashlib.sha256()
    for split in ("train/", "val/"):
        for name, content in jpegs(folder).items():
            if name.startswith(split):
                digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    assert json.loads((folder / "manifest.json").read_text())["sha256"] == digest.hexdigest()


def test_one_seed_makes_one_set_and_another_seed_another(tmp_path):
    first, repeated, other = (made(tmp_path / name, "--seed", name[0]) for name in ("1a", "1b", "2"))
    assert jpegs(first) == jpegs(repeated)
    assert not {*jpegs(first).values()} & {*jpegs(other).values()}
    for name in ("train-000000.tar", "val-000000.tar"):
        assert (first / "webdataset" / name).read_bytes() == (repeated / "webdataset" / name).read_bytes()


def test_the_tar_shards_hold_every_image_once_with_its_class(tmp_path, monkeypatch):
    monkeypatch.setattr(image_set, "SHARD_IMAGES", 8)
    folder = made(tmp_path / "set")
    shards = sorted((folder / "webdataset").glob("train-*.tar"))
    assert [shard.name for shard in shards] == [f"train-{number:06d}.tar" for number in range(3)]
    images, classes = {}, {}
    for shard in shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member).read()
                key, _, suffix = member.name.partition(".")
                (images if suffix == "jpg" else classes)[key] = content
    files = {Path(name).stem: (name, content) for name, content in jpegs(folder / "train").items()}
    assert images == {key: content for key, (_, content) in files.items()}
    assert {key: int(label) for key, label in classes.items()} == {key: int(n[:3]) for key, (n, _) in files.items()}
    assert list(classes) != sorted(classes), "shards are not shuffled"


@pytest.mark.slow
def test_the_records_hold_every_image_once_with_its_class(tmp_path):
    if missing := missing_modules("tensorflow-multiworker"):
        pytest.skip("; ".join(missing))
    command = [sys.executable, "-m", "hpc.data", "make", "--out", str(tmp_path / "set"), *SMALL]
    made_here = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "left out" not in made_here.stdout
    paths = [str(path) for path in sorted((tmp_path / "set/tfrecord").glob("train-*"))]
    done = subprocess.run(
        [sys.executable, "-c", READ_RECORDS, *paths], cwd=ROOT, capture_output=True, text=True, check=True
    )
    records = sorted(json.loads(line) for line in done.stdout.splitlines())
    files = {Path(name).name: int(name[:3]) + 1 for name in jpegs(tmp_path / "set/train")}
    assert records == [[name, label, [48, 64, 3]] for name, label in sorted(files.items())]


def test_a_folder_that_exists_is_not_touched(tmp_path, capsys):
    assert main(["make", "--out", str(tmp_path), *SMALL]) == 1
    assert f"{tmp_path} exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_set_that_cannot_be_whole_leaves_nothing(tmp_path, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "train-000000.tar")

    monkeypatch.setattr(image_set, "_write_tar", full)
    assert main(["make", "--out", str(tmp_path / "set"), *SMALL]) == 1
    assert "train-000000.tar cannot be written (No space left on device)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_packages_that_are_missing_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(photographs, "SHIPPED", {"no_such_package.data": ("a.png",)})
    assert main(["make", "--out", str(tmp_path / "set"), *SMALL]) == 1
    assert "no_such_package is not installed here: pip install -e '.[data]'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--images", "3", "--classes", "4"), ("--images", "0"), ("--size", "8")])
def test_a_request_that_makes_no_set_is_refused(arguments, tmp_path):
    with pytest.raises(SystemExit) as refused:
        main(["make", "--out", str(tmp_path / "set"), *SMALL, *arguments])
    assert refused.value.code == 2 and not list(tmp_path.iterdir())


# --- digits ---


def pngs(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def make_digits(out: Path, *arguments: str) -> Path:
    assert main(["make", "--source", "digits", "--out", str(out), *arguments]) == 0
    return out


def test_the_digits_are_scikit_learns_split_once(tmp_path, capsys):
    folder = make_digits(tmp_path / "set")
    assert "1437 training and 360 validation images in 10 classes" in capsys.readouterr().out
    images, digits = pngs(folder), load_digits()
    assert len(images) == 1797 and sorted(int(Path(name).stem) for name in images) == [*range(1797)]
    for split, total in (("train", 1437), ("val", 360)):
        by_class = [len(list((folder / split / str(label)).iterdir())) for label in range(10)]
        assert sum(by_class) == total and max(by_class) - min(by_class) <= 10
    for name in [*images][::100]:
        number = int(Path(name).stem)
        assert Path(name).parent.name == str(digits.target[number])
        with Image.open(folder / name) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "L", (8, 8))
            assert np.abs(np.asarray(image) / 255 * 16 - digits.images[number]).max() < 0.04
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["source"], manifest["images"], manifest["val_images"]) == ("digits", 1437, 360)
    with tarfile.open(folder / "webdataset" / "val-000001.tar") as tar:
        assert {Path(name).suffix for name in tar.getnames()} == {".png", ".cls"} and len(tar.getnames()) == 2 * 104


def test_the_split_of_the_digits_comes_from_the_seed(tmp_path):
    first, repeated, other = (make_digits(tmp_path / name, "--seed", name[0]) for name in ("1a", "1b", "2"))
    sums = [json.loads((each / "manifest.json").read_text())["sha256"] for each in (first, repeated, other)]
    assert sums[0] == sums[1] != sums[2] and pngs(first).keys() != pngs(other).keys()


@pytest.mark.parametrize("arguments", [("--images", "9"), ("--classes", "10"), ("--size", "16")])
def test_options_of_photographs_are_refused_for_digits(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as refused:
        main(["make", "--source", "digits", "--out", str(tmp_path / "set"), *arguments])
    assert refused.value.code == 2 and f"{arguments[0]} is for photographs" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_photographs_without_their_number_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["make", "--out", str(tmp_path / "set")])
    assert refused.value.code == 2 and "--images is missing" in capsys.readouterr().err
