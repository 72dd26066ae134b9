"""Tar shards: listed with and without an index, refused when damaged, shared out: every sample is read once."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.workloads.image_sets import (
    Component,
    NoImages,
    Portion,
    ShardListing,
    index_text,
    list_shards,
    portions_of_rank,
    portions_of_worker,
    portions_to_evaluate,
    read_headers,
    read_index,
    samples_per_rank,
    shard_order,
    split_name,
)


def put_shard(path: Path, samples: int, *, form: int = tarfile.USTAR_FORMAT, key: str = "{:04d}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for number in range(samples):
            for suffix, content in (("jpg", bytes([number]) * (700 + 300 * number)), ("cls", b"7")):
                member = tarfile.TarInfo(f"{key.format(number)}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def listed(folder: Path, split: str = "train") -> ShardListing:
    list_shards.cache_clear()
    return list_shards(str(folder), split)


# --- listing ---


@pytest.mark.parametrize("folder", ["webdataset", "."])
def test_shards_are_listed_by_name_in_either_folder(tmp_path: Path, folder: str) -> None:
    for name, samples in (("train-000001", 2), ("train-000000", 3), ("val-000000", 4)):
        put_shard(tmp_path / folder / f"{name}.tar", samples)
    listing = listed(tmp_path)
    assert listing.images_by_group() == {"train-000000.tar": 3, "train-000001.tar": 2}
    assert [listing.shown_name(number) for number in (2, 3)] == [
        "train-000000.tar sample 2", "train-000001.tar sample 0",
    ]  # fmt: skip
    assert len(listing) == 5 and len(listed(tmp_path, "val")) == 4


@pytest.mark.parametrize(
    ("form", "key"),
    [(tarfile.USTAR_FORMAT, "{:04d}"), (tarfile.PAX_FORMAT, "ü" * 120 + "{}"), (tarfile.GNU_FORMAT, "x" * 150 + "{}")],
)
def test_a_sample_begins_with_its_first_header(tmp_path: Path, form: int, key: str) -> None:
    path = put_shard(tmp_path / "train-0.tar", 5, form=form, key=key)
    (shard,) = listed(tmp_path).shards
    with tarfile.open(path) as tar:
        assert list(shard.starts) == [member.offset for member in tar if member.name.endswith(".jpg")]


def test_an_index_says_what_the_headers_say(tmp_path: Path) -> None:
    path = put_shard(tmp_path / "train-0.tar", 5)
    (by_headers,) = listed(tmp_path).shards
    index = path.with_suffix(".idx")
    index.write_text(index_text([*read_headers(path)]))
    (by_index,) = listed(tmp_path).shards
    assert by_index.starts == by_headers.starts and by_index.indexed and not by_headers.indexed
    assert read_index(index) == [*read_headers(path)]


def test_the_index_has_the_form_of_wds2idx() -> None:
    components = [
        Component("a", "jpg", 512, 700), Component("a", "cls", 2048, 1), Component("d/b", "jpg", 3072, 5),
        Component("d/b", "seg.png", 4096, 6),
    ]  # fmt: skip
    assert index_text(components) == (
        "v1.2 2\njpg 512 700 a.jpg cls 2048 1 a.cls\njpg 3072 5 d/b.jpg seg.png 4096 6 d/b.seg.png\n"
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("0001.jpg", ("0001", "jpg")),
        ("a.b/0001.seg.PNG", ("a.b/0001", "seg.png")),
        ("readme", ("", "")),
        (".hidden", ("", "")),
        ("__meta__.json", ("", "")),
    ],
)
def test_names_are_split_at_the_first_dot_of_the_file(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


# --- what is refused ---


def test_no_shard_is_refused_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoImages, match=r"has no tar shard: neither webdataset/train-\*\.tar nor train-\*\.tar"):
        listed(tmp_path)


def test_a_shard_without_samples_is_refused(tmp_path: Path) -> None:
    put_shard(tmp_path / "train-0.tar", 0)
    with pytest.raises(NoImages, match=r"train-0\.tar has no sample"):
        listed(tmp_path)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_shard_that_is_cut_off_anywhere_is_refused_by_name(tmp_path: Path, indexed: bool) -> None:
    path = put_shard(tmp_path / "train-0.tar", 3)
    components = [*read_headers(path)]
    content = path.read_bytes()
    end = components[-1].offset + 512
    assert not any(content[end:])
    if indexed:
        path.with_suffix(".idx").write_text(index_text(components))
    for length in range(0, end, 256):
        path.write_bytes(content[:length])
        with pytest.raises(NoImages, match=r"train-0\.tar (is cut off|is damaged or cut off|has no sample)"):
            listed(tmp_path)
    path.write_bytes(content[: end + 512])
    assert len(listed(tmp_path)) == 3


def test_an_index_of_another_shard_is_refused(tmp_path: Path) -> None:
    path, other = (put_shard(tmp_path / name, count) for name, count in (("train-0.tar", 3), ("other.tar", 2)))
    path.with_suffix(".idx").write_text(index_text([*read_headers(other)]))
    with pytest.raises(NoImages, match=r"train-0\.idx is no index of .*train-0\.tar, which goes on after"):
        listed(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "v1.1 1\njpg 0 1 a.jpg\n", "v1.2 2\njpg 512 1 a.jpg\n", "v1.2 1\njpg 512 a.jpg\n"]
)
def test_what_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    put_shard(tmp_path / "train-0.tar", 1).with_suffix(".idx").write_text(text)
    with pytest.raises(NoImages, match=r"train-0\.idx is no index"):
        listed(tmp_path)


# --- sharing out ---

COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def numbers(counts: list[int], portions: list[Portion]) -> list[int]:
    return [sum(counts[:shard]) + at for shard, first, count in portions for at in range(first, first + count)]


@given(COUNTS, st.integers(1, 7), st.integers(0, 5))
def test_every_sample_is_read_and_as_few_as_possible_twice(counts: list[int], ranks: int, epoch: int) -> None:
    ranks = min(ranks, sum(counts))
    order = shard_order(len(counts), 1, epoch)
    by_rank = [
        numbers(counts, portions_of_rank(counts, ranks=ranks, rank=rank, order=order)) for rank in range(ranks)
    ]  # fmt: skip
    share = samples_per_rank(sum(counts), ranks)
    assert {len(of_rank) for of_rank in by_rank} == {share}
    times = Counter(number for of_rank in by_rank for number in of_rank)
    assert set(times) == set(range(sum(counts)))
    repeated = [number for number, count in times.items() if count == 2]
    assert len(repeated) == share * ranks - sum(counts) and max(times.values()) <= 2
    whole_epoch = numbers(counts, [Portion(shard, 0, counts[shard]) for shard in order])
    assert set(repeated) == set(whole_epoch[: len(repeated)])


@given(COUNTS, st.integers(1, 7))
def test_every_held_out_sample_is_evaluated_by_one_rank(counts: list[int], ranks: int) -> None:
    shares = [numbers(counts, portions_to_evaluate(counts, ranks=ranks, rank=rank)) for rank in range(ranks)]
    assert [number for share in shares for number in share] == list(range(sum(counts)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(COUNTS, st.integers(1, 5), st.integers(1, 6))
def test_workers_make_the_batches_of_a_rank_by_turns(counts: list[int], batch_size: int, workers: int) -> None:
    portions = [Portion(shard, 0, count) for shard, count in enumerate(counts)]
    shares = [
        portions_of_worker(portions, batch_size=batch_size, workers=workers, worker=worker) for worker in range(workers)
    ]  # fmt: skip
    assert sorted(number for share in shares for number in numbers(counts, share)) == list(range(sum(counts)))
    queues = [
        [len(of_worker[at : at + batch_size]) for at in range(0, len(of_worker), batch_size)]
        for of_worker in (numbers(counts, share) for share in shares)
    ]
    steps = -(-sum(counts) // batch_size)
    made = [queues[batch % workers][batch // workers] for batch in range(steps)]
    assert sum(map(len, queues)) == steps
    assert made == [batch_size] * (steps - 1) + [sum(counts) - batch_size * (steps - 1)]


def test_the_order_of_shards_comes_from_seed_and_epoch() -> None:
    orders = {(seed, epoch): tuple(shard_order(20, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len({*orders.values()}) == 9 and all(sorted(order) == list(range(20)) for order in orders.values())
    assert orders[1, 2] == tuple(shard_order(20, 1, 2))
