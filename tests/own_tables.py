"""Tables such as users bring, of five kinds, with a known signal: clicks, revenue, classes, ratings, implicit."""

import csv

import numpy as np

DAY = np.datetime64("2024-01-01T00:00:00")


def _columns(rng, rows):
    """Return columns that most tables have: ids, categories, numbers, lists, times; some values missing."""
    columns = {
        "user_id": np.minimum(rng.zipf(1.3, rows), rows // 20),
        "item_id": np.minimum(rng.zipf(1.3, rows), rows // 40),
        "city": rng.choice(list("abcdefgh"), rows, p=np.arange(1, 9) / 36),
        "device": rng.choice(["phone", "desk", "tablet"], rows, p=[0.6, 0.3, 0.1]),
        "age": rng.normal(40, 12, rows).round(1),
        "price": rng.lognormal(3, 1.2, rows).round(2),
        "distance": rng.exponential(5, rows).round(2),
        "when": DAY + rng.integers(0, 365 * 24, rows).astype("timedelta64[h]"),
        "tags": np.array(
            ["|".join(rng.choice(list("uvwxyz"), rng.integers(1, 4), replace=False)) for _ in range(rows)]
        ),
    }
    return columns


def _effects(rng, values, scale):
    """Return an effect for each value, normal with deviation `scale`."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return rng.normal(0, scale, len(distinct))[inverse]


def _score(rng, columns):
    """Return a score of deviation near 1: main effects, a curve and two interactions."""
    hour = columns["when"].astype("datetime64[h]").astype(int) % 24
    score = _effects(rng, columns["user_id"], 0.6) + _effects(rng, columns["item_id"], 0.6)
    score += _effects(rng, columns["city"], 0.4) + _effects(rng, columns["device"], 0.4)
    score += 0.03 * (columns["age"] - 40) - 0.5 * (np.log1p(columns["price"]) - 3) + 0.4 * np.sin(hour / 24 * 2 * np.pi)
    score += _effects(rng, np.char.add(columns["city"], columns["device"]), 0.4)
    score += 0.5 * np.char.count(columns["tags"].astype(str), "u") - 0.3 * np.char.count(
        columns["tags"].astype(str), "z"
    )
    return score


def clicks(rows, seed=0):
    """Return a table with a binary label, a quarter of it 1."""
    rng = np.random.default_rng(seed)
    columns = _columns(rng, rows)
    score = _score(rng, columns)
    return _missing(rng, columns) | {"click": (rng.random(rows) < 1 / (1 + np.exp(1.4 - score))).astype(int)}


def revenue(rows, seed=1):
    """Return a table with a positive amount that has a long tail."""
    rng = np.random.default_rng(seed)
    columns = _columns(rng, rows)
    return _missing(rng, columns) | {
        "revenue": np.exp(3 + 0.5 * _score(rng, columns) + rng.normal(0, 0.5, rows)).round(2)
    }


def classes(rows, seed=2):
    """Return a table with a label of three texts."""
    rng = np.random.default_rng(seed)
    columns = _columns(rng, rows)
    scores = np.stack([_score(rng, columns) + rng.gumbel(size=rows) for _ in range(3)], 1)
    return _missing(rng, columns) | {"outcome": np.array(["bought", "left", "returned"])[scores.argmax(1)]}


def ratings(rows, seed=3):
    """Return ratings of films, 1 to 5, with a taste of four dimensions."""
    rng = np.random.default_rng(seed)
    user, film = np.minimum(rng.zipf(1.2, rows), rows // 30), np.minimum(rng.zipf(1.2, rows), rows // 60)
    tastes, kinds = rng.normal(0, 0.5, (rows, 4)), rng.normal(0, 0.5, (rows, 4))
    score = 3.4 + _effects(rng, user, 0.4) + _effects(rng, film, 0.5) + (tastes[user] * kinds[film]).sum(1)
    genre = np.array(["drama", "comedy", "action", "horror"])[kinds[film].argmax(1)]
    return {
        "user": user,
        "film": film,
        "genre": genre,
        "timestamp": 1_600_000_000 + rng.integers(0, 10**7, rows),
        "rating": np.clip(np.rint(score + rng.normal(0, 0.7, rows)), 1, 5).astype(int),
    }


def implicit(rows, seed=4):
    """Return which user took which item, without a label: what was not taken is not in the table."""
    rng = np.random.default_rng(seed)
    users, items, groups = rows // 20, 200, 5
    user, group = rng.integers(0, users, rows), rng.integers(0, groups, users)
    of_group = rng.random(rows) < 0.8
    item = np.minimum(rng.geometric(0.06, rows), items // groups) - 1
    item = item * groups + np.where(of_group, group[user], rng.integers(0, groups, rows))
    return {
        "user_id": user,
        "age_band": np.array(["young", "adult", "old"])[(group[user] + user % 2) % 3],
        "item_id": item,
        "genre": np.array(["drama", "comedy", "action", "horror", "news"])[item % groups],
        "when": DAY + rng.integers(0, 365 * 24, rows).astype("timedelta64[h]"),
    }


def _missing(rng, columns):
    """Return the columns with one value in twenty missing, ids and times excepted."""
    return {
        name: values
        if name in ("user_id", "item_id", "when")
        else np.where(rng.random(len(values)) < 0.05, None, values)
        for name, values in columns.items()
    }


KINDS = {"clicks": clicks, "revenue": revenue, "classes": classes, "ratings": ratings, "implicit": implicit}


def write_csv(columns, path, delimiter=","):
    """Write columns as a CSV file; None is an empty field."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(
            zip(*([None if v is None else str(v) for v in values] for values in columns.values()), strict=True)
        )
    return path
