"""A synthetic stream like Criteo's click logs, with known true probabilities.

A row has 13 numbers and 26 categories, as in Criteo's Display Advertising Challenge (2014), with similar numbers of
distinct values. Ids follow a power law. Nothing is stored: a row is a function of the seed and its row number, so the
stream is endless and can be read from any position, repeatedly. Labels are drawn from a logistic model with a weight
for every number and every category. The best AUC and log loss that any model can reach are therefore known: those of
the true probabilities.

    truth = Criteo(max_categories=100)
    truth.rows(0, 1000)                     # dict of arrays
    truth.best(100_000)                     # {"auc": ..., "log_loss": ...}
    trainer.online_train(CriteoStream(seed=1))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

import numpy as np
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import Normal, initializer
from numpy.typing import NDArray

from examples.baselines import auc
from trainer.embedding import Embedding
from trainer.embedding.tables.hashing import mix64, stable_seed, uniform64
from trainer.errors import ConfigurationError, StreamError
from trainer.models.layers import PairwiseProducts, Perceptron
from trainer.streams import Batch, Span, Stream

NUMBERS = 13
# fmt: off
CATEGORIES = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992, 5_461_306,
    10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)
# fmt: on
COLUMNS = ("numbers", "categories", "label")
PARTITION = "rows"

_NUMBER_WEIGHT, _CATEGORY_WEIGHT, _BIAS = 0.22, 0.25, -1.3
_MEAN_COUNT = 10.0
_MEAN_LOG_COUNT = 1.91  # mean of log(1 + n), where n is an exponential variable with mean _MEAN_COUNT, rounded down


class Criteo:
    """Generates rows, and their true probabilities.

    Args:
        seed: seed of the rows and of the weights of the logistic model.
        exponent: exponent of the power law of the categories, above 1.
        max_categories: maximum number of distinct values of a column; None keeps Criteo's numbers.

    Raises:
        ConfigurationError: an invalid argument.
    """

    def __init__(self, seed: int = 0, exponent: float = 1.2, max_categories: int | None = None) -> None:
        if not exponent > 1:
            raise ConfigurationError(f"exponent takes a number above 1; received {exponent!r}")
        if max_categories is not None and max_categories < 2:
            raise ConfigurationError(f"max_categories takes a whole number >= 2, or None; received {max_categories!r}")
        self.seed = seed
        self.exponent = float(exponent)
        self.sizes = np.minimum(CATEGORIES, max_categories or max(CATEGORIES)).astype(np.float64)
        draws = 1 + NUMBERS + len(CATEGORIES)
        self._keys = np.array([stable_seed("row", seed, draw) for draw in range(draws)], np.uint64)
        self._weight_seed = stable_seed("category", seed)
        signs = uniform64(np.arange(NUMBERS), stable_seed("number", seed)) < 0.5
        self._number_weights = np.where(signs, -_NUMBER_WEIGHT, _NUMBER_WEIGHT)

    def rows(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Return rows `first` to `first + count - 1`.

        Returns:
            numbers: float32 [count, 13], logarithms of counts plus one; categories: int64 [count, 26], with different
            ids in different columns; label: float32 [count].
        """
        draws, numbers, categories = self._draw(first, count)
        label = draws[:, 0] < self._probability(numbers, categories)
        return {
            "numbers": numbers.astype(np.float32),
            "categories": categories,
            "label": label.astype(np.float32),
        }

    def probability(self, columns: Mapping[str, np.ndarray]) -> NDArray[np.float64]:
        """Return the true probability of label 1 for rows from `rows`, float64 [count]."""
        return self._probability(columns["numbers"].astype(np.float64), columns["categories"])

    def best(self, count: int = 100_000, first: int = 0) -> dict[str, float]:
        """Return {"auc", "log_loss"} of the true probabilities over `count` rows.

        Both are expected values over the labels.
        """
        parts = [self.rows(start, min(10_000, first + count - start)) for start in range(first, first + count, 10_000)]
        p = np.concatenate([self.probability(part) for part in parts])
        return {"auc": auc(p, p), "log_loss": float(-np.mean(p * np.log(p) + (1 - p) * np.log1p(-p)))}

    def _draw(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = mix64(np.arange(first, first + count, dtype=np.int64))
        bits = mix64(rows[:, None] ^ self._keys)
        draws = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        numbers = np.log1p(np.floor(-_MEAN_COUNT * np.log(draws[:, 1 : 1 + NUMBERS])))
        # Inverse distribution function of the power law on [1, size + 1), rounded down to a rank.
        power = 1.0 - self.exponent
        ranks = (1.0 + draws[:, 1 + NUMBERS :] * ((self.sizes + 1.0) ** power - 1.0)) ** (1.0 / power)
        fields = np.arange(len(CATEGORIES), dtype=np.int64) << 40
        return draws, numbers, mix64(np.floor(ranks).astype(np.int64) + fields).view(np.int64)

    def _probability(self, numbers: np.ndarray, categories: np.ndarray) -> np.ndarray:
        # Draw uniform weights with standard deviation _CATEGORY_WEIGHT.
        weights = (uniform64(categories, self._weight_seed) - 0.5) * (12**0.5 * _CATEGORY_WEIGHT)
        logit = _BIAS + (numbers - _MEAN_LOG_COUNT) @ self._number_weights + weights.sum(axis=1)
        return 1.0 / (1.0 + np.exp(-logit))


def criteo(first: int, count: int, **world: Any) -> dict[str, np.ndarray]:
    """Return rows of ``Criteo(**world)`` as arrays, for evaluation and `fit`."""
    return Criteo(**world).rows(first, count)


class CriteoStream(Stream):
    """The rows of `Criteo` as a stream. Its position is ``{"rows": [0, row]}``.

    Args:
        rows: number of rows, or None for an endless stream.
        seconds_per_row: event time between two rows.
        world: arguments of `Criteo`.

    Raises:
        ConfigurationError: an invalid argument.
    """

    event_time = "time"

    def __init__(self, rows: int | None = None, seconds_per_row: float = 1e-3, **world: Any) -> None:
        if rows is not None and rows < 1:
            raise ConfigurationError(f"rows takes a whole number >= 1, or None; received {rows!r}")
        if not seconds_per_row > 0:
            raise ConfigurationError(f"seconds_per_row takes a number > 0; received {seconds_per_row!r}")
        self.truth = Criteo(**world)
        self.total = rows
        self.seconds_per_row = float(seconds_per_row)
        self._row = 0
        self._stop = Event()

    @property
    def exhausted(self) -> bool:
        """Whether the last row has been returned."""
        return self.total is not None and self._row >= self.total

    def poll(self, max_rows: int, timeout: float = 0.0) -> Batch | None:
        """Return up to `max_rows` rows, at most 65,536; None after the last row."""
        if max_rows < 1:
            raise ValueError(f"poll takes max_rows >= 1; received {max_rows}")
        if self.exhausted or self._stop.is_set():
            return None
        count = min(max_rows, 65_536)
        if self.total is not None:
            count = min(count, self.total - self._row)
        columns = self.truth.rows(self._row, count)
        span = Span(PARTITION, 0, self._row, self._row + count - 1)
        times = np.arange(self._row, self._row + count) * self.seconds_per_row
        self._row += count
        return Batch(columns, times, (span,))

    def position(self) -> dict[str, Any]:
        """Return the position of the next row."""
        return {PARTITION: [0, self._row]}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Continue reading at `position`.

        Raises:
            StreamError: the position belongs to another stream, or lies after the end.
        """
        if position and set(position) != {PARTITION}:
            raise StreamError(f"CriteoStream reads {PARTITION!r}; the position has the partitions {sorted(position)}")
        row = int(position.get(PARTITION, (0, 0))[1])
        if row < 0 or (self.total is not None and row > self.total):
            raise StreamError(f"a position is [0, row] with row from 0 to {self.total}; received row {row}")
        self._row = row

    def lag(self) -> int | None:
        """Return the number of rows left, or None if the stream is endless."""
        return None if self.total is None else self.total - self._row

    def close(self) -> None:
        """End the stream: later polls return None."""
        self._stop.set()


class CriteoDeepFM(nn.Cell):
    """DeepFM for rows of `Criteo`, built from the layers of `trainer.models`.

    Unlike `trainer.models.DeepFM`, it takes all categories as one column and keeps them in a single table. The first
    value of a table row is the weight of a category, the others are its embedding vector.

    Args:
        dim: length of the embedding vectors.
        hidden: widths of the perceptron's hidden layers.
        sigma: standard deviation of the initial values.

    Inputs:
        numbers: float32 [B, 13].
        categories: int64 [B, 26], with different ids in different columns.

    Outputs:
        Logits, float32 [B].
    """

    def __init__(self, dim: int = 8, hidden: Sequence[int] = (64, 32), sigma: float = 0.01) -> None:
        super().__init__()
        self.categories = Embedding(1 + dim, scale=sigma)
        self.weights = nn.Dense(NUMBERS, 1, weight_init="zeros", bias_init="zeros")
        self.numbers = Parameter(initializer(Normal(sigma), (NUMBERS, dim)), name="numbers")
        self.pairs = PairwiseProducts()
        self.deep = Perceptron((NUMBERS + len(CATEGORIES)) * dim, hidden, 1)
        self.concat = ops.Concat(axis=1)

    def construct(self, numbers, categories):
        """Return the logits; see the class for shapes."""
        rows = self.categories(categories)
        linear = self.weights(numbers).reshape(-1) + rows[:, :, 0].sum(axis=1)
        vectors = self.concat((ops.expand_dims(numbers, -1) * self.numbers, rows[:, :, 1:]))
        return linear + self.pairs(vectors) + self.deep(vectors.reshape(vectors.shape[0], -1)).reshape(-1)
