"""Index files for DALI's readers, in the formats of its wds2idx and tfrecord2idx."""

from __future__ import annotations

import struct
from pathlib import Path

from hpc.workloads.image_sets import index_text, read_headers

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
