"""A small table with every shape of feature that the models take."""

import numpy as np

from trainer.features import Categorical, Features, ListFeature, Numeric

ROWS = 256


def make_rows(seed=0):
    random = np.random.default_rng(seed)
    items = random.integers(1, 12, ROWS)
    history = [random.integers(1, 12, random.integers(0, 5)).tolist() for _ in range(ROWS)]
    ages = random.normal(40, 10, ROWS)
    click = (items + (ages > 40) + random.integers(0, 3, ROWS) > 7).astype(np.float32)
    return {
        "age": [None if n % 9 == 0 else float(age) for n, age in enumerate(ages)],
        "price": random.random(ROWS),
        "user": 2 * items + random.integers(0, 2, ROWS),
        "item": items,
        "genres": [["a", "b", "c"][: n % 4] for n in range(ROWS)],
        "history": history,
        "click": click,
        "buy": click * (ages > 45),
    }


def make_features(labels="click", pooling="mean"):
    return Features(
        [
            Numeric("age", normalize="standard"),
            Numeric("price"),
            Categorical("user", dtype="int64"),
            Categorical("item", dtype="int64", table="items"),
            ListFeature("genres", max_length=3),
            ListFeature("history", dtype="int64", table="items", pooling=pooling, max_length=4),
        ],
        label=labels,
    )
