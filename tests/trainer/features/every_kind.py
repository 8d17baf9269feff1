"""A table with missing values in every column, features of every kind on it, and a small network on them."""

import numpy as np
from mindspore import nn, ops

from trainer.features import (
    Bucketized,
    Categorical,
    Cross,
    Custom,
    Expression,
    Features,
    ListFeature,
    Lookup,
    Numeric,
    Overlap,
    Text,
    Time,
    Vector,
    WeightedList,
)
from trainer.features.feature_embedding import FeatureEmbedding

MISSING_SHARE = 0.1


def share_of_vowels(title):
    return np.array([sum(text.count(vowel) for vowel in "aeiou") / max(1, len(text)) for text in title.tolist()])


def make_features(max_length=None, **options):
    return Features(
        [
            Numeric("age", normalize="standard", indicator=True),
            Numeric("income", transform="log1p", normalize="min_max", clip=(0, 1e5), missing="mean"),
            Numeric("wealth", column="income", transform="log1p", normalize="standard", embedding="autodis"),
            Numeric("years", column="age", normalize="min_max", embedding={"kind": "mlp", "buckets": 4}),
            Bucketized("age_bucket", column="age", boundaries=4),
            Vector("face", width=3),
            Expression("ratio", expression="where(age > 30, income / age, 0)"),
            Categorical("user", dtype="int64"),
            Categorical("city", vocabulary="learn", min_count=3),
            Categorical("shop", hash_buckets=50),
            Categorical("device", vocabulary=["phone", "desk"]),
            Categorical("item", table="items"),
            Cross("user_city", columns=["user", "city"], dtype=["int64", "str"], hash_buckets=1000),
            Cross("city_genres", columns=["city", "genres"], elements="genres", separator="|", max_length=max_length),
            Time("ts", parts=["hour", "weekday", "month"], since="born"),
            ListFeature("genres", separator="|", vocabulary="learn", max_length=max_length),
            ListFeature("history", table="items", pooling=None, max_length=4),
            WeightedList("tags", dtype="int64", weights="tag_weights", max_length=8, pooling="sum"),
            Text("title", ngrams=2, max_length=8),
            Lookup("taste", column="tastes", key="city", missing=-1.0),
            Overlap("match", columns=["query", "title"]),
            Custom("vowels", function=share_of_vowels, columns=["title"], dtype="str"),
        ],
        **{"label": "click", **options},
    )


def make_rows(count, seed=0, missing=MISSING_SHARE):
    """Return rows as Python values, as a JSON line holds them; a missing value is None."""
    rng = np.random.default_rng(seed)
    words = np.array(["red", "blue", "shoe", "hat", "cap", "green", "Table", "chair"])
    genres, items = np.array(["x", "y", "z z"]), np.array([f"i{i}" for i in range(30)])

    def lists(values, most):  # what `rng.choice` gives, in a third of the time
        return [values[rng.integers(0, len(values), rng.integers(1, most))].tolist() for _ in range(count)]

    columns = {
        "age": rng.normal(40, 12, count).round(2).tolist(),
        "income": rng.lognormal(9, 1, count).round(1).tolist(),
        "face": rng.normal(0, 1, (count, 3)).round(3).tolist(),
        "user": rng.integers(0, 200, count).tolist(),
        "city": rng.choice([*"abcdef", *[f"rare{i}" for i in range(40)]], count).tolist(),
        "shop": rng.choice([f"shop {i}" for i in range(90)], count).tolist(),
        "device": rng.choice(["phone", "desk", "watch"], count).tolist(),
        "item": rng.choice(items, count).tolist(),
        "ts": rng.integers(1_500_000_000, 1_700_000_000, count).astype(float).tolist(),
        "born": rng.integers(1_400_000_000, 1_600_000_000, count).astype(float).tolist(),
        "genres": ["|".join(some) for some in lists(genres, 4)],
        "history": lists(items, 7),
        "tags": [rng.integers(0, 20, rng.integers(1, 4)).tolist() for _ in range(count)],
        "tag_weights": [rng.random(rng.integers(1, 4)).round(2).tolist() for _ in range(count)],
        "title": [" ".join(some) for some in lists(words, 4)],
        "query": [" ".join(some) for some in lists(words, 3)],
        "tastes": [f"a:{a}|b:{b}" for a, b in rng.random((count, 2)).round(2)],
    }
    for values in columns.values():
        for row in np.flatnonzero(rng.random(count) < missing):
            values[row] = None
    columns["click"] = ((rng.random(count) < 0.5) | np.array([city == "a" for city in columns["city"]])).astype(float)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


class Net(nn.Cell):
    """A linear layer on everything that the features give."""

    def __init__(self, features, dim=4):
        super().__init__()
        self.embedding = FeatureEmbedding(features, dim)
        fields = len(self.embedding.field_names) + len(self.embedding.sequence_names)
        self.top = nn.Dense(dim * fields + self.embedding.number_width, 1)

    def construct(self, *columns):
        fields, numbers, sequences = self.embedding(*columns)
        parts = (fields.reshape(fields.shape[0], -1), numbers)
        for vectors, _ in sequences:
            parts += (vectors.sum(1),)
        return self.top(ops.concat(parts, 1)).reshape(-1)
