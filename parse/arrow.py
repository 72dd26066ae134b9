"""Columns handed on by Arrow's PyCapsule interface, as `__arrow_c_stream__` has it: pandas, polars, pyarrow and others
read it, and none of them is needed here.

The structures are those of Arrow's C data and C stream interfaces. Whoever takes one calls its `release` once; until
then `_taken` has what its pointers point to.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ArrowColumns = Mapping[str, "np.ma.MaskedArray[Any, Any]"]
"""By name equally long columns of bool, int64, float64, or texts (object); masked: no value."""

FORMATS = {"b": b"b", "i": b"l", "f": b"g", "O": b"U"}
"""Arrow's names of the types, by numpy's kind: bool, int64, float64, utf8 with ends of 64 bits."""
NULLABLE = 2
STREAM = b"arrow_array_stream"
_NAME = ctypes.c_char_p


class _ArrowSchema(ctypes.Structure):
    pass


class _ArrowArray(ctypes.Structure):
    pass


class _ArrowStream(ctypes.Structure):
    pass


def _release_of(kind: type[ctypes.Structure]) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.POINTER(kind))


_ArrowSchema._fields_ = [
    ("format", _NAME), ("name", _NAME), ("metadata", _NAME), ("flags", ctypes.c_int64), ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowSchema))), ("dictionary", ctypes.POINTER(_ArrowSchema)),
    ("release", _release_of(_ArrowSchema)), ("private_data", ctypes.c_void_p),
]  # fmt: skip
_ArrowArray._fields_ = [
    ("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64), ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))), ("dictionary", ctypes.POINTER(_ArrowArray)),
    ("release", _release_of(_ArrowArray)), ("private_data", ctypes.c_void_p),
]  # fmt: skip
_GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_ArrowStream), ctypes.POINTER(_ArrowSchema))
_GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_ArrowStream), ctypes.POINTER(_ArrowArray))
_LAST_ERROR = ctypes.CFUNCTYPE(_NAME, ctypes.POINTER(_ArrowStream))
_ArrowStream._fields_ = [
    ("get_schema", _GET_SCHEMA), ("get_next", _GET_NEXT), ("get_last_error", _LAST_ERROR),
    ("release", _release_of(_ArrowStream)), ("private_data", ctypes.c_void_p),
]  # fmt: skip

_numbers = itertools.count(1)
_taken: dict[int, Any] = {}
"""By the `private_data` of each structure that is not released: what it points to."""
_capsules: dict[int, _ArrowStream] = {}
"""By its address, the stream in each capsule that is there."""


def column(values: Sequence[Any], empty: type = str) -> np.ma.MaskedArray[Any, Any]:
    """The values as a column of the type that they have, None masked; of `empty` where there are none. Whole numbers
    among others are float64."""
    kinds = {type(value) for value in values if value is not None} or {empty}
    kind = float if kinds == {int, float} else kinds.pop()
    data = np.array([kind() if value is None else kind(value) for value in values], object if kind is str else kind)
    return np.ma.MaskedArray(data, [value is None for value in values])


def stream(columns: ArrowColumns) -> Any:
    """The columns as a capsule with a stream of one batch, which may be read once."""
    of = _ArrowStream(_SCHEMA_OF, _NEXT_OF, _ERROR_OF, _RELEASE_STREAM, _take([columns, True]))
    _capsules[ctypes.addressof(of)] = of
    return _new_capsule(ctypes.addressof(of), STREAM, _DROP)


def _drop(capsule: int) -> None:
    """Releases the stream of a capsule that goes, unless somebody took it, which left it marked as released."""
    of = _capsules.pop(_address_in(capsule, STREAM))
    if of.release:
        of.release(ctypes.pointer(of))


def _take(content: Any) -> int:
    """Holds the content until it is released by this number."""
    number = next(_numbers)
    _taken[number] = content
    return number


def _release(pointer: Any) -> None:
    """Lets go of what a structure points to, and marks it as released; its children too, unless they were moved."""
    struct = pointer.contents
    for at in range(getattr(struct, "n_children", 0)):
        if struct.children[at].contents.release:
            struct.children[at].contents.release(struct.children[at])
    del _taken[struct.private_data]
    struct.release = type(struct.release)()


def _get_schema(stream: Any, out: Any) -> int:
    columns, _ = _taken[stream.contents.private_data]
    fields = [_schema(FORMATS[each.dtype.kind], name.encode(), NULLABLE) for name, each in columns.items()]
    out[0] = _schema(b"+s", b"", 0, fields)
    return 0


def _get_next(stream: Any, out: Any) -> int:
    """The only batch; then a released one, which is the end."""
    content = _taken[stream.contents.private_data]
    columns, is_pending = content
    out[0] = _batch(columns) if is_pending else _ArrowArray()
    content[1] = False
    return 0


def _no_error(stream: Any) -> None:
    """Nothing can fail here."""


def _schema(kind: bytes, name: bytes, flags: int, children: Sequence[_ArrowSchema] = ()) -> _ArrowSchema:
    pointers = (ctypes.POINTER(_ArrowSchema) * len(children))(*map(ctypes.pointer, children))
    return _ArrowSchema(
        kind, name, None, flags, len(children), pointers, None, _RELEASE_SCHEMA, _take((kind, name, children, pointers))
    )  # fmt: skip


def _batch(columns: ArrowColumns) -> _ArrowArray:
    length = len(next(iter(columns.values()), ()))
    return _array(length, 0, [None], [_array(length, *_buffers(each)) for each in columns.values()])


def _array(
    length: int, nulls: int, buffers: Sequence[np.ndarray[Any, Any] | None], children: Sequence[_ArrowArray] = ()
) -> _ArrowArray:
    addresses = (ctypes.c_void_p * len(buffers))(*(None if each is None else each.ctypes.data for each in buffers))
    pointers = (ctypes.POINTER(_ArrowArray) * len(children))(*map(ctypes.pointer, children))
    return _ArrowArray(
        length, nulls, 0, len(buffers), len(children), addresses, pointers, None, _RELEASE_ARRAY,
        _take((buffers, addresses, children, pointers)),
    )  # fmt: skip


def _buffers(values: np.ma.MaskedArray[Any, Any]) -> tuple[int, list[np.ndarray[Any, Any] | None]]:
    """How many have no value, and the buffers: a bit for each that has, and the values; of texts their ends before
    them."""
    absent = np.ma.getmaskarray(values)
    valid = np.packbits(~absent, bitorder="little") if absent.any() else None
    data = np.ascontiguousarray(values.data)
    if data.dtype.kind == "b":
        return int(absent.sum()), [valid, np.packbits(data, bitorder="little")]
    if data.dtype.kind != "O":
        return int(absent.sum()), [valid, data]
    texts = [text.encode("utf-8", "replace") for text in data]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return int(absent.sum()), [valid, ends, np.frombuffer(b"".join(texts) or b"\0", np.uint8)]


# Pointers to Python functions, which C calls as long as the process runs.
_RELEASE_SCHEMA, _RELEASE_ARRAY, _RELEASE_STREAM = (
    _release_of(kind)(_release) for kind in (_ArrowSchema, _ArrowArray, _ArrowStream)
)
_SCHEMA_OF, _NEXT_OF, _ERROR_OF = _GET_SCHEMA(_get_schema), _GET_NEXT(_get_next), _LAST_ERROR(_no_error)
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DROP = _DESTRUCTOR(_drop)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, _NAME, _DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_address_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _NAME)(("PyCapsule_GetPointer", ctypes.pythonapi))
