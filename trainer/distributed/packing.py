"""Serialize values, arrays, states and outputs into messages between processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from ..errors import DataError, GraphError
from .group import Group

LENGTH_BYTES = 4
_BATCH, _ENDED, _FAILED = range(3)  # kinds of messages; a failure is _FAILED + its index in `_FAILURES`
_FAILURES = (DataError, GraphError)


def pack(value: Any, arrays: Sequence[np.ndarray]) -> bytes:
    """Serialize a JSON-able value and arrays of numbers, bools or fixed-width text.

    The bytes are the length of the header, the header in JSON, and the arrays in C order.
    """
    header = json.dumps([value, [[array.dtype.str, array.shape] for array in arrays]]).encode()
    return b"".join([len(header).to_bytes(LENGTH_BYTES, "little"), header, *(array.tobytes() for array in arrays)])


def unpack(message: bytes) -> tuple[Any, list[np.ndarray]]:
    """Return the arguments of `pack`, bit for bit, with writable arrays."""
    start = LENGTH_BYTES + int.from_bytes(message[:LENGTH_BYTES], "little")
    value, forms = json.loads(message[LENGTH_BYTES:start])
    arrays = []
    for dtype, shape in forms:
        arrays.append(np.frombuffer(message, dtype, int(np.prod(shape)), start).reshape(shape).copy())
        start += arrays[-1].nbytes
    return value, arrays


def gather_states(group: Group, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of all processes in rank order, bit for bit."""
    messages = group.gather_bytes(pack([state["json"], list(state["arrays"])], list(state["arrays"].values())))
    states = []
    for message in messages:
        (value, names), arrays = unpack(message)
        states.append({"json": value, "arrays": dict(zip(names, arrays, strict=True))})
    return states


def lockstep_outputs(
    group: Group, outputs: Iterable[tuple[Any, int]], join_exchange: Callable[[str], None], *, share: bool = True
) -> Iterator[tuple[Any, int]]:
    """Yield (outputs, rows) of all processes' batches on every process.

    Batch k of the dataset is batch k // size of rank k % size (`data.finite.shards.EveryNth`), so each process yields
    the batches in the order of a single process. Outputs of padding rows are left out.

    Args:
        group: the processes; all of them consume this iterator.
        outputs: (outputs, rows) of this process's batches: tensors and host arrays in tuples and mappings of any depth,
            and the number of rows, 0 for dummy rows.
        join_exchange: called after each batch, and also after the end of `outputs`, to take part in the exchanges of
            the other processes. Its argument describes a problem with this process's batch, or is "".
        share: whether each process yields the batches of all, not only its own.

    Raises:
        DataError, GraphError: on all processes, if a batch is invalid or does not fit the network; names the rank.
    """
    if group.size == 1:
        yield from outputs
        return
    batches = iter(outputs)
    group.wait_for_all()  # connects while no process is late
    while True:
        batch, problem, failed = None, "", _FAILED
        try:
            batch = next(batches, None)
        except (DataError, GraphError) as error:
            if error.rank is not None:  # all processes raise it
                raise
            problem, failed = str(error), _FAILED + isinstance(error, GraphError)
        join_exchange(problem)
        kind = failed if problem else _ENDED if batch is None else _BATCH
        message = problem.encode() if batch is None else _pack(*batch) if batch[1] and share else b""
        group.wait_for_all()  # without a time limit, because a process may still wait for its data
        parts = group.gather_bytes(bytes([kind]) + message)
        for rank, part in enumerate(parts):
            if part[0] >= _FAILED:
                raise _FAILURES[part[0] - _FAILED].of_rank(rank, part[1:].decode())
        if batch is not None and batch[1] and not share:
            yield batch
        for part in parts:
            if len(part) > 1:
                (structure, rows), arrays = unpack(part[1:])
                yield _restore(structure, iter(arrays)), rows
        if all(part[0] == _ENDED for part in parts):
            return


def _pack(outputs: Any, rows: int) -> bytes:
    arrays: list[np.ndarray] = []
    return pack([_describe(outputs, arrays), rows], arrays)


def _describe(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, tuple | list):
        return [_describe(item, arrays) for item in value]
    if isinstance(value, Mapping):
        return {"names": list(value), "values": _describe(list(value.values()), arrays)}
    on_host = isinstance(value, np.ndarray)
    array = value if on_host else value.asnumpy()
    arrays.append(array.astype(str) if array.dtype.kind == "O" else array)
    return {"host": on_host}


def _restore(structure: Any, arrays: Iterator[np.ndarray]) -> Any:
    if isinstance(structure, list):
        return tuple([_restore(item, arrays) for item in structure])
    if "names" in structure:
        return dict(zip(structure["names"], _restore(structure["values"], arrays), strict=True))
    return next(arrays) if structure["host"] else Tensor(next(arrays))
