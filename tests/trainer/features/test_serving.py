"""A published model takes raw rows and gives the trainer's scores, to the bit."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mindspore import nn, set_seed

from tests.trainer.features.every_kind import Net, as_columns, make_features, make_rows
from tests.trainer.features.test_training import Weighted
from trainer import Trainer
from trainer.errors import ConfigurationError, DataError
from trainer.features import Categorical, Custom, Features, ListFeature, Numeric
from trainer.models import DeepFM
from trainer.serving import Publish, ServedModel

ROLES = {"weight": "importance", "group": "session", "event_time": "seen", "keep": ["request", "user"]}


def with_roles(rows):
    """Return rows with a weight, a group, an event time and a column kept for output."""
    return [
        {
            **row,
            "importance": 1 + n % 3,
            "session": f"s{n % 40}" if n % 9 else None,
            "seen": 1.7e9 + n,
            "request": f"r{n}",
        }
        for n, row in enumerate(rows)
    ]


LABELLED = with_roles(make_rows(10_000, seed=5, missing=0.2))
GIVEN = [name for name in LABELLED[0] if name not in ("click", "importance", "session", "seen")]
UNSEEN = [{name: row[name] for name in GIVEN} for row in LABELLED]
WITH_MISSING = dict.fromkeys(UNSEEN[0])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Publish into a folder whose name has a space; return the trainer and the served model."""
    folder = tmp_path_factory.mktemp("a folder") / "my model"
    set_seed(0)
    features = make_features(max_length=8, **ROLES)
    net = Net(features)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    options = {"features": features, "seed": 0, "prediction_activation": "sigmoid"}
    trainer = Trainer(net, Weighted(), optimizer, {"gauc/session"}, **options)
    trainer.fit(with_roles(make_rows(600)), epochs=1, batch_size=64, callbacks=[Publish(folder, batch=256)])
    with ServedModel(folder, follow=False) as model:
        yield trainer, model


def test_scores_of_raw_rows_are_the_trainers_to_the_bit(served):
    trainer, model = served
    scores = model.predict(UNSEEN)
    np.testing.assert_array_equal(scores, trainer.predict(UNSEEN, batch_size=256))
    assert len(np.unique(scores)) > 9000
    columns = as_columns(UNSEEN[:1000])
    for form in (columns, pd.DataFrame(columns), pa.table(columns)):
        np.testing.assert_array_equal(model.predict(form), scores[:1000])
    np.testing.assert_array_equal(model.predict(**columns), scores[:1000])
    np.testing.assert_array_equal(model.predict(UNSEEN[3]), scores[3:4])
    assert np.isfinite(model.predict(WITH_MISSING)).all()


def test_roles_change_no_score_and_kept_columns_come_with_theirs(served):
    """Rows with label, weight, group and event time are served the scores of the rows without."""
    trainer, model = served
    # whole batches: a program of another size may give another last bit (docs/serving.md); MindSpore 2.8 does
    rows, scores = LABELLED[:1024], model.predict(UNSEEN[:1024])
    np.testing.assert_array_equal(model.predict(rows), scores)
    np.testing.assert_array_equal(trainer.predict(rows, batch_size=256), scores)
    ours, theirs = model.predict(rows, keep=True), trainer.predict(rows, batch_size=256, keep=True)
    assert list(ours) == list(theirs) == ["prediction", "request", "user"]
    for name, column in theirs.items():
        np.testing.assert_array_equal(ours[name], column)
    np.testing.assert_array_equal(ours["prediction"], scores)
    assert ours["request"].tolist() == [f"r{n}" for n in range(len(rows))]


@pytest.mark.long
def test_lists_longer_than_any_in_training_are_served(tmp_path):
    """DeepFM reads the list with two tables, which share the positions of its ids."""
    rng = np.random.default_rng(0)
    rows = [{"user": user % 7, "tags": "a|b" if user % 2 else "c", "y": float(rng.integers(2))} for user in range(64)]
    declared = Features([Categorical("user"), ListFeature("tags", separator="|", max_length=8)], label="y")
    network = DeepFM(declared, dim=2, hidden=[4])
    trainer = Trainer(
        network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-2), features=declared, seed=1
    )
    trainer.fit(rows, epochs=1, batch_size=32, callbacks=[Publish(tmp_path, batch=32)])
    longer = [{"user": 1, "tags": "a|b|c|d|e|f|g"}, {"user": 2, "tags": "b"}]
    with ServedModel(tmp_path, follow=False) as model:
        np.testing.assert_allclose(model.predict(longer), trainer.predict(longer), rtol=1e-6)


