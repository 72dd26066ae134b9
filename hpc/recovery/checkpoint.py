"""The checkpoint of a whole training: a header in one line, then the arrays as NumPy's npz, without pickle.

The header has the SHA-256 of the rest, so that a file cut or changed anywhere is known for what it is.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc.model.training import TrainingState
from hpc.system.atomic import write_durable
from hpc.system.regular_file import open_regular, parse_json

SCHEMA, SCHEMA_VERSION = "rankwise-checkpoint", 1
_MAX_HEADER_BYTES = 1 << 26


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the text names the file, what is wrong, and what to do."""


def write_checkpoint(path: Path, facts: Mapping[str, Any], state: TrainingState) -> None:
    """Writes the file beside its place, flushes it to the disk and renames it. Raises OSError; the old file stays."""
    import numpy as np

    body = io.BytesIO()
    arrays: dict[str, Any] = {f"a{number}": array for number, array in enumerate(state.arrays.values())}
    np.savez(body, **arrays)
    content = body.getvalue()
    header = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "sha256": hashlib.sha256(content).hexdigest(),
        "names": list(state.arrays),
        "values": dict(state.values),
        "facts": dict(facts),
    }
    line = json.dumps(header)
    digest = hashlib.sha256(line.encode()).hexdigest()
    write_durable(path, f"{digest} {line}\n".encode() + content)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], TrainingState]:
    """Facts and state of a checkpoint. Raises CheckpointError where it is not whole, OSError where it is not there."""
    import numpy as np

    with open_regular(path) as file:
        line = file.readline(_MAX_HEADER_BYTES)
        content = file.read()
    digest, _, text = line.removesuffix(b"\n").partition(b" ")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise _broken(path, "its header is cut or changed")
    header = parse_json(text)
    if header.get("schema") != SCHEMA or header.get("schema_version") != SCHEMA_VERSION:
        version = f"{header.get('schema')} {header.get('schema_version')}"
        raise _broken(path, f"it is of {version}, this version reads {SCHEMA} {SCHEMA_VERSION}")
    if hashlib.sha256(content).hexdigest() != header["sha256"]:
        raise _broken(path, f"its content is cut or changed ({len(content)} bytes, whose checksum is another)")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = {name: stored[f"a{number}"] for number, name in enumerate(header["names"])}
    return header["facts"], TrainingState(arrays=arrays, values=header["values"])


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} cannot be used: {what}; remove it, and the training restarts at its first epoch"
    )
