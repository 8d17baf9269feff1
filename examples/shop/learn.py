"""The two training programs of the shop.

python -m examples.shop.learn fit FOLDER ROWS        train once on past visits
python -m examples.shop.learn online FOLDER URL      continue on served visits from Redis and publish versions
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mindspore import nn, set_seed

from callbacks import Callback
from examples.shop.rows import WITHIN, features, network, part, visits
from trainer import ModelCheckpoint, Trainer, Window
from trainer.serving import Publish
from trainer.streams import ServedOutcomes


def _trainer(rate: float) -> Trainer:
    declared = features()
    net = network(declared)
    optimizer = nn.Adam(net.trainable_params(), rate)
    return Trainer(net, nn.BCEWithLogitsLoss(), optimizer, {"auc"}, features=declared)


def fit(folder: Path, rows: int) -> None:
    """Train on the oldest visits and save a snapshot."""
    set_seed(1)
    _trainer(2e-3).fit(
        part(visits(), slice(0, rows)),
        epochs=2,
        batch_size=256,
        callbacks=[ModelCheckpoint(folder / "offline", every=200)],
    )


def online(folder: Path, url: str) -> None:
    """Train on served requests and their outcomes until SIGTERM; publish every second."""
    trainer = _trainer(1e-3)
    trainer.load(folder / "offline", weights_only=True)
    trainer.online_train(
        ServedOutcomes(url, url, wait=WITHIN, idle_timeout=None),
        callbacks=[
            ModelCheckpoint(folder / "online", every=20),
            Publish(folder / "published", every=1.0, compact=10_000),
            Windows(folder / "windows.jsonl"),
        ],
        batch_size=64,
        sink_size=4,
        window=Window(event_time=2 * 86400),
        resume="auto",
    )


class Windows(Callback):
    """Writes the metrics of every window to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_window_end(self, trainer: Trainer) -> None:
        """Append the metrics of the closed window."""
        with open(self._path, "a") as file:
            file.write(json.dumps(trainer.state.window, default=float) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "fit":
        fit(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        online(Path(sys.argv[2]), sys.argv[3])
