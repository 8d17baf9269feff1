"""DeepFM (H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Parameter, nn, ops
from mindspore.common.initializer import Normal, initializer

from examples.movielens import SIZES
from trainer.embedding import Embedding
from trainer.models.layers import PairwiseProducts, Perceptron


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
        self.pairs = PairwiseProducts()
        self.deep = Perceptron(len(SIZES) * dim, hidden, 1)

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
        deep = self.deep(vectors.reshape(vectors.shape[0], -1))
        return (linear + deep).reshape(-1) + self.pairs(vectors)
