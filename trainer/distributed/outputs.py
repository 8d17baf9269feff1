"""Outputs of evaluation and prediction from all processes, batch by batch in the order of the dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from mindspore import Tensor

from .group import Group


def everyones_outputs(
    group: Group, own: Iterable[tuple[Any, int]], stand_by: Callable[[], None]
) -> Iterator[tuple[Any, int]]:
    """Yield (outputs, rows) of every batch on every process; with one process they are passed through.

    Batch k of the dataset is batch k // size of rank k % size (`trainer.data.shards.EveryNth`), so each process sees
    what one process alone would see, in its order. Outputs of made-up rows are left out.

    Args:
        group: the processes; all of them have to consume this iterator.
        own: this process's outputs, tensors and host arrays in tuples and mappings of any depth, and the number of
            rows, 0 where they are made up.
        stand_by: called in place of `own` once that has ended: what the other processes exchange to make theirs.
    """
    if group.size == 1:
        yield from own
        return
    batches = iter(own)
    while True:
        batch = next(batches, None)
        ended = batch is None
        if ended:
            stand_by()
        message = b"" if ended or batch[1] == 0 else _pack(*batch)
        parts = group.gather_bytes(bytes([ended]) + message)
        for part in parts:
            if len(part) > 1:
                yield _unpack(part[1:])
        if all(part[0] for part in parts):
            return


def _pack(outputs: Any, rows: int) -> bytes:
    arrays: list[np.ndarray] = []
    head = json.dumps([_describe(outputs, arrays), rows]).encode()
    return b"".join([len(head).to_bytes(4, "little"), head, *(array.tobytes() for array in arrays)])


def _describe(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, tuple | list):
        return [_describe(item, arrays) for item in value]
    if isinstance(value, Mapping):
        return {"names": list(value), "values": _describe(list(value.values()), arrays)}
    on_host = isinstance(value, np.ndarray)
    array = value if on_host else value.asnumpy()
    arrays.append(array.astype(str) if array.dtype.kind == "O" else array)
    return {"dtype": arrays[-1].dtype.str, "shape": arrays[-1].shape, "host": on_host}


def _unpack(message: bytes) -> tuple[Any, int]:
    start = 4 + int.from_bytes(message[:4], "little")
    described, rows = json.loads(message[4:start])
    return _restore(described, message, [start]), rows


def _restore(described: Any, message: bytes, place: list[int]) -> Any:
    if isinstance(described, list):
        return tuple([_restore(item, message, place) for item in described])
    if "names" in described:
        return dict(zip(described["names"], _restore(described["values"], message, place), strict=True))
    dtype, shape = np.dtype(described["dtype"]), described["shape"]
    count = int(np.prod(shape))
    array = np.frombuffer(message, dtype, count, place[0]).reshape(shape)
    place[0] += count * dtype.itemsize
    return array.copy() if described["host"] else Tensor(array.copy())
