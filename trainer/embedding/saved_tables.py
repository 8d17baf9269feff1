"""Whether saved states can be restored into tables, found out before any table is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import any_number, whole
from ..errors import CheckpointDamagedError, CheckpointMismatchError
from .spec import DEFAULT_ROW
from .table import SparseTable

_MOST_HOLES = 10**7  # rows that evicted ids left, beyond a hundred for each that is saved: less memory than a lie costs


def check_states(tables: Mapping[str, SparseTable], states: Sequence[Mapping[str, Any]]) -> None:
    """Check a full state and the deltas that build on it, as `SparseTables.take` returned them.

    Raises:
        CheckpointMismatchError: they belong to tables of other names, dimensions, optimizers or seeds.
        CheckpointDamagedError: they are not what tables save, or a delta does not fit what is before it.
    """
    for state in states:
        names = set(state["json"]) if isinstance(state["json"], Mapping) else set()
        if missing := sorted(set(tables) ^ names):
            raise CheckpointMismatchError(
                f"the snapshot has the tables {sorted(names)}, the network {sorted(tables)}: "
                f"{', '.join(missing)} has no counterpart; name tables with Embedding(..., name=...)"
            )
    for name, table in tables.items():
        prefix = f"{name}/"
        chain = [
            (
                {key.removeprefix(prefix): array for key, array in state["arrays"].items() if key.startswith(prefix)},
                state["json"][name],
            )
            for state in states
        ]
        try:
            for place, (arrays, json) in enumerate(chain):
                _check_json(table, json, first=place == 0)
                _check_arrays(table, arrays, json)
            _check_chain(chain)
            most = _MOST_HOLES + 100 * sum(len(arrays["rows"]) for arrays, _ in chain)
            rows = max((whole("next_row", json["next_row"], most=most) for _, json in chain), default=0)
            if table.shards.size == 1:  # of many processes each takes a part, and there are no holes in it
                table.reserve(rows)
        except (CheckpointMismatchError, CheckpointDamagedError):
            raise
        except (ValueError, TypeError, KeyError, AttributeError, MemoryError, OverflowError) as error:
            said = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            raise CheckpointDamagedError(f"the saved table {name!r} cannot be restored: {said}") from error


def check_identity(table: SparseTable, json: Mapping[str, Any]) -> None:
    """Check that a state was saved of this table.

    Raises:
        CheckpointMismatchError: it was saved of one of another dimension, optimizer or seed.
    """
    # a table that is only read has no slots and takes the weights alone
    width = json["width"] if table.width == table.spec.dim else table.width
    checks = (("dim", table.spec.dim, "dim"), ("width", width, "optimizer"), ("seed", f"{table.seed:016x}", "name"))
    for what, own, reason in checks:
        if json[what] != own:
            raise CheckpointMismatchError(
                f"table {table.spec.name!r} has {what} {own}, the saved one {json[what]}: they differ in {reason}"
                f"{' or seed' if what == 'seed' else ''}"
            )


def _check_json(table: SparseTable, json: Mapping[str, Any], *, first: bool) -> None:
    check_identity(table, json)
    if json["full"] is not (True if first else json["full"] is True):
        raise ValueError(f"full is {json['full']!r}")
    for key in ("step", "plans", "updates"):
        whole(key, json[key], 0)
    whole("width", json["width"], table.width)
    whole("next_row", json["next_row"], DEFAULT_ROW + 1, most=2**31 - 1)
    any_number("last_sweep", json["last_sweep"])
    for key, value in json["counters"].items():
        whole(f"counter {key}", value, 0)


def _check_arrays(table: SparseTable, arrays: Mapping[str, np.ndarray], json: Mapping[str, Any]) -> None:
    rows, ids = arrays["rows"], arrays["ids"]
    count = len(rows)
    wanted = {"rows": (np.int32, (count,)), "ids": (np.int64, (count,)), "values": (np.float32, (count, json["width"]))}
    wanted |= {name: (table.columns[name].dtype, (count,)) for name in table.meta_names}
    wanted["removed"] = (np.int64, (arrays["removed"].size,))
    if table.admission.sketch is not None:
        wanted["sketch"] = (table.admission.sketch.dtype, table.admission.sketch.shape)
    for key, (dtype, shape) in wanted.items():
        if arrays[key].dtype != dtype or arrays[key].shape != shape:
            found = f"{arrays[key].dtype} {list(arrays[key].shape)}"
            raise ValueError(f"{key} is {found}, not {np.dtype(dtype)} {list(shape)}")
    if count and not 0 <= rows.min() <= rows.max() < json["next_row"]:
        raise ValueError(f"rows lie in [{rows.min()}, {rows.max()}], not below next_row {json['next_row']}")
    own = rows != DEFAULT_ROW
    if len(np.unique(rows)) != count or len(np.unique(ids[own])) != np.count_nonzero(own):
        raise ValueError("a row or an id occurs twice")


def _check_chain(chain: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]) -> None:
    """Check that no delta gives an id another row, or a row to another id."""
    known_ids, known_rows = np.zeros(0, np.int64), np.zeros(0, np.int32)
    for arrays, json in chain:
        own = arrays["rows"] != DEFAULT_ROW
        ids, rows = arrays["ids"][own], arrays["rows"][own]
        if json["full"] or not len(known_ids):
            known_ids, known_rows = ids, rows
            continue
        stays = ~np.isin(known_ids, arrays["removed"])
        known_ids, known_rows = known_ids[stays], known_rows[stays]
        if len(ids):
            order = np.argsort(ids)
            places = order[np.minimum(np.searchsorted(ids, known_ids, sorter=order), len(ids) - 1)]
            again = ids[places] == known_ids
            others = known_rows[~again]
            if (rows[places[again]] != known_rows[again]).any() or np.isin(others, rows).any():
                raise ValueError("a delta does not fit the state before it")
            known_ids, known_rows = np.concatenate((known_ids[~again], ids)), np.concatenate((others, rows))
