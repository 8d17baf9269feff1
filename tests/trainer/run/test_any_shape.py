"""Whatever `mindspore.Model` trains is trained: shapes that change, columns of different lengths, scalars."""

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

from callbacks import LambdaCallback
from trainer import Trainer
from trainer.errors import DataError


class Bags(nn.Cell):
    """The mean of the vectors of a sequence's ids, of any length, to one number."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 4, embedding_table=mindspore.Tensor(_values(12, 4)))
        self.head = nn.Dense(4, 1, weight_init=mindspore.Tensor(_values(1, 4)), bias_init="zeros")

    def construct(self, ids):
        return self.head(self.table(ids).mean(1))


class GraphConvolution(nn.Cell):
    """One layer: neighbours' features, summed and mapped to one number."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(3, 1, weight_init=mindspore.Tensor(_values(1, 3)), bias_init="zeros")

    def construct(self, adjacency, features):
        return self.head(ops.matmul(adjacency, features))


class Weighted(nn.Cell):
    """A network that returns its own loss, of a vector, a target and a scalar."""

    def __init__(self):
        super().__init__()
        self.weight = mindspore.Parameter(mindspore.Tensor(_values(3, 1)), name="weight")

    def construct(self, x, y, strength):
        return ops.square(ops.matmul(x, self.weight) - y).mean() * strength


def _values(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def sequences(lengths, rows=3):
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 12, (rows, n)).astype(np.int32), rng.normal(size=(rows, 1)).astype(np.float32))
        for n in lengths
    ]


def graphs(sizes):
    rng = np.random.default_rng(1)
    return [
        (
            np.eye(n, dtype=np.float32),
            rng.normal(size=(n, 3)).astype(np.float32),
            rng.normal(size=(n, 1)).astype(np.float32),
        )
        for n in sizes
    ]


def scalars(count):
    rng = np.random.default_rng(2)
    return [
        (rng.normal(size=(4, 3)).astype(np.float32), np.ones((4, 1), np.float32), np.float32(n)) for n in range(count)
    ]


def trained(network, loss, data, epochs=2, optimizer=nn.Adam, **fit):
    """Return (losses, parameters) of a training by this trainer."""
    losses = []
    trainer = Trainer(network, loss, optimizer(network.trainable_params(), 1e-2))
    note = LambdaCallback(on_train_step_end=lambda t: losses.extend(t.state.outputs.losses))
    trainer.fit(data, epochs, callbacks=[note], **fit)
    return np.array(losses), [p.asnumpy().copy() for p in network.trainable_params()], trainer


def stepped(network, loss, data, epochs=2):
    """The same by MindSpore's own cells, one step per call."""
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    step = nn.TrainOneStepCell(network if loss is None else nn.WithLossCell(network, loss), optimizer)
    step.set_train()
    losses = [
        float(step.compile_and_run(*map(mindspore.Tensor, batch)).asnumpy()) for _ in range(epochs) for batch in data
    ]
    return np.array(losses, np.float32), [p.asnumpy().copy() for p in network.trainable_params()]


CASES = {
    "lengths": (Bags, nn.MSELoss, sequences([3, 5, 3, 3]), 12),
    "sorted lengths": (Bags, nn.MSELoss, sequences([3, 3, 5, 5]), 12),
    "scalars": (Weighted, None, scalars(4), 16),
}


