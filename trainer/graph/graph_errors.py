"""MindSpore's message about a graph it could not compile or run, cut down to what a user can act on."""

from __future__ import annotations

import logging

from ..data.chunk import Chunk
from ..errors import GraphError
from ..mindspore_internals.messages import cannot_be_compiled, gist, is_of_lambda, place_in_network

logger = logging.getLogger(__name__)

_LAMBDA = (
    "MindSpore cannot compile a lambda that is written inside a call or another expression: it reads the source line, "
    "which holds more than the lambda; use a method or a Cell in its place"
)

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
    said = _LAMBDA if is_of_lambda(error) else gist(text) or type(error).__name__
    where = f" [{place}]" if place else ""
    hint = _UNCOMPILED if cannot_be_compiled(text) else ""
    return GraphError(f"MindSpore could not compile or run the network on columns ({fed}): {said}{where}{hint}")
