"""Implement `trainer recommend`: write the best items for users to a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checks import choice, refuse, whole
from ...errors import ConfigurationError

if TYPE_CHECKING:
    from ...features.features import Features
    from ...serving.served_model import ServedModel

_USERS_PER_BATCH = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("folder", metavar="RUN_OR_PUBLISHED", help="run folder, or folder that Publish writes to, with items")
    add("--users", metavar="FILE", required=True, help="raw rows of users: .csv, .tsv, .jsonl, .parquet, or a folder")
    add("--user-id", metavar="COLUMN", help="column of --users that names them; default: the first one")
    add("--without", metavar="COLUMN", help="column of --users with lists of ids to leave out of a user's items")
    add(
        "--filter",
        metavar="COLUMN=VALUE",
        action="append",
        default=[],
        help="recommend only items with this value; give a column several times to allow several values",
    )
    add("-k", type=int, default=10, help="items per user; default: 10")
    add("--output", metavar="FILE", type=Path, required=True, help=".csv, .jsonl or .parquet: a row per user and item")


def run(args: argparse.Namespace) -> None:
    """Write the recommendations, and print their number.

    Raises:
        ConfigurationError: an argument is invalid, the run does not publish, or the version has no items.
        CheckpointError: there is no intact version.
        DataError: the file has no users, or none of the columns that describe a user.
        TrainerError: the output file cannot be written.
    """
    from ...serving.served_model import ServedModel
    from ..runs import run_folder
    from ..runs.restart import published_by
    from .prediction_file import WRITERS, write_columns

    choice("--output: the end of the file's name", args.output.suffix, WRITERS)
    whole("-k", args.k)
    folder = Path(args.folder)
    if (folder / run_folder.CONFIG).is_file():
        published = published_by(folder)
        if published is None:
            raise ConfigurationError(f"run {folder} does not publish; the callback Publish(items=...) does, with items")
        folder = published
    with ServedModel(folder, follow=False) as model:
        empty = f"recommend: {args.users} has no users, or --filter and --without leave no items"
        rows = write_columns(args.output, _recommendations(model, args), empty)
        print(f"version {model.version}: {rows:,} recommendations written to {args.output}")


def _recommendations(model: ServedModel, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield recommendations as columns: user, rank, item and score."""
    from ...features.feature import list_column, text_column
    from .declared_rows import DeclaredRows

    features = model.features
    if features is None or model.items is None:
        raise ConfigurationError(f"version {model.version} has no items to recommend; set them by Publish(items=...)")
    table = DeclaredRows(args.users, features.csv)
    model.items.check_user(table.names)
    name = table.names[0] if args.user_id is None else args.user_id
    table.check_column(name)
    columns = {name: text_column(required=False), **features.columns}
    if args.without is not None:
        table.check_column(args.without)
        dtype = "str" if model.items.index.ids.dtype.kind == "U" else "int64"
        columns.setdefault(args.without, list_column(dtype))
    options: dict[str, Any] = {"filter": model.items.parse_filters(args.filter)}
    history = model.items.history
    for block in table.blocks(columns, _USERS_PER_BATCH, features.max_bad_share):
        ids = block[name] if name in features.columns else block.pop(name)
        if isinstance(ids, np.ma.MaskedArray):
            ids = np.array(ids.tolist(), object)  # None where masked
        if args.without is not None:
            options["without"] = _ids_of_lists(features, args.without, block[args.without])
        if history is None:
            options["users"] = {name: column for name, column in block.items() if name in features.columns}
        else:
            options["history"] = _known_ids(block[history])
        _, items, scores = model.recommend(k=args.k, **options)
        counts = [len(row) for row in items]
        yield {
            "user": np.repeat(ids, counts),
            "rank": np.concatenate([np.arange(1, count + 1) for count in counts]),
            "item": np.concatenate(items),
            "score": np.concatenate(scores),
        }


def _ids_of_lists(features: Features, name: str, column: Any) -> list[list[Any]]:
    """Return the ids in each row of lists, or of texts that features split."""
    from ...features.lists import ListFeature
    from ...streams.formats.ragged_column import Ragged

    if not isinstance(column, Ragged):
        reader = next((f for f in features.features if isinstance(f, ListFeature) and f.source == name), None)
        if reader is None:
            refuse("--without", "a column of lists of ids", f"{name}, which the features read as single values")
        column = reader.lists({name: column})
    return _known_ids(column)


def _known_ids(lists: Any) -> list[list[Any]]:
    """Return the ids of each list, without missing ones."""
    return [[value for value in row.tolist() if value is not None] for row in lists]
