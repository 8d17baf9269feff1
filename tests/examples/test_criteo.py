"""The generated click stream: repeatable from anywhere, with a truth that models approach and do not pass."""

import itertools

import numpy as np
import pytest
from mindspore import nn
from sklearn.metrics import roc_auc_score

from examples.baselines import auc
from examples.criteo import COLUMNS, Criteo, CriteoDeepFM, CriteoStream, criteo
from trainer import ModelCheckpoint, Trainer
from trainer.errors import ConfigurationError, StreamError

SMALL = {"seed": 5, "max_categories": 20}


def test_rows_depend_on_the_seed_and_their_number_alone():
    whole = Criteo(seed=3).rows(1000, 500)
    parts = [Criteo(seed=3).rows(1000, 123), Criteo(seed=3).rows(1123, 377)]
    assert tuple(whole) == COLUMNS
    for name, column in whole.items():
        np.testing.assert_array_equal(column, np.concatenate([part[name] for part in parts]))
        assert (column != Criteo(seed=4).rows(1000, 500)[name]).any()
    assert whole["numbers"].shape == (500, 13)
    assert whole["categories"].shape == (500, 26)
    assert {str(column.dtype) for column in whole.values()} == {"float32", "int64"}


def test_categories_follow_the_power_law_and_differ_between_fields():
    categories = Criteo(exponent=1.5).rows(0, 20_000)["categories"]
    _, counts = np.unique(categories[:, 2], return_counts=True)  # ten million values
    counts = np.sort(counts)[::-1]
    # of whole parts of a continuous power law, P(k) = k^(1 - a) - (k + 1)^(1 - a)
    wanted = 20_000 * (np.arange(1, 4) ** -0.5 - np.arange(2, 5) ** -0.5)
    np.testing.assert_allclose(counts[:3], wanted, rtol=0.05)
    fields = [set(categories[:, field]) for field in range(26)]
    assert sum(map(len, fields)) == len(set.union(*fields))
    assert len(fields[8]) == 3


def test_labels_are_drawn_with_the_stated_probability():
    truth = Criteo(**SMALL)
    rows = truth.rows(0, 100_000)
    p = truth.probability(rows)
    assert 0.1 < p.mean() < 0.6
    edges = np.quantile(p, np.linspace(0, 1, 11))
    for low, high in itertools.pairwise(edges):
        inside = (p >= low) & (p <= high)
        error = np.sqrt(p[inside].var() + (p[inside] * (1 - p[inside])).mean()) / np.sqrt(inside.sum())
        assert abs(rows["label"][inside].mean() - p[inside].mean()) < 4 * error
    best = truth.best(100_000)
    assert best["auc"] == pytest.approx(roc_auc_score(rows["label"], p), abs=0.006)
    log_loss = -np.mean(rows["label"] * np.log(p) + (1 - rows["label"]) * np.log1p(-p))
    assert best["log_loss"] == pytest.approx(log_loss, abs=0.006)


def make(learning_rate=5e-3):
    network = CriteoDeepFM(dim=4, hidden=(16,))
    optimizer = nn.Adam(network.trainable_params(), learning_rate)
    return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, {"auc"}, seed=1)


@pytest.mark.long
def test_a_model_approaches_the_best_auc_from_below():
    held_out = criteo(10**12, 20_000, **SMALL)
    # on the same rows, so that the luck of their labels is the same for both
    best = auc(held_out["label"], Criteo(**SMALL).probability(held_out))
    trainer, found = make(), []
    stream = CriteoStream(**SMALL)
    for steps in (48, 192):
        trainer.online_train(stream, [], sink_size=16, batch_size=250, max_steps=steps)
        found.append(trainer.evaluate(held_out, batch_size=4000)["auc"])
    assert found[0] < found[1] < best
    assert best - found[1] < 0.012
    assert best - found[0] > 0.02


@pytest.mark.long
def test_a_run_is_resumed_at_the_very_row(tmp_path):
    def train(steps, **options):
        trainer = make()
        trainer.online_train(
            CriteoStream(2000, **SMALL), [ModelCheckpoint(tmp_path)], batch_size=100, max_steps=steps, **options
        )
        return trainer

    first = train(7)
    assert first.state.progress.samples_seen == 700
    second = train(None, resume=tmp_path)
    assert second.state.progress.samples_seen == 2000
    assert second.state.stop_reason.kind == "stream_end"


def test_a_stream_can_be_read_from_any_row():
    stream = CriteoStream(rows=1000, **SMALL)
    stream.seek({"rows": [0, 990]})
    batch = stream.poll(100)
    assert batch.rows == 10
    np.testing.assert_array_equal(batch.columns["categories"], criteo(990, 10, **SMALL)["categories"])
    np.testing.assert_allclose(batch.event_time, np.arange(990, 1000) * 1e-3)
    assert stream.exhausted
    assert stream.poll(1) is None
    with pytest.raises(StreamError, match="from 0 to 1000; received row 1001"):
        stream.seek({"rows": [0, 1001]})
    with pytest.raises(StreamError, match="partitions \\['table'\\]"):
        stream.seek({"table": [0, 1]})


@pytest.mark.parametrize("arguments", [{"rows": 0}, {"exponent": 1.0}, {"max_categories": 1}, {"seconds_per_row": 0.0}])
def test_arguments_that_cannot_work_are_refused(arguments):
    (name,) = arguments
    with pytest.raises(ConfigurationError, match=f"{name} takes a .*; received"):
        CriteoStream(**arguments)
