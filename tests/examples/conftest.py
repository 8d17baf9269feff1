"""MovieLens-100K's raw rows in files that are read in less time than `examples.movielens_raw` writes."""

import pyarrow.json
import pyarrow.parquet
import pytest

from examples.movielens_raw import raw_rows

DATASETS = ("data.train", "data.valid", "data.test")


@pytest.fixture(scope="session")
def raw_movielens(tmp_path_factory):
    """The rows as JSON lines."""
    return raw_rows(tmp_path_factory.mktemp("movielens") / "movielens.jsonl")


@pytest.fixture(scope="session")
def from_parquet(raw_movielens):
    """Options that make an experiment read the rows from a Parquet file; test_configs.py reads JSON lines."""
    path = raw_movielens.with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.json.read_json(raw_movielens), path)
    return [word for name in DATASETS for word in ("--set", f"{name}.init_args.path={path}")]
