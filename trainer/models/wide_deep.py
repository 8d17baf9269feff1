"""Wide & Deep (H.-T. Cheng et al., DLRS 2016).

"Wide & Deep Learning for Recommender Systems".
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import nn

from ..checks import whole
from ..features import Cross, Features
from .layers import Linear, Perceptron, flat, flat_width, pooled_embedding


class WideDeep(nn.Cell):
    """A linear model of categories, crosses and numbers, plus a perceptron.

    Crosses are used only in the linear model, as in figure 1 of the paper, because embedding vectors for every
    combination would let the perceptron memorize the training rows.

    Maps the columns of `Features.inputs` to logits, float32 [N], or [N, classes] for a label of several classes.

    Args:
        features: the declared columns; crosses are `Cross` features.
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's layers.
        classes: number of classes of the label, for `nn.CrossEntropyLoss`; 1 for a single logit or number.
    """

    rows_are_independent = True

    def __init__(self, features: Features, dim: int = 16, hidden: Sequence[int] = (256, 128), classes: int = 1) -> None:
        super().__init__()
        self.classes = whole("WideDeep(classes=...)", classes)
        self.wide = Linear(features, classes)
        crosses = [feature.name for feature in features.features if isinstance(feature, Cross)]
        self.embedding = pooled_embedding(features, dim, exclude=crosses)
        self.deep = Perceptron(flat_width(self.embedding), hidden, classes, last_init="zeros")

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        deep = self.deep(flat(fields, numbers))
        return self.wide(*columns) + (deep if self.classes > 1 else deep.reshape(-1))
