"""Max pooling is compiled to another operator in training, and gives what MindSpore's own gives."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from trainer import Trainer
from trainer.graph.graph_call import GraphCall


class Gradient(nn.Cell):
    """The gradient of a pooling cell."""

    def __init__(self, pooling):
        super().__init__()
        self.pooling = pooling
        self.gradient = ops.GradOperation(sens_param=True)

    def construct(self, x, sensitivity):
        return self.pooling(x), self.gradient(self.pooling)(x, sensitivity)


POOLINGS = {
    "2": lambda: nn.MaxPool2d(2, 2),
    "2 x 3, same": lambda: nn.MaxPool2d((2, 3), (2, 3), pad_mode="same"),
    "overlapping": lambda: nn.MaxPool2d(3, 2),
    "padded": lambda: nn.MaxPool2d(2, 2, pad_mode="pad", padding=1),
}
SHAPES = {"whole": (4, 3, 12, 6), "cut": (4, 3, 13, 7), "one image": (3, 12, 6)}


@pytest.mark.long(but=["2-whole", "2 x 3, same-cut", "overlapping-one image", "padded-cut"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", POOLINGS)
def test_values_and_gradients_are_mindspores(name, shape):
    # few different values, so that windows have several maxima
    x = Tensor(np.random.default_rng(0).integers(0, 4, shape).astype(np.float32))
    cell = Gradient(POOLINGS[name]()).set_train()
    sensitivity = Tensor(np.random.default_rng(1).standard_normal(cell.pooling(x).shape).astype(np.float32))
    expected = cell.compile_and_run(x, sensitivity)
    same = Gradient(POOLINGS[name]()).set_train()
    before = set(vars(same.pooling))
    for one, other in zip(GraphCall(same)(x, sensitivity), expected, strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    assert set(vars(same.pooling)) - before <= {"_compile_cache_key"}, "the user's cell is as it was"


@pytest.mark.long
@pytest.mark.parametrize("amp_level", ["O0", "O2"])
def test_a_network_learns_what_it_would_with_mindspores_own(amp_level):
    class Own(nn.MaxPool2d):
        """No other than its base, but it is left alone."""

    images = np.random.default_rng(0).standard_normal((16, 1, 8, 8)).astype(np.float32)
    labels = np.arange(16, dtype=np.int32) % 3
    weights = []
    for kind in (nn.MaxPool2d, Own):
        first = Tensor(np.random.default_rng(1).standard_normal((2, 1, 3, 3)).astype(np.float32))
        last = Tensor(np.random.default_rng(2).standard_normal((3, 32)).astype(np.float32))
        layers = (
            nn.Conv2d(1, 2, 3, weight_init=first),
            nn.ReLU(),
            kind(2, 2),
            nn.Flatten(),
            nn.Dense(32, 3, last, "zeros"),
        )
        network = nn.SequentialCell(*layers)
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        trainer = Trainer(network, nn.CrossEntropyLoss(), optimizer, amp_level=amp_level)
        trainer.fit((images, labels), 3, batch_size=8, shuffle=False)
        weights.append([parameter.asnumpy().copy() for parameter in network.get_parameters()])
        weights[-1].append(trainer.predict(images))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
