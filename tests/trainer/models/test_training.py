"""Every model is trained from raw rows and predicts; what it cannot use is refused before a network is built."""

import numpy as np
import pytest
from mindspore import nn, set_seed

from tests.trainer.models.tables import ROWS, make_features, make_rows
from trainer import MultiTaskLoss, Trainer, models
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.features import Categorical, Features, ListFeature, Numeric
from trainer.models import MODELS, InBatchSoftmax
from trainer.serving import Publish, ServedModel, export_model
from trainer.streams import ReplayStream

SMALL = {"dim": 4, "hidden": [8]}
EXPERTS = {"dim": 4, "experts": 2, "expert_hidden": [8], "tower_hidden": [4]}
OPTIONS = {
    "lr": {},
    "fm": {"dim": 4},
    "dcn_v2": {**SMALL, "rank": 2, "structure": "parallel"},
    "autoint": {**SMALL, "head_dim": 4},
    "masknet": {**SMALL, "block_width": 4},
    "dlrm": {"dim": 4, "bottom": [8], "top": [8]},
    "din": {**SMALL, "attention_hidden": [4]},
    "mmoe": EXPERTS,
    "ple": EXPERTS,
    "two_tower": {**SMALL, "item": ["item", "genres", "price"], "width": 4},
    "bpr": {"dim": 4, "item": ["item", "genres"]},
    "sasrec": {"dim": 4, "blocks": 1, "dropout": 0.0, "normalize": True},
    "hstu": {"dim": 4, "layers": 1, "normalize": True},
}
TASKS, HISTORIES, NEXT_ITEM = ("mmoe", "ple", "esmm"), ("din", "bst"), ("sasrec", "hstu")
VECTORS = ("two_tower", "bpr", *NEXT_ITEM)
SCORED = ("deepfm", "esmm", *VECTORS)  # windows count metrics of numbers, of tasks, and none of vectors
TABLE = make_rows()


def make(name, **options):
    labels = ["click", "buy"] if name in TASKS else "item" if name in VECTORS else "click"
    features = make_features(labels, None if name in HISTORIES + NEXT_ITEM else "mean")
    if name in (*NEXT_ITEM, "bpr"):  # which read no others
        kept = ("item", "history") if name in NEXT_ITEM else ("item", "history", "user", "genres")
        features = Features([feature for feature in features.features if feature.name in kept], label=labels)
    return features, getattr(models, MODELS[name])(features, **{**OPTIONS.get(name, SMALL), **options})


def loss_of(name):
    if name in TASKS:
        return MultiTaskLoss({"click": nn.BCEWithLogitsLoss(), "buy": nn.BCEWithLogitsLoss()})
    return InBatchSoftmax(0.5) if name in VECTORS else nn.BCEWithLogitsLoss()


@pytest.mark.long
@pytest.mark.parametrize(("name", "level"), [*((name, "O2") for name in MODELS), ("deepfm", "O0")])
def test_a_model_learns_offline_and_online_and_is_served_with_the_same_bits_and_exported(name, level, tmp_path):
    """Tables are sparse, lists of any length up to a longest, columns have missing values; two steps per call."""
    set_seed(0)
    features, net = make(name)
    optimizer = ("adam", {"learning_rate": 2e-2})
    metrics = None if name in SCORED else ["loss"]  # windows of the loss alone need no further program
    options = {"features": features, "seed": 0, "amp_level": level, "metrics": metrics}
    trainer = Trainer(net, loss_of(name), optimizer, **options)
    trainer.fit(TABLE, epochs=5, batch_size=64, sink_size=2)
    assert trainer.sink_mode == "graph loop of 2 steps"
    losses = trainer.history.history["loss"]
    assert losses[-1] < 0.98 * losses[0]
    before, step = trainer.predict(TABLE, batch_size=64), trainer.state.progress.global_step
    trainer.online_train(ReplayStream(TABLE), [Publish(tmp_path / "model", batch=64)], batch_size=64, sink_size=2)
    assert trainer.state.progress.global_step == step + ROWS // 64
    outputs = trainer.predict(TABLE, batch_size=64)
    with ServedModel(tmp_path / "model", follow=False) as served:
        for old, wanted, got in zip(*map(as_tuple, (before, outputs, served.predict(TABLE))), strict=True):
            np.testing.assert_array_equal(got, wanted)
            assert not np.array_equal(wanted, old), "the stream changed nothing"
    exported = export_model(trainer, tmp_path / "exported", TABLE, batch=32)
    assert exported.batch is None
    assert exported.difference < (5e-3 if level == "O2" else 1e-6)
    if name in TASKS:
        assert [output.shape for output in outputs] == [(ROWS,), (ROWS,)]
    else:
        assert outputs.shape == ((ROWS, 8) if name in VECTORS else (ROWS,))
    if name == "esmm":
        assert np.all(outputs[1] <= outputs[0])  # no conversion without a click
    if name == "two_tower":
        np.testing.assert_allclose(np.square(outputs).sum(1), 2, rtol=1e-3)


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize(
    ("name", "pooling", "options", "message"),
    [
        ("deepfm", None, {}, "'history' has pooling=None"),
        ("din", "mean", {}, "DIN needs a history"),
        ("bst", None, {"candidate": "itm"}, "item"),
        ("bst", None, {"heads": 3}, "heads=3"),
        ("dcn_v2", "mean", {"structure": "stack"}, "stacked"),
        ("deepfm", "mean", {"hidden": 400}, r"\[400, 400\]"),
        ("mmoe", "mean", {}, "two or more"),
        ("esmm", "mean", {"tasks": ["click", "buy", "return"]}, "two different names"),
        ("two_tower", "mean", {"item": ["itm"]}, "item"),
        ("two_tower", "mean", {"item": ["price"]}, "one of the user"),
    ],
)
def test_what_a_model_cannot_use_is_refused(name, pooling, options, message):
    features = make_features("click", pooling)
    with pytest.raises(ConfigurationError, match=message):
        getattr(models, MODELS[name])(features, **options)


