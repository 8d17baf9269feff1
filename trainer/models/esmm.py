"""ESMM (X. Ma et al., SIGIR 2018).

"Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click Conversion Rate".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import dtype as mstype
from mindspore import nn, ops

from ..features import Features
from .layers import Perceptron, flat, flat_width, pooled_embedding, tasks_of


class ESMM(nn.Cell):
    """Two towers for clicks and conversions, trained on all impressions.

    The outputs give the click rate, ctr, and the rate of clicks with a conversion, ctcvr. Because both are trained on
    all impressions, the conversion rate after a click, ``exp(log(ctcvr) - log(ctr))``, is not biased towards clicked
    items.

    Maps the columns of `Features.inputs` to two logits, float32 [N]: one for a click, and one for a click with a
    conversion.

    Args:
        features: the declared columns; the labels are the click and the conversion.
        tasks: names of the two tasks; None: the labels.
        dim: length of the embedding vectors.
        hidden: widths of each tower's layers.
    """

    rows_are_independent = True
    outputs_follow_tasks = True

    def __init__(
        self,
        features: Features,
        tasks: Sequence[str] | None = None,
        dim: int = 16,
        hidden: Sequence[int] = (256, 64),
    ) -> None:
        super().__init__()
        self.tasks = tasks_of(features, "ESMM", tasks, most=2)
        self.embedding = pooled_embedding(features, dim)
        width = flat_width(self.embedding)
        self.click, self.conversion = Perceptron(width, hidden, 1), Perceptron(width, hidden, 1)

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        x = flat(fields, numbers)
        click, conversion = self.click(x).reshape(-1), self.conversion(x).reshape(-1)
        return click, product_logit(click, conversion)


def product_logit(a, b):
    """Return the logit of a product of probabilities, given as logits; graph code."""
    # For p = s(a) s(b), the odds are p / (1 - p) = 1 / (exp(-a) + exp(-b) + exp(-a - b)). Return their logarithm.
    a, b = ops.cast(a, mstype.float32), ops.cast(b, mstype.float32)
    terms = ops.stack((-a, -b, -a - b), 1)
    largest = ops.stop_gradient(terms.max(axis=1, keepdims=True))
    return -(largest.reshape(-1) + ops.log(ops.exp(terms - largest).sum(axis=1)))
