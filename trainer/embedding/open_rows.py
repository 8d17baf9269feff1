"""The rows of an accumulation window that is not complete yet: how a snapshot holds their gradients.

For each table: ``accumulated_rows`` int32 [n]; ``accumulated_positions`` int32 [n], their places in the step's working
set; and where the table is trained ``accumulated_gradients`` float32 [n + 1, dim], first that of the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CheckpointDamagedError

if TYPE_CHECKING:
    from .tables import SparseTables

ROWS, POSITIONS, GRADIENTS = "accumulated_rows", "accumulated_positions", "accumulated_gradients"


def _units(tables: SparseTables) -> Iterator[tuple[int, list[int], list[list[str]]]]:
    """Yield what shares positions: (key in the planner's carry, groups, names of each group's tables)."""
    names, planner = list(tables.tables), tables.planner
    for number, bundle in enumerate(planner.bundles):
        members = [[names[index] for index in planner.groups[group].tables] for group in bundle.groups]
        if bundle.indirect:
            yield from ((-1 - group, [group], [one]) for group, one in zip(bundle.groups, members, strict=True))
        else:
            yield number, list(bundle.groups), members


def take(tables: SparseTables) -> dict[str, np.ndarray]:
    """Return the arrays above after the last chunk that was trained, their keys begun with ``table/``."""
    found = {}
    for key, groups, members in _units(tables):
        if key not in tables.carried:
            continue
        component_of, rows = tables.carried[key]
        for place, group in enumerate(groups):
            total = tables.gradient_sum(group)
            for component, name in enumerate(members[place]):
                mine = np.flatnonzero(component_of == component)
                found[f"{name}/{ROWS}"] = rows[place, mine]
                found[f"{name}/{POSITIONS}"] = (mine + 1).astype(np.int32)
                if total is not None:
                    found[f"{name}/{GRADIENTS}"] = total.asnumpy()[np.append(0, mine + 1)]
    return found


def check(tables: SparseTables, state: Mapping[str, Any]) -> None:
    """Check that `restore` can take the arrays of a state that fits the tables; nothing is changed.

    Raises:
        CheckpointDamagedError: they are not what `take` returns.
    """
    arrays = state["arrays"]
    for _, groups, members in _units(tables):
        for group, names in zip(groups, members, strict=True):
            for name, other in zip(names, members[0], strict=True):
                try:
                    wanted = arrays.get(f"{other}/{POSITIONS}")
                    last = state["json"][name]["next_row"] - 1
                    _check_table(arrays, name, wanted, last, tables.gradient_sum(group))
                except (ValueError, TypeError, AttributeError, KeyError) as error:
                    raise CheckpointDamagedError(
                        f"the gradients saved for table {name!r} cannot be restored: {error}"
                    ) from error


def _check_table(arrays: Mapping[str, Any], name: str, positions: Any, last: int, total: Any) -> None:
    rows, own = arrays.get(f"{name}/{ROWS}"), arrays.get(f"{name}/{POSITIONS}")
    if rows is None and own is None and positions is None:
        return
    wanted = {ROWS: (np.int32, (len(positions),)), POSITIONS: (np.int32, (len(positions),))}
    if total is not None:
        wanted[GRADIENTS] = (np.float32, (len(positions) + 1, *total.shape[1:]))
    for key, (dtype, shape) in wanted.items():
        array = arrays[f"{name}/{key}"]
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f"{key} is {array.dtype} {list(array.shape)}, not {np.dtype(dtype)} {list(shape)}")
    if len(np.unique(own)) != len(own) or not np.array_equal(own, positions):
        raise ValueError("positions occur twice, or differ between tables of the same ids")
    if len(rows) and not 0 <= rows.min() <= rows.max() <= last:
        raise ValueError(f"rows lie in [{rows.min()}, {rows.max()}], not in [0, {last}]")


def restore(tables: SparseTables, arrays: Mapping[str, np.ndarray]) -> None:
    """Let the next chunk go on with the window of such arrays; without them no window is open for any table."""
    carry = {}
    for key, groups, members in _units(tables):
        if not all(f"{name}/{ROWS}" in arrays for names in members for name in names):
            tables.set_gradient_sums(groups, None)
            continue
        positions = [np.asarray(arrays[f"{name}/{POSITIONS}"]) for name in members[0]]
        component_of = np.repeat(np.arange(len(positions), dtype=np.int32), [len(part) for part in positions])
        order = np.argsort(np.concatenate(positions), kind="stable")
        rows = [np.concatenate([arrays[f"{name}/{ROWS}"] for name in names])[order] for names in members]
        carry[key] = component_of[order], np.stack(rows).astype(np.int32)
        sums = [
            np.concatenate(
                (arrays[f"{names[0]}/{GRADIENTS}"][:1], *(arrays[f"{name}/{GRADIENTS}"][1:] for name in names))
            )[np.append(0, order + 1)]
            if tables.gradient_sum(group) is not None
            else None
            for group, names in zip(groups, members, strict=True)
        ]
        tables.set_gradient_sums(groups, sums)
    tables.go_on_with(carry)