@pytest.mark.long
def test_features_of_numbers_alone_train_with_float16():
    set_seed(0)
    features = Features([Numeric("price"), Numeric("age")], label="click")
    net = models.DeepFM(features, **SMALL)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), optimizer, features=features, amp_level="O2")
    trainer.fit(TABLE, epochs=1, batch_size=64)
    assert np.isfinite(trainer.predict(TABLE)).all()


def test_the_linear_terms_have_tables_and_a_width_of_their_own():
    features = Features([Categorical("item", dtype="int64", dim=4)], label="click")
    net = models.FM(features, dim=4)
    assert net.linear.weights.dim == 1
    assert net.embedding.dim == 4


def test_every_model_is_listed_with_its_options(capsys):
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines()[::2]] == list(MODELS)
    assert "hidden=[400, 400]" in text
    assert main(["models", "deepfm"]) == 0
    assert "widths of the perceptron's layers" in capsys.readouterr().out
    assert main(["models", "depfm"]) == 2
    assert "did you mean 'deepfm'?" in capsys.readouterr().err


def sequence(**options):
    """Return the arguments of a list of the history."""
    return {"dtype": "int64", "pooling": None, "max_length": 4, "sequence": "history", **options}


AISLES = [[item % 4 for item in items] for items in TABLE["history"]]


@pytest.mark.long
@pytest.mark.parametrize("name", HISTORIES)
def test_several_columns_of_one_history_are_learned_and_served(name, tmp_path):
    set_seed(0)
    features = Features(
        [
            Categorical("item", dtype="int64", table="items"),
            Categorical("aisle", dtype="int64", table="aisles"),
            ListFeature("history", table="items", **sequence()),
            ListFeature("aisles", **sequence()),
        ],
        label="click",
    )
    net = getattr(models, MODELS[name])(features, **{**OPTIONS.get(name, SMALL), "dim": 4})
    table = {**TABLE, "aisle": TABLE["item"] % 4, "aisles": AISLES}
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 2e-2), features=features, seed=0)
    trainer.fit(table, epochs=5, batch_size=64, sink_size=2, callbacks=[Publish(tmp_path / "model", batch=64)])
    losses = trainer.history.history["loss"]
    assert losses[-1] < 0.98 * losses[0]
    with ServedModel(tmp_path / "model", follow=False) as served:
        np.testing.assert_array_equal(served.predict(table), trainer.predict(table, batch_size=64))


@pytest.mark.parametrize("name", ["DIN", "BST"])
@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        (
            {"sequence": None},
            {},
            r"history, aisles have pooling=None.*'history', no sequence \(aisles\).*sequence='history'",
        ),
        ({"sequence": "other"}, {}, "belong to 'history', 'other': declare them as columns of one sequence"),
        ({"table": "shops"}, {}, "a categorical feature with table='shops', that of the history 'aisles'"),
        ({}, {"candidate": "item"}, "takes a category for each list without pooling, history, aisles; received 1"),
        ({}, {"candidate": ["item", "aisel"]}, "no categorical feature 'aisel'.*did you mean 'aisle'"),
    ],
)
def test_lists_that_are_no_history_are_refused(name, more, options, message):
    features = Features(
        [
            Categorical("item", dtype="int64", table="items"),
            Categorical("aisle", dtype="int64", table="aisles"),
            ListFeature("history", table="items", **sequence()),
            ListFeature("aisles", **sequence(**more)),
        ]
    )
    with pytest.raises(ConfigurationError, match=message):
        getattr(models, name)(features, **options)
