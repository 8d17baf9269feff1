"""The raw rows of MovieLens-100K are those of its files."""

import json

import numpy as np
import pytest

from examples.movielens import GENRES, LABEL, load, split_by_time
from examples.movielens_raw import raw_rows
from trainer.features import Categorical, Features, RawFiles
from trainer.features.feature_data import rows_of


@pytest.mark.long
def test_they_are_the_columns_of_load_before_anything_was_made_of_them(tmp_path):
    path = raw_rows(tmp_path / "rows" / "movielens.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows.sort(key=lambda row: row["time"])  # stable, as `load` sorts
    columns = load()
    for name, column in (("user", "user"), ("item", "item"), ("time", "timestamp"), ("liked", LABEL)):
        np.testing.assert_array_equal([int(row[name]) for row in rows], columns[column])
    genres = [[GENRES[place] for place in np.flatnonzero(flags)] for flags in columns["genres"][:2000]]
    assert [row["genres"] for row in rows[:2000]] == genres
    assert {row["year"] for row in rows} > {None, 1922, 1998}
    written = path.stat().st_mtime_ns
    assert raw_rows(path).stat().st_mtime_ns == written


@pytest.mark.long
def test_the_parts_of_the_experiments_are_those_of_their_baselines(tmp_path):
    path = raw_rows(tmp_path / "movielens.jsonl")
    features = Features([Categorical("user", dtype="int64")], label="liked", event_time="time")
    for part, columns in zip(("train", "test"), split_by_time(load(), share_unknown=False), strict=True):
        rows = list(rows_of(features, RawFiles(path, part=part, valid=0)))
        for name, column in (("user", "user"), ("time", "timestamp"), ("liked", LABEL)):
            found = np.concatenate([batch.columns[name] for batch in rows])
            np.testing.assert_array_equal(np.sort(found), np.sort(columns[column]))
