"""Keep MindSpore's own droppings out of the user's folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

_VARIABLE = "MS_OM_PATH"


@contextlib.contextmanager
def droppings_aside() -> Iterator[None]:
    """Let MindSpore write what a failed compilation leaves (rank_0/om) to a temporary folder; the variable is put back.

    A folder that the user has chosen through the same variable is left alone.
    """
    if _VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mindspore-trainer-", ignore_cleanup_errors=True) as folder:
        os.environ[_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(_VARIABLE, None)
