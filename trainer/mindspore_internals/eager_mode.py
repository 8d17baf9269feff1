"""Running cells operator by operator, whatever mode the user has set.

Relied on: in graph mode calling a cell compiles it, and `set_context` changes the mode at once, for the whole process;
it is put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore


@contextmanager
def operator_by_operator() -> Iterator[None]:
    """Let cells run operator by operator."""
    mode = mindspore.get_context("mode")
    if mode == mindspore.PYNATIVE_MODE:
        yield
        return
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mode)
