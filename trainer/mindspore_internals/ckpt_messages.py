"""Read the protocol buffer messages of a .ckpt file.

This module relies on their declaration in `mindspore.train.checkpoint_pb2`. A file is one `Checkpoint` message. The
seven bytes ``crc_num`` and a big-endian CRC-32 of ten bytes may follow.

`mindspore.load_checkpoint` is not used because it is unsafe: it passes shape and bytes to C++ code that copies them
without comparing their sizes, so a file with wrong sizes overwrites the heap.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

_CHECKSUM_MARK = b"crc_num"
_CHECKSUM_BYTES = 10


class Piece(NamedTuple):
    """A parameter, or a slice of a parameter that is too large for one message."""

    name: str
    shape: Sequence[int]  # as in the file, unchecked
    dtype: str | None  # name in the file, such as "Float32"; None for a parameter that is a map
    content: bytes


def pieces(content: bytes) -> list[Piece]:
    """Return the entries of a .ckpt file in order; their values are not checked.

    Raises:
        ValueError: the file is damaged, encrypted or not a checkpoint.
    """
    from google.protobuf.message import DecodeError
    from mindspore.train.checkpoint_pb2 import Checkpoint

    if content[-len(_CHECKSUM_MARK) - _CHECKSUM_BYTES : -_CHECKSUM_BYTES] == _CHECKSUM_MARK:
        expected = int.from_bytes(content[-_CHECKSUM_BYTES:], "big")
        content = content[: -len(_CHECKSUM_MARK) - _CHECKSUM_BYTES]
        if zlib.crc32(content) != expected:
            raise ValueError("its checksum is wrong")
    try:
        values: Any = Checkpoint.FromString(content).value
    except DecodeError as error:
        raise ValueError("it was cut short, encrypted, or something else than a checkpoint") from error
    return [
        Piece(value.tag, tuple(value.tensor.dims), value.tensor.tensor_type, value.tensor.tensor_content)
        if value.HasField("tensor")
        else Piece(value.tag, (), None, b"")
        for value in values
    ]
