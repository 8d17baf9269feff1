"""Raw rows whose numbers drift and which have new cities all the time; some values are missing."""

import numpy as np


def drifting_rows(rows, per_city, seed=0):
    """Return columns of `rows` rows; about every `per_city` rows a new city comes."""
    rng = np.random.default_rng(seed)
    time = np.arange(rows) / per_city
    cities = [f"city {int(n)}" for n in time + rng.integers(0, 3, rows)]
    return {
        "x": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(3 * time, 1 + time)),
        "z": rng.lognormal(time / 4, 1, rows),
        "city": [None if rng.random() < 0.1 else city for city in cities],
        "tags": ["|".join(rng.choice(cities[: n + 3], 2)) for n in range(rows)],
        "y": (rng.random(rows) < 0.5).astype(float),
    }
