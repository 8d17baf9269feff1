"""Compute a model's user and item vectors, find nearest items, store vectors."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..checkpoint import durable
from ..checks import refuse, require, whole
from ..errors import ConfigurationError, DataError
from ..features.feature_data import is_raw
from ..features.raw_rows import RawData, RawTable

_SCORES_AT_ONCE = 1 << 24  # 64 MB


class Predicts(Protocol):
    """Anything with `predict`: a `Trainer` or a `ServedModel`."""

    def predict(self, rows: Any) -> Any:
        """Return the network's output for rows."""


def user_vectors(model: Predicts, rows: Any) -> np.ndarray:
    """Return user vectors, float32 [n, width]. Those of `TwoTower` have length 1.

    Args:
        model: a `Trainer` or `ServedModel` of a `TwoTower`, `BPR`, `SASRec` or `HSTU`, or of any network whose output
            is [n, 2 * width], the concatenated vectors of user and item.
        rows: raw rows of the users, as for `predict`; item columns may be missing.

    Raises:
        ConfigurationError: the model's output has another form.
        DataError: as for `predict`.
    """
    return halves(model.predict(_one_side(model, rows)))[0]


def item_vectors(model: Predicts, rows: Any) -> np.ndarray:
    """Return item vectors, like `user_vectors`; user columns may be missing."""
    return halves(model.predict(_one_side(model, rows)))[1]


class _OneSide(RawTable):
    """Raw rows in which the columns of users or of items may be missing."""

    warns_of_absent = False


def _one_side(model: Predicts, rows: Any) -> Any:
    """Let raw rows lack columns; return other rows, such as arrays, unchanged."""
    declared = getattr(model, "features", None) is not None
    return _OneSide(rows) if declared and is_raw(rows) and not isinstance(rows, str | Path | RawData) else rows


def halves(outputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Split an output [n, 2 * width] into user and item vectors.

    Raises:
        ConfigurationError: the output has another shape.
    """
    shape = None if isinstance(outputs, tuple) else np.shape(outputs)
    if shape is None or len(shape) != 2 or shape[1] % 2 or not shape[1]:
        what = f"{len(outputs)} outputs" if shape is None else f"an output of shape {list(shape)}"
        raise ConfigurationError(
            "vectors of users and items come from two_tower, bpr, sasrec or hstu, whose output is [n, 2 * width]; the "
            f"model gives {what}"
        )
    width = shape[1] // 2
    return np.ascontiguousarray(outputs[:, :width], np.float32), np.ascontiguousarray(outputs[:, width:], np.float32)


def top_items(users: np.ndarray, items: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the items with the largest inner products, by exact search.

    Args:
        users: float [U, width].
        items: float [I, width].
        count: items per user; at most I are returned.

    Returns:
        Indices of the items, int64 [U, count], best first, with ties in ascending order of index; and their scores,
        float32 [U, count].

    Raises:
        ConfigurationError: arrays of wrong shapes, or a count below 1.
    """
    users, items = checked_vectors("users", users), checked_vectors("items", items)
    if users.shape[1] != items.shape[1]:
        raise ConfigurationError(f"top_items: users have {users.shape[1]} columns, items {items.shape[1]}")
    count = min(whole("top_items(count=...)", count), len(items))
    best = np.empty((len(users), count), np.int64)
    scores = np.empty((len(users), count), np.float32)
    step = max(1, _SCORES_AT_ONCE // max(1, len(items)))
    for start in range(0, len(users), step):
        part = slice(start, start + step)
        best[part], scores[part] = _best_of(users[part] @ items.T, count)
    return best, scores


def _best_of(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    values = np.take_along_axis(scores, best, 1)
    # `argpartition` takes any of the items that tie with the last one.
    tied = np.flatnonzero((scores >= values.min(axis=1, keepdims=True)).sum(axis=1) > count)
    for row in tied:
        last = values[row].min()
        above = np.flatnonzero(scores[row] > last)
        best[row] = np.concatenate((above, np.flatnonzero(scores[row] == last)[: count - len(above)]))
        values[row] = scores[row, best[row]]
    order = np.lexsort((best, -values), axis=1)
    return np.take_along_axis(best, order, 1), np.take_along_axis(values, order, 1)


def checked_vectors(name: str, vectors: Any) -> np.ndarray:
    """Check vectors and return them as a contiguous float32 array."""
    try:
        array = np.ascontiguousarray(vectors, np.float32)
    except (TypeError, ValueError):
        refuse(name, "numbers of shape [rows, width]", vectors)
    if array.ndim != 2 or not array.shape[1]:
        raise ConfigurationError(f"{name} takes vectors of shape [rows, width]; received {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ConfigurationError(f"{name}: row {int(np.argmin(np.isfinite(array).all(axis=1)))} is not finite")
    return array


def write_vectors(path: str | os.PathLike[str], ids: Any, vectors: Any) -> Path:
    """Write ids and vectors to a file, atomically.

    Args:
        path: a .npz file, with the arrays "id" and "vector", or a .parquet file (extra [arrow]), with the column "id"
            and the column "vector" of fixed-size lists.
        ids: [n], integers or strings.
        vectors: float [n, width].

    Returns:
        The path.

    Raises:
        ConfigurationError: another file extension, ids and vectors of different lengths, or pyarrow is missing.
    """
    path = _checked_path("write_vectors", path)
    ids, vectors = checked_ids(ids), checked_vectors("vectors", vectors)
    if len(ids) != len(vectors):
        raise ConfigurationError(f"write_vectors: {len(ids)} ids for {len(vectors)} vectors")
    buffer = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(buffer, id=ids, vector=vectors)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        parquet.write_table(pa.table({"id": pa.array(ids), "vector": lists}), buffer)
    durable.replace_file(path, buffer.getvalue())
    return path


def read_vectors(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Read ids [n] and vectors, float32 [n, width], from a file of `write_vectors`.

    Raises:
        ConfigurationError: another file extension, or pyarrow is missing.
        DataError: the file does not hold vectors.
    """
    path = _checked_path("read_vectors", path)
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                ids, vectors = arrays["id"], arrays["vector"]
        else:
            from pyarrow import parquet

            table = parquet.read_table(path, columns=["id", "vector"])
            vectors = np.asarray(table["vector"].combine_chunks().flatten())
            ids, vectors = table["id"].to_numpy(), vectors.reshape(table.num_rows, -1)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} does not hold vectors as write_vectors writes them: {error}") from error
    return checked_ids(ids), checked_vectors("vectors", vectors)


def _checked_path(call: str, path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix == ".parquet":
        require("pyarrow.parquet", "files ending with .parquet need pyarrow", "arrow")
    elif path.suffix != ".npz":
        refuse(f"{call}(path)", "a file ending with .npz or .parquet", str(path))
    return path


def checked_ids(ids: Any) -> np.ndarray:
    """Check that ids are distinct and return them as int64 or strings, [rows]."""
    array = np.asarray(ids)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise ConfigurationError(
            f"ids takes one column of integers or text; received {array.dtype} of shape {list(array.shape)}"
        )
    if array.dtype.kind == "u" and (array > np.iinfo(np.int64).max).any():
        raise ConfigurationError(f"ids takes integers below 2**63, or text; received {array.max()}: give ids as text")
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) < len(array):
        raise ConfigurationError(f"ids: {distinct[counts > 1][0].item()!r} occurs {counts.max()} times")
    return array if array.dtype.kind == "U" else array.astype(np.int64)
