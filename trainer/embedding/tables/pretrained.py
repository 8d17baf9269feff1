"""Pretrained vectors: arrays, word2vec and GloVe text, safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mindspore import Tensor

from ...checkpoint.tensor_file import parse
from ...errors import CheckpointDamagedError, ConfigurationError


def read_vectors(source: np.ndarray | Tensor | str | Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (vectors float32 [n, dim], ids [n] or None) of an array or a file.

    Raises:
        ConfigurationError: the array is not [n, dim], or the file is missing or has none of these formats.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.is_file():
            raise ConfigurationError(f"vectors: no file {path}")
        return _read_safetensors(path) if path.suffix == ".safetensors" else _read_text(path)
    values = source.asnumpy() if isinstance(source, Tensor) else np.asarray(source)
    return _checked(values, "vectors"), None


def _checked(values: np.ndarray, what: str) -> np.ndarray:
    if values.ndim != 2 or values.dtype.kind not in "fiu" or 0 in values.shape:
        raise ConfigurationError(f"{what} must be numbers of shape [n, dim]; received {values.dtype} {values.shape}")
    return np.ascontiguousarray(values, np.float32)


def _read_text(path: Path) -> tuple[np.ndarray, np.ndarray]:
    words: list[str] = []
    rows: list[np.ndarray] = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            parts = line.rstrip().split(" ")
            if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                # word2vec starts with the number of words and the dimension
                continue
            if len(parts) < 2:
                continue
            try:
                # Some GloVe words contain spaces, so the vector is counted from the end.
                size = len(rows[0]) if rows else len(parts) - 1
                numbers = " ".join(parts[-size:])
                if "_" in numbers or not numbers.isascii():
                    raise ValueError("only Python takes these for numbers: 1_0, digits of other scripts")
                rows.append(np.array(parts[-size:], np.float32))
                words.append(" ".join(parts[:-size]))
            except ValueError:
                raise ConfigurationError(
                    f"{path}, line {number}: expected a word and numbers, received {line[:60]!r}"
                ) from None
            if len(rows[-1]) != len(rows[0]) or not words[-1]:
                raise ConfigurationError(f"{path}, line {number}: expected a word and {len(rows[0])} numbers")
    if not rows:
        raise ConfigurationError(f"{path} holds no vectors in word2vec or GloVe text format")
    return np.stack(rows), np.asarray(words)


def _read_safetensors(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        tensors = parse(path.read_bytes(), str(path))  # not mapped: the file may change while the vectors are used
    except (CheckpointDamagedError, ValueError) as error:
        raise ConfigurationError(f"vectors: {error}") from None
    ids = tensors.pop("ids", None)
    tables = {name: tensor for name, tensor in tensors.items() if tensor.ndim == 2}
    if len(tables) != 1:
        raise ConfigurationError(f"{path} must hold one two-dimensional tensor; it holds {sorted(tables)}")
    (values,) = tables.values()
    return _checked(values, str(path)), None if ids is None else np.array(ids)