def test_lists_may_have_the_names_of_masks_and_lengths_of_other_lists(tmp_path):
    names = ("film_lengths", "film", "face_mask")
    lists = [ListFeature(name, max_length=4) for name in names]
    declared = Features([Categorical("user"), *lists], label="y")
    network = DeepFM(declared, dim=2, hidden=[4])
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), ("adam", {"learning_rate": 0.1}), features=declared, seed=1)
    rows = [{name: ["ab"[n % 2], name][: n % 4] for name in names} | {"user": n % 3, "y": n % 2} for n in range(32)]
    trainer.fit(rows, epochs=2, batch_size=16, callbacks=[Publish(tmp_path, batch=32, on_error="raise")])
    asked = [{**{key: ["a"] for key in names}, name: ["b"]} for name in ("user", *names)]
    asked = [{**row, "user": 1} for row in asked]
    scores = trainer.predict(asked)
    assert len(np.unique(scores)) == 4  # each of the lists is read
    with ServedModel(tmp_path, follow=False) as model:
        np.testing.assert_allclose(model.predict(asked), scores, rtol=1e-5)


def test_names_that_begin_with_a_dollar_are_served(tmp_path):
    columns = [
        Numeric("$age", normalize="standard"),
        Categorical("$browser", vocabulary="learn"),
        ListFeature("$tags", max_length=2),
    ]
    declared = Features(columns, label="y")
    trainer = Trainer(
        DeepFM(declared, dim=2, hidden=[4]), nn.BCEWithLogitsLoss(), ("adam", {}), features=declared, seed=1
    )
    rows = [{"$age": 30 + n, "$browser": "ab"[n % 2], "$tags": ["x"] * (n % 3), "y": n % 2} for n in range(32)]
    trainer.fit(rows, epochs=1, batch_size=16, callbacks=[Publish(tmp_path, batch=32, on_error="raise")])
    with ServedModel(tmp_path, follow=False) as model:
        np.testing.assert_allclose(model.predict(rows[:9]), trainer.predict(rows[:9]), rtol=1e-5)


def test_probabilities_are_those_of_the_loss(served):
    scores = served[1].predict(UNSEEN[:50])
    expected = 1 / (1 + np.exp(-scores.astype(np.float64)))
    np.testing.assert_allclose(served[1].predict(UNSEEN[:50], output="probability"), expected, rtol=1e-6)
    with pytest.raises(ConfigurationError, match="did you mean 'probability'"):
        served[1].predict(UNSEEN[:5], output="probabilty")


def test_what_could_not_be_served_is_refused_before_training(tmp_path):
    def local(x):
        return x

    for feature, message in (
        (ListFeature("c"), "max_length"),
        (Custom("c", function=local, columns=["x"]), "into its own module"),
    ):
        features = Features([Numeric("x"), Categorical("k"), feature], label="y")
        net = Net(features)
        trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params()), features=features)
        with pytest.raises(ConfigurationError, match=message):
            trainer.fit({"x": [1.0], "k": ["a"], "y": [1.0]}, batch_size=1, callbacks=[Publish(tmp_path / "model")])
        assert trainer.state.progress.global_step == 0


def test_bad_rows_are_left_out_where_asked_and_named_with_their_reasons(served):
    """A history that is no list, an age that is no number: their neighbours get the answers they get alone."""
    model = served[1]
    rows = [dict(row) for row in UNSEEN[:300]]
    rows[7]["age"], rows[0]["user"], rows[299]["age"] = "old", "anonymous", {"years": 3}
    good = [row for number, row in enumerate(rows) if number not in (0, 7, 299)]
    answer = model.predict(rows, set_aside=True)
    assert list(answer) == ["prediction", "set_aside"]
    np.testing.assert_array_equal(answer["prediction"], model.predict(good))
    assert sorted(answer["set_aside"]) == [0, 7, 299]
    assert answer["set_aside"][7].startswith("column 'age' takes float64; received")
    assert answer["set_aside"][0].startswith("column 'user' takes int64; received")
    kept = model.predict(rows, set_aside=True, keep=True, output="probability")
    assert list(kept) == ["prediction", "set_aside", "request", "user"]
    assert kept["request"].tolist() == [row["request"] for row in good]
    assert model.predict(good[:2], set_aside=True)["set_aside"] == {}
    for one in (rows[7], [rows[7]]):
        with pytest.raises(DataError, match="row 0: column 'age' takes float64; received"):
            model.predict(one, set_aside=True)
    with pytest.raises(DataError, match=r"column '(age|user)' takes"):
        model.predict(rows)
    with pytest.raises(ConfigurationError, match=r"set_aside=True\) needs raw rows"):
        model.predict(model.features.transform(good[:3]), set_aside=True)
    with pytest.raises(ConfigurationError, match="other than 'set_aside', that of why rows are left out"):
        Features([Numeric("x")], keep=["set_aside"])


def test_a_forbidden_row_is_named_instead_of_left_out():
    strict = Features([Numeric("x", required=True)])
    with pytest.raises(DataError, match="row 1: column 'x' is missing"):
        strict.transform({"x": [1.0, None]})


def test_the_declaration_gives_the_same_features():
    declared = make_features(max_length=8)
    again = Features.from_declaration(declared.declaration())
    assert again.declaration() == declared.declaration()
    assert again.inputs == declared.inputs