@pytest.mark.long(but=["lengths"])
@pytest.mark.parametrize("case", CASES)
def test_batches_of_any_shape_are_trained_bit_for_bit(case):
    network, loss, data, rows = CASES[case]
    make_loss = loss or (lambda: None)
    losses, parameters, trainer = trained(network(), make_loss(), data)
    expected = stepped(network(), make_loss(), data)
    np.testing.assert_array_equal(losses, expected[0])
    for ours, theirs in zip(parameters, expected[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert trainer.state.progress.samples_seen == 2 * rows
    assert trainer.state.progress.global_step == 8


class LabelledGraph(nn.Cell):
    """Network and loss of a graph in one cell, for MindSpore's own wrapper takes two columns only."""

    def __init__(self):
        super().__init__()
        self.network = GraphConvolution()
        self.loss = nn.MSELoss()

    def construct(self, adjacency, features, labels):
        return self.loss(self.network(adjacency, features), labels)


@pytest.mark.long
def test_a_graph_network_trains_on_graphs_of_different_sizes(caplog):
    data = graphs([4, 6, 6])
    data = [
        (np.concatenate([adjacency, adjacency]), features, np.concatenate([labels, labels]))
        for adjacency, features, labels in data
    ]
    losses, _, trainer = trained(GraphConvolution(), nn.MSELoss(), data)
    np.testing.assert_array_equal(losses, stepped(LabelledGraph(), None, data)[0])
    assert trainer.state.progress.samples_seen == 2 * 2 * (4 + 6 + 6)  # nodes: the rows of the label
    assert "'column_2' is counted" in caplog.text
    results = trainer.evaluate(data)
    assert 0 < results["loss"] < 20


@pytest.mark.long
def test_going_on_in_the_middle_of_changing_shapes_is_exact(tmp_path):
    data = sequences([3, 5, 3, 3, 5, 5, 3])
    whole, parameters, _ = trained(Bags(), nn.MSELoss(), data, sink_size=4)
    network = Bags()
    first = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-2))
    first.fit(data, 2, callbacks=[LambdaCallback(on_checkpoint=lambda t: t.save(tmp_path))], max_steps=9)
    rest, resumed, trainer = trained(Bags(), nn.MSELoss(), data, resume=tmp_path)
    np.testing.assert_array_equal(rest, whole[9:])
    for ours, theirs in zip(resumed, parameters, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert trainer.state.progress.samples_seen == 2 * 7 * 3


def test_accumulated_gradients_are_weighted_by_the_rows_that_count():
    data = graphs([4, 8])
    data = [(adjacency[None], features, labels) for adjacency, features, labels in data]

    class Squeezed(GraphConvolution):
        def construct(self, adjacency, features):
            return self.head(ops.matmul(adjacency[0], features))

    network = Squeezed()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 1.0), gradient_accumulation_steps=2)
    trainer.fit(data, callbacks=[])
    both = np.zeros((12, 12), np.float32)
    both[:4, :4], both[4:, 4:] = data[0][0][0], data[1][0][0]
    whole = (both, np.concatenate([d[1] for d in data]), np.concatenate([d[2] for d in data]))
    _, expected, _ = trained(GraphConvolution(), nn.MSELoss(), [whole], 1, lambda p, _: nn.SGD(p, 1.0))
    for ours, theirs in zip(network.trainable_params(), expected, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=1e-5, atol=1e-7)


def test_predictions_of_other_shapes_come_batch_by_batch():
    class Tagger(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(12, 4)

        def construct(self, ids):
            return self.table(ids)

    trainer = Trainer(Tagger(), None, None)
    found = trainer.predict([(batch[0],) for batch in sequences([3, 5])])
    assert [batch.shape for batch in found] == [(3, 3, 4), (3, 5, 4)]


def test_a_shape_the_network_cannot_take_is_reported(linear):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    batches = [(np.ones((4, 30), np.float32), np.ones((4, 1), np.float32)), (np.ones((4, 7), np.float32),) * 2]
    with pytest.raises(Exception, match=r"\[4, 7\]") as caught:
        trainer.fit(batches, callbacks=[])
    assert not isinstance(caught.value, DataError)


class Parts(nn.Cell):
    """Several outputs in one of the forms that MindSpore's graphs return."""

    def __init__(self, form):
        super().__init__()
        self.form, self.head = form, nn.Dense(3, 1, weight_init="ones", bias_init="zeros")

    def construct(self, x):
        first = self.head(x)
        if self.form == "list":
            return [first, 2 * first]
        if self.form == "nested":
            return first, (2 * first, 3 * first)
        if self.form == "number":
            return first, 2.0
        return first, None


class FirstPart(nn.MSELoss):
    def construct(self, parts, label):
        return super().construct(parts[0], label)


@pytest.mark.parametrize("form", ["list", "nested", "number", "none"])
def test_outputs_of_any_form_are_predicted_and_trained_on_a_stream(form):
    network, x = Parts(form), _values(8, 3)
    if form == "none":
        with pytest.raises(DataError, match="the network returns None; it may return tensors"):
            Trainer(network).predict({"x": x})
    else:
        first, second = Trainer(network).predict({"x": x}, batch_size=4)
        np.testing.assert_allclose(first, x.sum(1, keepdims=True), rtol=1e-5)
        if form == "list":
            np.testing.assert_array_equal(second, 2 * first)
    trainer = Trainer(network, FirstPart(), nn.SGD(network.trainable_params(), 0.1))
    rows = [(x[:4], x[:4, :1]), (x[4:], x[4:, :1])]
    for sink_size in (1, 2):
        trainer.online_train(rows, callbacks=[], window=8, sink_size=sink_size)
        assert trainer.state.window["window_rows"] == 8
        assert trainer.state.window["window_rmse"] == pytest.approx(trainer.state.window["window_loss"] ** 0.5)
