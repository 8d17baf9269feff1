"""MindSpore's message about a graph it could not compile or run, cut down to what a user can act on."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import mindspore

from ..data.feed import Chunk
from ..errors import GraphError

logger = logging.getLogger(__name__)

_RULE = re.compile(r"^-{20,}\s*$", re.MULTILINE)
_FRAME = re.compile(r"^# \d+ In file (?P<file>.+?):(?P<line>\d+)(?:~\d+)?, .*\n(?P<code>.*)$", re.MULTILINE)
_LAMBDA = (
    "MindSpore cannot compile a lambda that is written inside a call or another expression: it reads the source line, "
    "which holds more than the lambda; use a method or a Cell in its place"
)
_LIBRARIES = (Path(mindspore.__file__).parent, Path(__file__).parent)


def to_graph_error(error: Exception, chunk: Chunk) -> Exception:
    """Return a `GraphError` with what MindSpore says, the user's line it says it of, and the columns that were fed."""
    if isinstance(error, GraphError):
        return error
    shapes = [list(array.shape[1:] if chunk.stacked else array.shape) for array in chunk.arrays]
    fed = ", ".join(
        f"{name}: {array.dtype}{shape}" for name, array, shape in zip(chunk.names, chunk.arrays, shapes, strict=False)
    )
    logger.debug("MindSpore's whole message: %s", error)
    text = str(error)
    place = place_in_network(text)
    return GraphError(
        f"MindSpore could not compile or run the network on columns ({fed}): "
        f"{_LAMBDA if _of_lambda(error) else gist(text) or type(error).__name__}{f' [{place}]' if place else ''}"
    )


def _of_lambda(error: Exception) -> bool:
    # A line cut out of a call may not even be Python: "lambda x: x)"
    unreadable = isinstance(error, SyntaxError) and "lambda" in (error.text or "")
    return unreadable or "Parse Lambda Function Fail" in str(error)


def gist(message: str) -> str:
    """Return what a message of MindSpore's says before its stacks, headings left out."""
    for part in _RULE.split(message):
        lines = [line for line in part.splitlines() if line.strip()]
        if lines and not (len(lines) == 1 and lines[0].startswith("- ")):
            return "\n".join(lines).strip()
    return ""


def place_in_network(message: str) -> str | None:
    """Return "file:line: code" of the innermost frame that is neither MindSpore's nor this package's, or None."""
    frames = [
        frame
        for frame in _FRAME.finditer(message)
        if not any(library in Path(frame["file"]).parents for library in _LIBRARIES)
    ]
    return f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[-1]['code'].strip()}" if frames else None
