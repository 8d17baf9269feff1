"""Declared roles in every verb: weight, group and event time count; rows set aside are reported with their place."""

import logging

import numpy as np
import pytest
from mindspore import nn

from tests.trainer.features.test_training import Small, Weighted
from trainer import Trainer
from trainer.errors import DataError, StreamError
from trainer.features import Categorical, Features, Numeric, RawFiles
from trainer.serving import Publish, ServedModel
from trainer.streams import FileStream, ReplayStream

ROWS = 60
BAD = [4, 5, 17]
ALL = {
    "x": [None if n in BAD else float(n) for n in range(ROWS)],
    "c": ["a", "b", None] * 20,
    "user": ["u", "v"] * 30,
    "ts": [100.0 + n for n in range(ROWS)],
    "w": [float(n % 2) for n in range(ROWS)],
    "y": [0.0, 1, 1, 0] * 15,
}
GOOD = {name: [v for n, v in enumerate(column) if n not in BAD] for name, column in ALL.items()}
INPUTS = {name: GOOD[name] for name in ("x", "c")}
REPORT = "3 of 60 rows set aside: x is missing 3; the first is "


def make_trainer():
    declared = [Numeric("x", required=True, normalize="standard"), Categorical("c")]
    features = Features(declared, label="y", weight="w", group="user", event_time="ts")
    net = Small(features)
    return Trainer(
        net, Weighted(), nn.Adam(net.trainable_params(), 1e-2), {"gauc/user", "log_loss"}, features=features, seed=0
    )


def write_csv(path, rows):
    lines = zip(*[["" if value is None else value for value in column] for column in rows.values()], strict=True)
    path.write_text("\n".join([",".join(rows), *[",".join(map(str, line)) for line in lines]]) + "\n")
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    trainer = make_trainer()
    with pytest.MonkeyPatch.context() as patch:
        told = []
        patch.setattr(logging.getLogger("trainer.features.feature_data"), "warning", lambda *args: told.append(args))
        trainer.fit(ALL, batch_size=19, epochs=2, callbacks=[Publish(folder, batch=19)])
    with ServedModel(folder, follow=False) as model:
        yield trainer, model, told


def test_fit_says_what_it_set_aside(served):
    trainer, _, told = served
    assert any(REPORT + "row 4" in str(args) for args in told)
    assert trainer.state.progress.samples_seen == 2 * (ROWS - len(BAD))


