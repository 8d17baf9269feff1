"""One raw row through `ServedModel.predict`: DeepFM on 13 numbers and 26 categories, as click logs have them.

    python benchmarks/serve_row.py [--rows 2000] [--batch 256 | --batch 1 256]

Prints the time from a row, a mapping of column names to values, to its prediction, in this process and without HTTP;
and where it is spent: turning the row into the network's inputs, looking its ids up, running the graph.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import lifetime

NUMBERS, CATEGORIES, DIM, HIDDEN = 13, 26, 16, (64, 32)


def clicks(rows: int) -> dict[str, np.ndarray]:
    """Return raw rows: numbers, categories of eight hexadecimal digits, and whether there was a click."""
    rng = np.random.default_rng(0)
    table = {f"number_{n}": rng.lognormal(size=rows).round(3) for n in range(NUMBERS)}
    table |= {f"category_{n}": np.char.mod("%08x", rng.zipf(1.2, rows) % 100_000) for n in range(CATEGORIES)}
    table["click"] = (rng.random(rows) < 0.3).astype(np.float32)
    return table


def publish(folder: Path, batch: int | list[int]) -> None:
    """Train a few steps and publish."""
    from mindspore import nn

    from trainer import Trainer
    from trainer.features import Categorical, Features, Numeric
    from trainer.models import DeepFM
    from trainer.serving import Publish

    columns = [Numeric(f"number_{n}", normalize="standard") for n in range(NUMBERS)]
    features = Features([*columns, *(Categorical(f"category_{n}") for n in range(CATEGORIES))], label="click")
    net = DeepFM(features, dim=DIM, hidden=HIDDEN)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-3), features=features)
    trainer.fit(clicks(20_000), epochs=1, batch_size=1000, callbacks=[Publish(folder, every=1e6, batch=batch)])


def raw_rows(count: int) -> list[dict[str, object]]:
    """Return rows to predict, each a mapping."""
    table = clicks(count)
    del table["click"]
    listed = {name: column.tolist() for name, column in table.items()}
    return [dict(zip(listed, values, strict=True)) for values in zip(*listed.values(), strict=True)]


def milliseconds(action, rows: list) -> tuple[float, float]:
    """Return median and p99 of an action on each of the rows, after a tenth of them as warm-up."""
    for row in rows[: len(rows) // 10]:
        action(row)
    times = []
    for row in rows:
        began = time.perf_counter()
        action(row)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times), float(np.quantile(times, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="that are asked for, one at a time")
    parser.add_argument("--batch", type=int, nargs="+", default=[256], help="rows of the published programs")
    given = parser.parse_args()
    from trainer.serving import ServedModel

    with lifetime.guarded("serve-row-") as folder:
        publish(folder / "published", given.batch)
        rows = raw_rows(given.rows)
        with ServedModel(folder / "published", follow=False) as model:
            whole = milliseconds(model.predict, rows)
            inputs = milliseconds(model.features.transform, rows)
            ready = [model.features.transform(row) for row in rows]
            rest = milliseconds(model.predict, ready)
    print(f"one raw row: median {whole[0]:.2f} ms, p99 {whole[1]:.2f} ms")
    print(f"  raw row to the network's inputs: median {inputs[0]:.2f} ms, p99 {inputs[1]:.2f} ms")
    print(f"  look-up of ids and the graph: median {rest[0]:.2f} ms, p99 {rest[1]:.2f} ms")


if __name__ == "__main__":
    main()
