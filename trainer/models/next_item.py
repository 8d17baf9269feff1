"""`NextItem`: base class of models that predict the next item of a history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checks import boolean, number, whole
from ..errors import ConfigurationError
from ..features import FeatureEmbedding, Features, ListFeature
from ..features.feature import Kind
from .bst import running_count
from .sequences import candidate_and_history, candidates_of
from .stateless_dropout import StatelessDropout, layer_key
from .two_tower import normalized


class NextItem(nn.Cell):
    """Base of models that read a history up to each item and predict the next item.

    Maps the columns of `Features.inputs` to float32 [N, 2 * width], the concatenated vectors of user and item, like
    `TwoTower`. The user's vector is computed from the history only, and the item's vector is its row of the embedding
    table. Their inner product is the score. A user without a history has a vector of zeros.

    In training, the model predicts at every position of the history. The target of the whole history is the row's item;
    the target of an earlier part is the next item of the history. The output is then a tuple for `InBatchSoftmax`,
    `GBCE` and `BPRLoss`: the vectors of users and targets, float32 [N, L, 2 * width]; the table rows of the targets,
    int32 [N, L]; and a mask, float32 [N, L], 1 for targets and 0 for padding.

    Args:
        features: the declared columns: the history (a list without pooling) and the item (a category that shares the
            history's table); or several of each, aligned in one sequence (`sequence=`).
        candidate: see `DIN`.
        dim: length of the embedding vectors. The width is `dim` times the number of aligned columns.
        positions: number of learned positions, counted back from the newest item; earlier items share the last one.
        dropout: share of entries dropped in training. The masks are reproducible: they depend only on the step.
        normalize: whether to scale the vectors of users and items to length 1, for a loss with a temperature.

    Raises:
        ConfigurationError: no history, no item, an invalid argument, or a feature that the model would not read.
    """

    rows_are_independent = True

    def __init__(
        self,
        features: Features,
        candidate: str | Sequence[str] | None,
        dim: int,
        positions: int,
        dropout: float,
        normalize: bool,
    ) -> None:
        super().__init__()
        model = type(self).__name__
        whole(f"{model}(positions=...)", positions)
        self.drop = number(f"{model}(dropout=...)", dropout, minimum=0, below=1)
        self.normalizes = boolean(f"{model}(normalize=...)", normalize)
        candidates = candidates_of(features, model, candidate)
        histories = [output.name for output in features.of_kind(Kind.LIST) if output.pooling is None]
        unread = [output.name for output in features.outputs if output.name not in (*candidates, *histories)]
        if unread:
            raise ConfigurationError(
                f"{model} reads only the history ({', '.join(histories)}) and the item ({', '.join(candidates)}); "
                f"feature {unread[0]!r} would be unused: leave it out, or take two_tower"
            )
        read = {output.name: feature for feature in features.features for output in feature.outputs()}
        history, item = read[histories[0]], read[candidates[0]]
        # Raw columns of history and item, if a server can accept a list of item ids as a request; otherwise None.
        self.raw_columns: tuple[str, str] | None = None
        if len(histories) == 1 and isinstance(history, ListFeature) and history.separator is None:
            self.raw_columns = history.source, item.source
        self.embedding = FeatureEmbedding(features, dim)
        self.candidates = tuple(self.embedding.field_index(name) for name in candidates)
        self.width = dim * len(candidates)
        self.last_position = float(positions - 1)
        first = np.random.default_rng(0).normal(0, 0.01, (positions, self.width)).astype(np.float32)
        self.positions = Parameter(Tensor(first), name="positions")
        self.drop_input = self.make_dropout(0)

    def make_dropout(self, layer: int) -> nn.Cell:
        """Return the dropout for a layer; `layer` selects its random masks."""
        return StatelessDropout(1 - self.drop, layer_key(0, layer)) if self.drop else nn.Identity()

    def encode(self, x, kept):
        """Return the state after each item; graph code.

        Maps x float [N, L, width] and `kept` float32 [N, L], 1 for items and 0 for padding, to float [N, L, width].
        Padding is at the end of a history, so a causal mask is enough to hide it from every item.
        """
        raise NotImplementedError

    def construct(self, *columns):
        fields, _, sequences = self.embedding(*columns)
        item, history, mask = candidate_and_history(fields, sequences, self.candidates)
        kept = ops.cast(mask, mstype.float32)
        count = running_count(mask)
        distance = ops.cast(ops.minimum(count[:, -1:] - count, self.last_position), mstype.int32)
        x = self.drop_input(history + ops.gather(self.positions, distance, 0))
        x = self.encode(x * ops.cast(ops.expand_dims(kept, 2), x.dtype), kept)
        last = kept * ops.cast(count == count[:, -1:], mstype.float32)
        if self.training:
            return self._at_each_position(columns, x, item, history, last, kept)
        user = ops.matmul(ops.cast(ops.expand_dims(last, 1), x.dtype), x).reshape(x.shape[0], -1)
        return ops.concat((self._scaled(user), self._scaled(item)), 1)

    def _at_each_position(self, columns, x, item, history, last, kept):
        item_row, history_rows = self.embedding.rows_of(columns, self.candidates[0])
        following = ops.concat((history[:, 1:], ops.expand_dims(item, 1)), 1)
        at_end = ops.cast(ops.expand_dims(last, 2), item.dtype)
        following = following * (1 - at_end) + ops.expand_dims(item, 1) * at_end
        item_row = ops.expand_dims(item_row, 1)
        rows = ops.concat((history_rows[:, 1:], item_row), 1)
        rows = ops.select(last > 0, ops.broadcast_to(item_row, rows.shape), rows)
        vectors = ops.concat((x.reshape(-1, self.width), following.reshape(-1, self.width)), 0)
        vectors = self._scaled(vectors).reshape(2, *x.shape)
        return ops.concat((vectors[0], vectors[1]), 2), rows, kept

    def _scaled(self, vectors):
        return normalized(vectors, self.training) if self.normalizes else ops.cast(vectors, mstype.float32)
