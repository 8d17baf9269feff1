"""DeepFM (H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mindspore import Parameter, nn, ops
from mindspore.common.initializer import HeNormal, Normal, initializer

from examples.movielens import SIZES
from trainer.embedding import Embedding


class FactorizationMachine(nn.Cell):
    """The sum of the inner products of all pairs of vectors, computed in linear time (S. Rendle 2010, lemma 3.1).

    Inputs:
        vectors: float [B, fields, dim].

    Outputs:
        float [B].
    """

    def construct(self, vectors):
        """Return the sums; see the class for shapes."""
        total = vectors.sum(axis=1)
        return 0.5 * (ops.square(total) - ops.square(vectors).sum(axis=1)).sum(axis=1)


class DeepFMHead(nn.Cell):
    """A factorization machine and a perceptron over the same vectors.

    Args:
        fields: vectors a row.
        dim: their length.
        hidden: widths of the perceptron's hidden layers.

    Inputs:
        vectors: float [B, fields, dim].

    Outputs:
        float [B], to be added to the linear terms.
    """

    def __init__(self, fields: int, dim: int, hidden: Sequence[int] = (64, 32)) -> None:
        super().__init__()
        self.pairs = FactorizationMachine()
        widths = [fields * dim, *hidden]
        layers: list[nn.Cell] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Dense(fan_in, fan_out, weight_init=HeNormal(nonlinearity="relu")), nn.ReLU()]
        self.deep = nn.SequentialCell([*layers, nn.Dense(widths[-1], 1)])

    def construct(self, vectors):
        """Return the contribution to the logits; see the class for shapes."""
        return self.pairs(vectors) + self.deep(vectors).reshape(-1)


class DeepFM(nn.Cell):
    """DeepFM for MovieLens-100K, fed with the ids of people and films as they are in the files.

    Users and items live in tables that give a new id a row when it comes; ids that training has not seen read zeros,
    the mean of what is known. The other features have a handful of values each and stay dense. Genres enter as the
    mean of the vectors of a film's genres.

    Args:
        dim: length of every vector.
        hidden: widths of the perceptron's hidden layers.
        sigma: standard deviation of the vectors' first values.

    Inputs:
        user, item: integers or strings [B].
        age, gender, occupation, year: int32 [B], below `examples.movielens.SIZES`.
        genres: float32 [B, number of genres], 0 or 1.

    Outputs:
        Logits, float32 [B].
    """

    def __init__(self, dim: int = 8, hidden: Sequence[int] = (64, 32), sigma: float = 0.01) -> None:
        super().__init__()

        def linear(name: str) -> nn.Embedding:
            return nn.Embedding(SIZES[name], 1, embedding_table="zeros")

        def vector(name: str) -> nn.Embedding:
            return nn.Embedding(SIZES[name], dim, embedding_table=Normal(sigma))

        self.linear_user, self.user = Embedding(1, initializer="zeros"), Embedding(dim, scale=sigma)
        self.linear_item, self.item = Embedding(1, initializer="zeros"), Embedding(dim, scale=sigma)
        self.linear_age, self.age = linear("age"), vector("age")
        self.linear_gender, self.gender = linear("gender"), vector("gender")
        self.linear_occupation, self.occupation = linear("occupation"), vector("occupation")
        self.linear_year, self.year = linear("year"), vector("year")
        self.linear_genres = Parameter(initializer("zeros", (SIZES["genres"], 1)), name="linear_genres")
        self.genres = Parameter(initializer(Normal(sigma), (SIZES["genres"], dim)), name="genres")
        self.stack = ops.Stack(axis=1)
        self.head = DeepFMHead(len(SIZES), dim, hidden)

    def construct(self, user, item, age, gender, occupation, genres, year):
        """Return the logits; see the class for shapes."""
        share = genres / ops.maximum(genres.sum(axis=1, keepdims=True), 1.0)
        linear = (
            self.linear_user(user)
            + self.linear_item(item)
            + self.linear_age(age)
            + self.linear_gender(gender)
            + self.linear_occupation(occupation)
            + self.linear_year(year)
            + ops.matmul(genres, self.linear_genres.astype(genres.dtype))
        )
        vectors = self.stack(
            (
                self.user(user).astype(share.dtype),
                self.item(item).astype(share.dtype),
                self.age(age),
                self.gender(gender),
                self.occupation(occupation),
                ops.matmul(share, self.genres.astype(share.dtype)),
                self.year(year),
            )
        )
        return linear.reshape(-1) + self.head(vectors)
