"""What `serve_load` serves: DeepFM on synthetic visits, trained on a stream while it is published.

python benchmarks/serve_model.py FOLDER [--every 2] [--rows-per-second 2000]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

USERS, ITEMS, CITIES, NUMBERS = 20_000, 5_000, 50, 4
DIM, HIDDEN, BATCH = 16, (64, 32), 256


def visits(seed: int, rows: int) -> dict[str, np.ndarray]:
    """Return raw rows: user and item by Zipf's law, a city, numbers, and whether the visit ended in a click."""
    rng = np.random.default_rng(seed)
    table = {"user": rng.zipf(1.3, rows) % USERS, "item": rng.zipf(1.2, rows) % ITEMS}
    table["city"] = np.char.add("city-", (rng.integers(0, CITIES, rows)).astype(str))
    for number in range(NUMBERS):
        table[f"number_{number}"] = rng.normal(size=rows).astype(np.float32).round(4)
    odds = (table["user"] % 7 + table["item"] % 5 - 5) / 3 + table["number_0"]
    table["click"] = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    return table


def pool(rows: int = 1000) -> list[dict[str, object]]:
    """Return the rows that clients ask for."""
    table = visits(9, rows)
    del table["click"]
    columns = {name: column.tolist() for name, column in table.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def train(
    folder: Path,
    every: float,
    rows_per_second: float,
    seconds: float | None = None,
    batch: int | tuple[int, ...] = BATCH,
) -> None:
    """Train on an endless stream that comes at a rate, and publish programs of `batch` rows; every version is kept."""
    from mindspore import nn

    from trainer import Trainer
    from trainer.features import Categorical, Features, Numeric
    from trainer.models import DeepFM
    from trainer.serving import Publish

    numbers = [Numeric(f"number_{n}", normalize="standard") for n in range(NUMBERS)]
    features = Features([Categorical("user"), Categorical("item"), Categorical("city"), *numbers], label="click")
    features.fit(visits(0, 10_000))

    def stream():
        started = time.monotonic()
        for number in range(10**9):
            table = visits(100 + number, BATCH)
            yield table
            time.sleep(max(0.0, started + number * BATCH / rows_per_second - time.monotonic()))

    net = DeepFM(features, dim=DIM, hidden=HIDDEN)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-3), features=features)
    publish = Publish(folder, every=every, batch=batch, compact=100_000)
    trainer.online_train(stream, callbacks=[publish], sink_size=1, max_time=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between versions")
    parser.add_argument("--rows-per-second", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    train(given.folder, given.every, given.rows_per_second, given.seconds)


if __name__ == "__main__":
    main()
