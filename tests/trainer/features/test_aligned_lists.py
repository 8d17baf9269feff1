"""Aligned columns of one sequence: a row whose lists differ in length is set aside, and named with both lengths."""

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.errors import ConfigurationError, DataError
from trainer.experiment import load_config
from trainer.experiment.configuration.problems import ConfigErrors
from trainer.features import Categorical, FeatureEmbedding, Features, ListFeature, WeightedList
from trainer.serving import Publish, ServedModel
from trainer.streams import FileStream, ReplayStream
from trainer.streams.formats.schema import Schema

BAD = (3, 8)
GOOD_ROWS = [
    {"item": f"i{n % 3}", "items": ["i0", None, "i2"][: n % 4], "shops": "s|t|u"[: 2 * (n % 4) - 1]} for n in range(16)
]
ROWS = [
    {**row, "shops": "s|t" if n == 3 else "s" if n == 8 else row["shops"] if n % 4 else "", "y": float(n % 2)}
    for n, row in enumerate(GOOD_ROWS)
]
REASON = "sequence 'visits' takes lists of equal length; received items 3, shops 2"
REPORT = "2 of 16 rows set aside: sequence visits takes lists of equal length 2; the first is "


def make_features(**options):
    return Features(
        [
            Categorical("item", table="items"),
            ListFeature("items", pooling=None, max_length=2, sequence="visits"),
            ListFeature("shops", separator="|", vocabulary=["s", "t"], pooling=None, max_length=2, sequence="visits"),
        ],
        label="y",
        keep=["item"],
        **options,
    )


class Net(nn.Cell):
    """A dense layer on the product of aligned vectors."""

    def __init__(self, features):
        super().__init__()
        self.embedding = FeatureEmbedding(features, 2)
        self.top = nn.Dense(2, 1)

    def construct(self, *columns):
        _, _, ((items, _), (shops, mask)) = self.embedding(*columns)
        return self.top((items * shops * ops.expand_dims(mask, 2)).sum(1))[:, 0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    features = make_features()
    net = Net(features)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=features, seed=0)
    trainer.fit(ROWS, batch_size=7, epochs=2, callbacks=[Publish(folder, batch=7)])
    with ServedModel(folder, follow=False) as model:
        yield trainer, model


def test_lists_stay_aligned_when_values_are_missing_and_lists_are_cut():
    rows = make_features().read(ROWS)
    assert rows.bad[3] == REASON
    assert sorted(rows.bad) == list(BAD)
    inputs = make_features().apply(rows.columns)
    items, shops = inputs["items"], inputs["shops"]
    np.testing.assert_array_equal(items.lengths, shops.lengths)
    np.testing.assert_array_equal(items.lengths, [min(n % 4, 2) for n in range(16) if n not in BAD])
    missing, unseen, s, t = 0, 1, 2, 3
    assert shops[2].tolist() == [s, t]
    last = 6  # row 7: items i0, missing, i2; shops s, t, u, each without its first
    assert shops[last].tolist() == [t, unseen]
    empty = make_features().transform({"item": "i0", "items": ["i0", "i1"], "shops": "s|"})
    assert empty["shops"].values.tolist() == [s, missing]


@pytest.mark.parametrize("form", ["rows", "pandas", "arrow", "columns"])
def test_every_form_of_table_names_columns_and_lengths(form):
    forms = {"rows": list, "pandas": pd.DataFrame, "arrow": pa.Table.from_pylist}
    forms["columns"] = lambda rows: {name: [row[name] for row in rows] for name in rows[0]}
    assert make_features().read(forms[form](ROWS)).bad == make_features().read(ROWS).bad
    with pytest.raises(DataError, match=f"row 3: {REASON}"):
        make_features().transform(forms[form](ROWS))


