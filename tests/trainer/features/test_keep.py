"""Columns that are kept come back with the predictions of their rows, from the trainer and from a server."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mindspore import nn

from tests.trainer.features.test_training import Small
from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.experiment.commands.prediction_file import write_columns
from trainer.features import Categorical, Features, ListFeature, Numeric, RawFiles
from trainer.features.feature_data import KeptColumns, inputs_of, rows_of
from trainer.serving import Publish, ServedModel

ROWS = 300
TABLE = {
    "x": np.arange(float(ROWS)),
    "c": ["a", "b", None] * (ROWS // 3),
    "user": [f"user {n}" for n in range(ROWS)],
    "note": [None if n % 7 == 0 else f"n{n}" for n in range(ROWS)],
    "y": [0, 1, 1] * (ROWS // 3),
}
KEPT = [f"user {n}" for n in range(ROWS)]


def make_trainer(**options):
    options = {"keep": ["user", "note", "x"], **options}
    features = Features([Numeric("x", normalize="standard"), Categorical("c")], label="y", **options)
    net = Small(features)
    return Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params()), features=features)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder") / "model"
    trainer = make_trainer()
    trainer.fit(TABLE, batch_size=100, callbacks=[Publish(folder, batch=100)])
    with ServedModel(folder, follow=False) as model:
        yield trainer, model


def check(answer, scores):
    assert list(answer) == ["prediction", "user", "note", "x"]
    np.testing.assert_array_equal(answer["prediction"], scores)
    assert answer["user"].tolist() == KEPT
    assert answer["note"].tolist() == [note or "" for note in TABLE["note"]]
    np.testing.assert_array_equal(answer["x"], TABLE["x"])


def test_a_table_and_a_file_are_answered_with_their_columns(served, tmp_path):
    trainer, _ = served
    scores = trainer.predict(TABLE, batch_size=64)
    check(trainer.predict(TABLE, batch_size=64, keep=True), scores)
    path = tmp_path / "rows.csv"
    cells = zip(TABLE["x"], TABLE["c"], TABLE["user"], TABLE["note"], strict=True)
    path.write_text("x,c,user,note\n" + "".join(f"{x},{c or ''},{user},{note or ''}\n" for x, c, user, note in cells))
    for in_memory in (True, False):
        check(trainer.predict(RawFiles(path, in_memory=in_memory), batch_size=64, keep=True), scores)
        parts = list(trainer.predict(RawFiles(path, in_memory=in_memory), batch_size=64, stream=True, keep=True))
        assert [len(part["user"]) for part in parts] == [64, 64, 64, 64, 44]
        check({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, scores)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([3, 2**62 + 1], [3, 2**62 + 1]),
        (np.array([3, 2**63 + 1], np.uint64), [3, 2**63 + 1]),
        ([3, None], [3, None]),
        ([0.5, float("nan")], [0.5, None]),
        ([True, False], [True, False]),
        ([3, "a"], ["3", "a"]),
        (["007", None], ["007", ""]),
        ([None, None], ["", ""]),
        (np.array(["2024-02-03", "NaT"], "datetime64[ns]"), ["2024-02-03", ""]),
    ],
)
def test_what_no_feature_reads_comes_back_with_its_type_whatever_way_the_rows_come(given, expected, tmp_path):
    features = Features([Numeric("x")], keep=["k"])
    rows = {"x": [1.0, 2.0], "k": given}
    frame = pd.DataFrame({"x": rows["x"], "k": pd.Series(given, dtype=getattr(given, "dtype", object))})
    ways = {"dict": rows, "frame": frame}
    if not isinstance(given, np.ndarray):
        ways["rows"] = [{"x": x, "k": k} for x, k in zip(rows["x"], given, strict=True)]
    if len({type(value) for value in given} - {type(None)}) == 1:
        pq.write_table(pa.table({"x": rows["x"], "k": pa.array(given, from_pandas=True)}), tmp_path / "rows.parquet")
        ways |= {"arrow": pq.read_table(tmp_path / "rows.parquet"), "file": tmp_path / "rows.parquet"}
    for way, data in ways.items():
        if way == "file":
            (part,) = rows_of(features, data, labelled=False, kept=True)
            found = part.columns["k"].tolist()
        else:
            found = features.transform(data, keep=True).kept["k"].tolist()
        shown = [value[:10] if isinstance(value, str) else value for value in found]
        assert shown == expected, way
        assert [type(value) for value in shown] == [type(value) for value in expected], way


def test_a_server_answers_with_them(served):
    _, model = served
    rows = {name: column for name, column in TABLE.items() if name != "y"}
    scores = model.predict(rows)
    check(model.predict(rows, keep=True), scores)
    check(model.predict(**rows, keep=True), scores)
    one = model.predict({"x": 3.0, "c": "a", "user": "u"}, output="probability", keep=True)
    assert one["user"].tolist() == ["u"]
    assert one["note"].tolist() == [""]


def test_nothing_to_keep_is_an_error(served):
    trainer, _ = served
    with pytest.raises(ConfigurationError, match="one argument of raw rows"):
        trainer.predict(np.zeros((3, 1), np.float32), np.zeros((3, 1), np.int64), keep=True)
    with pytest.raises(ConfigurationError, match="no columns are kept"):
        make_trainer(keep=[]).predict(TABLE, keep=True)
    with pytest.raises(ConfigurationError, match="other than 'prediction'"):
        make_trainer(keep=["prediction"])


@pytest.mark.parametrize("event_time", [None, "seen"])
def test_the_kept_rows_of_a_part_are_those_that_an_evaluation_reads(event_time, tmp_path):
    """Parts count the rows that have a label, or are divided by a time that no feature reads."""
    path = tmp_path / "rows.csv"
    lines = [f"{n},user {n},{'' if n % 3 == 0 else n % 2},{1.6e9 + 3600 * n:.0f}" for n in range(ROWS)]
    path.write_text("\n".join(["x,user,y,seen", *lines]) + "\n")
    features = Features([Numeric("x")], label="y", event_time=event_time, keep=["user", "y"])
    data = RawFiles(path, part="test")
    (evaluated,) = rows_of(features, data)
    assert 0 < evaluated.good < ROWS // 3
    (kept,) = rows_of(features, data, labelled=False, kept=True)
    assert kept.columns["user"].tolist() == [f"user {x:.0f}" for x in evaluated.columns["x"]]
    assert kept.columns["y"].tolist() == evaluated.columns["y"].tolist()
    (shown,) = rows_of(features, data, labelled=False)
    assert shown.columns["x"].tolist() == evaluated.columns["x"].tolist()


def test_a_kept_label_may_be_missing_where_rows_are_predicted(tmp_path):
    trainer = make_trainer(keep=["y", "w"], weight="w")
    trainer.features.fit({**TABLE, "w": [1.0] * ROWS})
    labels = [None if n % 3 == 0 else n % 2 for n in range(ROWS)]
    table = {**TABLE, "y": labels}
    path = tmp_path / "rows.csv"
    pd.DataFrame(table).astype({"y": "Int64"}).to_csv(path, index=False)
    scores = trainer.predict(TABLE, batch_size=64)
    weights = ["heavy"] * ROWS
    for data in ({**table, "w": weights}, path, RawFiles(path, in_memory=False)):
        answer = trainer.predict(data, batch_size=64, keep=True)
        np.testing.assert_array_equal(answer["prediction"], scores)
        assert [None if y in (None, "") else int(y) for y in answer["y"]] == labels
    named = Features([Numeric("x")], label="y", label_classes=["no", "yes"], keep=["y"])
    kept = KeptColumns()
    assert list(inputs_of(named, {"x": [1.0, 2.0], "y": [None, "other"]}, labelled=False, kept=kept)) == ["numbers"]
    assert kept.take(2)["y"].tolist() == ["", "other"]


def test_parts_of_different_number_types_are_joined_exactly():
    kept, features = KeptColumns(), Features([Numeric("x")], keep=["k"])
    for values in ([2**60 + 1, 5], [0.5, 1.5], [2**63 + 1, 7], [True, False]):
        kept.add(features.transform({"x": [1.0, 2.0], "k": values}, keep=True).kept)
    assert kept.take(8)["k"].tolist() == [2**60 + 1, 5, 0.5, 1.5, 2**63 + 1, 7, True, False]


def test_kept_columns_that_features_read_have_none_where_an_id_is_missing(tmp_path):
    columns = [
        Categorical("k", dtype="int64"),
        ListFeature("l", dtype="int64", sequence="s"),
        Numeric("n"),
    ]
    features = Features(columns, keep=["k", "l"])
    rows = {"k": [2**60 + 1, None, 3], "l": [[1, None], [], [2]], "n": [1.0, 2.0, 3.0]}
    kept = features.transform(rows, keep=True).kept
    assert kept["k"].tolist() == [2**60 + 1, None, 3]
    assert [list(row) for row in kept["l"]] == rows["l"]
    collected = KeptColumns()
    inputs_of(features, rows, labelled=False, kept=collected)
    inputs_of(features, {**rows, "k": [4, 5, 6], "l": [[7], [8], []]}, labelled=False, kept=collected)
    write_columns(tmp_path / "answers.jsonl", [collected.take(2), collected.take(4)])
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [answer["k"] for answer in answers] == [2**60 + 1, None, 3, 4, 5, 6]
    assert [answer["l"] for answer in answers] == [[1, None], [], [2], [7], [8], []]


def test_kept_numbers_that_a_feature_rounds_are_reported(caplog):
    features = Features([Numeric("order")], keep=["order"])
    assert features.transform({"order": [2**53 - 1, None]}, keep=True).kept["order"][0] == 2**53 - 1
    assert not caplog.records
    features.transform({"order": [2**60 + 1, None]}, keep=True)
    assert "keep: a feature reads 'order' as a number" in caplog.text


class Products(nn.Cell):
    """The products of all scores, whose width is the batch's, and a number before or after them."""

    def __init__(self, network, number_first):
        super().__init__()
        self.network, self.number_first = network, number_first

    def construct(self, *columns):
        scores = self.network(*columns).reshape(-1)
        products = scores.expand_dims(1) * scores
        return (3, products) if self.number_first else (products, 3)


def test_rows_are_counted_by_an_output_that_has_them():
    trainer = make_trainer()
    trainer.features.fit(TABLE)
    of_products, of_number = (Trainer(Products(trainer.network, f), features=trainer.features) for f in (False, True))
    answer = of_products.predict(TABLE, batch_size=64, keep=True)
    assert [part.shape for part in answer["prediction"][0]] == [(64, 64)] * 4 + [(44, 44)]
    assert answer["user"].tolist() == KEPT
    parts = list(of_number.predict(TABLE, batch_size=64, keep=True, stream=True))
    assert [len(part["user"]) for part in parts] == [64, 64, 64, 64, 44]
