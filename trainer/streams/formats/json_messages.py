"""Writes JSON messages that came together as lines, a row each, for one block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .text_blocks import UnusualError

_SPACE = b" \t\r\n"


def as_lines(payloads: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    """Return lines of one row each, and the number of rows of each message, int64.

    Whether every line holds exactly one object is for the parser of the lines to check: a list of rows is cut where a
    brace, a comma and a brace follow each other, which may also be within a row.

    Raises:
        UnusualError: a message holds line ends, or neither an object nor a list.
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
