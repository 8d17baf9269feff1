"""Networks that MindSpore cannot compile, trained operator by operator."""

import mindspore
import numpy as np
import pytest
from mindspore import nn

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
    with pytest.raises(ConfigurationError, match=r"sparse tables \(ids\) are read within compiled programs"):
        make(nn.SequentialCell(Embedding(1, name="ids", mode="sparse"), nn.Dense(1, 1)), compile=False)
    with pytest.raises(ConfigurationError, match="compile takes True or False"):
        make(Plain(), compile="no")
