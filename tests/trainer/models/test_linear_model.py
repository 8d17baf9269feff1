"""The regression over declared features equals scikit-learn's, and a network may begin as it."""

import numpy as np
import pytest
from mindspore import nn
from sklearn.linear_model import LogisticRegression, Ridge

from tests.trainer.models.tables import ROWS, make_features, make_rows
from trainer import Trainer, models
from trainer.features import Categorical, Features, Numeric, WeightedList
from trainer.models.layers import LabelUnits, Linear
from trainer.models.linear_model import LinearModel

RANDOM = np.random.default_rng(0)
RAW = {**make_rows(), "w": RANDOM.uniform(0.1, 2, ROWS).round(2), "kind": RANDOM.integers(0, 3, ROWS)}
RAW["kind"] = np.where(np.array(RAW["item"]) > 6, 2, RAW["kind"])
RAW["amount"] = 50 + 20 * np.array(RAW["item"]) + RANDOM.normal(0, 30, ROWS)
LABELS = {"click": 2, "kind": 3, "amount": 1}


def one_hot(lists, sums=False):
    known = sorted({value for values in lists for value in values})
    table = np.array([[list(values).count(value) for value in known] for values in lists], float)
    return table if sums else table / np.maximum(1, table.sum(1, keepdims=True))


def design(features, inputs):
    """Return the columns of the regression, made without it; items and history share a table."""
    numbers = inputs["numbers"].astype(float)
    deviation = numbers.std(0)
    items = [[f"{item}"] for item in RAW["item"]]
    shared = one_hot([*items, *([f"{item}" for item in part[:4]] for part in RAW["history"])])
    return np.hstack(
        [
            (numbers - numbers.mean(0)) / np.where(deviation > 0, deviation, 1),
            one_hot([[user] for user in RAW["user"]]),
            shared[:ROWS] + shared[ROWS:],
            one_hot(RAW["genres"]),
        ]
    )


@pytest.mark.parametrize("label", LABELS)
def test_its_outputs_are_those_of_scikit_learn(label):
    features = Features(make_features(label).features, label=label, weight="w")
    features.fit(RAW)
    inputs = features.transform(RAW) | {name: np.asarray(RAW[name], np.float32) for name in (label, "w")}
    found = LinearModel(features, inputs, LABELS[label]).outputs(inputs)
    x, y, weight = design(features, inputs), np.asarray(RAW[label], float), RAW["w"]
    if label == "amount":
        expected = Ridge(solver="cholesky").fit(x, y, weight).predict(x)
    else:
        model = LogisticRegression(max_iter=10_000, tol=1e-9).fit(x, y, weight)
        expected = model.decision_function(x)
    if label == "kind":  # the logits of classes have no origin
        found, expected = (values - values.mean(1, keepdims=True) for values in (found, expected))
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "label", "options"),
    [
        ("lr", "click", {}),
        ("fm", "click", {"dim": 2}),
        ("wide_deep", "kind", {"dim": 2, "hidden": [4], "classes": 3}),
        ("deepfm", "amount", {"dim": 2, "hidden": [4], "mean": 100.0, "deviation": 40.0}),
    ],
)
def test_a_network_by_name_begins_as_the_regression(name, label, options):
    """Numbers, ids of sparse and dense tables, a table that a list shares, weighted and pooled lists, unseen ids."""
    columns = [feature for feature in make_features(label).features if feature.name not in ("genres", "user")]
    columns += [WeightedList("genres", weights="scores", pooling="sqrtn", max_length=3)]
    columns += [Categorical("user", dtype="int64", vocabulary=list(range(40)), options={"mode": "dense"})]
    columns += [Numeric("age2", column="age", normalize="standard", indicator=True)]
    features = Features(columns, label=label, label_dtype="int32" if label == "kind" else "float32")
    raw = {**RAW, "scores": [[0.5, 2.0, 1.0][: len(genres)] for genres in RAW["genres"]]}
    features.fit(raw)
    inputs = features.transform(raw) | {label: np.asarray(raw[label], np.float32)}
    model = LinearModel(features, inputs, LABELS[label])
    net = getattr(models, models.MODELS[name])(features, **options)
    (linear,) = [cell for cell in net.cells() if isinstance(cell, Linear)]
    linear.initialize_from(model, *[cell for cell in net.cells() if isinstance(cell, LabelUnits)])
    loss = nn.CrossEntropyLoss() if label == "kind" else nn.MSELoss() if label == "amount" else nn.BCEWithLogitsLoss()
    trainer = Trainer(net, loss, nn.Adam(net.trainable_params(), 1e-3), features=features)
    new = {**raw, "item": np.append(raw["item"][1:], 99)}
    of_new = features.transform(new) | {label: inputs[label]}
    for rows, of_rows in ((raw, inputs), (new, of_new)):
        expected = model.outputs(of_rows)
        spread = 5e-3 if name in ("fm", "deepfm") else 1e-5  # first vectors have products that are not quite 0
        np.testing.assert_allclose(trainer.predict(rows), expected, atol=spread * np.abs(expected).max())
