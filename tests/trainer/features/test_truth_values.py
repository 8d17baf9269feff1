"""A truth value is one category in every format: as CSV, JSON, Arrow and data frames spell it."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from trainer.embedding.tables.hashing import to_ids
from trainer.errors import ConfigurationError, DataError
from trainer.experiment.commands.table_summary import summarize
from trainer.features import Categorical, Cross, Features, ListFeature, Lookup, Numeric
from trainer.features.feature import UNSEEN_ROW
from trainer.features.statistics import ValueCounts
from trainer.streams import FileStream

TRUTH = [n % 3 == 0 for n in range(60)]
SPELLINGS = [("true", "false"), ("True", "False"), ("TRUE", "FALSE")]


def make_features(**options):
    return Features([Categorical("vip", **options), Cross("both", columns=("vip", "zip"))], label="y")


def write_csv(path, yes, no):
    path.write_text("vip,zip,y\n" + "".join(f"{yes if value else no},0301,{int(value)}\n" for value in TRUTH))
    return path


def forms():
    """Yield the column in each form that a request or a file may have."""
    rest = {"zip": ["0301"] * len(TRUTH), "y": [int(value) for value in TRUTH]}
    yield "rows of JSON", [{"vip": value, "zip": "0301", "y": int(value)} for value in TRUTH]
    yield "one list", {"vip": TRUTH, **rest}
    yield "array", {"vip": np.array(TRUTH), **rest}
    yield "Arrow", pa.table({"vip": pa.array(TRUTH), **rest})
    yield "Arrow with a null", pa.table({"vip": pa.array([*TRUTH[:-1], None]), **rest})
    yield "pandas", pd.DataFrame({"vip": TRUTH, **rest})
    yield "pandas, nullable", pd.DataFrame({"vip": pd.array(TRUTH, "boolean"), **rest})
    for yes, no in SPELLINGS:
        texts = [yes if value else no for value in TRUTH]
        yield f"text {yes}", {"vip": texts, **rest}
        yield f"array of text {yes}", {"vip": np.array(texts), **rest}
        yield f"Arrow text {yes}", pa.table({"vip": texts, **rest})


@pytest.mark.long(but=["true-false-options0", "True-False-options1", "TRUE-FALSE-options2", "True-False-options3"])
@pytest.mark.parametrize(
    "options", [{"vocabulary": "learn"}, {}, {"hash_buckets": 50}, {"vocabulary": [True, "False"]}]
)
@pytest.mark.parametrize(("yes", "no"), SPELLINGS)
def test_what_a_csv_taught_is_known_in_every_form(tmp_path, yes, no, options):
    features = make_features(**options)
    features.fit(write_csv(tmp_path / "rows.csv", yes, no))
    expected = None
    for name, form in forms():
        ids = features.transform(form)["ids"]
        if expected is None:
            expected = ids
            assert len(np.unique(ids[:, 0])) == len(np.unique(ids[:, 1])) == 2, name
            assert UNSEEN_ROW not in ids[:, 0] or "hash_buckets" in options
        good = len(TRUTH) - ("null" in name and name.startswith("Arrow"))
        np.testing.assert_array_equal(ids[:good], expected[:good], err_msg=name)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_of_any_format_gives_the_words(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    table = pd.DataFrame({"vip": TRUTH, "n": range(len(TRUTH))})
    if suffix == "csv":
        table.to_csv(path, index=False)
    elif suffix == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    columns = {"vip": {"dtype": "str", "coerce": True}, "n": "int64"}
    stream = FileStream(path, {"columns": columns}, end="at_last")
    read = stream.poll(100, 5.0).columns["vip"]
    stream.close()
    assert read.tolist() == ["true" if value else "false" for value in TRUTH]


def test_other_texts_stay_as_they_are():
    texts = ["true", "tree", "Truth", "FALSEHOOD", "flash", " true", "yes", "", "t", "False"]
    values = Features([Categorical("a")]).read({"a": texts}).columns["a"].tolist()
    assert values == [*texts[:-1], "false"]
    assert Features([Categorical("a")]).read({"a": np.array(texts)}).columns["a"].tolist() == values


def test_elements_of_lists_too():
    plain, written = ListFeature("a", pooling="mean"), ListFeature("a", separator="|")
    expected = to_ids(np.array(["true", "x", "false"])).tolist()
    for form in ([[True, "x", False]], [["True", "x", "FALSE"]]):
        assert Features([plain]).transform({"a": form})["a"].values.tolist() == expected
    assert Features([written]).transform({"a": ["True|x|FALSE"]})["a"].values.tolist() == expected


@pytest.mark.parametrize(("yes", "no"), SPELLINGS)
def test_init_counts_the_values_that_are_learned(tmp_path, yes, no):
    path = tmp_path / "rows.csv"
    cells = [yes, no, "true", "unknown"] * 20
    path.write_text("vip,y\n" + "".join(f"{cell},{n % 2}\n" for n, cell in enumerate(cells)))
    features = Features([Categorical("vip", vocabulary="learn")], label="y")
    features.fit(path)
    assert summarize(path).column("vip").distinct == features.statistics["vip"].vocabulary.count == 3
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"vip": value}) + "\n" for value in [True, "TRUE", False, "unknown"] * 5))
    assert summarize(rows).column("vip").distinct == 3


def test_a_vocabulary_of_an_older_version_knows_the_words():
    """It holds the spelling of its data: True of Parquet, the row of which answers for true now."""
    old = np.sort(to_ids(np.array(["True", "False", "a", "b"])))
    counts = ValueCounts()
    counts.load_state_dict({"arrays": {"ids": old, "counts": np.arange(4), "rows": np.arange(2, 6)}, "json": {}})
    row_of = dict(zip(old.tolist(), range(2, 6), strict=True))
    for before, now in (("True", "true"), ("False", "false"), ("a", "a"), ("b", "b")):
        before, now = to_ids(np.array([before, now]))
        assert counts.vocabulary.rows_of(np.array([now])).tolist() == [row_of[int(before)]]
    counts.add(to_ids(np.array(["true", "c"])))  # the ids are still in order
    assert len(counts.ids) == 5


def test_a_number_is_no_truth_value_of_text():
    with pytest.raises(DataError):
        Features([Categorical("a", required=True)]).fit({"a": [None]})
    values = Features([Categorical("a")]).read({"a": [1, 0, True]}).columns["a"].tolist()
    assert values == ["1", "0", "true"]


def test_classes_of_a_label_and_keys_of_a_map_are_words_as_their_values_are():
    features = Features(
        [Lookup("share", column="shares", key="known", missing=-1)], label="bought", label_classes=["False", "True"]
    )
    rows = {"shares": ["True:0.5|FALSE:0.25"] * 2, "known": [True, "False"], "bought": ["True", False]}
    inputs = features.batch(features.read(rows).columns)
    assert inputs["numbers"].ravel().tolist() == [0.5, 0.25]
    assert inputs["bought"].tolist() == [1, 0]
    assert features.label_classes == ("false", "true")
    with pytest.raises(ConfigurationError, match="two or more different texts"):
        Features([Numeric("x")], label="y", label_classes=["true", "True"])
