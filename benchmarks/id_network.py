"""Wide & Deep on the numbered ids of MovieLens-100K: a network whose inputs are the columns of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindspore import Parameter, nn, ops
from mindspore.common.initializer import Normal, initializer

from examples.movielens import SIZES
from trainer.embedding import Embedding
from trainer.models.layers import Perceptron

RAW_IDS = ("user", "item")


class WideDeep(nn.Cell):
    """A linear model of the categories and a perceptron over their embeddings, added to one logit.

    For measurements that look into batches, or score copies of a model row by row; `trainer.models.WideDeep` is the
    one for data (H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016).

    Genres enter the perceptron as the mean of the vectors of a film's genres. Row 0 of users and items, which
    stands for all that training has not seen, starts at zero: the mean of what is known, and training leaves it there.

    Args:
        dim: width of every embedding.
        hidden: widths of the perceptron's hidden layers.
        sigma: standard deviation of the embeddings' first values.
        sizes: rows of each table, by feature name; those of `examples.movielens` by default.
        crosses: give the linear model products of features too: each user's weight for every genre and year, and each
            item's for every gender and age. With few users known, they generalize better than ids alone.
        raw_ids: look users and items up in tables that take any ids and grow with them, instead of numbering them. An
            id that training has not seen then reads zeros, as row 0 does otherwise.

    Inputs:
        user, item, age, gender, occupation, year: int32 [B], below their sizes; with `raw_ids`, user and item may be
            any integers or strings.
        genres: float32 [B, number of genres], 0 or 1.

    Outputs:
        Logits, float32 [B].
    """

    def __init__(
        self,
        dim: int = 16,
        hidden: Sequence[int] = (64, 32),
        sigma: float = 0.01,
        sizes: Mapping[str, int] = SIZES,
        crosses: bool = False,
        raw_ids: bool = False,
    ) -> None:
        super().__init__()

        def wide(name: str, width: int = 1) -> nn.Cell:
            if raw_ids and name in RAW_IDS:
                return Embedding(width, initializer="zeros")
            return nn.Embedding(sizes[name], width, embedding_table="zeros")

        def deep(name: str) -> nn.Cell:
            if raw_ids and name in RAW_IDS:
                return Embedding(dim, scale=sigma)
            unseen = 0 if name in RAW_IDS else None
            return nn.Embedding(sizes[name], dim, embedding_table=Normal(sigma), padding_idx=unseen)

        self.wide_user, self.user = wide("user"), deep("user")
        self.wide_item, self.item = wide("item"), deep("item")
        self.wide_age, self.age = wide("age"), deep("age")
        self.wide_gender, self.gender = wide("gender"), deep("gender")
        self.wide_occupation, self.occupation = wide("occupation"), deep("occupation")
        self.wide_year, self.year = wide("year"), deep("year")
        self.wide_genres = Parameter(initializer("zeros", (sizes["genres"], 1)), name="wide_genres")
        self.genres = Parameter(initializer(Normal(sigma), (sizes["genres"], dim)), name="genres")

        self.crosses = crosses
        if crosses:
            self.user_by_film = wide("user", sizes["genres"] + sizes["year"])
            self.item_by_person = wide("item", sizes["gender"] + sizes["age"])
        self.sizes = dict(sizes)

        self.deep = Perceptron(dim * len(sizes), hidden, 1)
        self.concat = ops.Concat(axis=1)

    def construct(self, user, item, age, gender, occupation, genres, year):
        """Return the logits; see the class for shapes."""
        share = genres / ops.maximum(genres.sum(axis=1, keepdims=True), 1.0)
        wide = (
            self.wide_user(user)
            + self.wide_item(item)
            + self.wide_age(age)
            + self.wide_gender(gender)
            + self.wide_occupation(occupation)
            + self.wide_year(year)
            + ops.matmul(genres, self.wide_genres.astype(genres.dtype))
        )
        if self.crosses:
            film = self.concat((genres, self._one_hot("year", year)))
            person = self.concat((self._one_hot("gender", gender), self._one_hot("age", age)))
            wide += (self.user_by_film(user) * film).sum(axis=1, keepdims=True)
            wide += (self.item_by_person(item) * person).sum(axis=1, keepdims=True)
        deep = self.deep(
            self.concat(
                (
                    self.user(user),
                    self.item(item),
                    self.age(age),
                    self.gender(gender),
                    self.occupation(occupation),
                    ops.matmul(share, self.genres.astype(share.dtype)),
                    self.year(year),
                )
            )
        )
        return (wide + deep).reshape(-1)

    def _one_hot(self, name, values):
        return ops.one_hot(values, self.sizes[name], 1.0, 0.0)