def test_evaluate_weighs_groups_and_says_what_it_set_aside(served, caplog, tmp_path):
    trainer = served[0]
    for data, place in ((ALL, "row 4"), (write_csv(tmp_path / "all.csv", ALL), "line 6 of all.csv")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = trainer.evaluate(data)
        assert REPORT + place in caplog.text
        assert found == pytest.approx(trainer.evaluate(GOOD))
    half = trainer.evaluate({**GOOD, "w": [w / 2 for w in GOOD["w"]]})
    assert half["loss"] == pytest.approx(found["loss"] / 2)
    assert 0 <= found["gauc"] <= 1


def test_predict_answers_every_row_or_says_which_ones_it_cannot(served, tmp_path):
    trainer = served[0]
    scores = trainer.predict(INPUTS, batch_size=19)
    assert scores.shape == (ROWS - len(BAD),)
    np.testing.assert_array_equal(trainer.predict(GOOD, batch_size=19), scores)
    for data, place in ((ALL, "row 4"), (write_csv(tmp_path / "all.csv", ALL), "line 6 of all.csv")):
        with pytest.raises(DataError, match=f"none can be set aside: {REPORT}{place}"):
            trainer.predict(data)


def test_a_server_takes_the_inputs_alone(served):
    trainer, model, _ = served
    np.testing.assert_array_equal(model.predict(INPUTS), trainer.predict(INPUTS, batch_size=19))
    np.testing.assert_array_equal(model.predict(GOOD), model.predict(INPUTS))
    with pytest.raises(DataError, match="row 4: column 'x' is missing"):
        model.predict(ALL)


@pytest.mark.long(but=["file"])
@pytest.mark.parametrize("kind", ["file", "replay"])
def test_online_training_weighs_groups_and_says_what_it_set_aside(kind, caplog, tmp_path):
    trainer = make_trainer()
    trainer.features.fit(GOOD)
    if kind == "file":
        stream, place = FileStream(write_csv(tmp_path / "all.csv", ALL), end="at_last"), "line 6 of all.csv"
    else:
        stream, place = ReplayStream(ALL), "row 4 of message 0 of table"
    before = [p.asnumpy().copy() for p in trainer.network.trainable_params()]
    with caplog.at_level(logging.WARNING):
        trainer.online_train(stream, batch_size=19, callbacks=[])
    assert REPORT + place in caplog.text
    assert trainer.state.progress.samples_seen == ROWS - len(BAD)
    assert 0 <= trainer.state.window["lifetime_gauc"] <= 1
    assert trainer.state.window["staleness"] > 1e9
    assert any((p.asnumpy() != b).any() for p, b in zip(trainer.network.trainable_params(), before, strict=True))
    weightless = make_trainer()
    weightless.features.fit(GOOD)
    before = weightless.network.top.weight.asnumpy().copy()
    weightless.online_train(ReplayStream({**GOOD, "w": [0.0] * len(GOOD["w"])}), batch_size=19, callbacks=[])
    np.testing.assert_array_equal(weightless.network.top.weight.asnumpy(), before)


@pytest.mark.long
def test_a_short_stream_with_too_many_bad_rows_ends_with_an_error():
    trainer = make_trainer()
    trainer.features.fit(GOOD)
    bad = {**ALL, "x": [None if n % 4 == 0 else float(n) for n in range(ROWS)]}
    with pytest.raises(StreamError, match=r"rows are bad, more than max_bad_share=0\.01 allows; the newest: .*'x'"):
        trainer.online_train(ReplayStream(bad), batch_size=19, callbacks=[])
    trainer.online_train(ReplayStream(bad, max_bad_share=0.5), batch_size=19, callbacks=[])


def bad_quarter(max_bad_share=None):
    """Return a trainer and rows of which 15 of 60 are set aside."""
    trainer = make_trainer()
    if max_bad_share is not None:
        declared = trainer.features
        roles = {"label": "y", "weight": "w", "group": "user", "event_time": "ts"}
        declared = Features(declared.features, **roles, max_bad_share=max_bad_share)
        net = Small(declared)
        trainer = Trainer(net, Weighted(), nn.Adam(net.trainable_params(), 1e-2), {"log_loss"}, features=declared)
    return trainer, {**ALL, "x": [None if n % 4 == 0 else float(n) for n in range(ROWS)]}


TOO_MANY = "15 of 60 rows set aside: x is missing 15; the first is "


@pytest.mark.long(but=["large file"])
@pytest.mark.parametrize("form", ["table", "file", "large file"])
def test_finite_data_with_too_many_bad_rows_end_with_an_error(form, tmp_path, caplog):
    trainer, bad = bad_quarter(max_bad_share=0.2)
    data = bad if form == "table" else RawFiles(write_csv(tmp_path / "a.csv", bad), in_memory=form == "file")
    message = TOO_MANY + "[^:]*: more than max_bad_share=0.2 allows; .*Features\\(max_bad_share=1.0\\)"
    with pytest.raises(DataError, match=message):
        trainer.fit(data, batch_size=19, callbacks=[])
    assert trainer.state.progress.global_step == 0
    trainer.features.fit(GOOD)
    with pytest.raises(DataError, match=message):
        trainer.evaluate(data)
    with pytest.raises(DataError, match=message):
        trainer.fit(GOOD, batch_size=19, valid_dataset=data, callbacks=[])
    trainer, _ = bad_quarter()  # more good rows than bad ones
    with caplog.at_level(logging.WARNING):
        trainer.fit(data, batch_size=19, callbacks=[])
    assert TOO_MANY in caplog.text
    assert trainer.state.progress.samples_seen == 45
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        trainer.evaluate(data)
    assert TOO_MANY in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("form", ["table", "file", "large file"])
def test_predict_sets_rows_aside_where_asked(served, form, tmp_path, caplog):
    trainer, bad = served[0], bad_quarter()[1]
    data = bad if form == "table" else RawFiles(write_csv(tmp_path / "a.csv", bad), in_memory=form == "file")
    with pytest.raises(DataError, match=r"every row gets a prediction.*: 15 of 60 rows.*set_aside=True"):
        trainer.predict(data)
    good = {name: [v for n, v in enumerate(column) if n % 4] for name, column in bad.items()}
    with caplog.at_level(logging.WARNING):
        scores = trainer.predict(data, batch_size=19, set_aside=True)
    assert TOO_MANY in caplog.text
    np.testing.assert_array_equal(scores, trainer.predict(good, batch_size=19))
