"""Rows of tables as published versions hold them, and as a Redis server gets them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..checkpoint.tensor_file import Frozen
from ..embedding.tables.table_state import arrays_of
from ..errors import ConfigurationError

ROW_TYPES = ("float32", "int8")
_AT_ONCE = 10_000


def pack_rows(weights: np.ndarray, rows: str) -> dict[str, np.ndarray]:
    """Return weights, float32 [n, dim], as stored: "weights", for int8 "scale".

    "scale" is float32 [n], the largest absolute weight of a row / 127.
    """
    if rows == "float32":
        return {"weights": np.ascontiguousarray(weights)}
    scale = np.abs(weights).max(axis=1, initial=0.0) / np.float32(127)
    quantized = np.rint(weights / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8)
    return {"weights": quantized, "scale": scale.astype(np.float32)}


def unpack_rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the float32 [n, dim] weights of `pack_rows` output."""
    if "scale" in arrays:
        return arrays["weights"].astype(np.float32) * np.asarray(arrays["scale"])[:, None]
    return np.asarray(arrays["weights"], np.float32)


def pack_tables(saved: Mapping[str, Any], rows: str) -> dict[str, Frozen]:
    """Return the arrays of a file of rows, by "<table>/<key>", computed when read.

    Args:
        saved: the result of `Tables.take`.
        rows: one of `ROW_TYPES`.
    """
    packed: dict[str, Frozen] = {}
    for name, json in saved["json"].items():
        table = _PackedTable(arrays_of(saved["arrays"], name), json["dim"], rows)
        packed |= {f"{name}/{key}": array for key, array in table.arrays().items()}
    return packed


class _PackedTable:
    """The rows of one table as stored, computed together at the first read.

    Args:
        saved: arrays of `table_state.take`.
        dim: columns of the weights.
        rows: one of `ROW_TYPES`.
    """

    def __init__(self, saved: Mapping[str, Any], dim: int, rows: str) -> None:
        self._saved, self._dim, self._rows = saved, dim, rows

    def arrays(self) -> dict[str, Frozen]:
        """Return the arrays by key."""
        kinds: dict[str, type] = {"ids": np.int64, "removed": np.int64, "default": np.float32}
        kinds |= {"weights": np.float32} if self._rows == "float32" else {"weights": np.int8, "scale": np.float32}
        return {key: Frozen(functools.partial(self._array, key), kind) for key, kind in kinds.items()}

    def _array(self, key: str) -> np.ndarray:
        return self._packed[key]

    @functools.cached_property
    def _packed(self) -> dict[str, np.ndarray]:
        saved = self._saved
        own = np.asarray(saved["rows"]) > 0
        weights = np.asarray(saved["values"])[:, : self._dim]
        # Only the default row has number 0, and rows are ascending: mostly a view, not a copy.
        chosen: Any = slice(int(len(own) > 0 and not own[0]), None)
        if not own[chosen].all():
            chosen = own
        packed = {"ids": np.asarray(saved["ids"])[chosen], "removed": np.asarray(saved["removed"])}
        packed |= {"default": weights[~own], **pack_rows(weights[chosen], self._rows)}
        self._saved = {}  # frees what is not stored
        return packed


class RedisRows:
    """Sends rows to a Redis server; see `Publish`.

    Args:
        address: of the server.
        prefix: prefix of its keys.

    Raises:
        ConfigurationError: redis-py is not installed.
    """

    def __init__(self, address: str, prefix: str) -> None:
        try:
            import redis
        except ImportError:
            raise ConfigurationError(
                "Publish(redis=...) needs redis-py: pip install 'mindspore-trainer[redis]'"
            ) from None
        self._server = redis.Redis.from_url(address)
        self._prefix = prefix

    def send(self, packed: Mapping[str, Any], report: Callable[[int], None] = lambda rows: None) -> None:
        """Send the rows of `pack_tables`.

        Args:
            packed: the arrays.
            report: called with the number of rows sent so far.
        """
        sent = 0
        for key in [key for key in packed if key.endswith("/ids")]:
            table = key.removesuffix("/ids")
            arrays = {name: np.asarray(array) for name, array in arrays_of(packed, table).items()}
            ids, weights = arrays["ids"].astype("<i8"), unpack_rows(arrays).astype("<f4")
            hash_name = f"{self._prefix}:{table}"
            removed = [number.tobytes() for number in arrays["removed"].astype("<i8")]
            for start in range(0, len(removed), _AT_ONCE):
                self._server.hdel(hash_name, *removed[start : start + _AT_ONCE])
            for start in range(0, len(ids), _AT_ONCE):
                block = slice(start, start + _AT_ONCE)
                pairs = zip(ids[block], weights[block], strict=True)
                self._server.hset(hash_name, mapping={number.tobytes(): row.tobytes() for number, row in pairs})
                sent += len(ids[block])
                report(sent)

    def set_version(self, version: int) -> None:
        """Set the version, once all its rows have been sent."""
        self._server.set(f"{self._prefix}:version", version)
