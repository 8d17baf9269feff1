"""Rows of tables as published versions hold them, and as a Redis server gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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


def pack_tables(saved: Mapping[str, Any], rows: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file of rows, by "<table>/<key>".

    Args:
        saved: the result of `Tables.take`.
        rows: one of `ROW_TYPES`.
    """
    packed: dict[str, np.ndarray] = {}
    for name, json in saved["json"].items():
        arrays = saved["arrays"]
        positions, values = np.asarray(arrays[f"{name}/rows"]), np.asarray(arrays[f"{name}/values"])
        own = positions > 0
        weights = values[:, : json["dim"]]
        default = weights[~own] if (~own).any() else np.zeros((0, json["dim"]), np.float32)
        parts = {"ids": np.asarray(arrays[f"{name}/ids"])[own], "removed": arrays[f"{name}/removed"]}
        parts |= {"default": default, **pack_rows(weights[own], rows)}
        packed |= {f"{name}/{key}": value for key, value in parts.items()}
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

    def send(self, version: int, packed: Mapping[str, np.ndarray]) -> None:
        """Send the rows of `pack_tables`, and the version last."""
        for key in [key for key in packed if key.endswith("/ids")]:
            table = key.removesuffix("/ids")
            arrays = {name.rsplit("/", 1)[1]: value for name, value in packed.items() if name.startswith(f"{table}/")}
            ids, weights = arrays["ids"].astype("<i8"), unpack_rows(arrays).astype("<f4")
            hash_name = f"{self._prefix}:{table}"
            removed = [number.tobytes() for number in np.asarray(arrays["removed"]).astype("<i8")]
            for start in range(0, len(removed), _AT_ONCE):
                self._server.hdel(hash_name, *removed[start : start + _AT_ONCE])
            for start in range(0, len(ids), _AT_ONCE):
                block = slice(start, start + _AT_ONCE)
                pairs = zip(ids[block], weights[block], strict=True)
                self._server.hset(hash_name, mapping={number.tobytes(): row.tobytes() for number, row in pairs})
        self._server.set(f"{self._prefix}:version", version)
