"""The recommender examples compute in float16 as well."""

import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore import dtype as mstype

from examples.deepfm import DeepFM
from examples.wide_deep import WideDeep
from trainer import Trainer


@pytest.mark.parametrize("kind", [DeepFM, WideDeep])
def test_o2_is_close_to_float32(kind):
    ids = np.zeros(4, np.int32)
    inputs = (ids, ids, ids, ids, ids, np.ones((4, 19), np.float32), ids)
    network = kind()
    parts = network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params())
    exact = Trainer(*parts).predict(*inputs)
    np.testing.assert_allclose(Trainer(*parts, amp_level="O2").predict(*inputs), exact, atol=5e-3)
    after = nn.Dense(2, 2)(Tensor(np.ones((1, 2), np.float32)))
    assert after.dtype == mstype.float32
