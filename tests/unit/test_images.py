"""Images from files: listed, decoded, cropped. What cannot be decoded has a reason."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpc.workloads.image_batches import ImageBatches, Undecodable, augment, centre, decode
from hpc.workloads.image_reader import AREA, centre_box
from hpc.workloads.image_sets import NoImages, list_images


def encoded(image: Image.Image, form: str) -> bytes:
    content = io.BytesIO()
    image.save(content, form)
    return content.getvalue()


def ramp(dtype: type, maximum: int) -> np.ndarray:
    return np.linspace(0, maximum, 64 * 64).reshape(64, 64).astype(dtype)


def put(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


# --- decoding ---


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_grey_images_become_rgb(form: str) -> None:
    grey = Image.fromarray(ramp(np.uint8, 255))
    image = np.asarray(decode(encoded(grey, form))).astype(int)
    assert image.shape == (64, 64, 3)
    assert np.abs(image - ramp(np.uint8, 255)[:, :, None]).max() <= (0 if form == "PNG" else 8)


def test_cmyk_images_become_rgb() -> None:
    red = Image.new("RGB", (32, 32), (200, 40, 20))
    image = decode(encoded(red.convert("CMYK"), "JPEG"))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image).astype(int) - (200, 40, 20)).max() <= 6


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bits_keep_their_upper_8_and_are_not_clipped_to_white(form: str) -> None:
    deep = Image.fromarray(ramp(np.uint16, 65535))
    assert deep.mode.startswith("I;16")
    image = np.asarray(decode(encoded(deep, form)))
    assert np.array_equal(image[:, :, 1], ramp(np.uint16, 65535) >> 8)


def test_palettes_and_transparency_become_rgb() -> None:
    colours = Image.new("RGBA", (8, 8), (0, 51, 255, 255))
    for image in (colours, colours.convert("RGB").convert("P")):
        assert decode(encoded(image, "PNG")).getpixel((3, 3)) == (0, 51, 255)


def photograph() -> bytes:
    noise = np.random.default_rng(1).integers(256, size=(64, 64, 3), dtype=np.uint8)
    return encoded(Image.fromarray(noise), "JPEG")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (photograph()[:-900], "truncated"),
        (photograph()[:10], "Truncated"),
        (b"", "identify"),
        (b"<html>not found</html>", "identify"),
        (encoded(Image.new("RGB", (64, 64)), "PNG")[:60], ""),
    ],
    ids=["cut", "head only", "empty", "a web page", "cut png"],
)
def test_what_cannot_be_decoded_has_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(Undecodable) as refused:
        decode(content)
    assert reason in str(refused.value) and str(refused.value) and "0x" not in str(refused.value)


# --- augmentation ---


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 64), (1000, 3), (3, 1000), (1, 1)])
def test_a_crop_is_of_the_requested_size_whatever_the_image(width: int, height: int) -> None:
    image = Image.new("RGB", (width, height), (9, 8, 7))
    for seed in range(20):
        cropped = augment(image, 32, random.Random(seed))
        assert cropped.shape == (32, 32, 3) and (cropped == (9, 8, 7)).all()


def test_crops_come_from_the_seed_and_cover_what_they_should() -> None:
    columns = np.tile(np.arange(200, dtype=np.uint8), (200, 1))
    image = Image.fromarray(columns).convert("RGB")
    crops = [augment(image, 16, random.Random(seed)).astype(int) for seed in range(300)]
    repeated = [augment(image, 16, random.Random(seed)) for seed in range(300)]
    assert all(np.array_equal(image, other) for image, other in zip(crops, repeated, strict=True))
    mirrored = sum(crop[0, 0, 0] > crop[0, -1, 0] for crop in crops)
    assert 100 < mirrored < 200
    widths = [abs(crop[0, 0, 0] - crop[0, -1, 0]) / 200 for crop in crops]
    assert min(widths) < 0.4 and max(widths) > 0.8 and min(widths) > 0.5 * AREA[0] ** 0.5


def test_a_batch_comes_from_seed_epoch_and_image_alone(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / "train" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph())  # one photograph: what differs is the crop
    listing = list_images(str(tmp_path))

    def load(seed: int, *keys: tuple[int, int]) -> list[bytes]:
        batch = ImageBatches(listing, 16, seed, lambda *batch: batch).load(keys)
        assert batch.labels.tolist() == [0] * len(keys) and batch.skipped == ()
        return [image.tobytes() for image in batch.images]

    first, second = load(1, (0, 1), (0, 2))
    assert load(1, (0, 2), (0, 0), (0, 1))[::2] == [second, first]
    assert len({first, second, *load(1, (1, 1)), *load(2, (0, 1))}) == 4


def test_a_batch_without_any_image_is_empty_and_names_its_files(tmp_path: Path) -> None:
    listing = list_images(str(put(tmp_path, "train/a/broken.jpg")))
    batch = ImageBatches(listing, 16, 0, lambda *batch: batch).load([(0, 0)])
    assert batch.images.shape == (0, 16, 16, 3) and len(batch.labels) == 0
    assert [name for name, _ in batch.skipped] == ["a/broken.jpg"]


def test_evaluation_sees_the_middle_as_imagenet_has_it() -> None:
    noise = np.random.default_rng(1).integers(256, size=(300, 300, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    in_two_steps = image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    assert np.abs(centre(image, 224).astype(int) - np.asarray(in_two_steps).astype(int)).max() <= 1


@pytest.mark.parametrize(("width", "height", "size"), [(8, 8, 8), (1000, 3, 32), (1, 65_500, 224), (500, 375, 64)])
def test_the_middle_is_of_the_requested_size_and_inside(width: int, height: int, size: int) -> None:
    left, top, right, bottom = centre_box(width, height, size)
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert right - left == pytest.approx(bottom - top) and left + right == pytest.approx(width)
    assert centre(Image.new("RGB", (width, height), (9, 8, 7)), size).shape == (size, size, 3)


def test_without_augmentation_an_image_is_that_of_evaluation_in_every_epoch(tmp_path: Path) -> None:
    path = tmp_path / "train" / "a" / "0.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(photograph())
    batches = ImageBatches(list_images(str(tmp_path)), 16, 0, lambda *batch: batch, augmented=False)
    first, later = (batches.load([(epoch, 0)]).images[0] for epoch in (0, 7))
    assert np.array_equal(first, later) and np.array_equal(first, centre(decode(photograph()), 16))


# --- listing ---


def test_a_folder_is_listed_by_class_and_name(tmp_path: Path) -> None:
    put(tmp_path, "train/b/2.jpg", "train/a/1.JPEG", "train/a/deep/0.png", "train/b/notes.txt", "train/readme", "val/x")
    listing = list_images(str(tmp_path))
    assert listing.classes == ("a", "b")
    assert (listing.names, listing.labels) == (("a/1.JPEG", "a/deep/0.png", "b/2.jpg"), (0, 0, 1))
    assert (listing.ignored, listing.groups) == (1, 2)


def test_the_checksum_changes_with_a_name(tmp_path: Path) -> None:
    names = {"one": ("a/1.jpg", "b/2.jpg"), "same": ("b/2.jpg", "a/1.jpg"), "other": ("a/1.jpg", "b/3.jpg")}
    sums = {
        folder: list_images(str(put(tmp_path / folder, *(f"train/{name}" for name in files)))).sha256
        for folder, files in names.items()
    }
    assert sums["one"] == sums["same"] != sums["other"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), "train is no folder; class folders of training images belong there"),
        (("train/1.jpg",), "train has no class folder"),
        (("train/a/1.jpg", "train/b/notes.txt"), "train/b has no image"),
    ],
)
def test_a_folder_without_images_is_refused_with_what_is_there(tmp_path: Path, names: tuple[str, ...], reason: str):
    with pytest.raises(NoImages, match=reason):
        list_images(str(put(tmp_path, *names)))


def test_held_out_images_have_the_classes_of_training(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "train/c/2.jpg", "val/c/1.jpg", "val/a/1.jpg")
    listing = list_images(str(tmp_path), "val")
    assert (listing.names, listing.labels, listing.classes) == (("a/1.jpg", "c/1.jpg"), (0, 2), ("a", "b", "c"))
    assert listing.shown_name(1) == "val/c/1.jpg" and list_images(str(tmp_path)).shown_name(0) == "a/1.jpg"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), "val is no folder; class folders of held-out images belong there"),
        (("val/1.jpg",), "val has no class folder"),
        (("val/z/1.jpg",), "val has class folders that .*/train has not: z"),
        (("val/a/notes.txt",), "val/a has no image"),
    ],
)
def test_held_out_images_that_cannot_be_evaluated_are_refused(tmp_path: Path, names: tuple[str, ...], reason: str):
    with pytest.raises(NoImages, match=reason):
        list_images(str(put(tmp_path, "train/a/1.jpg", *names)), "val")
