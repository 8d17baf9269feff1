"""Numbers as vectors: AutoDis and a perceptron against NumPy; a missing number has a vector of its own."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.trainer.features.every_kind import Net
from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.features import Categorical, FeatureEmbedding, Features, Numeric

ROWS = {"x": [1.0, -2.0, None, 0.5], "z": [None, 3.0, 0.0, -1.0], "plain": [7.0, 8.0, 9.0, None], "y": [1, 0, 1, 0]}
DIM = 3


def declared(*columns):
    return Features([Numeric("plain"), *columns], label="y")


def vectors_of(features):
    """Return the layer's fields and numbers of `ROWS`, and its parameters by name."""
    np.random.seed(0)
    layer = FeatureEmbedding(features, DIM)
    columns = features.transform({name: column for name, column in ROWS.items() if name != "y"})
    fields, numbers, _ = layer(*[Tensor(column) for column in columns.values()])
    parameters = {name.rpartition(".")[2]: p.asnumpy() for name, p in layer.parameters_and_names()}
    np.testing.assert_array_equal(numbers.asnumpy()[:, 0], [7, 8, 9, 0])
    assert numbers.shape == (4, layer.number_width) == (4, 1)
    assert layer.field_names == ("x", "z")
    return fields.asnumpy(), parameters


def expected(parameters, vector_of):
    wanted = np.empty((4, 2, DIM))
    for j, name in enumerate("xz"):
        for row, x in enumerate(ROWS[name]):
            wanted[row, j] = parameters["missing"][j] if x is None else vector_of(j, x)
    return wanted


def test_autodis_follows_the_paper():
    options = {"kind": "autodis", "buckets": 5, "temperature": 0.5, "skip": 0.3}
    fields, p = vectors_of(declared(Numeric("x", embedding=options), Numeric("z", embedding=options)))

    def vector_of(j, x):
        h = p["first"][j] * x
        h = np.where(h > 0, h, 0.01 * h)
        s = h @ p["second"][j] + 0.3 * h
        a = np.exp(s / 0.5) / np.exp(s / 0.5).sum()
        return a @ p["meta"][j]

    np.testing.assert_allclose(fields, expected(p, vector_of), rtol=1e-4, atol=1e-6)
    assert len(np.unique(fields.round(5))) > 20


def test_the_perceptron_has_a_hidden_layer_for_each_number():
    fields, p = vectors_of(declared(*[Numeric(name, embedding={"kind": "mlp", "buckets": 4}) for name in "xz"]))

    def vector_of(j, x):
        hidden = np.maximum(p["first"][j] * x + p["first_bias"][j], 0)
        return hidden @ p["second"][j] + p["second_bias"][j, 0]

    np.testing.assert_allclose(fields, expected(p, vector_of), rtol=1e-4, atol=1e-6)


def test_they_are_trained_and_stand_behind_categories():
    features = Features([Categorical("c"), Numeric("x", embedding="autodis"), Numeric("z", embedding="mlp")], label="y")
    net = Net(features, DIM)
    assert net.embedding.field_names == ("c", "x", "z")
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 0.1), features=features)
    before = {p.name: p.asnumpy().copy() for p in net.trainable_params()}
    trainer.fit({**ROWS, "c": ["a", "b", None, "a"]}, batch_size=4, epochs=3, callbacks=[])
    for parameter in net.trainable_params():
        assert (parameter.asnumpy() != before[parameter.name]).any(), parameter.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "autodiss"}, "did you mean 'autodis'"),
        ({"embedding": {"kind": "autodis", "bucket": 3}}, "did you mean 'buckets'"),
        ({"embedding": {"kind": "mlp", "buckets": 0}}, "buckets"),
        ({"embedding": "mlp", "indicator": True}, "omit indicator"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Numeric("x", **options)
