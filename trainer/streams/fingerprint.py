"""Whether a file still begins with the bytes that were read of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

_HEAD, _TAIL = 16_384, 4_096


class Fingerprint(NamedTuple):
    """What is remembered of the first `bytes` bytes of a file: a hash of the first 16 KiB and last 4 KiB of them.

    Content decides and not the inode, so a folder may be copied to another machine and read on there.

    Attributes:
        bytes: how many of the file's first bytes it speaks of.
        digest: hexadecimal BLAKE2b of 8 bytes; "" when `bytes` is 0.
    """

    bytes: int = 0
    digest: str = ""

    @classmethod
    def of(cls, path: Path, size: int) -> Fingerprint | None:
        """Return the fingerprint of the first `size` bytes of `path`, or None when the file is shorter."""
        if size == 0:
            return cls()
        with path.open("rb") as file:
            head = file.read(min(size, _HEAD))
            at = max(len(head), size - _TAIL)
            file.seek(at)
            tail = file.read(size - at)
        if len(head) < min(size, _HEAD) or len(tail) < size - at:
            return None
        return cls(size, hashlib.blake2b(head + tail, digest_size=8).hexdigest())

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Return what `str` was given.

        Raises:
            ValueError: it is no fingerprint.
        """
        size, colon, digest = text.partition(":")
        if not (colon and len(digest) == 16 and int(digest, 16) >= 0 and int(size) > 0):
            raise ValueError(f"{text!r} is no fingerprint")
        return cls(int(size), digest)

    def __str__(self) -> str:
        return f"{self.bytes}:{self.digest}" if self.bytes else ""
