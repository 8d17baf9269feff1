"""What freshness is worth: AUC on MovieLens-100K against the rows between updates of the model that scores.

    python benchmarks/online_quality.py

One Wide & Deep learns the ratings in the order of time, one update per ten (`trainer.online_train`). Five models score
every rating before it is learned: the learning one itself, copies of it that are brought up to date every 300, 3,000
and 36,000 ratings, and one that is left as it was after the first 9,000. Where 600 ratings come in a second of event
time, copies are published every 0.5 s, 5 s and 60 s. Rows are counted, no clock is read: a busy machine gets the same
figures. All see the same rows, so their lifetime AUCs differ by their age alone. Prints a table, draws a picture, and
ends with exit code 1 when an AUC is not below that of the next shorter interval by more than the spread of the seeds,
or the learning model does not exceed the 0.737 of a tuned linear model in River. `--batch 1` learns each rating alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import mindspore
import numpy as np
from mindspore import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.id_network import WideDeep  # noqa: E402
from callbacks import Callback, ProgressBar  # noqa: E402
from examples.baselines import auc  # noqa: E402
from examples.movielens import FEATURES, LABEL, load  # noqa: E402
from trainer import Trainer, Window  # noqa: E402
from trainer.streams import ReplayStream  # noqa: E402

LINEAR = 0.737
INTERVALS = (300, 3000, 36_000)
ROWS_PER_SECOND = 600  # of the stream's own time: the intervals are 0.5 s, 5 s and 60 s
FROZEN_AFTER = 9_000


class Copies(Callback):
    """Scores rows ahead with the model as it is now, as a server would until it gets the next copy.

    Args:
        columns: features, in the order of time.
        intervals: rows between two copies; multiples of the rows of a call of the training program.
        frozen_after: rows after which one more copy is made, and kept for good.
    """

    def __init__(self, columns: dict[str, np.ndarray], intervals: Sequence[int], frozen_after: int) -> None:
        self.columns = columns
        self.rows = len(next(iter(columns.values())))
        self.intervals = intervals
        self.frozen_after = frozen_after
        self.scores = {name: np.full(self.rows, np.nan, np.float32) for name in (*intervals, "frozen")}
        self._server: Trainer | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        """Score the first rows with the untrained model."""
        self._server = Trainer(trainer.network)  # a second trainer over the same weights, for `predict` alone
        self._refresh(0)

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Bring the copies up to date that are due."""
        self._refresh(trainer.state.progress.samples_seen)

    def _refresh(self, row: int) -> None:
        for interval in self.intervals:
            if interval <= self.frozen_after and row % interval == 0:
                self._score(self.scores[interval], row, row + interval)
        if row == self.frozen_after:
            # until then, the place of staler models is taken by the stalest copy
            stalest = self.scores[max(interval for interval in self.intervals if interval <= row)]
            for name in ("frozen", *(interval for interval in self.intervals if interval > row)):
                self.scores[name][:row] = stalest[:row]
            self._score(self.scores["frozen"], row, self.rows)
        for interval in self.intervals:
            if interval > self.frozen_after <= row and (row - self.frozen_after) % interval == 0:
                self._score(self.scores[interval], row, row + interval)

    def _score(self, into: np.ndarray, start: int, end: int) -> None:
        end = min(end, self.rows)
        if start < end:
            rows = {name: column[start:end] for name, column in self.columns.items()}
            into[start:end] = self._server.predict(rows, batch_size=min(end - start, 3000))


def measure(rows: int | None = None, seed: int = 1, batch: int = 10) -> dict[str, float]:
    """Return lifetime AUC by rows between updates: the batch, "300", "3000", "36000", "frozen"; and "seconds"."""
    mindspore.set_seed(seed)
    np.random.seed(seed)
    columns = {name: column[:rows] for name, column in load().items()}
    features = {name: columns[name] for name in FEATURES}
    network = WideDeep(dim=16, hidden=(64, 32))
    optimizer = nn.Adagrad(network.trainable_params(), learning_rate=0.05)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, seed=seed)
    copies = Copies(features, INTERVALS, FROZEN_AFTER)
    stream = ReplayStream({**features, LABEL: columns[LABEL]})
    began = time.monotonic()
    trainer.online_train(
        stream, [ProgressBar(), copies], sink_size=INTERVALS[0] // batch, batch_size=batch, window=Window(rows=10_000)
    )
    seconds = time.monotonic() - began
    label = columns[LABEL]
    measured = {str(batch): trainer.state.window["lifetime_auc"]}
    measured |= {str(name): auc(label, scores) for name, scores in copies.scores.items()}
    return {**measured, "seconds": seconds}


def table(runs: Sequence[dict[str, float]]) -> str:
    """Return the mean AUCs of several seeds, with their standard deviation, as a Markdown table."""
    lines = [
        "| rows between updates | seconds of the stream | lifetime AUC | spread of the seeds |",
        "|" + " --- |" * 4,
    ]
    for name in runs[0]:
        if name != "seconds":
            values = [measured[name] for measured in runs]
            seconds = f"{int(name) / ROWS_PER_SECOND:g}" if name.isdigit() else "never"
            lines.append(f"| {name} | {seconds} | {np.mean(values):.4f} | {np.std(values):.4f} |")
    return "\n".join(lines)


def draw(measured: dict[str, float], path: Path) -> None:
    """Draw the AUCs against the interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in measured if name != "seconds"]
    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=150)
    axes.plot(range(len(names)), [measured[name] for name in names], marker="o")
    axes.axhline(LINEAR, color="gray", linestyle="--", linewidth=1)
    axes.annotate("linear model, updated every row", (len(names) - 1, LINEAR), ha="right", va="bottom", color="gray")
    axes.set_xticks(range(len(names)), [f"{int(name):,}" if name.isdigit() else name for name in names])
    axes.set_xlabel("rows between updates of the model that scores")
    axes.set_ylabel("lifetime AUC")
    axes.set_title("MovieLens-100K in the order of time")
    figure.tight_layout()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="the oldest rows alone")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/online_quality"), help="folder for picture and figures"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many; default: 1")
    parser.add_argument("--batch", type=int, default=10, help="rows of an update, a divisor of 300; default: 10")
    given = parser.parse_args(argv)
    runs = [measure(given.rows, seed, given.batch) for seed in range(1, given.seeds + 1)]
    measured = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "online_quality.json").write_text(json.dumps(runs, indent=1))
    draw(measured, given.output / "online_quality.png")
    print(table(runs))
    print(f"\n{measured['seconds']:.0f} s; picture and figures in {given.output}")
    values = [(value, np.std([run[name] for run in runs])) for name, value in measured.items() if name != "seconds"]
    falls = all(fresh - stale > max(one, other) for (fresh, one), (stale, other) in pairwise(values))
    return 0 if falls and (given.rows is not None or values[0][0] > LINEAR) else 1


if __name__ == "__main__":
    sys.exit(main())
