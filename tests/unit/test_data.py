"""`rankwise data make`: an image set whose files and checksum are what the manifest says."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hpc import data
from hpc.backends import missing_modules
from hpc.data import main

ROOT = Path(__file__).resolve().parents[2]
READ_RECORDS = """
import json, sys
from hpc.workloads.tensorflow_base import tf
for path in sys.argv[1:]:
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        image = tf.io.decode_png(features["image/encoded"].bytes_list.value[0])
        name = features["image/filename"].bytes_list.value[0].decode()
        print(json.dumps([name, features["image/class/label"].int64_list.value[0], image.shape.as_list()]))
"""


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test process imports no framework."""
    monkeypatch.setattr(data, "find_spec", lambda name: None)


def pngs(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def made(out: Path, *arguments: str) -> Path:
    assert main(["make", "--out", str(out), *arguments]) == 0
    return out


def test_the_checksum_is_that_of_names_and_contents(tmp_path, capsys):
    folder = made(tmp_path / "set")
    digest = hashlib.sha256()
    digits = load_digits()
    for split in ("train", "val"):
        for label in range(10):
            files = {path.name: path for path in (folder / split / str(label)).iterdir()}
            order = np.flatnonzero(digits.target == label).tolist()
            random.Random(f"0 {label}").shuffle(order)
            for name in (f"{number:04d}.png" for number in order if f"{number:04d}.png" in files):
                content = hashlib.sha256(files[name].read_bytes()).hexdigest()
                digest.update(f"{split}/{label}/{name}\0{content}\n".encode())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sha256"] == digest.hexdigest()
    assert (manifest["forms"], manifest["left_out"]) == (["imagefolder"], {"tfrecord": data.NO_TENSORFLOW})
    printed = capsys.readouterr().out
    assert "left out: tfrecord (tensorflow" in printed and manifest["sha256"] in printed


# tests/mpi/test_input_tensorflow.py reads such records.
@pytest.mark.all
@pytest.mark.slow
def test_the_records_hold_every_image_once_with_its_class(tmp_path):
    if missing := missing_modules("tensorflow-multiworker"):
        pytest.skip("; ".join(missing))
    command = [sys.executable, "-m", "hpc.data", "make", "--out", str(tmp_path / "set")]
    made_here = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "left out" not in made_here.stdout
    paths = [str(path) for path in sorted((tmp_path / "set/tfrecord").glob("train-*"))]
    done = subprocess.run(
        [sys.executable, "-c", READ_RECORDS, *paths], cwd=ROOT, capture_output=True, text=True, check=True
    )
    records = sorted(json.loads(line) for line in done.stdout.splitlines())
    files = {Path(name).name: int(Path(name).parent.name) + 1 for name in pngs(tmp_path / "set/train")}
    assert records == [[name, label, [8, 8, 1]] for name, label in sorted(files.items())]
    assert [label for _, label, _ in records] != sorted(files.values()), "files are not shuffled"


def test_a_folder_that_exists_is_not_touched(tmp_path, capsys):
    assert main(["make", "--out", str(tmp_path)]) == 1
    assert f"{tmp_path} exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_set_that_cannot_be_whole_leaves_nothing(tmp_path, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "0001.png")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["make", "--out", str(tmp_path / "set")]) == 1
    assert "0001.png cannot be written (No space left on device)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_packages_that_are_missing_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["make", "--out", str(tmp_path / "set")]) == 1
    assert "sklearn.datasets is not installed here: pip install -e '.[data]'" in capsys.readouterr().err


def test_the_digits_are_scikit_learns_split_once(tmp_path, capsys):
    folder = made(tmp_path / "set")
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
