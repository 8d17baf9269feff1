"""MindSpore's message about a graph it could not compile or run, cut down to what a user can act on."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from ..data.chunk import Chunk
from ..errors import GraphError
from ..mindspore_internals.messages import LAMBDA, cannot_be_compiled, gist, is_of_lambda, place_in_network

logger = logging.getLogger(__name__)

_TYPES = re.compile(r"\b(U?Int\d+|dtype|data type)\b", re.IGNORECASE)
_UNCOMPILED = "; Trainer(..., compile=False) runs what cannot be compiled operator by operator, many times slower"


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
    of_lambda = is_of_lambda(error)
    said = LAMBDA if of_lambda else gist(text) or type(error).__name__
    where = f" [{place}]" if place else ""
    hint = _UNCOMPILED if of_lambda or cannot_be_compiled(text) else _integers(text, chunk, shapes)
    return GraphError(f"MindSpore could not compile or run the network on columns ({fed}): {said}{where}{hint}")


def _integers(text: str, chunk: Chunk, shapes: Sequence[Sequence[int]]) -> str:
    """Return the cure where MindSpore complains of types and columns of several axes, such as images, are integers."""
    if not _TYPES.search(text):
        return ""
    columns = zip(chunk.names, chunk.arrays, shapes, strict=False)
    names = [f"{name} ({array.dtype})" for name, array, shape in columns if array.dtype.kind in "iu" and len(shape) > 1]
    if not names:
        return ""
    return f"; layers compute with floats, and {', '.join(names)} holds integers: x.astype(np.float32)"
