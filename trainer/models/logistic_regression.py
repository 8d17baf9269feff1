"""Logistic regression (M. Richardson, E. Dominowska, R. Ragno, WWW 2007).

"Predicting Clicks: Estimating the Click-Through Rate for New Ads".
"""

from __future__ import annotations

from mindspore import nn

from ..features import Features
from .layers import Linear


class LogisticRegression(nn.Cell):
    """A logit that is the sum of category weights, weighted numbers, and a bias.

    Maps the columns of `Features.inputs` to logits, float32 [N].

    Args:
        features: the declared columns.
    """

    rows_are_independent = True

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.linear = Linear(features)

    def construct(self, *columns):
        return self.linear(*columns)
