"""A version of a published model that answers: from a batch's columns to the network's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.ragged import Ragged
from ..errors import DataError
from ..metrics.predictions import activate
from .published import Current
from .served_graph import ServedGraph


class HeldVersion:
    """The version that `ServedModel.held` yields; it stays in use until the context ends.

    Args:
        graph: its network and tables.
        current: which one it is.

    Attributes:
        version, step: its number, and the optimizer steps it has seen.
        published: when it was published, seconds since the epoch.
        event_time: its newest event, seconds since the epoch, or None.
    """

    def __init__(self, graph: ServedGraph, current: Current) -> None:
        self.graph = graph
        self.version, self.step = current.version, current.step
        self.published, self.event_time = current.time, current.event_time

    def run(self, batch: Any) -> tuple[np.ndarray, ...]:
        """Return the network's outputs for its own columns, each float32 [n, ...].

        Args:
            batch: a mapping from names to columns [n, ...], a sequence of them, or the only one.

        Raises:
            DataError: columns are missing, differ in their number of rows, or have another shape than in training.
        """
        graph = self.graph
        columns = _checked(graph, batch)
        count, start = len(columns[0]), 0
        parts: list[tuple[np.ndarray, ...]] = []
        while start < count:
            size = graph.size_for(count - start)
            parts.append(graph.run(_one_call(graph, columns, start, size), size))
            start += size
        return tuple(np.concatenate(outputs)[:count] for outputs in zip(*parts, strict=True))

    def probability(self, outputs: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return the prediction in the unit of the label, float32; None if the loss does not define it."""
        if self.graph.activation is None:
            return None
        return activate(self.graph.activation, outputs[0]).astype(np.float32)


def _checked(graph: ServedGraph, batch: Any) -> list[Any]:
    names, shapes = graph.given, graph.about["shapes"]
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise DataError(f"predict needs the columns {', '.join(names)}; {', '.join(missing)} not given")
        batch = [batch[name] for name in names]
    elif not isinstance(batch, Sequence) or isinstance(batch, np.ndarray):
        batch = [batch]
    if len(batch) != len(names):
        raise DataError(f"predict takes {len(names)} columns ({', '.join(names)}); received {len(batch)}")
    indices = [graph.about["columns"].index(name) for name in names]
    columns: list[Any] = []
    for name, index, column in zip(names, indices, batch, strict=True):
        if name in graph.ragged:
            options = {"padding": graph.ragged[name].padding, "max_length": graph.ragged[name].length}
            column = Ragged.of(column, **options).cut()
            shape = ["lists"]
        else:
            column, shape = np.asarray(column), shapes[index]
        wrong = name not in graph.ragged and list(column.shape[1:]) != shape
        if wrong or not len(column) or len(column) != len(columns[0] if columns else column):
            raise DataError(f"column {name} must be [n{''.join(f', {s}' for s in shape)}]; received {column.shape}")
        dtype = graph.about["dtypes"][index]
        if column.dtype.kind == "O":  # lists without any value
            column = column.astype("U1" if column.padding == "" else dtype)
        columns.append(column.astype(dtype) if column.dtype.kind == "f" else column)
    return columns


def _one_call(graph: ServedGraph, columns: Sequence[Any], start: int, size: int) -> list[np.ndarray]:
    """Return the arguments of one call: `size` rows from `start` on; with lists, padded to a batch."""
    if not graph.ragged:
        arrays = dict(zip(graph.given, (column[start : start + size] for column in columns), strict=True))
        return [arrays[name] for name in graph.about["columns"]]
    rows = np.minimum(np.arange(start, start + size), len(columns[0]) - 1)
    arrays = {}
    for name, column in zip(graph.given, columns, strict=True):
        if name in graph.ragged:
            wanted = graph.ragged[name]
            arrays |= wanted.arrays(name, column[rows], wanted.capacity(size))
        else:
            arrays[name] = column[rows]
    return [arrays[name] for name in graph.about["columns"]]
