"""Splits user-item interactions into train, valid and test parts, with histories."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import choice, number, refuse, whole
from ...errors import ConfigurationError, DataError, did_you_mean
from ...storage.cached_segments import local_files
from ...streams.batch import columns_of, is_frame
from ...streams.formats.column import Column
from ...streams.formats.csv_format import CsvFormat
from ...streams.formats.schema import Schema
from ...streams.sources.whole_table import names_of_file, read_table

logger = logging.getLogger(__name__)

WAYS, PARTS = ("leave_one_out", "time", "random"), ("train", "valid", "test")


class DrawnNegatives(dict[str, Any]):
    """Columns of interactions with negatives, which are drawn again in each epoch.

    The negatives of a row are drawn uniformly, with replacement, from the items that its user has not chosen in these
    rows.

    Args:
        columns: columns of the interactions by name.
        user, item: names of the columns of users and items.
        name: name of the added column of negatives, [rows, count].
        items: all items, sorted and distinct.
        count: number of negatives per row.
        seed: seed of the draw, together with the epoch.

    Raises:
        DataError: a user has chosen all items.
    """

    def __init__(
        self, columns: Mapping[str, Any], user: str, item: str, name: str, items: np.ndarray, count: int, seed: int
    ) -> None:
        super().__init__(columns)
        self._name, self._items, self._count, self._seed = name, items, count, seed
        users, self._user_index = np.unique(columns[user], return_inverse=True)
        self._chosen = np.unique(self._user_index * len(items) + np.searchsorted(items, columns[item]))
        counts = np.bincount(self._chosen // len(items))
        if counts.max() == len(items):
            raise DataError(
                f"interactions(negatives=...): {user} {users[np.argmax(counts)].item()!r} has chosen all {len(items)} "
                "items, so there is none to draw"
            )
        self.update(self.of_epoch(0))

    def of_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the columns by name, with the negatives of an epoch."""
        random = np.random.default_rng([self._seed, epoch])
        drawn = random.integers(0, len(self._items), (len(self._user_index), self._count))
        rows, slots = np.indices(drawn.shape).reshape(2, -1)
        while len(rows):
            pairs = self._user_index[rows] * len(self._items) + drawn[rows, slots]
            nearest = np.minimum(np.searchsorted(self._chosen, pairs), len(self._chosen) - 1)
            is_chosen = self._chosen[nearest] == pairs
            rows, slots = rows[is_chosen], slots[is_chosen]
            drawn[rows, slots] = random.integers(0, len(self._items), len(rows))
        return {**self, self._name: self._items[drawn]}


