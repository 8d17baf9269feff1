"""Recognise what a user passes as a dataset, and make a source of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError, DataError
from ...streams.formats.frames import columns_of, is_frame
from ..source import ReadMode, Source
from .sources import ArraySource, IterableSource, PipelineSource
from .wrapped_arrays import wrapped_arrays


def make_source(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    fitting: bool = False,
    read_mode: ReadMode = ReadMode.COMMON,
) -> Source:
    """Return the source for what a user passes as a dataset; arguments as of `ArraySource`.

    Raises:
        DataError: data that cannot be iterated, or is empty.
        ConfigurationError: arrays without a batch size, or a batch size for data that is already batched.
    """
    if isinstance(data, Source):
        return data
    if is_frame(data):
        data = columns_of(data)
    if hasattr(data, "create_tuple_iterator"):
        source: Source = wrapped_arrays(data, seed, read_mode) or PipelineSource(data, seed=seed, read_mode=read_mode)
    elif is_arrays(data):
        return ArraySource(data, batch_size, shuffle=shuffle, seed=seed, fitting=fitting, read_mode=read_mode)
    elif callable(data) or hasattr(data, "__iter__"):
        source = IterableSource(data, read_mode=read_mode)
    else:
        raise DataError(
            f"dataset: received {type(data).__name__}; accepted are a mindspore.dataset pipeline, a dict or tuple of "
            "arrays with batch_size, an iterable of batches, or a function that returns one"
        )
    if batch_size is not None:
        hint = "; columns are given as a tuple or dict of NumPy arrays" if isinstance(data, tuple | list | dict) else ""
        raise ConfigurationError(
            f"batch_size={batch_size!r} goes with arrays; a {type(data).__name__} is taken to deliver batches{hint}"
        )
    return source


def is_arrays(data: Any) -> bool:
    """Return whether `data` is an array, a frame, a dict of arrays or lists, or a tuple of nothing but arrays."""
    if is_frame(data) or (hasattr(data, "shape") and hasattr(data, "dtype")):
        return True
    values: Sequence[Any]
    if isinstance(data, Mapping):
        values = list(data.values())
        if values and all(
            isinstance(value, list) or is_arrays(value) or hasattr(value, "to_pylist") for value in values
        ):
            return True
    elif isinstance(data, tuple):
        values = data
    else:
        return False
    return bool(values) and all(hasattr(v, "shape") and (hasattr(v, "dtype") or is_frame(v)) for v in values)