def test_fit_evaluate_predict_and_a_server_set_the_rows_aside_or_name_them(trained, caplog, tmp_path):
    trainer, model = trained
    assert trainer.state.progress.samples_seen == 2 * 14
    pd.DataFrame(ROWS).to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    good = [row for n, row in enumerate(ROWS) if n not in BAD]
    for data in (ROWS, tmp_path / "rows.jsonl"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert trainer.evaluate(data) == pytest.approx(trainer.evaluate(good))
        assert REPORT in caplog.text
        with pytest.raises(DataError, match=r"takes lists of equal length 2; the first is (row 3|line 4)"):
            trainer.predict(data)
    with pytest.raises(DataError, match=f"row 3: {REASON}"):
        model.predict(ROWS)
    np.testing.assert_array_equal(model.predict(good), trainer.predict(good, batch_size=7))


@pytest.mark.parametrize("kind", ["file", "replay"])
def test_a_stream_sets_them_aside(trained, kind, caplog, tmp_path):
    trainer, _ = trained
    if kind == "file":
        pd.DataFrame(ROWS).to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
        stream = FileStream(tmp_path / "rows.jsonl", end="at_last")
    else:
        stream = ReplayStream({name: [row[name] for row in ROWS] for name in ROWS[0]})
    with caplog.at_level(logging.WARNING):
        trainer.online_train(stream, batch_size=7, callbacks=[])
    assert REPORT in caplog.text


def test_weights_are_aligned_with_their_list():
    features = Features(
        [WeightedList("tags", dtype="int64", weights="w", sequence="s"), ListFeature("times", sequence="s")]
    )
    read = features.read({"tags": [[1, 2], [1, 2]], "w": [[0.5, 1], [0.5]], "times": [[3, 4], [3, 4]]})
    assert read.bad == {1: "sequence 's' takes lists of equal length; received tags 2, w 1, times 2"}


def test_what_cannot_be_aligned_is_refused():
    with pytest.raises(ConfigurationError, match=r"'a' and 'b' are of the sequence 's', with max_length=3 and None"):
        Features([ListFeature("a", sequence="s", max_length=3), ListFeature("b", sequence="s")])
    with pytest.raises(ConfigurationError, match=r"ListFeature\(sequence=...\)"):
        ListFeature("a", sequence="")
    lists = {"a": {"dtype": "int64", "shape": (None,)}, "b": "int64"}
    for aligned, message in (
        ({"s": ["a", "c"]}, "'c' is not among the columns"),
        ({"s": ["a", "b"]}, "'b' holds single values"),
        ({"s": "a"}, "received 'a' for 's'"),
        (["a"], "a mapping from names of sequences"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Schema(lists, aligned=aligned)


def test_a_schema_of_a_stream_declares_them_without_features():
    lists = {"dtype": "int64", "shape": (None,)}
    schema = Schema({"a": lists, "b": lists}, aligned={"s": ["a", "b"]})
    decoded = schema.from_rows([{"a": [1, 2], "b": [3, 4]}, {"a": [1], "b": []}])
    assert decoded.reasons == {1: "sequence 's' takes lists of equal length; received a 1, b 0"}


YAML = """\
experiment: visits
features:
  columns:
    - {kind: categorical, name: item, table: items}
    - {kind: list, name: items, table: items, pooling: null, max_length: 4, sequence: visits}
    - {kind: list, name: shops, pooling: mean, max_length: 4, sequence: visits}
  label: y
network: {model: din}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
data: {train: rows.jsonl}
fit: {epochs: 1}
"""


def test_yaml_declares_them_and_names_a_mistake_at_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(ROWS).to_json("rows.jsonl", orient="records", lines=True)
    path = tmp_path / "visits.yaml"
    path.write_text(YAML)
    load_config(path)
    path.write_text(YAML.replace("sequence: visits}", "sequense: visits}", 1))
    with pytest.raises(ConfigErrors, match=r"visits.yaml:5(?s:.*)did you mean 'sequence'"):
        load_config(path)