def interactions(
    rows: Any,
    part: str,
    by: str = "leave_one_out",
    *,
    user: str = "user",
    item: str = "item",
    time: str | None = None,
    history: str | None = None,
    length: int = 50,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    min_per_user: int = 1,
    min_per_item: int = 1,
    negatives: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Return one part of interactions; every interaction is in exactly one part.

    Args:
        rows: columns by name, or a frame, with one interaction per row; or the path or URL of a CSV, TSV, JSON-lines or
            Parquet file or folder. The columns of files are read as text, and `time` as numbers.
        part: "train", "valid" or "test".
        by: how rows are assigned to parts. "leave_one_out": each user's newest interaction is for testing, the one
            before it for validation; users with fewer than three are only in "train". "time": the oldest rows are for
            training and the newest for testing, according to `shares`. "random": each user's rows are divided at
            random, with `seed`, according to `shares`. If a user's share of "valid" or "test" is less than one row,
            that part still gets one row as long as another is left for training.
        user, item, time: names of the columns; rows of equal time keep their order.
        history: name of an added column: the items that the user chose before, at most `length`, newest last. One
            training row then stands for up to `length` choices, for models that learn at every position of a history
            (`sasrec`, `hstu`): each item that a user chose, except the first, is predicted in exactly one row.
        min_per_user, min_per_item: minimum interactions of a user and of an item. Users and items with fewer are
            removed repeatedly until all remaining ones have enough (a k-core, like RecBole's `user_inter_num_interval`
            and `item_inter_num_interval`).
        negatives: number of items per row in the added column ``negatives``, drawn uniformly from the items that the
            user has not chosen in the part. `Trainer.fit` draws them again in each epoch, from `seed` and the epoch.

    Returns:
        Columns by name; histories are a list of arrays. With `negatives`, the columns are a `DrawnNegatives`.

    Raises:
        ConfigurationError: an argument is invalid, or `time` is needed and missing.
        DataError: a file or column does not exist, a row is invalid, a time is not a number, no row is left, or a user
            has chosen all items, so that there are no negatives.
    """
    choice("interactions(part=...)", part, PARTS)
    choice("interactions(by=...)", by, WAYS)
    for name, value in (("length", length), ("min_per_user", min_per_user), ("min_per_item", min_per_item)):
        whole(f"interactions({name}=...)", value)
    whole("interactions(negatives=...)", negatives, 0)
    if negatives and history is not None:
        raise ConfigurationError(
            "interactions(negatives=...) cannot be combined with history: a training row with a history stands for "
            "many choices, and the losses use the other items of the batch as negatives"
        )
    shares = tuple(number("interactions(shares=...)", share, above=0, below=1) for share in shares)
    if len(shares) != 3 or abs(sum(shares) - 1) > 1e-6:
        raise ConfigurationError(f"interactions(shares=...) takes three shares that add up to 1; received {shares}")
    if by == "leave_one_out" and shares != (0.8, 0.1, 0.1):
        logger.warning(
            "interactions(by='leave_one_out') holds out the two newest rows of a user and ignores shares=%s; split by "
            "'time' or 'random' to use them",
            shares,
        )
    if time is None and (by != "random" or history is not None):
        raise ConfigurationError(f"interactions(by={by!r}) orders by time; name its column: time=...")
    if by == "random" and history is not None:
        raise ConfigurationError(
            "interactions(history=...) needs the order in which a user chose, which by='random' ignores; use "
            "'leave_one_out' or 'time'"
        )
    columns = _columns(rows, [user, item] + ([time] if time else []), time)
    columns = _k_core(columns, user, item, min_per_user, min_per_item)
    if not len(columns[user]):
        raise DataError(f"interactions: no rows left with {min_per_user} per user and {min_per_item} per item")
    user_index = np.unique(columns[user], return_inverse=True)[1]
    times = columns[time] if time else np.arange(len(user_index))
    order = np.lexsort((times, user_index))
    if by == "random":
        random_order = np.random.default_rng(seed).random(len(user_index))
        order = np.lexsort((random_order, user_index))
    starts = np.append(np.flatnonzero(np.diff(user_index[order], prepend=-1)), len(order))
    parts = np.zeros(len(order), np.int8)  # part of each row in `order`, as an index of `PARTS`
    if by == "time":
        newest = np.argsort(np.argsort(times, kind="stable"), kind="stable")[order]
        cuts = np.round(np.cumsum(shares)[:2] * len(order))
        parts = (newest[:, None] >= cuts).sum(axis=1)
    else:
        for first, last in pairwise(starts):
            valid, test = (1, 1) if by == "leave_one_out" else _held_out_counts(last - first, shares)
            if by == "leave_one_out" and last - first < 3:
                continue
            parts[last - test - valid : last - test], parts[last - test : last] = 1, 2
    selected = np.flatnonzero(parts == PARTS.index(part))
    if history is None:
        selected_columns = {name: column[np.sort(order[selected])] for name, column in columns.items()}
        if not negatives:
            return selected_columns
        return DrawnNegatives(selected_columns, user, item, "negatives", np.unique(columns[item]), negatives, seed)
    first_rows = np.repeat(starts[:-1], np.diff(starts))
    if part == "train":  # keep each user's last row, and every `length`-th one before it
        last_rows = np.full(len(starts) - 1, -1)
        np.maximum.at(last_rows, user_index[order][selected], selected)
        distance = last_rows[user_index[order][selected]] - selected
        selected = selected[distance % length == 0]
    selected = selected[selected > first_rows[selected]] if part == "train" else selected
    items = columns[item][order]
    selected_columns = {name: column[order[selected]] for name, column in columns.items()}
    return {**selected_columns, history: [items[max(first_rows[row], row - length) : row] for row in selected]}


def _held_out_counts(rows: int, shares: Sequence[float]) -> tuple[int, int]:
    counts = [int(share * rows) for share in shares[1:]]
    left = rows - sum(counts)
    for index in (1, 0):
        if left > 1 and not counts[index]:
            counts[index], left = 1, left - 1
    return counts[0], counts[1]


def _columns(rows: Any, names: Sequence[str], time: str | None) -> dict[str, np.ndarray]:
    if isinstance(rows, str | Path):
        path = local_files(rows)
        file_columns = names_of_file(path, CsvFormat()) or names
        types = {name: Column(np.str_, default="", coerce=True) for name in file_columns}
        types |= {name: Column(np.str_ if name != time else np.float64, coerce=True) for name in names if name in types}
        rows = read_table(path, Schema(types), "the interactions")
    elif is_frame(rows):
        rows = columns_of(rows)
    if not isinstance(rows, Mapping):
        refuse("interactions(rows)", "columns by name, a frame or a path", rows)
    for name in names:
        if name not in rows:
            raise DataError(f"interactions: no column {name!r}; there are {', '.join(rows)}{did_you_mean(name, rows)}")
    columns = {str(name): _array(column) for name, column in rows.items()}
    for name in names[:2]:  # of users and items
        missing = _is_missing(columns[name])
        if missing.any():
            raise DataError(f"interactions: row {np.argmax(missing)} has no {name!r}")
    if time is not None:
        try:
            no_time = np.isnat(columns[time]) if columns[time].dtype.kind in "mM" else False
            columns[time] = np.where(no_time, np.nan, columns[time].astype(np.float64))
        except (TypeError, ValueError) as error:
            raise DataError(f"interactions: column {time!r} must hold times as numbers: {error}") from error
        if not np.isfinite(columns[time]).all():
            raise DataError(f"interactions: row {np.argmin(np.isfinite(columns[time]))} has no {time!r}")
    return columns


def _array(column: Any) -> np.ndarray:
    """Return a column as an array, of objects if integers or other values are missing."""
    if hasattr(column, "null_count") and column.null_count and "int" in str(column.type):
        return np.fromiter(column.to_pylist(), object, len(column))
    if hasattr(column, "isna") and column.dtype.kind not in "fmM" and column.isna().any():
        return column.astype(object).where(column.notna(), None).to_numpy()
    return np.asarray(column)


def _is_missing(column: np.ndarray) -> np.ndarray:
    """Return where a column holds None or NaN, bool [rows]."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind != "O":
        return np.zeros(len(column), bool)
    return np.fromiter((value is None or value != value for value in column), bool, len(column))


def _k_core(columns: dict[str, np.ndarray], user: str, item: str, least_user: int, least_item: int) -> dict[str, Any]:
    while len(columns[user]):
        kept = np.ones(len(columns[user]), bool)
        for name, least in ((user, least_user), (item, least_item)):
            index, counts = np.unique(columns[name], return_inverse=True, return_counts=True)[1:]
            kept &= counts[index] >= least
        if kept.all():
            break
        columns = {name: column[kept] for name, column in columns.items()}
    return columns
