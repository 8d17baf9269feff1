"""Finite is what has neither infinite entries nor any that are no numbers, however large the others are."""

import numpy as np
import pytest
from mindspore import Tensor

from trainer.graph.finite import AllFinite
from trainer.graph.graph_call import GraphCall


@pytest.fixture(scope="module")
def all_finite():
    call = GraphCall(_Two())
    return lambda *values: bool(call(*map(Tensor, values)).asnumpy())


class _Two(AllFinite):
    def construct(self, first, second, other):
        return super().construct((first, second), other)


GOOD = np.full((3, 2), 3e38, np.float32)  # their sum is infinite
ONE = np.ones((), np.float16)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_entry_that_is_not_finite_is_seen(all_finite, value):
    bad = GOOD.copy()
    bad[2, 0] = value
    assert not all_finite(bad, ONE, True)
    assert not all_finite(GOOD, np.float16(value).reshape(()), True)


def test_large_numbers_are_finite(all_finite):
    assert all_finite(GOOD, -ONE * np.float16(65504), True)


def test_what_else_has_to_be_true_counts(all_finite):
    assert not all_finite(GOOD, ONE, False)
