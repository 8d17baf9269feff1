"""The messages in a .ckpt file.

Relied on: `mindspore.train.checkpoint_pb2` declares them; a file is one `Checkpoint`, after which may follow the seven
bytes ``crc_num`` and ten bytes of CRC-32, big-endian. `mindspore.load_checkpoint` is unsafe: it passes shape and bytes
to C++, which copies without comparing them, so a file with wrong sizes overwrites the heap.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

_MARK = b"crc_num"
_DIGITS = 10


class Piece(NamedTuple):
    """A parameter, or a slice of one that is too large for one message."""

    name: str
    shape: Sequence[int]  # as stored in the file; any integers
    dtype: str | None  # as stored in the file, such as "Float32"; None for a parameter that is a map
    content: bytes


def pieces(content: bytes) -> list[Piece]:
    """Return the entries of a .ckpt file in order, unchecked; ValueError if damaged."""
    from google.protobuf.message import DecodeError
    from mindspore.train.checkpoint_pb2 import Checkpoint

    if content[-len(_MARK) - _DIGITS : -_DIGITS] == _MARK:
        content, expected = content[: -len(_MARK) - _DIGITS], int.from_bytes(content[-_DIGITS:], "big")
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
