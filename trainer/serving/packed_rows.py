"""Packs table rows for published versions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checkpoint.tensor_file import LazyArray
from ..embedding.tables.table_state import arrays_of
from .finite import check_finite

ROW_TYPES = ("float32", "int8")


def pack_rows(weights: np.ndarray, rows: str) -> dict[str, np.ndarray]:
    """Return weights [n, dim] in stored form: "weights" and, for int8, "scale".

    Weights are float32 or float16. With rows="float32", both keep their dtype. "scale" is float32 [n]: the largest
    absolute weight of each row, divided by 127.
    """
    if rows == "float32":
        return {"weights": np.ascontiguousarray(weights)}
    weights = np.asarray(weights, np.float32)
    scale = np.abs(weights).max(axis=1, initial=0.0) / np.float32(127)
    quantized = np.rint(weights / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8)
    return {"weights": quantized, "scale": scale.astype(np.float32)}


def unpack_rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return weights as float32 [n, dim] from the output of `pack_rows`."""
    if "scale" in arrays:
        return arrays["weights"].astype(np.float32) * np.asarray(arrays["scale"])[:, None]
    return np.asarray(arrays["weights"], np.float32)


def pack_tables(saved: Mapping[str, Any], rows: str) -> dict[str, LazyArray]:
    """Return the arrays of a file of rows by "<table>/<key>", computed when read.

    Args:
        saved: the result of `Tables.take`.
        rows: one of `ROW_TYPES`.
    """
    packed: dict[str, LazyArray] = {}
    for name, json in saved["json"].items():
        columns = _pack_table(name, arrays_of(saved["arrays"], name), json["dim"], rows)
        packed |= {f"{name}/{key}": array for key, array in columns.items()}
    return packed


def _pack_table(name: str, saved: Mapping[str, Any], dim: int, rows: str) -> dict[str, LazyArray]:
    """Return one table's arrays; reading one computes all of them.

    Reading raises NonFiniteError if a value is NaN or infinite.
    """

    @functools.cache
    def packed() -> dict[str, np.ndarray]:
        has_id = np.asarray(saved["rows"]) > 0
        weights = np.asarray(saved["values"])[:, :dim]
        # Row numbers ascend and 0 is the default row, so a slice (a view, not a copy) usually selects the id rows.
        id_rows: Any = slice(int(len(has_id) > 0 and not has_id[0]), None)
        if not has_id[id_rows].all():
            id_rows = has_id
        columns = {"ids": np.asarray(saved["ids"])[id_rows], "removed": np.asarray(saved["removed"])}
        columns |= {"default": np.asarray(weights[~has_id], np.float32), **pack_rows(weights[id_rows], rows)}
        check_finite(columns, f"table {name!r}:")
        return columns

    kinds: dict[str, Any] = {"ids": np.int64, "removed": np.int64, "default": np.float32}
    kinds |= {"weights": saved["values"].dtype} if rows == "float32" else {"weights": np.int8, "scale": np.float32}
    # Each `LazyArray` drops its function once it is read, so reading the last one frees the cache.
    return {key: LazyArray(functools.partial(lambda name: packed()[name], key), kind) for key, kind in kinds.items()}
