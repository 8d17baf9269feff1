"""Save and restore the gradient sums of an unfinished accumulation.

A snapshot contains three arrays per table: ``accumulated_rows`` int32 [n]; ``accumulated_positions`` int32 [n], the
positions of these rows in the step's working set; and, only for a trained table, ``accumulated_gradients`` float32
[n + 1, dim], which begins with the gradient of the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import CheckpointDamagedError
from ..planning.sharded_state import OPEN_ROWS
from ..planning.sparse_plan import OpenRows
from ..tables.table_state import arrays_of, check_forms
from .network_tables import SparseTables

POSITIONS, GRADIENTS = "accumulated_positions", "accumulated_gradients"


def _position_groups(tables: SparseTables) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield groups of stacks that share positions, with the table names of each stack."""
    names, layout = list(tables.tables), tables.planner.layout
    for bundle in layout.bundles:
        for stacks in bundle.sharing:
            yield stacks, [[names[index] for index in layout.stacks[stack].tables] for stack in stacks]


def take(tables: SparseTables) -> dict[str, np.ndarray]:
    """Return the open sums after the last chunk, with keys prefixed by ``table/``.

    With sharded tables this is a collective call: rank 0 returns the sums over all processes, the others nothing.
    """
    arrays = {}
    for stacks, members in _position_groups(tables):
        carried, parameters = tables.carried.get(stacks[0]), map(tables.gradient_sum, stacks)
        sums = [None if parameter is None else parameter.asnumpy() for parameter in parameters]
        if tables.by_owner:
            carried, sums = _merge_on_main(tables, carried, sums)
        if carried is None:
            continue
        for total, names, rows in zip(sums, members, carried.rows, strict=True):
            for component, name in enumerate(names):
                indices = np.flatnonzero(carried.component_of == component)
                arrays[f"{name}/{OPEN_ROWS}"] = rows[indices]
                arrays[f"{name}/{POSITIONS}"] = (indices + 1).astype(np.int32)
                if total is not None:
                    arrays[f"{name}/{GRADIENTS}"] = total[np.append(0, indices + 1)]
    return arrays


def _merge_on_main(
    tables: SparseTables, carried: OpenRows | None, sums: Sequence[np.ndarray | None]
) -> tuple[OpenRows | None, list[np.ndarray | None]]:
    """Merge the open rows and the sums of all processes on rank 0; None elsewhere.

    `sums` holds this process's sum for each stack that shares the rows, float32 [1 + rows or more, dim].
    """
    group = tables.group
    open_rows = np.zeros((0, 1 + len(sums)), np.int32)
    if carried is not None:
        open_rows = np.concatenate((carried.component_of[:, None], carried.rows.T), axis=1).astype(np.int32)
    parts = group.gather_rows(open_rows)
    gradients = [None if total is None else group.gather_rows(total[: 1 + len(open_rows)]) for total in sums]
    rows = np.concatenate(parts)
    if not group.is_main or not len(rows):
        return None, [None] * len(sums)
    # Stacks that share positions give every id its own row, so the first stack's rows identify the ids.
    _, first, inverse = np.unique(rows[:, :2], axis=0, return_index=True, return_inverse=True)
    inverse = np.split(inverse.reshape(-1) + 1, np.cumsum([len(part) for part in parts])[:-1])
    merged: list[np.ndarray | None] = []
    for rank_gradients in gradients:
        if rank_gradients is None:
            merged.append(None)
            continue
        total = np.zeros((1 + len(first), rank_gradients[0].shape[1]), np.float32)
        for positions, part in zip(inverse, rank_gradients, strict=True):
            total[np.append(0, positions)] += part
        merged.append(total)
    return OpenRows(rows[first, 0], np.ascontiguousarray(rows[first, 1:].T)), merged


def check(tables: SparseTables, state: Mapping[str, Any]) -> None:
    """Check that `restore` accepts a state's arrays; change nothing.

    Raises:
        CheckpointDamagedError: the arrays do not have the form that `take` returns.
    """
    arrays = state["arrays"]
    for stacks, members in _position_groups(tables):
        for stack, names in zip(stacks, members, strict=True):
            for name, leader in zip(names, members[0], strict=True):
                try:
                    positions = arrays.get(f"{leader}/{POSITIONS}")
                    last = state["json"][name]["next_row"] - 1
                    _check_table(arrays, name, positions, last, tables.gradient_sum(stack))
                except (ValueError, TypeError, AttributeError, KeyError) as error:
                    raise CheckpointDamagedError(
                        f"the gradients saved for table {name!r} cannot be restored: {error}"
                    ) from error


def _check_table(arrays: Mapping[str, Any], name: str, positions: Any, last: int, total: Any) -> None:
    rows: Any = arrays.get(f"{name}/{OPEN_ROWS}")
    saved: Any = arrays.get(f"{name}/{POSITIONS}")
    if rows is None and saved is None and positions is None:
        return
    form: tuple[Any, tuple[int, ...]] = (np.int32, (len(positions),))
    expected = {OPEN_ROWS: form, POSITIONS: form}
    if total is not None:
        expected[GRADIENTS] = (np.float32, (len(positions) + 1, *total.shape[1:]))
    check_forms(arrays_of(arrays, name), expected)
    if len(np.unique(saved)) != len(saved) or not np.array_equal(saved, positions):
        raise ValueError("positions occur twice, or differ between tables of the same ids")
    if len(rows) and not 0 <= rows.min() <= rows.max() <= last:
        raise ValueError(f"rows lie in [{rows.min()}, {rows.max()}], not in [0, {last}]")


def restore(tables: SparseTables, arrays: Mapping[str, np.ndarray]) -> None:
    """Let the next chunk continue the accumulation in `arrays`, if there is one.

    With sharded tables rank 0 takes all of it, so the sum over processes is the same as before.
    """
    carry = {}
    if tables.by_owner and not tables.group.is_main:
        arrays = {}
    for stacks, members in _position_groups(tables):
        if not all(f"{name}/{OPEN_ROWS}" in arrays for names in members for name in names):
            tables.set_gradient_sums(stacks, None)
            continue
        positions = [np.asarray(arrays[f"{name}/{POSITIONS}"]) for name in members[0]]
        component_of = np.repeat(np.arange(len(positions), dtype=np.int32), [len(part) for part in positions])
        order = np.argsort(np.concatenate(positions), kind="stable")
        rows = [np.concatenate([arrays[f"{name}/{OPEN_ROWS}"] for name in names])[order] for names in members]
        carry[stacks[0]] = OpenRows(component_of[order], np.stack(rows).astype(np.int32))
        sums: list[np.ndarray | None] = [None] * len(stacks)
        for index, (stack, names) in enumerate(zip(stacks, members, strict=True)):
            if tables.gradient_sum(stack) is not None:
                gradients = [arrays[f"{name}/{GRADIENTS}"] for name in names]
                joined = np.concatenate((gradients[0][:1], *(part[1:] for part in gradients)))
                sums[index] = joined[np.append(0, order + 1)]
        tables.set_gradient_sums(stacks, sums)
    tables.resume_accumulation(carry)
