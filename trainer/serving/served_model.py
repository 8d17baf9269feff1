"""Answering from a model that is still being trained: `ServedModel` follows what `Publish` writes."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import strict_json, tensor_file
from ..embedding.graph_export import ServedGraph
from ..embedding.table import DEFAULT_ROW, SparseTable
from ..errors import CheckpointDamagedError, CheckpointNotFoundError, DataError
from .publisher import CURRENT, unpack_rows

logger = logging.getLogger(__name__)

_BLOCK = 1 << 16


class ServedModel:
    """A published model. Rows and weights follow the newest version while predictions go on.

    Every row and every set of weights is whole at any time; a version of a million rows becomes visible block by block,
    its weights last.

    Args:
        root: folder that `Publish` writes to.
        follow: apply new versions as they appear; False waits for `refresh`.
        poll: seconds between looks at ``current.json``.

    Attributes:
        version: version being served.
        step: optimizer steps the version has seen.
        delays: for each of the newest 10,000 versions, seconds from its newest event (or its publication, when events
            carry no time) until it was served in full.

    Raises:
        CheckpointNotFoundError: nothing has been published there. CheckpointDamagedError: it cannot be read.
    """

    def __init__(self, root: str | os.PathLike[str], *, follow: bool = True, poll: float = 0.05) -> None:
        self.root = Path(root)
        self.version = 0
        self.step = 0
        self.delays: deque[float] = deque(maxlen=10_000)
        self._poll = poll
        self._graph: ServedGraph | None = None
        self._graph_name: str | None = None
        self._waiting: Mapping[str, np.ndarray] | None = None
        self._run = threading.Lock()
        self._update = threading.Lock()
        self._stop = threading.Event()
        self._mark: tuple[int, int] | None = None
        self.refresh()
        self._thread: threading.Thread | None = None
        if follow:
            self._thread = threading.Thread(target=self._follow, name="model-consumer", daemon=True)
            self._thread.start()

    def predict(self, batch: Any) -> Any:
        """Return the predictions for a batch of any size.

        Args:
            batch: one array a column, [n, ...], as the network takes them, ids raw: integers or strings. A mapping from
                column names, a sequence of arrays, or the array of an only column.

        Returns:
            float32 array with n rows, or a tuple of them.

        Raises:
            DataError: columns are missing, or differ in their number of rows, or have another shape than in training.
        """
        with self._run:
            graph = self._graph
            columns = self._columns(graph, batch)
            if self._waiting is not None:
                weights, self._waiting = self._waiting, None
                graph.set_weights(weights)
            count = len(columns[0])
            parts = [
                graph.run([_filled(column[start : start + graph.batch], graph.batch) for column in columns])
                for start in range(0, count, graph.batch)
            ]
        outputs = tuple(np.concatenate(one)[:count] for one in zip(*parts, strict=True))
        return outputs if len(outputs) > 1 else outputs[0]

    def graph_tables(self) -> dict[str, SparseTable]:
        """Return the tables being served, by name; not to be changed."""
        return self._graph.tables

    def _columns(self, graph: ServedGraph, batch: Any) -> list[np.ndarray]:
        names, shapes = graph.about["columns"], graph.about["shapes"]
        if isinstance(batch, Mapping):
            missing = [name for name in names if name not in batch]
            if missing:
                raise DataError(f"predict needs the columns {', '.join(names)}; {', '.join(missing)} not given")
            batch = [batch[name] for name in names]
        elif not isinstance(batch, Sequence) or isinstance(batch, np.ndarray):
            batch = [batch]
        columns = [np.asarray(column) for column in batch]
        if len(columns) != len(shapes):
            raise DataError(f"predict takes {len(shapes)} columns ({', '.join(names)}); received {len(columns)}")
        for index, (column, shape) in enumerate(zip(columns, shapes, strict=True)):
            if list(column.shape[1:]) != shape or len(column) != len(columns[0]) or not len(column):
                name = names[index] if index < len(names) else f"number {index}"
                raise DataError(f"column {name} must be [n{''.join(f', {s}' for s in shape)}]; received {column.shape}")
            if column.dtype.kind == "f":
                columns[index] = column.astype(graph.about["dtypes"][index])
        return columns

    # -- following -----------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Apply the newest version now; return whether there was a new one.

        Raises:
            CheckpointNotFoundError: nothing has been published. CheckpointDamagedError: it cannot be read.
        """
        with self._update:
            path = self.root / CURRENT
            for attempt in range(3):
                try:
                    found = os.stat(path)
                    about = strict_json.parse(path.read_bytes())
                    break
                except FileNotFoundError:
                    raise CheckpointNotFoundError(f"no model has been published at {self.root}") from None
                except ValueError as error:
                    if attempt == 2:
                        raise CheckpointDamagedError(f"{path} is damaged: {error}") from error
            self._mark = (found.st_mtime_ns, found.st_ino)
            if about["version"] == self.version:
                return False
            self._apply(about)
            return True

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._stop.wait(self._poll):
            try:
                found = os.stat(self.root / CURRENT)
                if (found.st_mtime_ns, found.st_ino) != self._mark:
                    self.refresh()
            except Exception as error:
                # a version may be removed between reading its name and its files; the next look finds a newer one
                self._mark = None
                logger.warning("version at %s could not be applied yet: %s", self.root, error)

    def _apply(self, about: Mapping[str, Any]) -> None:
        chain: list[str] = about["chain"]
        numbers = [int(name[2:]) for name in chain]
        graph = self._graph
        new_graph = about["graph"] != self._graph_name
        if new_graph:
            graph = ServedGraph(self.root / about["graph"])
        # The first of the chain also holds what changed since the version before it, unless it began the run.
        usable = [*numbers[1:], *([numbers[0]] if about["full"] == "full" else [])]
        if new_graph or self.version + 1 not in usable:
            if not new_graph:
                graph = ServedGraph(self.root / about["graph"])
            files = [(chain[0], f"{about['full']}.safetensors"), *((name, "rows.safetensors") for name in chain[1:])]
        else:
            names = [name for name, number in zip(chain, numbers, strict=True) if number > self.version]
            files = [(name, "rows.safetensors") for name in names]
        for folder, file in files:
            arrays = _read(self.root / folder / file)
            for name, table in graph.tables.items():
                prefix = f"{name}/"
                own = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
                _update_table(table, own)
        weights = {key: np.array(value) for key, value in _read(self.root / chain[-1] / "weights.safetensors").items()}
        with self._run:
            self._graph, self._graph_name = graph, about["graph"]
            self._waiting = weights
            self.version, self.step = about["version"], about["step"]
        born = about["event_time"] if about["event_time"] is not None else about["time"]
        self.delays.append(time.time() - born)


def _read(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        return tensor_file.parse(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))


def _update_table(table: SparseTable, arrays: Mapping[str, np.ndarray]) -> None:
    table.discard(np.asarray(arrays["removed"]))
    if len(arrays["default"]):
        table.store.write(np.array([DEFAULT_ROW]), np.array(arrays["default"]))
    for start in range(0, len(arrays["ids"]), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows = {key: arrays[key][block] for key in ("weights", "scale") if key in arrays}
        table.put(np.array(arrays["ids"][block]), unpack_rows(rows))


def _filled(column: np.ndarray, rows: int) -> np.ndarray:
    """Return `column` with its last row repeated until it has `rows` rows."""
    missing = rows - len(column)
    return column if not missing else np.concatenate((column, np.repeat(column[-1:], missing, axis=0)))
