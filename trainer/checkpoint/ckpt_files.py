"""Load plain MindSpore .ckpt files, and compare expected with saved parameters."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore
import numpy as np

from ..errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    did_you_mean,
)
from ..errors import nearest as nearest_name
from ..mindspore_internals.ckpt_messages import Piece, pieces
from . import durable

_LISTED = 10
_LARGEST = 1 << 31  # maximum bytes of a protocol buffers message
_DIMENSIONS = 32  # NumPy's limit
_TEXT = "str"
_NUMBERS = ["Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float16", "Float32", "Float64"]
_DTYPES = {name: getattr(mindspore, name.lower()) for name in [*_NUMBERS, "BFloat16"]} | {"Bool": mindspore.bool_}
"""Type in the file -> MindSpore's."""


def load_ckpt(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Load a plain MindSpore checkpoint.

    The file contains only values (protocol buffers), so loading it runs no code. It usually has no checksum, so a file
    that was cut between two parameters looks complete; check the names with `compare`.

    Returns:
        Parameter name -> copied array. Text saved with `append_dict` is left out.

    Raises:
        CheckpointNotFoundError: there is no such file.
        CheckpointDamagedError: the file cannot be parsed, or contradicts itself; the message names the parameter.
        CheckpointError: there is no permission, the file is not named .ckpt, or it has a kind of parameter that cannot
            be loaded.
    """
    path = Path(path)
    with durable.reading(path):
        if not path.is_file():
            raise CheckpointNotFoundError(f"there is no checkpoint file {path}")
    if path.suffix != ".ckpt":
        raise CheckpointError(f"a MindSpore checkpoint is named *.ckpt; received {path}")
    try:
        all_pieces = pieces(durable.read_bytes(path, _LARGEST))
    except ValueError as error:
        raise CheckpointDamagedError(f"{path} cannot be parsed as a MindSpore checkpoint: {error}") from error
    arrays: dict[str, np.ndarray] = {}
    for name, parts in itertools.groupby(all_pieces, lambda piece: piece.name):
        if name in arrays:
            raise CheckpointDamagedError(f"{path} holds two parameters named {name!r}")
        slices = list(parts)
        if slices[-1].dtype != _TEXT:
            arrays[name] = _array(path, slices)
    if not arrays:
        raise CheckpointDamagedError(f"{path} cannot be parsed as a MindSpore checkpoint: it holds no parameter")
    return arrays


def _array(path: Path, slices: Sequence[Piece]) -> np.ndarray:
    """Join the pieces of one parameter."""
    name, shape, kind, _ = slices[-1]
    if kind is None:
        raise CheckpointError(f"{path} holds {name!r} as a MapParameter; only dense parameters can be loaded")
    if kind not in _DTYPES:
        raise CheckpointDamagedError(
            f"{path}: parameter {name!r} is of the unknown type {kind!r}; known are {', '.join(_DTYPES)}"
            f"{did_you_mean(kind, _DTYPES)}"
        )
    shape = () if shape == (0,) else shape  # how MindSpore writes a scalar
    dtype = np.dtype(mindspore.dtype_to_nptype(_DTYPES[kind]))
    size = sum(len(piece.content) for piece in slices)
    if min(shape, default=1) <= 0 or len(shape) > _DIMENSIONS or math.prod(shape) * dtype.itemsize != size:
        raise CheckpointDamagedError(
            f"{path}: parameter {name!r} holds {size:,} bytes, which is not a {kind} of shape {list(shape)[:_LISTED]}"
        )
    return np.frombuffer(b"".join(piece.content for piece in slices), dtype).reshape(shape).copy()


@dataclass(frozen=True)
class Mismatch:
    """Differences between expected and received parameters; false if there are none."""

    missing: tuple[str, ...] = ()  # expected, not received
    unexpected: tuple[str, ...] = ()  # received, not expected
    # name -> (expected, received)
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    retyped: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # equal shape, other dtype
    matching: tuple[str, ...] = ()  # equal in shape and dtype, in the expected order
    renamed: Mapping[str, str] = field(default_factory=dict)  # missing name -> similar unexpected name of equal shape

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.reshaped or self.retyped)

    def message(self, what: str = "the checkpoint", where: str = "the network") -> str:
        """Return the differences in words, at most ten of each kind."""
        missing = [
            name + (f" (renamed from {self.renamed[name]}?)" if name in self.renamed else "") for name in self.missing
        ]
        shapes = [f"{name} ({where} has {want}, {what} {got})" for name, (want, got) in self.reshaped.items()]
        dtypes = [f"{name} ({where} has {want}, {what} {got})" for name, (want, got) in self.retyped.items()]
        lines = [f"{what} does not fit {where}: {len(self.matching)} parameters agree"]
        lines += _listed(f"missing in {what}", missing)
        lines += _listed(f"unexpected in {what}", self.unexpected)
        lines += _listed("differently shaped", shapes)
        lines += _listed("of another dtype", dtypes)
        return "\n".join(lines)

    def error(self, what: str = "the checkpoint", where: str = "the network") -> CheckpointMismatchError:
        """Return the exception for these differences, with advice in its message."""
        return CheckpointMismatchError(
            f"{self.message(what, where)}\n  strict=False loads all parameters with equal names and shapes"
        )


def _listed(title: str, names: Iterable[str]) -> list[str]:
    names = list(names)
    if not names:
        return []
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return [f"  {title} ({len(names)}): {', '.join(names[:_LISTED])}{more}"]


def compare(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Mismatch:
    """Compare parameters by name, shape and dtype.

    Args:
        expected: name -> (shape, dtype), or name -> an object with these attributes (array, Tensor, Parameter). The
            dtype is any argument of `numpy.dtype`, or a MindSpore dtype.
        actual: the same for the parameters received.
    """
    want = {name: _signature(value) for name, value in expected.items()}
    have = {name: _signature(value) for name, value in actual.items()}
    missing = tuple(name for name in want if name not in have)
    unexpected = tuple(name for name in have if name not in want)
    common = [name for name in want if name in have]
    renamed = {}
    for name in missing:
        similar = nearest_name(name, [other for other in unexpected if have[other][0] == want[name][0]])
        if similar is not None:
            renamed[name] = similar
    same_shape = [name for name in common if want[name][0] == have[name][0]]
    return Mismatch(
        missing=missing,
        unexpected=unexpected,
        reshaped={name: (want[name][0], have[name][0]) for name in common if want[name][0] != have[name][0]},
        retyped={name: (want[name][1], have[name][1]) for name in same_shape if want[name][1] != have[name][1]},
        matching=tuple(name for name in same_shape if want[name][1] == have[name][1]),
        renamed=renamed,
    )


def _signature(value: Any) -> tuple[tuple[int, ...], str]:
    shape, dtype = value if isinstance(value, tuple) else (value.shape, value.dtype)
    # str(mindspore.float32) is "Float32", str(numpy.dtype("float32")) is "float32".
    text = str(dtype) if not isinstance(dtype, type) else np.dtype(dtype).name
    return tuple(int(size) for size in shape), text.lower()
