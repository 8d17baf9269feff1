"""Commands read the rows of a file as training does: texts that look like numbers stay texts."""

import csv
import logging
import random

import pandas as pd
import pytest

from trainer.errors import ConfigurationError, DataError
from trainer.experiment.cli import main
from trainer.experiment.commands.declared_rows import DeclaredRows
from trainer.features import Categorical, Features, Numeric

FORMATS = ("csv", "tsv", "jsonl", "parquet")


def make_table():
    """A label that follows from codes with leading zeros and from a truth value."""
    draw = random.Random(3)
    rows = []
    for _ in range(1200):
        vip, code = draw.random() < 0.5, draw.randint(0, 9)
        rows.append(
            {
                "vip": vip,
                "zip": f"0{code}01",
                "x": round(draw.random(), 3),
                "bought": int(2 * vip + (code % 2) + draw.random() > 1.6),
            }
        )
    return pd.DataFrame(rows)


def write(table, path):
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_MINIMAL)
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with a published model of zip and vip, and its rows in every format."""
    folder = tmp_path_factory.mktemp("rows")
    table = make_table()
    for suffix in FORMATS:
        write(table, folder / f"rows.{suffix}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["init", "rows.csv", "--label", "bought"]) == 0
        text = (folder / "rows.yaml").read_text().replace("name: zip, dtype: int64", "name: zip")
        (folder / "rows.yaml").write_text(text)
        assert main(["fit", "rows.yaml"]) == 0
    return folder, table


def test_rows_have_the_declared_types_and_what_is_set_aside_is_told(tmp_path, caplog):
    features = Features([Categorical("zip"), Categorical("n", dtype="int64"), Numeric("x", required=True)])
    path = tmp_path / "rows.csv"
    path.write_text("zip,n,x\n0301,1,2\n0302,2,three\n0303,,1\n")
    with caplog.at_level(logging.WARNING):
        blocks = list(DeclaredRows(str(path), features.csv).blocks(features.columns, 1, 1.0))
    assert [block["zip"].tolist() for block in blocks] == [["0301"], ["0303"]]
    assert "1 of 3 rows set aside" in caplog.text
    with pytest.raises(DataError, match="takes float64"):
        list(DeclaredRows(str(path), features.csv).blocks(features.columns, 10, 0.0))
    with pytest.raises(ConfigurationError, match="has none of the columns"):
        list(DeclaredRows(str(path), features.csv).blocks({"other": features.columns["zip"]}, 10, 0.0))
