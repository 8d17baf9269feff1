"""Keep what MindSpore writes after a failed compilation out of the user's folder.

Relied on: the environment variable `MS_OM_PATH`, read at each failure; where that changes, `rank_0` appears in the
working directory again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "MS_OM_PATH"


@contextlib.contextmanager
def redirect_graph_dumps() -> Iterator[None]:
    """Let MindSpore write what a failed compilation leaves (rank_0/om) to a temporary folder; the variable is put back.

    A folder that the user has chosen through the same variable is left alone.
    """
    if _VARIABLE in os.environ:
        yield
        return
    # MindSpore makes the folder when it has something to write, so a run that is killed leaves none behind.
    folder = Path(tempfile.gettempdir()) / f"mindspore-trainer-{uuid.uuid4().hex}"
    os.environ[_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
