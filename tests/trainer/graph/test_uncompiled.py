"""Networks that MindSpore cannot compile, trained operator by operator."""

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError, GraphError
from trainer.streams import ReplayStream

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = (X.sum(1, keepdims=True) > 0).astype(np.float32)


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        self.top = nn.Dense(3, 1, weight_init=mindspore.Tensor(np.full((1, 3), 0.3, np.float32)), bias_init="zeros")

    def construct(self, x):
        return self.top(x)


class Uncompilable(Plain):
    """Looks at values on the host in the middle, which no graph can."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def construct(self, x):
        try:
            self.seen.append(float(x.asnumpy().max()))
        except ValueError:
            self.seen.append(0.0)
        return self.top(x)


def make(network, **options):
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics=["auc"], **options)


@pytest.fixture(scope="module")
def compiled():
    trainer = make(Plain())
    trainer.fit((X, Y), 2, (X, Y), callbacks=[], batch_size=8, shuffle=False)
    return trainer


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE])
def test_it_trains_evaluates_and_predicts_as_the_compiled_network(mode, compiled, caplog):
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mode)
    try:
        trainer = make(Uncompilable(), compile=False)
        trainer.fit((X, Y), 2, (X, Y), callbacks=[], batch_size=8, shuffle=False)
        assert mindspore.get_context("mode") == mode
    finally:
        mindspore.set_context(mode=before)
    assert "operator by operator, one step per call" in caplog.text
    assert trainer.sink_mode == "off: one step per call"
    assert trainer.state.metrics == pytest.approx(compiled.state.metrics, rel=1e-4)
    np.testing.assert_allclose(trainer.predict(X), compiled.predict(X), rtol=1e-4, atol=1e-6)
    assert len(trainer.network.seen) >= 2 * 3 + 2 * 3 + 1


def test_a_stream_is_scored_and_learned():
    trainer = make(Uncompilable(), compile=False)
    trainer.online_train(ReplayStream({"x": X, "label": Y}), [], batch_size=8, sink_size=2)
    assert 0 <= trainer.state.window["window_auc"] <= 1
    assert trainer.state.progress.global_step == 3


def test_compiled_it_is_refused_and_so_are_sparse_tables_uncompiled():
    with pytest.raises(GraphError, match="compile=False"):
        make(Uncompilable()).fit((X, Y), callbacks=[], batch_size=8)
    with pytest.raises(ConfigurationError, match=r"sparse tables \(ids\) need compiled programs"):
        make(nn.SequentialCell(Embedding(1, name="ids", mode="sparse"), nn.Dense(1, 1)), compile=False)
    with pytest.raises(ConfigurationError, match="compile takes True or False"):
        make(Plain(), compile="no")


class Scores(nn.Cell):
    """Loss, decisions and labels; `decide` is a function that MindSpore may not be able to compile."""

    def __init__(self, network, decide):
        super().__init__(auto_prefix=False)
        self.network, self.decide = network, decide

    def construct(self, x, y):
        logits = self.network(x)
        return ops.square(logits - y).mean(), self.decide(logits), y


@pytest.mark.long
def test_an_evaluation_cell_that_cannot_be_compiled_runs_operator_by_operator(caplog):
    network = Plain()
    cell = Scores(network, lambda logits: logits > 0)
    trainer = Trainer(
        network,
        nn.BCEWithLogitsLoss(),
        nn.Adam(network.trainable_params(), 1e-2),
        metrics={"accuracy": mindspore.train.Accuracy("multilabel")},
        eval_network=cell,
        eval_indexes=(0, 1, 2),
    )
    trainer.fit((X, Y), 2, (X, Y), callbacks=[], batch_size=8)
    told = [line for line in caplog.messages if "eval_network Scores cannot be compiled" in line]
    assert len(told) == 1
    assert "a lambda that is written inside a call" in told[0]
    expected = ((trainer.predict(X) > 0) == Y).mean()
    assert trainer.evaluate((X, Y))["accuracy"] == pytest.approx(expected)
    with pytest.raises(GraphError, match=r"columns \(column_0: float32\[24, 2\]"):
        trainer.evaluate((X[:, :2], Y))


def test_an_evaluation_cell_that_fails_either_way_is_a_graph_error():
    network = Plain()
    cell = Scores(network, lambda logits: ops.matmul(logits, logits))
    trainer = Trainer(network, eval_network=cell, eval_indexes=(0, 1, 2), metrics={"loss"})
    with pytest.raises(GraphError, match=r"a lambda that is written inside a call.*Trainer\(..., compile=False\)"):
        trainer.evaluate((X, Y))
