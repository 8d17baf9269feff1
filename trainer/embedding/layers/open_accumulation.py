"""Gradients of an open accumulation in snapshots.

For each table: ``accumulated_rows`` int32 [n]; ``accumulated_positions`` int32 [n], their positions in the step's
working set; and for a trained table ``accumulated_gradients`` float32 [n + 1, dim], starting with that of the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import CheckpointDamagedError
from ..planning.sharded_state import OPEN_ROWS
from ..planning.sparse_plan import OpenRows
from ..tables.table_state import arrays_of, check_forms
from .network_tables import SparseTables

POSITIONS, GRADIENTS = "accumulated_positions", "accumulated_gradients"


def _units(tables: SparseTables) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield groups of stacks that share positions, with the table names of each stack."""
    names, layout = list(tables.tables), tables.planner.layout
    for bundle in layout.bundles:
        for stacks in [[stack] for stack in bundle.stacks] if bundle.indirect else [bundle.stacks]:
            yield stacks, [[names[index] for index in layout.stacks[stack].tables] for stack in stacks]


def take(tables: SparseTables) -> dict[str, np.ndarray]:
    """Return these arrays after the last trained chunk, with keys prefixed by ``table/``."""
    arrays = {}
    for stacks, members in _units(tables):
        carried = tables.carried.get(stacks[0])
        if carried is None:
            continue
        for stack, names, rows in zip(stacks, members, carried.rows, strict=True):
            total = tables.gradient_sum(stack)
            for component, name in enumerate(names):
                own = np.flatnonzero(carried.component_of == component)
                arrays[f"{name}/{OPEN_ROWS}"] = rows[own]
                arrays[f"{name}/{POSITIONS}"] = (own + 1).astype(np.int32)
                if total is not None:
                    arrays[f"{name}/{GRADIENTS}"] = total.asnumpy()[np.append(0, own + 1)]
    return arrays


def check(tables: SparseTables, state: Mapping[str, Any]) -> None:
    """Check that `restore` accepts the arrays of a state that matches the tables; changes nothing.

    Raises:
        CheckpointDamagedError: the arrays do not have the form that `take` returns.
    """
    arrays = state["arrays"]
    for stacks, members in _units(tables):
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
    own: Any = arrays.get(f"{name}/{POSITIONS}")
    if rows is None and own is None and positions is None:
        return
    wanted: dict[str, tuple[Any, tuple[int, ...]]] = dict.fromkeys(
        (OPEN_ROWS, POSITIONS), (np.int32, (len(positions),))
    )
    if total is not None:
        wanted[GRADIENTS] = (np.float32, (len(positions) + 1, *total.shape[1:]))
    check_forms(arrays_of(arrays, name), wanted)
    if len(np.unique(own)) != len(own) or not np.array_equal(own, positions):
        raise ValueError("positions occur twice, or differ between tables of the same ids")
    if len(rows) and not 0 <= rows.min() <= rows.max() <= last:
        raise ValueError(f"rows lie in [{rows.min()}, {rows.max()}], not in [0, {last}]")


def restore(tables: SparseTables, arrays: Mapping[str, np.ndarray]) -> None:
    """Let the next chunk continue the accumulation in `arrays`; tables without arrays have none open."""
    carry = {}
    for stacks, members in _units(tables):
        if not all(f"{name}/{OPEN_ROWS}" in arrays for names in members for name in names):
            tables.set_gradient_sums(stacks, None)
            continue
        positions = [np.asarray(arrays[f"{name}/{POSITIONS}"]) for name in members[0]]
        component_of = np.repeat(np.arange(len(positions), dtype=np.int32), [len(part) for part in positions])
        order = np.argsort(np.concatenate(positions), kind="stable")
        rows = [np.concatenate([arrays[f"{name}/{OPEN_ROWS}"] for name in names])[order] for names in members]
        carry[stacks[0]] = OpenRows(component_of[order], np.stack(rows).astype(np.int32))
        sums: list[np.ndarray | None] = []
        for stack, names in zip(stacks, members, strict=True):
            if tables.gradient_sum(stack) is None:
                sums.append(None)
                continue
            gradients = [arrays[f"{name}/{GRADIENTS}"] for name in names]
            joined = np.concatenate((gradients[0][:1], *(part[1:] for part in gradients)))
            sums.append(joined[np.append(0, order + 1)])
        tables.set_gradient_sums(stacks, sums)
    tables.resume_accumulation(carry)
