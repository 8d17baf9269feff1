"""Joins JSON messages to a block of lines with one row per line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .text_blocks import UnusualError

_SPACE = b" \t\r\n"


def as_lines(payloads: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    """Return lines of one row each, and the number of rows in each message, int64.

    A list of rows is split at every ``},{``. As that may also occur within a row, the parser of the lines must check
    that each line is exactly one object.

    Raises:
        UnusualError: a message contains line ends, or is neither an object nor a list.
    """
    lines, counts = [], np.ones(len(payloads), np.int64)
    for number, payload in enumerate(payloads):
        line = payload.strip(_SPACE)
        if b"\n" in line or line[:1] not in (b"{", b"["):
            raise UnusualError("a message holds line ends, or neither an object nor a list of objects")
        if line.startswith(b"[") and line.endswith(b"]"):
            line = line[1:-1].strip(_SPACE).replace(b"}, {", b"}\n{").replace(b"},{", b"}\n{")
            counts[number] += line.count(b"\n")
        lines.append(line)
    lines.append(b"")
    return b"\n".join(lines), counts
